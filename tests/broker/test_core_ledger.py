"""The ledger and the journal: replay equals state, and nothing counts before it is durable, in every order of
events.
"""

import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.wire.test_codec import anything
from xce.broker.core.effect import Persist, Send
from xce.broker.core.journal import Journal, as_given
from xce.broker.core.ledger import Answered, KeyRecord, Ledger, OutOfOrder
from xce.broker.core.peer import Peer
from xce.broker.core.situation import Refusal
from xce.broker.store import Batch
from xce.broker.store.sqlite import SqliteStore
from xce.model import fact as facts
from xce.model.claim import Binding, BindingState, Chosen, Claim, Consumer, Quarantine
from xce.model.fact import Change, Fact
from xce.model.message import Done, HostAdmit
from xce.model.role import Role

_KINDS = [kind for kind in typing.get_args(Change) if kind is not facts.Checkpoint]
_few = st.sampled_from(["a", "b", "host:a", "pool:b"])


def _change(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """A change of this kind; names are few, so that histories meet the same ones again."""
    drawn = {field.name: _field(field.name, field.type) for field in msgspec.structs.fields(kind)}
    return st.builds(kind, **drawn)


def _field(name: str, kind: Any) -> st.SearchStrategy[Any]:
    if name in _NAMES and kind is str:
        return _few
    found = next((drawn for known, drawn in _DRAWN if known == kind), None)
    return anything(kind) if found is None else found


_NAMES = {
    *("host", "location", "owner", "pool", "resource", "public", "name"),
    *("claim", "binding", "gang", "instance", "id"),
}
_DRAWN: list[tuple[Any, st.SearchStrategy[Any]]] = []


def _draw(kind: Any, drawn: st.SearchStrategy[Any]) -> None:
    _DRAWN.append((kind, drawn))


_draw(Claim, _change(Claim))
_draw(list[Chosen], st.lists(_change(Chosen), max_size=2))
_draw(Chosen, _change(Chosen))
_draw(Binding, _change(Binding))
_draw(Quarantine, _change(Quarantine))
_draw(list[facts.BindingMoved], st.lists(_change(facts.BindingMoved), max_size=3))
changes = st.one_of([_change(kind) for kind in _KINDS])


def history(some: list[Any]) -> list[Fact]:
    return [
        Fact(revision=number, change=change, by="admin:x", op_id=str(number), at="2026-01-01T00:00:00Z")
        for number, change in enumerate(some, 1)
    ]


def replayed(some: list[Fact]) -> Ledger:
    ledger = Ledger()
    for fact in some:
        ledger.apply(fact)
    return ledger


def fields(ledger: Ledger) -> dict[str, Any]:
    """Field by field, so that a failure names the one that differs."""
    return msgspec.structs.asdict(ledger)


@given(st.lists(changes, max_size=40))
@settings(max_examples=150, deadline=None)
def test_replay_gives_the_state_again_field_by_field(some: list[Any]) -> None:
    told = history(some)
    ledger, copies = Ledger(), []
    for fact in told:
        copies.append((ledger.copy(), fields(ledger.copy())))
        ledger.apply(fact)
    assert fields(replayed(told)) == fields(ledger)
    for copy, before in copies:
        assert fields(copy) == before, "a copy must not change with what it was copied from"
    encoded = msgspec.msgpack.encode(told)
    assert fields(replayed(msgspec.msgpack.decode(encoded, type=list[Fact]))) == fields(ledger)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(ledger), type=Ledger) == ledger


@given(st.lists(changes, max_size=20), st.lists(changes, max_size=20))
@settings(max_examples=60, deadline=None)
def test_a_checkpoint_and_what_follows_give_the_same_as_all_facts(
    before: list[Any], after: list[Any]
) -> None:
    known = replayed(history(before))
    mark = facts.Checkpoint(ledger=known.encoded())
    told = history([*before, mark, *after])
    whole = replayed(told)
    assert whole.checkpoint == len(before) + 1
    assert fields(replayed(told[len(before) :])) == fields(whole)


