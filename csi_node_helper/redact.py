"""Hides secrets in texts: plugins repeat what they were given in their messages.

A redactor learns every value of the secret fields of what is sent, and remembers it, since a later call that
carries no secrets may be answered with the words of an earlier one. In memory only.
"""

import base64
import json
import re
import shlex
import urllib.parse
from collections.abc import Iterable, Iterator

HIDDEN = "[hidden]"
_REMEMBERED = 16384
_INNER = 6
"""Characters of the inside of base64 that are no word by chance."""
_SAFE = ("", "/", "$&+=:@", "$&+,;=")
"""What stays as it is in a query, a path, an element of a path, and the user of an address."""
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
        forms |= {urllib.parse.quote(one, safe=safe) for safe in _SAFE} | {urllib.parse.quote_plus(one)}
        forms |= {repr(one)[1:-1], json.dumps(one)[1:-1], shlex.quote(one)}
        forms |= {json.dumps(one, ensure_ascii=False)[1:-1], _json_for_pages(one)}
        for encoded in _encoded(one.encode()):
            forms |= {encoded, encoded.replace("+", "-").replace("/", "_")}
    return forms


def _json_for_pages(value: str) -> str:
    """As languages write JSON that may become a part of a page."""
    text = json.dumps(value, ensure_ascii=False)[1:-1]
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def _encoded(value: bytes) -> Iterator[str]:
    """In base64: alone, and what of it is the same whatever stands before and behind: `user:password`."""
    yield base64.b64encode(value).decode()
    for before in range(3):
        text = base64.b64encode(bytes(before) + value).decode()
        inner = text[-(-before * 8 // 6) : (before + len(value)) * 8 // 6]
        if len(inner) >= _INNER:
            yield inner
