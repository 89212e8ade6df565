"""The durable store of facts: what the broker's core asks of it, whatever keeps the bytes.

Here: the interface (`Store`), its values and its errors, and nothing that knows of a database. `sqlite.py` is
the implementation for one broker; another one (etcd) must keep every sentence of `Store`'s contract.
`cache.py` keeps the last values and inventories, which are not facts and may be lost.

How it fails: what cannot be opened raises `StoreError` with the object, the cause and the way out. What
cannot be recorded later is a value, `Outcome.error`, and `Store.fault` until recording works again.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol, TypeAlias

import msgspec

from xce.model.fact import Fact

ANSWERS = 20_000
"""How many of the newest answers are remembered."""
ROOM = 4096
"""How many batches may wait for the disk."""

Answer: TypeAlias = tuple[str, bytes]
"""The digest of a request, and the encoded answer that it got."""


class StoreError(Exception):
    """The store cannot be opened or read; says what, why, and what to do."""


class InUse(StoreError):
    """Another process has the store open."""

    def __init__(self, message: str, pid: int) -> None:
        super().__init__(message)
        self.pid = pid
        """0 when the holder has not written it."""


class Damaged(StoreError):
    """What is there is not what was recorded. Never answered by starting as if new."""

    def __init__(self, what: str, advice: str) -> None:
        super().__init__(f"{what}. {advice}")
        self.what = what
        """Without the advice."""


class TooNew(StoreError):
    """A newer version wrote the store; nothing was changed."""


class Batch(msgspec.Struct, frozen=True):
    """What must be recorded together or not at all."""

    facts: list[Fact]
    """Revisions without a gap, following those of the batch submitted before. What is before a checkpoint may
    be forgotten once it is recorded.
    """
    answers: dict[str, Answer] = {}
    """By op_id. May come without facts: an order that changed nothing."""


class Outcome(NamedTuple):
    """What became of one batch."""

    token: int
    error: str | None
    """None: it is on the disk. Otherwise why nothing of it is."""
    ms: float
    """From `submit` until then."""


class Loaded(NamedTuple):
    """All that is recorded."""

    facts: list[Fact]
    """In order of revision, without a gap, from 1 or from the last checkpoint."""
    answers: dict[str, Answer]
    """By op_id, oldest first; the newest `ANSWERS` of them."""

    @property
    def revision(self) -> int:
        """The revision of the last fact; 0 when there is none."""
        return self.facts[-1].revision if self.facts else 0


class Store(Protocol):
    """Where facts are kept. Who has the loop calls all of it; none of `submit` .. `completed` blocks.

    Order: batches are recorded in the order of `submit`, each whole or not at all. Everything that waits goes
    to the disk together, so that a hundred callers cost one sync. An `Outcome` without error is given only
    after the sync.

    Failure: the first batch that cannot be recorded fails all that were submitted after it, because they were
    decided on top of it. All of them have their outcome in the same list of `completed`; when it returns,
    nothing is on its way any more, and `load` gives what is recorded. The next `submit` starts from there.
    Nothing has to be done to the store: once there is room again, recording works again.
    """

    @property
    def fault(self) -> str:
        """Why nothing can be recorded at present; '' when all is well.

        Goes back to '' by itself (the store tries once a second while a fault lasts), and the descriptor
        becomes readable then. An order that arrives meanwhile is better refused with these words than tried.
        """
        ...

    def load(self) -> Loaded:
        """All facts and answers. Blocks for as long as reading takes (100,000 facts: about 0.2 s).

        Raises `Damaged` for a gap, a duplicate or a body that cannot be read, `TooNew` for a kind of change
        that this version does not know, `StoreError` when the disk cannot be read.
        """
        ...

    def submit(self, batch: Batch, token: int) -> bool:
        """Hand over a batch; its outcome comes later under `token`. False: too many wait, say `busy`."""
        ...

    def fileno(self) -> int:
        """A descriptor that is readable when `completed` has something new, or `fault` changed."""
        ...

    def completed(self) -> list[Outcome]:
        """What has been decided since the last call, in the order of `submit`."""
        ...

    def call_after(self, then: Callable[[], bool]) -> None:
        """Have the thread that records call `then` when it has decided something.

        True: it is known already, the descriptor need not tell it. What `then` submits is recorded next.
        """
        ...

    def backup(self, path: str = "") -> int:
        """Write a whole, consistent copy to `path` ('': beside the store); gives its last revision.

        Blocks, and may be called from another thread while recording goes on. Raises `StoreError`; a copy
        that failed leaves no file.
        """
        ...

    def close(self, deadline: float) -> bool:
        """Record what waits and let go, within `deadline` seconds; False when the disk did not answer.

        May be called twice. `completed` still gives what was decided before the end.
        """
        ...


def json_lines(facts: Iterable[Fact]) -> Iterator[bytes]:
    """The facts as JSON lines, one each: what `export` writes."""
    encoder = msgspec.json.Encoder()
    for fact in facts:
        yield encoder.encode(fact) + b"\n"
