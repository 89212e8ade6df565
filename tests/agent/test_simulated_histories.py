"""Simulated hosts with any rules, at the broker's core: whatever happens to link and broker, all ends well.

Rules whose troubles end; then everything is released, time passes, and both sides agree that nothing is left.
"""

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.broker.nodes import Node, place
from tests.broker.world import World
from xce.agent.external.claims import HostClaims
from xce.model import message as m
from xce.model.claim import ENDED, Ask, BindingState, Claim, InstanceAsk
from xce.model.simulated import BindingRule, Loss, SimulatedClaims, Trouble

HOSTS = ["node1", "node2"]
_delay = st.one_of(st.just(0.0), st.floats(0.1, 14), st.just([0.5, 12.0]))
_trouble = st.none() | st.builds(Trouble, note=st.just("why"), after_s=_delay, for_s=_delay)
_loss = st.none() | st.builds(Loss, after_s=_delay, for_s=st.floats(1, 60), reboot=st.booleans())
_rule = st.builds(
    BindingRule,
    hosts=st.sampled_from([[], ["node1"], ["node2"]]),
    share=st.sampled_from([1, 0.5]),
    answer_s=_delay,
    prepare_s=_delay,
    release_s=_delay,
    refuse=_trouble,
    fail=st.sampled_from(["", "", "no space"]),
    hang=st.sampled_from([False, False, True]),
    degrade=_trouble,
    block=_trouble,
    quarantine=st.sampled_from(["", "", "dirty"]),
    lose=_loss,
)
_files = st.builds(SimulatedClaims, seed=st.integers(0, 5), bindings=st.lists(_rule, max_size=3))
_acts = st.lists(
    st.one_of(
        st.tuples(st.just("bind"), st.lists(st.sampled_from(HOSTS), min_size=1, max_size=2, unique=True)),
        st.tuples(st.just("release"), st.integers(0, 9)),
        st.tuples(st.just("pass"), st.integers(1, 30)),
        st.tuples(st.just("cut"), st.sampled_from(HOSTS)),
        st.tuples(st.just("restart"), st.none()),
    ),
    max_size=10,
)


class SimulatedNode(Node):
    """A node of the link's tests with the simulated claims in it."""

    def __init__(self, world: World, name: str, file: SimulatedClaims) -> None:
        super().__init__(world, name)
        self.simulated = HostClaims(name, file, self.lose)
        self.holdings = self.simulated.holdings
        self.back_at: float | None = None
        self.loss = Loss()
        self.leaving: set[str] = set()

    def begin(self, order: m.BindingPrepare) -> None:
        self.simulated.ordered(order, self.world.now)

    def end(self, name: str) -> None:
        self.simulated.ordered(m.BindingRelease(epoch=1, op_id="", binding=name), self.world.now)

    def lose(self, loss: Loss, for_s: float) -> None:
        if self.back_at is None:
            self.back_at, self.loss = self.world.now + for_s, loss

    def second(self) -> None:
        self.simulated.advance(self.world.now)
        for name, one in self.holds.items():
            assert name not in self.leaving or one.state in {BindingState.RELEASING, BindingState.RELEASED}
        self.leaving |= {name for name, one in self.holds.items() if one.state is BindingState.RELEASING}
        there = self.name in self.world.peers and not self.world.peers[self.name].cut
        if self.back_at is not None and self.world.now >= self.back_at:
            self.back_at = None
            if self.loss.reboot:
                self.simulated.started_anew(self.world.now)
        elif self.back_at is not None and self.name in self.world.peers:
            self.world.gone(self.name)
        if self.back_at is None and not there:
            if self.name in self.world.peers:
                self.world.gone(self.name)
            self.arrive()
        if self.back_at is None:
            self.heartbeat()
            self.listen()
            self.tell()


class History:
    """A controller, two simulated hosts, and a broker that may be started anew."""

    def __init__(self, file: SimulatedClaims) -> None:
        self.world = World()
        self.nodes = [SimulatedNode(self.world, name, file) for name in HOSTS]
        for node in self.nodes:
            node.arrive()
        self.count = 0

    @property
    def ledger(self) -> Any:
        return self.world.broker.state.journal.ledger.claims

    def order(self, kind: Any, **fields: Any) -> Any:
        self.count += 1
        return self.world.ask(self.world.peer("root", "admin"), kind(id=f"op{self.count}", **fields))

    def bind(self, hosts: list[str]) -> None:
        claim = Claim(id=f"c{self.count}", ask=Ask(instances=[InstanceAsk(kind="gpu")]))
        self.order(m.ClaimCreate, claim=claim)
        gpu = f"GPU-{'abc'[self.count % 3]}"
        self.order(m.ClaimBind, places=[place(claim.id, host, gpu) for host in hosts])

    def release(self, number: int) -> None:
        if claims := sorted(self.ledger.claims):
            self.order(m.ClaimRelease, claim=claims[number % len(claims)])

    def passes(self, seconds: int) -> None:
        for _ in range(seconds):
            self.world.wait(1)
            for node in self.nodes:
                node.second()

    def cut(self, host: str) -> None:
        if host in self.world.peers:
            self.world.gone(host)

    def restart(self, _nothing: None) -> None:
        self.world = self.world.restart()
        for node in self.nodes:
            node.world, node.read = self.world, 0


@settings(max_examples=60)
@given(file=_files, acts=_acts)
def test_whatever_rules_a_simulated_host_has_all_is_gone_in_the_end_and_both_sides_agree(
    file: SimulatedClaims, acts: list[tuple[str, Any]]
) -> None:
    history = History(file)
    does: dict[str, Callable[[Any], None]] = {
        "bind": history.bind,
        "release": history.release,
        "pass": history.passes,
        "cut": history.cut,
        "restart": history.restart,
    }
    for what, with_what in acts:
        does[what](with_what)
    history.passes(150)
    for node in history.nodes:
        held = {name: one.state for name, one in node.holds.items() if one.state not in ENDED}
        live = {one.id: one for one in history.ledger.on(node.name)}
        assert set(held) == set(live)
        for name, state in held.items():  # one of a gang may be ready here and wait for the other
            assert live[name].state is state or (live[name].gang and state is BindingState.READY)
    for claim in sorted(history.ledger.claims):
        history.order(m.ClaimRelease, claim=claim)
    history.passes(200)
    assert not any(one.state not in ENDED for one in history.ledger.bindings.values())
    assert [node.holds for node in history.nodes] == [{}, {}]
