"""Simulated hosts keep a node's rules about claims, after the delays and with the faults of their file."""

import re
from pathlib import Path

import pytest

from xce.agent.external.claims import NEVER, HostClaims
from xce.model import document, refusal
from xce.model.claim import Ask, Binding, BindingState, Chosen, Claim, Consumer, PortsAsk
from xce.model.message import BindingPrepare, BindingRelease, BindingReport, BindingStanding
from xce.model.simulated import BindingRule, Loss, ProviderRule, SimulatedClaims, Trouble

NOTHING = Ask()


def file_of(text: str) -> SimulatedClaims:
    return document.load(text, "claims.yaml", SimulatedClaims)


class Simulated:
    """One host, its clock, and everything that it said, with the times."""

    def __init__(self, text: str = "", host: str = "sim1") -> None:
        self.lost: list[tuple[Loss, float]] = []
        self.claims = HostClaims(host, file_of(text), lambda loss, for_s: self.lost.append((loss, for_s)))
        self.now = 0.0
        self.said: list[tuple[float, str, BindingReport]] = []

    def prepare(self, name: str = "b1", claim: str = "c", consumer: str = "j", ask: Ask = NOTHING) -> None:
        binding = Binding(
            id=name,
            claim=claim,
            host="sim1",
            consumer=Consumer(name=consumer),
            instances=[Chosen(id="GPU-a", reporter="discovery", generation=1, kind="gpu")],
        )
        order = BindingPrepare(epoch=1, op_id="o", binding=binding, claim=Claim(id=claim, ask=ask))
        self.claims.ordered(order, self.now)
        self._listen()

    def release(self, name: str = "b1") -> None:
        self.claims.ordered(BindingRelease(epoch=1, op_id="r", binding=name), self.now)
        self._listen()

    def start_anew(self) -> None:
        self.claims.started_anew(self.now)
        self._listen()

    def until(self, when: float) -> None:
        while self.claims.due() <= when:
            self.now = self.claims.due()
            self.claims.advance(self.now)
            self._listen()
        self.now = when

    def _listen(self) -> None:
        news = self.claims.holdings.take()
        self.said += [(self.now, name, report) for name, report in news.reports.items()] if news else []

    def states(self, name: str = "b1") -> list[tuple[float, str]]:
        """When it was said to be in which state; repetitions left out."""
        found: list[tuple[float, str]] = []
        for when, one, report in self.said:
            if one == name and (not found or found[-1][1] != report.state):
                found.append((when, report.state.value))
        return found

    def last(self, name: str = "b1") -> BindingReport:
        return [report for _, one, report in self.said if one == name][-1]


def test_without_rules_all_is_ready_and_gone_at_once() -> None:
    host = Simulated()
    host.prepare()
    assert host.last().state is BindingState.READY
    assert host.last().evidence
    host.release()
    assert host.last().state is BindingState.RELEASED
    assert host.claims.due() == NEVER


def test_delays_are_those_of_the_rule() -> None:
    host = Simulated("bindings: [{answer_s: 1, prepare_s: 2, release_s: 4}]")
    host.prepare()
    host.until(10)
    host.release()
    host.until(20)
    assert host.states() == [(1, "preparing"), (3, "ready"), (11, "releasing"), (15, "released")]


def test_the_first_rule_that_takes_a_binding_decides() -> None:
    rules = "bindings: [{hosts: [sim2], fail: a}, {claims: [t-*], fail: b}, {consumers: ['9'], fail: c}]"
    for claim, consumer, reason in (("t-1", "9", "b"), ("x", "9", "c"), ("x", "8", "")):
        host = Simulated(rules)
        host.prepare(claim=claim, consumer=consumer)
        assert host.last().reason == reason
    other = Simulated(rules, host="sim2")
    other.prepare(claim="t-1")
    assert (other.last().state, other.last().reason) == (BindingState.FAILED, "a")


def test_one_that_hangs_is_never_ready_and_can_be_released() -> None:
    host = Simulated("bindings: [{hang: true}]")
    host.prepare()
    host.until(1e6)
    assert host.last().state is BindingState.PREPARING
    host.release()
    assert host.last().state is BindingState.RELEASED


def test_a_refused_order_is_pending_with_the_reason_until_it_is_taken() -> None:
    host = Simulated("bindings: [{refuse: {note: no inventory yet, for_s: 5}}]")
    host.prepare()
    assert (host.last().state, host.last().note) == (BindingState.PENDING, "no inventory yet")
    host.until(4)
    host.prepare()  # as the broker does it
    assert host.last().state is BindingState.PENDING
    host.until(6)
    assert host.states() == [(0, "pending"), (5, "ready")]


def test_one_degrades_and_recovers() -> None:
    host = Simulated("bindings: [{degrade: {after_s: 3, for_s: 2, note: filter replaced}}]")
    host.prepare()
    host.until(4)
    assert (host.last().conditions, host.last().note) == (["degraded"], "filter replaced")
    host.until(6)
    assert (host.last().state, host.last().conditions) == (BindingState.READY, [])


def test_a_blocked_release_names_what_holds_it_and_goes_on_after_its_time() -> None:
    host = Simulated("bindings: [{block: {note: pid 7 has it open, for_s: 60}, quarantine: dirty}]")
    host.prepare()
    host.release()
    assert (host.last().state, host.last().conditions) == (BindingState.RELEASING, ["blocked"])
    assert host.last().note == "pid 7 has it open"
    host.until(61)
    assert (host.last().state, host.last().quarantine) == (BindingState.RELEASED, {"GPU-a": "dirty"})


