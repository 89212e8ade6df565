"""The broker's public key as this host holds it, and the next one that the broker has announced.

The next one lies beside the first (`broker.next.pub`). When the broker's key does not match, the other is
tried; when a link is up with the next one, it takes the place of the first. Only a broker that has proven the
key that is trusted can announce another.
"""

import os
from collections.abc import Callable
from pathlib import Path

from xce.agent import identity
from xce.model.configuration import AgentFile, ExternalFile
from xce.wire import keys
from xce.wire.keys import KeyFileError, KeyPair


class Trust:
    """What the link asks for credentials; `settings` gives those that are in force."""

    def __init__(self, settings: Callable[[], AgentFile | ExternalFile]) -> None:
        self._settings = settings
        self._other = False
        """The next key is to be tried."""
        self._tried = b""
        """The key that the newest socket has."""
        self._announced = ""
        self.fault = ""
        """Why a key that was announced is not kept."""

    def credentials(self) -> tuple[KeyPair | None, bytes | None]:
        """See `identity.credentials`; with the next key of the broker when that is to be tried."""
        ours, theirs = identity.credentials(self._settings())
        if theirs is not None and self._other:
            theirs = self._held(self._next()) or theirs
        self._tried = theirs or b""
        return ours, theirs

    def mismatch(self) -> None:
        """The broker has another key than the one that was tried: the next socket gets another, if there is.

        That may be the next one, the first one, or one that an admin has put in its place meanwhile.
        """
        for other, path in ((False, Path(self._settings().broker_key)), (True, self._next())):
            if (held := self._held(path)) and held != self._tried:
                self._other = other
                return

    def linked(self) -> None:
        """The broker has proven its key; the next one that it had is its key now."""
        if not self._other:
            return
        self._other, self._announced = False, ""
        try:
            os.replace(self._next(), self._settings().broker_key)
        except OSError as error:
            self._keep_fault(error.strerror or str(error))

    def announced(self, public: str) -> None:
        """The broker says which key it will have."""
        if public == self._announced or not keys.is_public(public) or not self._secured():
            return
        if public.encode() == self._held(Path(self._settings().broker_key)):
            return  # on the broker's own host the file is the broker's
        self._announced, self.fault = public, ""
        fresh = self._next().with_suffix(".fresh")
        try:
            fresh.unlink(missing_ok=True)
            keys.save(KeyPair("broker", "broker", public.encode()), fresh)
            os.replace(fresh, self._next())
        except (KeyFileError, OSError) as error:
            self._keep_fault(str(error))

    def _held(self, path: Path) -> bytes:
        try:
            return keys.load(path, secret=False).public
        except KeyFileError:
            return b""

    def _secured(self) -> bool:
        return not self._settings().broker.startswith("ipc://")

    def _next(self) -> Path:
        path = Path(self._settings().broker_key)
        return path.with_name(f"{path.stem}.next{path.suffix}")

    def _keep_fault(self, why: str) -> None:
        self.fault = (
            f"the broker's next key cannot be kept: {why}; copy it by hand before the broker changes it"
        )