@given(st.lists(changes, min_size=1, max_size=12))
@settings(max_examples=10, deadline=None)
def test_the_store_gives_the_state_again_field_by_field(
    tmp_path_factory: pytest.TempPathFactory, some: list[Any]
) -> None:
    directory: Path = tmp_path_factory.mktemp("store")
    told = history(some)
    store = SqliteStore(directory)
    assert store.submit(Batch(told), 1)
    assert store.close(20)
    again = SqliteStore(directory)
    assert fields(replayed(again.load().facts)) == fields(replayed(told))
    again.close(20)


def test_every_kind_of_fact_leaves_something_that_is_seen() -> None:
    """A kind that `apply` forgets would be lost without a word."""
    ledger = Ledger(
        holds={"host:a": {"x": _example(facts.HoldAdded).hold}},
        keys={"a": KeyRecord(name="n", role="agent")},
    )
    ledger.claims.take(facts.ClaimCreated(claim=Claim(id="a")), by="", revision=0)
    binding = Binding(id="a", claim="a", host="a", consumer=Consumer(name="1"))
    ledger.claims.take(facts.BindingMade(binding=binding), by="", revision=0)
    kept = Quarantine(instance=Chosen(id="text", reporter="nvidia", generation=1, kind="gpu"), reason="y")
    ledger.claims.given_up["a"] = {"gone": None}
    ledger.claims.take(facts.InstanceQuarantined(host="a", quarantine=kept), by="", revision=0)
    ledger.apply(Fact(revision=1, change=facts.HostDrained(host="a", owner="x", reason="y")))
    for kind in sorted(_KINDS, key=_ends):
        before = fields(ledger.copy())
        change = _example(kind)
        if isinstance(change, facts.HoldReleased):
            change = facts.HoldReleased(location="host:a", owner="x")
        if isinstance(change, facts.BindingGone):
            change = facts.BindingGone(host="a", binding="gone")
        if isinstance(change, facts.QuarantineCleared):
            change = facts.QuarantineCleared(host="a", instance="text")
        fact = Fact(revision=ledger.revision + 1, change=change)
        ledger.apply(fact)
        after = fields(ledger) | {"revision": before["revision"]}
        assert after != before, f"{kind.__name__} changes nothing"


def _example(kind: type[msgspec.Struct]) -> Any:
    plain: dict[str, Any] = {"host": "a", "public": "a", "name": "a", "location": "host:b", "epoch": 7}
    plain |= {"claim": "a", "binding": "a"} if kind not in _WHOLE else {}
    drawn: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if field.name in plain:
            drawn[field.name] = plain[field.name]
        elif field.required:
            drawn[field.name] = _plain(field.type)
    return kind(**drawn)


_WHOLE = {facts.ClaimCreated, facts.BindingMade}
"""Changes that bring a record of their own, and not its name."""


def _ends(kind: type) -> bool:
    """Of two facts about one thing, the one that ends it comes last."""
    return kind is facts.ClaimDeleted


def _plain(kind: Any) -> Any:
    from xce.model.resource import Kind, ResourceType
    from xce.model.supply import Hold, PoolAmount, Source

    return {
        Claim: Claim(id="new"),
        Binding: Binding(id="new", claim="a", host="a", consumer=Consumer(name="2")),
        BindingState: BindingState.RELEASING,
        Quarantine: Quarantine(
            instance=Chosen(id="gpu1", reporter="nvidia", generation=1, kind="gpu"), reason="x"
        ),
        list[facts.BindingMoved]: [facts.BindingMoved(binding="a", state=BindingState.READY)],
        str: "text",
        Source: Source.PROVISIONER,
        Hold: Hold(owner="o", reason="r"),
        PoolAmount: PoolAmount(base=1),
        ResourceType: ResourceType(name="t", kind=Kind.STRING),
    }[kind]


