"""Keeping up with the reporters' directory: its changes are seen within two seconds, without a restart.

inotify says that something changed, in the directory or in one above it (a path element whose mode is
repaired counts); then everything is looked at again. What inotify cannot see (other hosts, an inotify that
could not be had) is found by looking now and then. A directory on a file system that may hang is looked at by
a child (`remote.py`). One that cannot be read leaves what was known: `fault` says why.
"""

import contextlib
import os
from collections.abc import Callable, Collection

from xce.linux import inotify, mountinfo
from xce.linux.inotify import Event, Inotify
from xce.linux.loop import Loop, Timer
from xce.linux.mountinfo import Mount
from xce.linux.reaper import Reaper
from xce.reporters import directory
from xce.reporters.directory import Candidate
from xce.reporters.frame import escape
from xce.reporters.looker import Answer
from xce.reporters.remote import RemoteLook

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
        reaper: Reaper,
        path: str,
        trusted: Collection[int],
        on_look: Callable[[dict[str, Candidate]], object],
        *,
        parse: directory.Parse = directory.parse_settings,
        may_hang: Callable[[str], Mount | None] = mountinfo.may_hang,
    ) -> None:
        self.path = os.path.abspath(path)
        self.fault = ""
        """Why the directory could not be read at the last look."""
        self.candidates: dict[str, Candidate] = {}
        self._loop, self._trusted, self._on_look, self._parse = loop, trusted, on_look, parse
        self._may_hang = may_hang
        self._remote = RemoteLook(loop, reaper, self.path, trusted)
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
        """Look now, or have a child look. The first call begins the watching."""
        self._first_change = None
        try:
            mount = self._may_hang(self.path)
        except OSError as error:  # no descriptors: another look must come all the same
            self.fault = f"cannot tell where {escape(self.path)} lies: {error.strerror}"
            self._again(RESCAN_BLIND)
            return
        if mount is not None:
            self._forget_watches()
            self._remote.look(lambda answer: self._answered(answer, mount))
            return
        self._remote.close()
        self._watch_path()
        try:
            self.candidates = directory.scan(
                self.path, self._trusted, before=self.candidates, parse=self._parse
            )
            self.fault = ""
        except OSError as error:
            self.fault = f"cannot read {escape(self.path)}: {error.strerror}"
        self._looked()

    def _answered(self, answer: Answer, mount: Mount) -> None:
        if answer.candidates is not None:
            self.candidates = {candidate.name: candidate for candidate in answer.candidates}
        self.fault = f"{answer.fault}; it is on {mount.kind} from {mount.source}" if answer.fault else ""
        if answer.fault and not self.candidates:
            self._again(RESCAN_BLIND)  # nothing is known yet, which does not mean that there is nothing
        else:
            self._looked()

    def _looked(self) -> None:
        self._again(RESCAN if self._inotify and self._watches else RESCAN_BLIND)
        self._on_look(self.candidates)

    def soon(self) -> None:
        """Look within a moment: something does not fit what was seen last."""
        self._again(0)

    def close(self) -> None:
        """Stop watching; may be called twice."""
        self._closed = True
        self._remote.close()
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
        self._forget_watches(held)

    def _forget_watches(self, held: dict[int, bytes] | None = None) -> None:
        """Watch nothing but what is `held`."""
        for gone in self._watches.keys() - (held or {}).keys():
            if self._inotify is not None:
                self._inotify.forget(gone)
        self._watches = held or {}
