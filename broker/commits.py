"""Facts on their way to the disk and back, in the loop: batches go to the store, outcomes to the core.

Callers come first: what they are answered leaves before the core takes up what has become durable. What is
about claims alone it takes up later still (`settle`), but before it is given anything that is no order.
"""

from collections.abc import Callable, Iterable

from xce.broker.core.effect import Effect, Persist
from xce.broker.core.journal import done_of
from xce.broker.core.ledger import Answered
from xce.broker.core.machine import Broker
from xce.broker.logs import log
from xce.broker.store import Batch, Store, StoreError
from xce.model.message import Done
from xce.wire import codec

QUICK_MS = 3
COMMIT_MS = (1, 3, 10, 30, 100, 300, 1000)
"""Bounds of the histogram of the store's latency."""


class Commits:
    """Between one core and its store; `guard` performs the effects of a call into the core."""

    def __init__(
        self, broker: Broker, store: Store, guard: Callable[[Callable[[], Iterable[Effect]]], None]
    ) -> None:
        self.broker, self.store, self._guard = broker, store, guard
        self.waiting: list[Persist] = []
        """Of this turn, or longer while the store has no room."""
        self.fault = ""
        """Why the store cannot record at present, as the core knows it."""
        self._durable = 0
        """The last ticket that is durable, and the core has still to take up; 0: none."""
        self._us = self._total = self._out = 0
        self._last_ms = 0.0
        self._counts = dict.fromkeys(COMMIT_MS, 0)

    def submit(self) -> None:
        """All facts of the turn as one batch. While too many wait, they wait here: orders are bounded by the
        core.
        """
        if not self.waiting:
            return
        facts = [fact for persist in self.waiting for fact in persist.facts]
        answers = {
            persist.answer.key: (persist.answer.request, codec.encode(done_of(persist.answer, "")))
            for persist in self.waiting
            if persist.answer is not None
        }
        if self.store.submit(Batch(facts, answers), self.waiting[-1].ticket):
            self.waiting.clear()
            self._out += 1

    def quick(self) -> bool:
        """Whether the store has nothing to do, and did it quickly the last time."""
        return not self._out and self._last_ms < QUICK_MS

    def take(self, now: float) -> None:
        """What the store has to say."""
        outcomes = self.store.completed()
        durable = max((outcome.token for outcome in outcomes if outcome.error is None), default=0)
        failed = any(outcome.error is not None for outcome in outcomes)
        if durable:
            self._durable = durable
            self._guard(lambda: self.broker.answers(durable))
        self._out -= len(outcomes)
        for outcome in outcomes:
            self._last_ms = outcome.ms
            if outcome.error is None:
                self._count(outcome.ms)
        if failed or (durable and not self.broker.may_wait(durable)):
            self.settle(now)
        if failed:
            self._lost(now)
        if self.store.fault != self.fault:
            self.fault = self.store.fault
            self._guard(lambda: self.broker.fault(self.fault))

    def settle(self, now: float) -> None:
        """Have the core take up all that is durable."""
        durable, self._durable = self._durable, 0
        if durable:
            self._guard(lambda: self.broker.committed(durable, now))

    def counters(self) -> dict[str, int]:
        """How many commits, how long they took in all, and how many took up to each bound."""
        within = {f"commits.within_{bound}_ms": count for bound, count in self._counts.items()}
        return {"commits": self._total, "commits.us": self._us, **within}

    def _count(self, ms: float) -> None:
        self._total += 1
        self._us += int(ms * 1000)
        for bound in COMMIT_MS:
            self._counts[bound] += ms <= bound

    def _lost(self, now: float) -> None:
        """The store failed with all that it had: what is on the disk all the same?"""
        self.waiting.clear()
        revision = self.broker.state.journal.ledger.revision
        try:
            loaded = self.store.load()
        except StoreError as error:
            log.error("%s", error)
            found, answers = [], []
        else:
            found = [fact for fact in loaded.facts if fact.revision > revision]
            answers = [one for one in answered(loaded.answers) if one.revision > revision]
        self._guard(lambda: self.broker.not_durable(found, answers, now))


def answered(answers: dict[str, tuple[str, bytes]]) -> list[Answered]:
    """Remembered answers in the core's form, oldest first."""
    found = []
    for key, (request, data) in answers.items():
        try:
            answer = codec.decode_from_broker(data)
        except codec.CodecError as error:
            # A memory, not a fact: the worst is that an order is carried out anew.
            log.warning("a remembered answer cannot be read and is left out: %s", error)
            continue
        if isinstance(answer, Done):
            found.append(Answered(key, request, answer.revision, answer.made))
    return found