def test_a_fact_that_does_not_follow_is_not_taken() -> None:
    ledger = replayed(history([facts.EpochStarted(epoch=1)]))
    for revision in (1, 3):
        with pytest.raises(OutOfOrder, match=f"fact {revision} came after revision 1"):
            ledger.apply(Fact(revision=revision, change=facts.EpochStarted(epoch=2)))
    assert ledger.revision == 1


class JournalMachine(RuleBasedStateMachine):
    """Orders, commits, failures and repeats in every order."""

    def __init__(self) -> None:
        super().__init__()
        self.journal = Journal(Ledger(), [], lambda: "")
        self.peer = Peer(b"p", key="", address="x")
        self.peer.be(Role.ADMIN, "a")
        self.disk: list[Fact] = []
        self.waiting: list[Persist] = []
        self.answers: dict[str, list[Any]] = {}
        self.given: dict[str, str] = {}
        self.count = 0

    def order(self, op_id: str, request: str) -> None:
        answers = self.answers.setdefault(op_id, [])
        asked = as_given(self.peer, HostAdmit(id=op_id, host=request))
        if self.given.get(op_id, request) != request:
            with pytest.raises(Refusal, match="given to another order"):
                self.journal.answered(asked)
            return
        before = self.journal.answered(asked)
        if before is not None:
            answers += [effect.document for effect in before if isinstance(effect, Send)]
            return
        self.given[op_id] = request
        self.count += 1
        changes = [facts.HostAdmitted(host=f"h{self.count}")]
        self.waiting.append(self.journal.carry_out(asked, changes, []))

    @rule(op=st.integers(0, 5), request=st.integers(0, 1))
    def an_order_is_given(self, op: int, request: int) -> None:
        self.order(f"op{op}", f"request{request}")

    @rule()
    def facts_of_the_broker_itself(self) -> None:
        self.count += 1
        self.waiting.append(self.journal.persist([facts.HostAdmitted(host=f"own{self.count}")]))

    @precondition(lambda self: self.waiting)
    @rule(part=st.floats(0, 1))
    def the_disk_has_some(self, part: float) -> None:
        some = self.waiting[: max(1, int(part * len(self.waiting)))]
        del self.waiting[: len(some)]
        for persist in some:
            self.disk += persist.facts
        told, effects = self.journal.committed(some[-1].ticket)
        assert told == [fact for persist in some for fact in persist.facts]
        self.take(effects)

    @rule(found=st.integers(0, 3))
    def the_disk_fails(self, found: int) -> None:
        kept = self.waiting[:found]  # what had reached it all the same
        answers: list[Answered] = [persist.answer for persist in kept if persist.answer is not None]
        on_disk = [fact for persist in kept for fact in persist.facts]
        for persist in self.waiting[found:]:
            if persist.answer is not None:
                self.given.pop(persist.answer.key.split()[1])
        self.waiting.clear()
        self.disk += on_disk
        _, effects = self.journal.lost(on_disk, answers)
        self.take(effects)

    def take(self, effects: list[Any]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                answer: Any = effect.document
                self.answers.setdefault(answer.id, []).append(answer)

    @invariant()
    def the_ledger_is_what_is_on_the_disk(self) -> None:
        assert fields(self.journal.ledger) == fields(replayed(self.disk))

    @invariant()
    def the_draft_is_that_and_what_is_on_its_way(self) -> None:
        on_its_way = [fact for persist in self.waiting for fact in persist.facts]
        assert fields(self.journal.draft) == fields(replayed([*self.disk, *on_its_way]))
        assert len(self.journal) == len(self.waiting)

    @invariant()
    def one_order_has_one_answer(self) -> None:
        for op_id, answers in self.answers.items():
            revisions = {answer.revision for answer in answers if isinstance(answer, Done)}
            assert len(revisions) <= 1, (op_id, answers)


JournalMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestJournal = JournalMachine.TestCase
