"""Orders and facts on their way to the disk: nothing is answered or shown before it is durable.

Two ledgers: `ledger` has what is durable and is all that anybody sees; `draft` has what will be, once
everything that was handed to the store is on the disk, and is what new orders are judged against. If the
store fails, everything that waits is refused with `not-durable`, and the draft starts again from the ledger.
While the store says that it cannot write (`fault`), orders are refused with its words and nothing is tried.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence

import msgspec

from xce.broker.core.effect import Effect, Persist, Send
from xce.broker.core.ledger import Answered, Ledger
from xce.broker.core.peer import Peer
from xce.broker.core.situation import Refusal
from xce.model.fact import Change, ClaimChange, Fact
from xce.model.message import Done
from xce.model.value import digest_of

ANSWERS = 20_000
"""Orders whose answer is remembered; older ones would be carried out anew."""


class _Waiting(msgspec.Struct):
    """What was handed to the store and is not answered yet."""

    facts: list[Fact]
    revision: int
    answer: Answered | None
    done: list[Effect]
    after: Callable[[int], list[Effect]]
    failed: Callable[[], list[Effect]]
    also: list[tuple[Peer, str]] = []
    """The same order, given again meanwhile."""


class Journal:
    """Numbers facts, hands them to the store, and takes them as true when the store says so."""

    def __init__(self, ledger: Ledger, answers: Iterable[Answered], wall: Callable[[], str]) -> None:
        self.ledger = ledger
        self.draft = ledger.copy()
        self.wall = wall
        self.fault = ""
        """Why nothing can be made durable at present, as the store says; '' when all is well."""
        self._ticket = 0
        self._waiting: OrderedDict[int, _Waiting] = OrderedDict()
        self._general: deque[int] = deque()
        """Those of them that are not about claims alone."""
        self._answers: OrderedDict[str, Answered] = OrderedDict()
        for answer in answers:
            self._remember(answer)
        self._asked: dict[str, int] = {}
        """Tickets of the orders that wait, by the key of their answer."""

    def __len__(self) -> int:
        """How many tickets are with the store."""
        return len(self._waiting)

    def persist(
        self,
        changes: Sequence[Change],
        *,
        by: str = "",
        op_id: str = "",
        request: str = "",
        made: Sequence[str] = (),
        done: Callable[[int], list[Effect]] = lambda _revision: [],
        after: Callable[[int], list[Effect]] = lambda _revision: [],
        failed: Callable[[], list[Effect]] = list,
    ) -> Persist:
        """Hand changes to the store; `done` makes the effects that follow at once when they are durable at a
        revision, `after` those that have time until they are in the ledger, `failed` those that follow if the
        store refuses.

        With an `op_id`, `request` is the digest of the order, `made` what the answer says that it made, and
        the answer is remembered.
        """
        facts = []
        at = self.wall()
        for change in changes:
            fact = Fact(revision=self.draft.revision + 1, change=change, by=by, op_id=op_id, at=at)
            self.draft.apply(fact)
            facts.append(fact)
        revision = self.draft.revision
        answer = Answered(answer_key(by, op_id), request, revision, list(made)) if op_id else None
        self._ticket += 1
        self._waiting[self._ticket] = _Waiting(facts, revision, answer, done(revision), after, failed)
        if not all(isinstance(change, ClaimChange) for change in changes):
            self._general.append(self._ticket)
        if answer is not None:
            self._asked[answer.key] = self._ticket
        return Persist(self._ticket, facts, answer)

    def answered(self, by: str, op_id: str, request: str, peer: Peer) -> list[Effect] | None:
        """The answer of an order that was given before, None if it was not.

        Raises `Refusal` if the id was given to another order.
        """
        key = answer_key(by, op_id)
        waiting = self._waiting.get(self._asked.get(key, 0))
        answer = waiting.answer if waiting is not None else self._answers.get(key)
        if answer is None:
            return None
        if answer.request != request:
            raise Refusal(
                "conflict",
                f"cannot carry out {op_id!r}: that id was given to another order",
                "use a new id for each order, and the same only to repeat one",
            )
        if waiting is not None:
            waiting.also.append((peer, op_id))
            return []
        return [Send(peer, done_of(answer, op_id))]

    def answers(self, ticket: int) -> list[Effect]:
        """What follows for the callers of everything up to `ticket`, which is durable; once."""
        effects: list[Effect] = []
        for number, waiting in self._waiting.items():
            if number > ticket:
                break
            effects += waiting.done
            waiting.done = []
        return effects

    def about_claims(self, ticket: int) -> bool:
        """Whether everything up to `ticket` that is not committed yet is about claims and nothing else."""
        return not self._general or self._general[0] > ticket

    def committed(self, ticket: int) -> tuple[list[Fact], list[Effect]]:
        """Everything up to `ticket` is durable: the facts, now in the ledger, and what follows."""
        facts: list[Fact] = []
        effects: list[Effect] = []
        while self._waiting and next(iter(self._waiting)) <= ticket:
            number, waiting = self._waiting.popitem(last=False)
            if self._general and self._general[0] == number:
                self._general.popleft()
            for fact in waiting.facts:
                self.ledger.apply(fact)
            facts += waiting.facts
            effects += waiting.done
            effects += waiting.after(waiting.revision)
            if waiting.answer is not None:
                self._remember(waiting.answer)
                del self._asked[waiting.answer.key]
                answer = waiting.answer
                effects += [Send(peer, done_of(answer, op_id)) for peer, op_id in waiting.also]
        return facts, effects

    def lost(self, found: Sequence[Fact], answers: Iterable[Answered]) -> tuple[list[Fact], list[Effect]]:
        """The store failed. `found`: facts that are on the disk all the same, beyond the ledger's revision.

        Everything that waits is refused; its callers may give the same orders again.
        """
        effects = [effect for waiting in self._waiting.values() for effect in waiting.failed()]
        self._waiting.clear()
        self._general.clear()
        self._asked.clear()
        for fact in found:
            self.ledger.apply(fact)
        for answer in answers:
            self._remember(answer)
        self.draft = self.ledger.copy()
        return list(found), effects

    def _remember(self, answer: Answered) -> None:
        self._answers[answer.key] = answer
        while len(self._answers) > ANSWERS:
            self._answers.popitem(last=False)


def done_of(answer: Answered, op_id: str) -> Done:
    """The answer of an order, the same each time."""
    return Done(id=op_id, revision=answer.revision, made=answer.made)


def answer_key(by: str, op_id: str) -> str:
    """What the store remembers an answer by."""
    return f"{by} {op_id}"


def request_digest(order: object) -> str:
    """What tells two orders apart that have the same id."""
    return digest_of([type(order).__name__, order])
