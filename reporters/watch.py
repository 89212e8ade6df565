"""Keeping up with the reporters' directory: its changes are seen within two seconds, without a restart.

inotify says that something changed, in the directory or in one above it (a path element whose mode is
repaired counts); then everything is looked at again. What inotify cannot see (other hosts, an inotify that
could not be had) is found by looking now and then. A directory that cannot be read leaves what was known:
`fault` says why.
"""

import contextlib
import os
from collections.abc import Callable, Collection

from xce.linux import inotify
from xce.linux.inotify import Event, Inotify
from xce.linux.loop import Loop, Timer
from xce.reporters import directory
from xce.reporters.directory import Candidate
from xce.reporters.frame import escape

SETTLE = 0.25
"""Seconds without a change before looking: an editor's or copy's writes are over by then."""
AT_MOST = 1.0
"""Seconds after the first change by which the look comes in any case."""
RESCAN, RESCAN_BLIND = 10.0, 1.5
"""Seconds between looks that nothing asked for, with inotify and without."""


class Watch:
    """Calls `on_look(candidates)` after each look, whether something differs or not."""

    def __init__(
        self,
        loop: Loop,
        path: str,
        trusted: Collection[int],
        on_look: Callable[[dict[str, Candidate]], object],
        *,
        parse: directory.Parse = directory.parse_settings,
    ) -> None:
        self.path = os.path.abspath(path)
        self.fault = ""
        """Why the directory could not be read at the last look."""
        self.candidates: dict[str, Candidate] = {}
        self._loop, self._trusted, self._on_look, self._parse = loop, trusted, on_look, parse
        self._inotify: Inotify | None = None
        self._watches: dict[int, bytes] = {}
        """Watch to the one name in it that matters; b'' for the directory itself, where all do."""
        self._first_change: float | None = None
        self._timer: Timer | None = None
        self._closed = False
        try:
            self._inotify = Inotify()
            loop.add_reader(self._inotify.fileno(), self._changed)
        except OSError:
            self._inotify = None  # too many instances on this machine: looking often is good enough

    def look(self) -> None:
        """Look at once. The first call begins the watching."""
        self._first_change = None
        self._watch_path()
        try:
            found = directory.scan(self.path, self._trusted, before=self.candidates, parse=self._parse)
            self.fault = ""
        except OSError as error:
            found = self.candidates
            self.fault = f"cannot read {escape(self.path)}: {error.strerror}"
        self.candidates = found
        self._again(RESCAN if self._inotify and self._watches else RESCAN_BLIND)
        self._on_look(found)

    def soon(self) -> None:
        """Look within a moment: something does not fit what was seen last."""
        self._again(0)

    def close(self) -> None:
        """Stop watching; may be called twice."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._inotify is not None:
            self._loop.remove_reader(self._inotify.fileno())
            self._inotify.close()
            self._inotify = None

    def _again(self, delay: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._closed:
            self._timer = self._loop.call_later(delay, self.look)

    def _changed(self) -> None:
        assert self._inotify is not None
        if not any(self._matters(event) for event in self._inotify.read()):
            return
        now = self._loop.now()
        if self._first_change is None:
            self._first_change = now
        self._again(max(0.0, min(SETTLE, self._first_change + AT_MOST - now)))

    def _matters(self, event: Event) -> bool:
        wanted = self._watches.get(event.watch, b"")
        return not wanted or not event.name or event.name == wanted

    def _watch_path(self) -> None:
        """Watch the directory and all above it, whatever is at those names now."""
        if self._inotify is None:
            return
        held: dict[int, bytes] = {}
        at, name = self.path, ""
        while True:
            # What is not there, or not ours to watch: its parent tells when that changes.
            with contextlib.suppress(OSError):
                held[self._inotify.watch(at, inotify.NAMES if name else inotify.CHANGES)] = os.fsencode(name)
            if at == "/":
                break
            at, name = os.path.split(at)
        for gone in self._watches.keys() - held.keys():
            self._inotify.forget(gone)
        self._watches = held
