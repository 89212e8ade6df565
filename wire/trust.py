"""The broker's public key as one end of a link holds it, and the next one that the broker has announced.

The next one lies beside the first (`broker.next.pub`), where there is a file, and in memory in any case: a
file that cannot be written costs only the next start. When the broker's key does not match, the other is
tried; when a link is up with it, it takes the place of the first. Only a broker that has proven the key that
is trusted can announce another.
"""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from xce.wire import keys
from xce.wire.keys import KeyFileError, KeyPair


class Trust:
    """`file` gives the path of the broker's key, read anew for each link; '': `first` is all there is."""

    def __init__(self, file: Callable[[], str] = lambda: "", *, first: bytes = b"") -> None:
        self._file, self._first = file, first
        self._next = b""
        """Announced to this process."""
        self._other = False
        """The next key is to be tried."""
        self._tried = b""
        """The key that the newest link has."""
        self.fault = ""
        """Why a key that was announced is not kept."""

    def key(self) -> bytes:
        """The key to expect of the broker; raises `KeyFileError` where there is none."""
        path = self._file()
        first = keys.load(Path(path), secret=False).public if path else self._first
        self._tried = (self._following() if self._other else b"") or first
        return self._tried

    def mismatch(self) -> bool:
        """The broker has another key than the one that was tried: the next link gets another, if there is.

        That may be the next one, the first one, or one that somebody has put in its place meanwhile.
        """
        path = self._file()
        for other, held in ((False, _held(path) if path else self._first), (True, self._following())):
            if held and held != self._tried:
                self._other = other
                return True
        return False

    def linked(self) -> None:
        """The broker has proven its key; the next one that it had is its key now."""
        if not self._other:
            return
        self._other, self._first = False, self._tried
        if path := self._file():
            self._keep(self._tried, path)
            with contextlib.suppress(OSError):
                os.unlink(next_to(path))
        if not self.fault:
            self._next = b""

    def announced(self, public: str) -> None:
        """The broker says which key it will have."""
        if public.encode() in {self._next, self._tried} or not keys.is_public(public):
            return
        path = self._file()
        if path and public.encode() == _held(path):
            return  # on the broker's own host the file is the broker's
        self._next = public.encode()
        if path:
            self._keep(self._next, next_to(path))

    def _following(self) -> bytes:
        path = self._file()
        return self._next or (_held(next_to(path)) if path else b"")

    def _keep(self, public: bytes, path: str) -> None:
        """Write a key, whole or not at all."""
        if _held(path) == public:
            self.fault = ""
            return
        fresh = Path(f"{path}.fresh")
        try:
            fresh.unlink(missing_ok=True)
            keys.save(KeyPair("broker", "broker", public), fresh)
            keys.replace(fresh, Path(path))
            self.fault = ""
        except (KeyFileError, OSError) as error:
            way_out = "copy broker.pub here by hand when the broker has changed it"
            self.fault = f"the broker's next key cannot be kept: {error}; {way_out}"


def next_to(path: str) -> str:
    """Where the next key lies, beside the broker's present one."""
    base, extension = os.path.splitext(path)
    return f"{base}.next{extension}"


def _held(path: str) -> bytes:
    try:
        return keys.load(Path(path), secret=False).public
    except KeyFileError:
        return b""
