"""Any history of orders, restarts and kills against a simple model of what the node should say.

The model knows who holds which card and what has ended; the node is the real one, on the real kernel.
"""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.prepare.world import World
from xce.linux.cgroup import Cgroup
from xce.model.claim import Ask, BindingState, Consumer, MountAsk, PortsAsk
from xce.prepare.execute import Refused

pytestmark = pytest.mark.root

CARDS = ("full", "zero")
ASK = Ask(mounts=[MountAsk(name="cache", source="staged")], ports=[PortsAsk(name="p")], scratch_bytes=1 << 16)
READY, RELEASED = BindingState.READY, BindingState.RELEASED

bindings = st.sampled_from([f"b{number}" for number in range(5)])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("prepare"), bindings, st.sampled_from([*CARDS, ""]), st.booleans()),
        st.tuples(st.just("release"), bindings, st.just(""), st.just(value=False)),
        st.tuples(st.just("restart"), st.just(""), st.just(""), st.just(value=False)),
        st.tuples(st.just("begin"), bindings, st.sampled_from([*CARDS, ""]), st.booleans()),
    ),
    max_size=14,
)


class Model:
    """What must be true: a card per binding at most, ended is ended."""

    def __init__(self) -> None:
        self.live: dict[str, str] = {}
        self.ended: set[str] = set()

    def may_prepare(self, binding: str, card: str) -> bool:
        """Whether the node should take the order."""
        if binding in self.live:
            return True  # the same again
        return binding not in self.ended and not (card and card in self.live.values())


def play(world: World, history: list[tuple[str, str, str, bool]]) -> None:
    model = Model()
    for act, binding, card, shared in history:
        if act == "restart":
            world.restart()
        elif act == "release":
            assert world.release(binding).state in {RELEASED, BindingState.FAILED}
            model.live.pop(binding, None)
            model.ended.add(binding)
        else:
            consumer = Consumer(name="both" if shared else f"job-{binding}", user="alice")
            order = world.order(ASK, cards=[card] if card else [], consumer=consumer, binding=binding)
            taken = model.may_prepare(binding, card)
            try:
                world.executor.prepare(
                    op_id=binding, epoch=1, binding=order[0], claim=order[1], instances=world.instances
                )
                assert taken, f"{binding} should have been refused"
                model.live.setdefault(binding, card)
            except Refused:
                assert not taken, f"{binding} should have been taken"
            if act == "prepare" and taken:
                assert world.settled(binding).state is READY
        check(world, model)


def check(world: World, model: Model) -> None:
    assert set(world.executor.entries) == set(model.live)
    ports = [port for report in world.executor.reports() for port in report.ports.get("p", [])]
    assert len(ports) == len(set(ports))
    for binding in model.ended:
        assert world.report(binding).state in {RELEASED, BindingState.FAILED}


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=steps)
def test_any_history_ends_as_the_model_says_and_leaves_nothing(
    fast: Path, world: World, history: list[tuple[str, str, str, bool]]
) -> None:
    place = fast / "history"
    group: Cgroup = world.group.child("history")
    group.create()
    played = World(place, group)
    try:
        play(played, history)
        for binding in list(played.executor.entries):
            assert played.settled(binding).state is READY
        for binding in list(played.executor.entries):
            assert played.release(binding).state is RELEASED
        assert played.leftovers() == []
        assert played.journal.orders() == {}
    finally:
        played.close()
        for path in (place / "state").iterdir():
            path.unlink()
