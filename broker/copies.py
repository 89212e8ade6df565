"""Copies of the facts while the broker runs: written by a thread of their own, one at a time."""

import threading
from collections import deque
from collections.abc import Iterator

from xce.broker.core.effect import Backup, Effect, Send
from xce.broker.store import Store, StoreError
from xce.model.message import Done, Failed


class Copies:
    """Begins them, and has the answers when they are there."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread: threading.Thread | None = None
        self._answers: deque[Effect] = deque()

    def begin(self, wanted: Backup) -> None:
        """Write a copy, unless one is being written."""
        if self._thread is not None and self._thread.is_alive():
            words = "a copy is being written already; ask again when it is done"
            self._answers.append(Send(wanted.peer, Failed(id=wanted.request_id, code="busy", message=words)))
            return
        self._thread = threading.Thread(target=self._write, args=(wanted,), name="copy", daemon=True)
        self._thread.start()

    def done(self) -> Iterator[Effect]:
        """Answers that have come since the last call."""
        while self._answers:
            yield self._answers.popleft()

    def _write(self, wanted: Backup) -> None:
        try:
            revision = self._store.backup()
        except (StoreError, OSError) as error:
            failed = Failed(id=wanted.request_id, code="not-durable", message=f"no copy was made: {error}")
            self._answers.append(Send(wanted.peer, failed))
        else:
            self._answers.append(Send(wanted.peer, Done(id=wanted.request_id, revision=revision)))
