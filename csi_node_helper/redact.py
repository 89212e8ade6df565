"""Hides secrets in texts: plugins repeat what they were given in their messages.

A redactor learns every value of the secret fields of what is sent, and remembers it, since a later call that
carries no secrets may be answered with the words of an earlier one. In memory only.
"""

import base64
import re
import urllib.parse
from collections.abc import Iterable

HIDDEN = "[hidden]"
_REMEMBERED = 4096
_SHORT = 3
"""Values so short are in every text by chance: a text with one of them as a word is hidden whole."""


class Redactor:
    """Of one plugin."""

    def __init__(self) -> None:
        self._known: dict[str, None] = {}

    def learn(self, values: Iterable[str]) -> None:
        """Hide these from now on; the oldest are forgotten when there are very many."""
        for value in values:
            for form in _forms(value):
                self._known.pop(form, None)
                self._known[form] = None
        for oldest in list(self._known)[: max(0, len(self._known) - _REMEMBERED)]:
            del self._known[oldest]

    def __call__(self, text: str) -> str:
        """The text without them."""
        for value in sorted(self._known, key=len, reverse=True):
            if len(value) >= _SHORT:
                text = text.replace(value, HIDDEN)
            elif re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text):
                return HIDDEN
        return text


def _forms(value: str) -> set[str]:
    """A value, the value of `key=value`, its lines, and what they look like when quoted or encoded."""
    plain = {value, value.strip(), *value.splitlines()}
    if "=" in value:
        plain.add(value.partition("=")[2])
    plain.discard("")
    forms = set(plain)
    for one in plain:
        forms.add(urllib.parse.quote(one, safe=""))
        forms.add(repr(one)[1:-1])
        forms.add(one.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n"))
        forms.add(base64.b64encode(one.encode()).decode())
    return forms
