"""The broker as it is, but it dies at a point about a commit that a file names.

    python -m tests.fakes.mortal_broker CONFIG STRIKE

The file STRIKE has a line `POINT WORDS`: the point is `before`, `after` (the commit) or `answered`; the words
are the id of an order, or changes (`BindingMoved`) that no order asked for. The kill removes the file.
"""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

from xce.broker import daemon
from xce.broker.core.peer import Peer
from xce.broker.store import Batch, Outcome
from xce.broker.store.sqlite import SqliteStore
from xce.wire.router import Router, Sent

SENT_S = 0.05
"""For an answer to leave the socket."""


class Strike:
    """What the file says."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def at(self, point: str) -> str:
        """What to die of at a point; '' for nothing."""
        with contextlib.suppress(FileNotFoundError):
            where, _, words = self._path.read_text().partition(" ")
            return words if where == point else ""
        return ""

    def fall(self) -> None:
        self._path.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def _has(batch: Batch, words: str) -> bool:
    """Whether the order is in it, or one of these changes without an order."""
    ids = [key.rpartition(" ")[2] for key in batch.answers]
    changes = [type(fact.change).__name__ for fact in batch.facts if not fact.op_id]
    return bool(words) and (words in ids or not set(words.split()).isdisjoint(changes))


def main(config: str, path: str) -> int:
    strike = Strike(Path(path))

    class MortalStore(SqliteStore):
        """Dies before a batch is handed to the disk, or when it has its outcome and nobody else."""

        _token = 0

        def submit(self, batch: Batch, token: int) -> bool:
            if _has(batch, strike.at("before")):
                strike.fall()
            if _has(batch, strike.at("after")):
                self._token = token
            return super().submit(batch, token)

        def completed(self) -> list[Outcome]:
            outcomes = super().completed()
            if self._token and any(one.token == self._token and one.error is None for one in outcomes):
                strike.fall()
            return outcomes

    class MortalRouter(Router[Peer]):
        """Dies when an answer has left."""

        def send(self, routing_id: bytes, data: bytes) -> Sent:
            sent = super().send(routing_id, data)
            words = strike.at("answered")
            if words and words.encode() in data and b"done" in data:
                time.sleep(SENT_S)
                strike.fall()
            return sent

    return daemon.run(Path(config), router=MortalRouter, store=MortalStore)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