def test_a_release_ends_what_was_under_way() -> None:
    host = Simulated("bindings: [{prepare_s: 5, release_s: 9}]")
    host.prepare()
    host.until(2)
    host.release()
    host.until(20)
    assert host.states() == [(0, "preparing"), (2, "releasing"), (11, "released")]


def test_a_reboot_begins_anew_what_was_under_way() -> None:
    host = Simulated("bindings: [{prepare_s: 5}]")
    host.prepare()
    host.until(3)
    host.start_anew()
    host.until(20)
    assert host.states() == [(0, "preparing"), (8, "ready")]


def test_a_nodes_rules_are_kept() -> None:
    """The same order again changes nothing; what has ended is never begun anew; the unknown is released."""
    host = Simulated("bindings: [{prepare_s: 5}]")
    host.prepare()
    host.until(3)
    host.prepare()
    host.until(5)
    assert host.states() == [(0, "preparing"), (5, "ready")]
    host.release()
    host.claims.holdings.heard(BindingStanding(bindings={"b1": "released"}))
    assert not host.claims.holdings.reports
    host.prepare()
    assert host.last().state is BindingState.RELEASED
    host.release("b99")
    assert host.last("b99").state is BindingState.RELEASED


def test_a_host_is_lost_and_comes_back_started_anew() -> None:
    host = Simulated("bindings: [{prepare_s: 1, lose: {after_s: 4, for_s: 30, reboot: true}}]")
    host.prepare()
    host.until(10)
    ((loss, for_s),) = host.lost
    assert (loss.reboot, for_s) == (True, 30)
    host.start_anew()
    host.until(12)
    assert host.states() == [(0, "preparing"), (1, "ready"), (10, "preparing"), (11, "ready")]
    assert [one.reason for _, _, one in host.said if one.reason] == ["the host was started anew"]
    assert len(host.lost) == 1


def test_no_two_claims_of_a_host_get_the_same_port_and_too_few_fail() -> None:
    host = Simulated()
    ask = Ask(ports=[PortsAsk(name="rpc", count=2, low=100, high=102)])
    host.prepare("b1", ask=ask)
    assert host.last().ports == {"rpc": [100, 101]}
    host.prepare("b2", consumer="k", ask=ask)
    assert host.last("b2").state is BindingState.FAILED
    host.release("b1")
    host.prepare("b3", consumer="l", ask=ask)
    assert host.last("b3").ports == {"rpc": [100, 101]}


SPREAD = "bindings: [{share: 0.3, prepare_s: [1, 9], fail: bad}, {prepare_s: [1, 9]}]"


def fates(order: list[int], text: str = SPREAD) -> dict[str, tuple[float, str]]:
    host = Simulated(text)
    for number in order:
        host.prepare(f"b{number}-{order[0]}", claim=f"c{number}")
    host.until(10)
    return {name.partition("-")[0]: (when, report.state.value) for when, name, report in host.said}


def test_the_same_seed_gives_the_same_fates_in_whatever_order_they_come() -> None:
    mine = fates(list(range(60)))
    assert mine == fates(list(reversed(range(60))))
    assert mine != fates(list(range(60)), f"seed: 2\n{SPREAD}")
    failed = sum(state == "failed" for _, state in mine.values())
    assert 8 <= failed <= 30
    assert all(1 <= when <= 9 for when, _ in mine.values())


def test_one_that_is_tried_again_has_another_fate() -> None:
    host = Simulated("bindings: [{share: 0.5, fail: bad}]")
    for number in range(20):
        host.prepare(f"b{number}")
    assert len({report.state for _, _, report in host.said if report.state != "preparing"}) == 2


def test_what_has_ended_is_not_kept_for_ever() -> None:
    host = Simulated()
    for number in range(3000):
        host.prepare(f"b{number}", consumer=f"j{number}")
        host.release(f"b{number}")
        host.claims.holdings.heard(BindingStanding(bindings={f"b{number}": "released"}))
    kept = [len(one) for one in vars(host.claims).values() if isinstance(one, dict | list)]
    assert max(kept) <= 1000


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("bindings:\n  - prepare: 3", 2, "bindings[0]"),
        ("bindings:\n  - {hosts: [a]}\n  - {prepare_s: [3]}", 3, "bindings[1]"),
        ("bindings:\n  - {prepare_s: [5, 1]}", 2, "bindings[0]"),
        ("bindings:\n  - block: {for_s: 3}", 2, "bindings[0].block"),
        ("bindings:\n  - degrade: {note: ''}", 2, "bindings[0].degrade"),
        ("claims:\n  - share: 2", 2, "claims[0].share"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_with_line_and_key(text: str, line: int, key: str) -> None:
    with pytest.raises(refusal.ConfigRefused) as refused:
        file_of(text)
    assert [(error.path, error.line) for error in refused.value.errors] == [("claims.yaml", line)]
    assert refused.value.errors[0].key.startswith(key)


def test_the_shipped_example_is_a_file_that_fits() -> None:
    rules = file_of(Path("docs/examples/claims-simulated.yaml").read_text()).bindings
    assert len(rules) == 7
    assert [rule.share for rule in rules] == [1, 1, 0.02, 0.01, 0.01, 0.01, 1]


def test_every_key_of_a_file_is_on_its_page() -> None:
    page = Path("docs/simulation.md").read_text()
    for kind in (SimulatedClaims, BindingRule, ProviderRule, Trouble, Loss):
        for key in kind.__struct_fields__:
            assert re.search(rf"`[^`]*\b{key}\b[^`]*`", page), f"{key} of {kind.__name__}"
