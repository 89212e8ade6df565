"""A simulated provider makes claims and lets go of them after its delays, once each, and with its faults."""

from xce.broker.simulated_provider import NEVER, SimulatedProvider, Word
from xce.model import document
from xce.model.claim import BindingState, Claim
from xce.model.message import ClaimView
from xce.model.simulated import SimulatedClaims

PREPARING, READY = BindingState.PREPARING, BindingState.READY
FAILED, RELEASED = BindingState.FAILED, BindingState.RELEASED


def provider(rules: str) -> SimulatedProvider:
    return SimulatedProvider(document.load(rules, "claims.yaml", SimulatedClaims))


def view(name: str = "vol", state: str = "pending", *, ending: bool = False) -> ClaimView:
    claim = Claim(id=name, owner="alice", provider="store")
    return ClaimView(claim=claim, state=state, conditions=["ending"] if ending else [])


def told(one: SimulatedProvider) -> list[tuple[float, Word]]:
    """Everything that is planned, with its times."""
    found = []
    while (when := one.due()) != NEVER:
        found += [(when, word) for word in one.take(when)]
    return found


def test_a_claim_is_made_once_after_its_delays_with_what_is_said_of_it() -> None:
    store = provider("claims: [{answer_s: 1, create_s: 5, volume: {path: '/v/{claim}'}}]")
    store.see("vol", view(), 10, bound=False)
    assert told(store) == [(11, Word("vol", PREPARING)), (16, Word("vol", READY, volume={"path": "/v/vol"}))]
    store.see("vol", view(state="ready"), 16, bound=False)
    assert store.due() == NEVER


def test_faults_are_those_of_the_first_rule_that_takes_it() -> None:
    rules = "claims: [{claims: [a*], fail: no space}, {owners: [alice], hang: true}, {create_s: 1}]"
    store = provider(rules)
    store.see("a1", view("a1"), 0, bound=False)
    store.see("b1", view("b1"), 0, bound=False)
    words = [word for _, word in told(store)]
    assert [word for word in words if word.claim == "a1"] == [
        Word("a1", PREPARING),
        Word("a1", FAILED, "no space"),
    ]
    assert [word for word in words if word.claim == "b1"] == [Word("b1", PREPARING)]


def test_it_lets_go_of_an_ending_claim_once_nobody_has_it() -> None:
    store = provider("claims: [{delete_s: 3}]")
    store.see("vol", view(state="ready", ending=True), 0, bound=True)
    assert store.due() == NEVER
    store.see("vol", view(state="ready", ending=True), 5, bound=False)
    store.see("vol", view(state="ready", ending=True), 6, bound=False)
    assert told(store) == [(8, Word("vol", RELEASED))]


def test_an_end_while_it_is_made_is_the_only_thing_that_is_told() -> None:
    store = provider("claims: [{create_s: 5, delete_s: 1}]")
    store.see("vol", view(), 0, bound=False)
    assert store.take(0) == [Word("vol", PREPARING)]
    store.see("vol", view(state="preparing", ending=True), 2, bound=False)
    assert told(store) == [(3, Word("vol", RELEASED))]


def test_one_that_is_kept_is_never_let_go_of_and_one_that_is_gone_is_forgotten() -> None:
    store = provider("claims: [{claims: [k], keep: true}, {create_s: 5}]")
    store.see("k", view("k", "ready", ending=True), 0, bound=False)
    store.see("vol", view(), 0, bound=False)
    store.see("vol", None, 1, bound=False)
    assert told(store) == []


def test_after_a_restart_it_goes_by_what_the_broker_shows() -> None:
    store = provider("claims: [{create_s: 5}]")
    store.see("made", view("made", "ready"), 0, bound=False)
    store.see("used", view("used", "pending"), 0, bound=True)
    store.see("failed", view("failed", "failed"), 0, bound=False)
    assert told(store) == []
    store.see("begun", view("begun", "preparing"), 0, bound=False)
    assert [word.state for _, word in told(store)] == [PREPARING, READY]


def test_what_could_not_be_told_is_told_again() -> None:
    store = provider("")
    store.see("vol", view(), 0, bound=False)
    words = store.take(0)
    store.again(words[-1], 4)
    assert told(store) == [(4, Word("vol", READY))]
