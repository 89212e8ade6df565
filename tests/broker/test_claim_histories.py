"""Claims in histories of every kind: orders, reports, lost links, restarts of both sides, a disk that fails.

The broker's core, with nodes that keep the rules of the link, against a simple model: which orders were
answered, and what nodes did. After each step: no instance in two live bindings, no gang half ready, an order
one answer, the ledger what is on the disk. After all: both sides agree and nothing is left.
"""

from collections import Counter
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.broker.nodes import GPUS, Node, place
from tests.broker.world import World
from xce.broker.core.ledger import Ledger
from xce.model import message as m
from xce.model.claim import ENDED, AccessMode, Ask, BindingState, Claim, ClaimForm, InstanceAsk

HOSTS = ["node1", "node2", "node3"]
_host = st.sampled_from(HOSTS)
_hosts = st.lists(_host, min_size=1, max_size=3)
_first = st.integers(0, len(GPUS) - 1)
_some = st.integers(0, 1000)
LIVE = {BindingState.PENDING, BindingState.PREPARING, BindingState.READY, BindingState.RELEASING}


class Histories(RuleBasedStateMachine):
    """`answers`: what each order was answered; `orders`: the orders themselves, to be given again."""

    @initialize()
    def begin(self) -> None:
        self.world = World()
        self.nodes = {name: Node(self.world, name) for name in HOSTS}
        for node in self.nodes.values():
            node.arrive()
        self.answers: dict[str, Any] = {}
        self.orders: dict[str, Any] = {}
        self.count = 0
        self.committed: set[str] = set()
        """Gangs that were ready."""

    # ------------------------------------------------------------------------------------ the controller

    def give(self, order: Any) -> Any:
        answer = self.world.ask(self.world.peer("root", "admin"), order)
        if isinstance(answer, m.Done):
            assert self.answers.setdefault(order.id, answer) == answer, "the same order, another answer"
            self.orders[order.id] = order
        return answer

    def order(self, kind: Any, **fields: Any) -> Any:
        self.count += 1
        return self.give(kind(id=f"op{self.count}", **fields))

    @rule(
        access=st.sampled_from(AccessMode),
        gpus=st.integers(0, 2),
        form=st.sampled_from(ClaimForm),
        hosts=_hosts,
        first=_first,
    )
    def run(self, access: AccessMode, gpus: int, form: ClaimForm, hosts: list[str], first: int) -> None:
        """A new claim, bound to one host or to several."""
        ask = Ask(instances=[InstanceAsk(kind="gpu", count=gpus)] if gpus else [])
        claim = Claim(id=f"c{self.count}", form=form, access=access, ask=ask)
        assert isinstance(self.order(m.ClaimCreate, claim=claim), m.Done)
        self.bind_to(claim.id, hosts, first)

    @precondition(lambda self: self.ledger.claims)
    @rule(which=_some, hosts=_hosts, first=_first)
    def bind(self, which: int, hosts: list[str], first: int) -> None:
        self.bind_to(sorted(self.ledger.claims)[which % len(self.ledger.claims)], hosts, first)

    def bind_to(self, name: str, hosts: list[str], first: int) -> None:
        claim = self.ledger.claims[name].claim
        count = sum(one.count for one in claim.ask.instances)
        picks = [GPUS[(first + number) % len(GPUS)] for number in range(count)]
        consumers = [f"j{number}" for number in range(len(hosts))]
        places = [place(name, host, *picks, consumer=one) for host, one in zip(hosts, consumers, strict=True)]
        self.order(m.ClaimBind, places=places)

    @precondition(lambda self: self.ledger.claims)
    @rule(which=_some)
    def release_claim(self, which: int) -> None:
        name = sorted(self.ledger.claims)[which % len(self.ledger.claims)]
        assert isinstance(self.order(m.ClaimRelease, claim=name), m.Done)

    @precondition(lambda self: self.ledger.bindings)
    @rule(which=_some, force=st.booleans())
    def release_binding(self, which: int, force: bool) -> None:
        name = sorted(self.ledger.bindings)[which % len(self.ledger.bindings)]
        if force:
            self.order(m.BindingForce, binding=name, reason="tired of waiting")
        else:
            assert isinstance(self.order(m.ClaimRelease, bindings=[name]), m.Done)

    @precondition(lambda self: self.ledger.claims)
    @rule(which=_some)
    def delete(self, which: int) -> None:
        self.order(m.ClaimDelete, claim=sorted(self.ledger.claims)[which % len(self.ledger.claims)])

    @precondition(lambda self: self.orders)
    @rule(which=_some)
    def the_same_order_again(self, which: int) -> None:
        facts = len(self.world.facts)
        self.world.peer("root", "admin")
        before = len(self.world.facts) - facts
        self.give(self.orders[sorted(self.orders)[which % len(self.orders)]])
        assert len(self.world.facts) == facts + before, "it was carried out twice"

    @precondition(lambda self: self.ledger.quarantine)
    @rule()
    def clear(self) -> None:
        host, kept = next(iter(self.ledger.quarantine.items()))
        self.order(m.QuarantineClear, host=host, instance=next(iter(kept)), reason="tested")

    # ------------------------------------------------------------------------------------------ the nodes

    @rule(fails=st.sampled_from([False, False, True]), dirty=st.booleans(), busy=st.sets(_host))
    def work(self, fails: bool, dirty: bool, busy: set[str]) -> None:
        """Nodes bring what they have further, but the busy ones, whether their link is up or not."""
        for host, node in self.nodes.items():
            self.talk(host)
            for name, one in [] if host in busy else list(node.holds.items()):
                if one.state is BindingState.PREPARING:
                    ready = BindingState.FAILED if fails else BindingState.READY
                    node.move(name, ready, evidence=f"of {name}")
                elif one.state is BindingState.RELEASING:
                    found = [chosen.id for chosen in node.instances.get(name, [])] if dirty else []
                    node.move(name, BindingState.RELEASED, quarantine=dict.fromkeys(found[:1], "dirty"))
            self.talk(host)

    def talk(self, host: str) -> None:
        if host in self.world.peers:
            self.nodes[host].listen()
            self.nodes[host].tell()
            self.nodes[host].listen()

    @rule(kind=st.sampled_from(["deaf", "cut", "rebooted", "forgetful", "full disk"]), host=_host)
    def trouble(self, kind: str, host: str) -> None:
        """What goes wrong on one link, node or disk."""
        node = self.nodes[host]
        if kind == "deaf":  # all that was said to it is lost on the way
            node.read = len(self.world.inbox(host))
        elif kind == "full disk":  # what it says now is not recorded, nor is it told that it was heard
            self.world.commits = False
            self.talk(host)
            self.world.fail()
            self.world.commits = True
            self.world._take(self.world.broker.fault(""))
        elif host in self.world.peers:
            self.world.gone(host)
            for name, one in list(node.holds.items()) if kind == "rebooted" else []:
                if one.state is BindingState.READY:
                    node.move(name, BindingState.PREPARING, reason="the host was rebooted")
            if kind == "forgetful":
                node.forget()

    @rule(hosts=_hosts)
    def come_back(self, hosts: list[str]) -> None:
        for host in hosts:
            if host in self.world.peers and self.world.peers[host].cut:
                self.world.gone(host)  # it was silent for too long, and notices that nobody answers
            if host not in self.world.peers:
                self.nodes[host].arrive()

    # ------------------------------------------------------------------------------------------- the broker

    @rule(seconds=st.sampled_from([1, 11, 60]))
    def wait(self, seconds: int) -> None:
        self.world.wait(seconds, step=3)

    @rule(hosts=_hosts)
    def restart(self, hosts: list[str]) -> None:
        self.world = self.world.restart()
        for node in self.nodes.values():
            node.world, node.read = self.world, 0
        self.come_back(hosts)

    # ------------------------------------------------------------------------------------- always true

    @property
    def ledger(self) -> Any:
        return self.world.broker.state.journal.ledger.claims

    @invariant()
    def an_instance_is_in_one_live_binding(self) -> None:
        seen: dict[tuple[str, str], str] = {}
        for binding in self.ledger.bindings.values():
            for chosen in binding.instances if binding.state in LIVE else ():
                other = seen.setdefault((binding.host, chosen.id), binding.id)
                assert other == binding.id, f"{other} and {binding.id} both have {chosen.id}"
        held = {
            (host, chosen.id)
            for host in HOSTS
            for chosen, why in self.ledger.held(host)
            if "quarantined" not in why
        }
        assert held == set(seen)

    @invariant()
    def the_ledger_is_what_is_on_the_disk(self) -> None:
        again = Ledger()
        for fact in self.world.facts:
            again.apply(fact)
        assert msgspec.structs.asdict(again) == msgspec.structs.asdict(self.world.broker.state.journal.ledger)

    @invariant()
    def a_gang_is_ready_whole(self) -> None:
        for gang in self.ledger.of_gang:
            states = {one.state for one in self.ledger.members(gang)}
            if BindingState.READY in states and gang not in self.committed:
                assert states == {BindingState.READY}, "some of it became ready before the rest"
                self.committed.add(gang)

    @invariant()
    def access_modes_hold(self) -> None:
        for name, record in self.ledger.claims.items():
            live = self.ledger.live(name)
            match record.claim.access:
                case AccessMode.RWO:
                    assert len({one.host for one in live}) <= 1
                case AccessMode.RWOP:
                    assert len(live) <= 1
                case AccessMode.ROX:
                    assert all(one.read_only for one in live)

    @invariant()
    def followers_see_what_is_durable(self) -> None:
        views = self.world.broker.claims.views
        assert {name: view.binding for name, view in views.bindings.items()} == self.ledger.bindings
        assert {name: view.claim for name, view in views.claims.items()} == {
            name: record.claim for name, record in self.ledger.claims.items()
        }
        for name, view in views.claims.items():
            assert view.state == self.ledger.state(name).value
        assert +views.claim_states == Counter(view.state for view in views.claims.values())
        assert +views.binding_states == Counter(one.binding.state for one in views.bindings.values())
        assert set(self.world.broker.claims._owed) <= set(self.ledger.bindings)

    def teardown(self) -> None:
        """Everybody talks until all is said; then everything is released, and nothing is left."""
        self.settle()
        for node in self.nodes.values():
            live = {one.id: one.state for one in self.ledger.on(node.name)}
            held = {name: one.state for name, one in node.holds.items() if one.state not in ENDED}
            assert held == live
            assert set(held.values()) <= {BindingState.READY}
        for name in sorted(self.ledger.claims):
            self.order(m.ClaimRelease, claim=name)
        self.settle()
        assert self.ledger.of_host == {}
        assert not any(one.state in LIVE for one in self.ledger.bindings.values())
        assert all(record.claim.form is ClaimForm.STANDALONE for record in self.ledger.claims.values())
        assert all(node.holds == {} for node in self.nodes.values())

    def settle(self) -> None:
        for _ in range(6):
            self.come_back(HOSTS)
            for host, node in self.nodes.items():
                for name, one in list(node.holds.items()):
                    if one.state is BindingState.PREPARING:
                        node.move(name, BindingState.READY, evidence="e")
                    elif one.state is BindingState.RELEASING:
                        node.move(name, BindingState.RELEASED)
                node.heartbeat()
                self.talk(host)
            self.world.wait(12, step=3)
            for host, node in self.nodes.items():
                node.heartbeat()
                self.talk(host)


Histories.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestHistories = Histories.TestCase
