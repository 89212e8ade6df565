"""What the agent writes to its log: stderr, so the journal's.

A fault is written once when it begins, when it becomes one of another kind (a reporter is quarantined), and
when it ends; in between it is shown by `status`. One that comes and goes is written a few times an hour.

Nothing secret comes here: callers pass words, never keys, frames or environments. Where the journal listens,
lines have fields: XCE_HOST, XCE_REPORTER, XCE_BINDING with XCE_CLAIM, each where the line is about one.
"""

import os
import sys
from collections.abc import Container, Mapping
from types import MappingProxyType
from typing import TextIO

from xce.wire import journal

NOTICE, WARNING = 5, 4
"""Priorities of syslog(3), as the journal reads them from a line's `<N>` prefix (sd-daemon(3))."""
FIELDS = {"reporter": "XCE_REPORTER", "binding": "XCE_BINDING"}
"""By the first word of what a fault is about; the rest is the value."""
_NONE: Mapping[str, str] = MappingProxyType({})
OFTEN, WINDOW_S = 5, 3600.0
"""Times that one fault's begin and end are written within so many seconds."""


class _Fault:
    """What is known of one fault; kept for a while after its end."""

    def __init__(self, now: float) -> None:
        self.on = self.quiet = False
        self.since = self.window = now
        self.times = 0
        """Begun since `window`."""
        self.kind = ""


class Log:
    """Lines to the journal (`send`) or to a stream; `prefixes`: with those that journald takes away again."""

    def __init__(
        self, stream: TextIO = sys.stderr, *, prefixes: bool | None = None, send: journal.Send | None = None
    ) -> None:
        self._stream, self._send = stream, send
        self._prefixes = "JOURNAL_STREAM" in os.environ if prefixes is None else prefixes
        self.host = ""
        """Whose log it is."""
        self.claims: Mapping[str, str] = {}
        """Which claim each binding is of."""
        self._faults: dict[str, _Fault] = {}

    def notice(self, text: str, about: str = "") -> None:
        """Something that an admin may want to know happened."""
        self._write(NOTICE, text, about)

    def warning(self, text: str, about: str = "") -> None:
        """Something is wrong."""
        self._write(WARNING, text, about)

    def fault(self, about: str, text: str, now: float, kind: str = "") -> None:
        """What is wrong with `about`, '' when it is all right; written when it begins or ends, or its kind is
        another; '' is none.
        """
        fault = self._faults.get(about)
        if fault is None:
            if not text:
                return
            fault = self._faults[about] = _Fault(now)
        other = bool(text and kind and kind != fault.kind)
        if bool(text) == fault.on and not other:
            return
        if not fault.on:
            fault.since = now
        fault.on, fault.kind = bool(text), (kind or fault.kind) if text else ""
        if fault.on:
            self._begin(about, text, fault, now)
        else:
            if not fault.quiet:
                self.notice(f"{about}: all right again after {now - fault.since:.0f} s", about)
            self._forget_old(now)

    def faults(
        self,
        prefix: str,
        found: Mapping[str, str],
        now: float,
        kinds: Mapping[str, str] = _NONE,
        *,
        right: Container[str] | None = None,
    ) -> None:
        """All faults whose `about` begins with `prefix`, by the rest: what is not in `found` is over.

        `right`: what can be all right again, if not everything: a fault ends without a word with what had it.
        """
        for about in [one for one, fault in self._faults.items() if fault.on and one.startswith(prefix)]:
            if (name := about.removeprefix(prefix)) not in found:
                self._faults[about].quiet |= right is not None and name not in right
                self.fault(about, "", now)
        for name, text in found.items():
            self.fault(prefix + name, text, now, kinds.get(name, ""))

    def _begin(self, about: str, text: str, fault: "_Fault", now: float) -> None:
        if now - fault.window >= WINDOW_S:
            fault.window, fault.times = now, 0
        fault.times += 1
        fault.quiet = fault.times > OFTEN
        if not fault.quiet:
            often = "; it comes and goes, and is not logged again within the hour"
            self.warning(f"{about}: {text}{often if fault.times == OFTEN else ''}", about)

    def _forget_old(self, now: float) -> None:
        self._faults = {
            about: fault for about, fault in self._faults.items() if fault.on or now - fault.window < WINDOW_S
        }

    def _write(self, priority: int, text: str, about: str) -> None:
        line = text.replace("\n", "; ")
        kind, _, name = about.partition(" ")
        fields = {"XCE_HOST": self.host} | ({FIELDS[kind]: name} if kind in FIELDS else {})
        if kind == "binding" and name in self.claims:
            fields["XCE_CLAIM"] = self.claims[name]
        if self._send is not None and self._send(line, priority, fields):
            return
        try:
            print(f"<{priority}>{line}" if self._prefixes else line, file=self._stream, flush=True)
        except (OSError, ValueError):
            return  # a closed or full log must not end the agent
