"""Orders and facts on their way to the disk: nothing is answered or shown before it is durable.

Two ledgers: `ledger` has what is durable and is all that anybody sees; `draft` has what will be, once
everything that was handed to the store is on the disk, and is what new orders are judged against. If the
store fails, everything that waits is refused with `not-durable`, and the draft starts again from the ledger.
While the store says that it cannot write (`fault`), orders are refused with its words and nothing is tried.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

import msgspec

from xce.broker.core.effect import Effect, Persist, Send
from xce.broker.core.ledger import Answered, Ledger
from xce.broker.core.orders import audit
from xce.broker.core.peer import Peer
from xce.broker.core.situation import Refusal
from xce.model.fact import Change, ClaimChange, Fact
from xce.model.message import Done, Failed, Order
from xce.model.value import digest_of

ANSWERS = 20_000
"""Orders whose answer is remembered; older ones would be carried out anew."""
PATIENCE = 3
"""Seconds in which a disk that is well has long recorded what it was given."""
KEPT_WAITING = "the disk of the state directory does not answer: what was ordered waits for it (dmesg)"
NOT_DURABLE = "cannot make it durable: the broker's disk refuses; nothing was changed"
NOT_DURABLE_HINT = "make room in the broker's state directory, then give the same order again"


class Given(msgspec.Struct):
    """An order, and who waits for its answer."""

    peer: Peer
    order: Order
    key: str
    """What its answer is remembered by, here and in the store."""
    request: str
    """What tells it from another order that has the same id."""
    also: list[Peer] = []
    """Who gave the same order again meanwhile."""


def as_given(peer: Peer, order: Order) -> Given:
    """An order of a peer."""
    return Given(peer, order, f"{peer.title} {order.id}", digest_of([order.__class__.__name__, order]))


class _Waiting(msgspec.Struct):
    """What was handed to the store and is not in the ledger yet."""

    persist: Persist
    told: Sequence[Effect]
    """What follows at once when it is durable."""
    failed: Sequence[Effect]
    """What follows if the store refuses."""
    given: Given | None


class Journal:
    """Numbers facts, hands them to the store, and takes them as true when the store says so."""

    def __init__(self, ledger: Ledger, answers: Iterable[Answered], wall: Callable[[], str]) -> None:
        self.ledger = ledger
        self.draft = ledger.copy()
        self.wall = wall
        self.fault = ""
        """Why nothing can be made durable at present, as the store says; '' when all is well."""
        self._looked: tuple[int, int] = (0, 0)
        """The first ticket that the store had not recorded at the last look, and how many saw it there."""
        self._ticket = 0
        self._waiting: deque[_Waiting] = deque()
        self._told = 0
        """How many of them are durable: what follows at once has followed."""
        self._general: deque[int] = deque()
        """Tickets of those of them that are not about claims alone."""
        self._answers: OrderedDict[str, Answered] = OrderedDict()
        for answer in answers:
            self._remember(answer)
        self._given: dict[str, Given] = {}
        """The orders among what waits, by the key of their answer."""

    def __len__(self) -> int:
        """How many tickets wait."""
        return len(self._waiting)

    def kept_waiting(self) -> bool:
        """Whether the store records nothing and says nothing either; to be asked each second."""
        first = self._waiting[self._told].persist.ticket if self._told < len(self._waiting) else 0
        ticket, looks = self._looked
        self._looked = (first, looks + 1 if first == ticket and first else 0)
        return self._looked[1] >= PATIENCE

    def persist(
        self,
        changes: Sequence[Change],
        *,
        by: str = "",
        told: Sequence[Effect] = (),
        failed: Sequence[Effect] = (),
    ) -> Persist:
        """Hand changes to the store; `told` follows at once when they are durable, `failed` if the store
        refuses.
        """
        return self._hand_over(changes, by, told, failed)

    def carry_out(self, given: Given, changes: Sequence[Change], made: list[str]) -> Persist:
        """Hand what an order changes to the store. Its answer, with the ids of what it `made`, follows at
        once when that is durable, and is remembered; the audit has time until it is in the ledger.
        """
        answer = Answered(given.key, given.request, self.draft.revision + len(changes), made)
        self._given[given.key] = given
        told = [Send(given.peer, done_of(answer, given.order.id))]
        return self._hand_over(changes, given.peer.title, told, (), given=given, answer=answer)

    def _hand_over(
        self,
        changes: Sequence[Change],
        by: str,
        told: Sequence[Effect],
        failed: Sequence[Effect],
        *,
        given: Given | None = None,
        answer: Answered | None = None,
    ) -> Persist:
        """Changes are facts and in the draft from now on."""
        facts, at, draft, claims_alone = [], self.wall(), self.draft, True
        op_id = given.order.id if given is not None else ""
        for change in changes:
            fact = Fact(revision=draft.revision + 1, change=change, by=by, op_id=op_id, at=at)
            draft.apply(fact)
            facts.append(fact)
            claims_alone = claims_alone and isinstance(change, ClaimChange)
        self._ticket += 1
        if not claims_alone:
            self._general.append(self._ticket)
        persist = Persist(self._ticket, facts, answer)
        self._waiting.append(_Waiting(persist, told, failed, given))
        return persist

    def answered(self, given: Given) -> list[Effect] | None:
        """The answer of an order that was given before, None if it was not.

        Raises `Refusal` if the id was given to another order.
        """
        waiting, answer = self._given.get(given.key), self._answers.get(given.key)
        before = waiting or answer
        if before is None:
            return None
        if before.request != given.request:
            raise Refusal(
                "conflict",
                f"cannot carry out {given.order.id!r}: that id was given to another order",
                "use a new id for each order, and the same only to repeat one",
            )
        if waiting is not None:
            waiting.also.append(given.peer)
            return []
        assert answer is not None, "internal error: an order that was given before without an answer"
        return [Send(given.peer, done_of(answer, given.order.id))]

    def answers(self, ticket: int) -> list[Effect]:
        """What follows for the callers of everything up to `ticket`, which is durable; once."""
        effects: list[Effect] = []
        for waiting in islice(self._waiting, self._told, None):
            if waiting.persist.ticket > ticket:
                break
            effects += waiting.told
            self._told += 1
        return effects

    def about_claims(self, ticket: int) -> bool:
        """Whether everything up to `ticket` that is not committed yet is about claims and nothing else."""
        return not self._general or self._general[0] > ticket

    def committed(self, ticket: int) -> tuple[list[Fact], list[Effect]]:
        """Everything up to `ticket` is durable: the facts, now in the ledger, and what follows."""
        facts: list[Fact] = []
        effects = self.answers(ticket)
        while self._general and self._general[0] <= ticket:
            self._general.popleft()
        while self._waiting and self._waiting[0].persist.ticket <= ticket:
            waiting = self._waiting.popleft()
            self._told -= 1
            for fact in waiting.persist.facts:
                self.ledger.apply(fact)
            facts += waiting.persist.facts
            answer, given = waiting.persist.answer, waiting.given
            if answer is not None and given is not None:
                self._remember(answer)
                del self._given[answer.key]
                effects.append(audit(given.peer, given.order, "ok", answer.revision))
                effects += [Send(peer, done_of(answer, given.order.id)) for peer in given.also]
        return facts, effects

    def lost(self, found: Sequence[Fact], answers: Iterable[Answered]) -> tuple[list[Fact], list[Effect]]:
        """The store failed. `found`: facts that are on the disk all the same, beyond the ledger's revision.

        Everything that waits is refused; its callers may give the same orders again.
        """
        effects: list[Effect] = []
        for waiting in self._waiting:
            effects += waiting.failed
            if (given := waiting.given) is not None:
                effects += [_not_durable(peer, given.order) for peer in (given.peer, *given.also)]
                effects.append(audit(given.peer, given.order, "not-durable"))
        self._waiting.clear()
        self._told = 0
        self._general.clear()
        self._given.clear()
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


def _not_durable(peer: Peer, order: Order) -> Send:
    answer = Failed(id=order.id, code="not-durable", message=NOT_DURABLE, hint=NOT_DURABLE_HINT)
    return Send(peer, answer)


def done_of(answer: Answered, op_id: str) -> Done:
    """The answer of an order, the same each time."""
    return Done(id=op_id, revision=answer.revision, made=answer.made)
