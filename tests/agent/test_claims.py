"""The agent's side of claims: a thread with the real executor and journal, and what the link says of it."""

import contextlib
import math
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.linux.kernel import Kernel, make_group, make_kernel
from tests.prepare.test_full_disk_matrix import Disk
from tests.prepare.world import INSTANCES, USERS, settings_for
from xce.agent import claim_work
from xce.agent.claim_operations import seconds_of
from xce.agent.claims import Claims, ports_trouble
from xce.agent.cli.claim import sentence
from xce.linux import local_ports
from xce.linux.cgroup import Cgroup
from xce.model import message as m
from xce.model.claim import Ask, Binding, BindingState, Chosen, Claim, Consumer, holdings_digest
from xce.model.instance import Health, Inventory
from xce.model.profile import ClaimPorts, Orphans, Profile
from xce.model.profile import Claims as Settings
from xce.prepare import local
from xce.prepare.entry import Phase, StepState
from xce.prepare.execute import Executor
from xce.prepare.journal import Journal

kernel = pytest.fixture(make_kernel, name="kernel")
group = pytest.fixture(make_group, name="group")
READY, RELEASED = BindingState.READY, BindingState.RELEASED
CARDS = Inventory(reporter="cards", generation=1, complete=True, instances=list(INSTANCES.values()))


class Node:
    """One node and its broker's words; `again` is a restart of the agent on the same machine."""

    def __init__(self, kernel: Kernel, place: Path, group: Cgroup) -> None:
        self.kernel, self.place, self.group, self.boot = kernel, place, group, "boot-1"
        self.inventory: Inventory | None = CARDS
        self.hellos = 0
        for name in ("data", "shared", "state"):
            (place / name).mkdir(exist_ok=True)
        self.claims = self.begin()

    def make(self) -> Executor:
        settings = settings_for(self.place, self.group)
        node = local.node(settings, namespace="self", find_user=USERS.get)
        return Executor(Journal(str(self.place / "state")), node, self.boot)

    def begin(self, *, taking: bool = True) -> Claims:
        def changed() -> None:
            self.hellos += 1

        return Claims(self.kernel.loop, self.make, lambda _reporter: self.inventory, changed, taking=taking)

    def again(self) -> None:
        self.end()
        self.claims = self.begin()

    def end(self) -> None:
        assert self.claims.close(10)

    def welcome(self, *, full: bool) -> None:
        self.claims.holdings.welcomed(full=full)

    def prepare(self, name: str, card: str = "full", *, epoch: int = 1) -> m.BindingPrepare:
        chosen = [Chosen(id=f"card-{card}", reporter="cards", generation=1, kind="card")]
        binding = Binding(
            id=name,
            claim="c",
            host="here",
            consumer=Consumer(name=name, user="alice"),
            instances=chosen,
        )
        claim = Claim(id="c", owner="alice", ask=Ask(environment={"A": "b"}))
        return m.BindingPrepare(epoch=epoch, op_id=f"op-{name}", binding=binding, claim=claim)

    def release(self, name: str) -> None:
        self.claims.ordered(m.BindingRelease(epoch=9, op_id=f"end-{name}", binding=name))

    def until(self, name: str, state: BindingState) -> m.BindingReport:
        def there() -> bool:
            self.claims.turn()
            report = self.claims.holdings.reports.get(name)
            return report is not None and report.state is state

        self.kernel.until(there)
        return self.claims.holdings.reports[name]

    def standing(self, **bindings: str) -> None:
        self.claims.holdings.heard(m.BindingStanding(bindings=bindings))


@pytest.fixture(name="node")
def make_node(kernel: Kernel, tmp_path: Path, group: Cgroup) -> Iterator[Node]:
    node = Node(kernel, tmp_path, group)
    yield node
    for name, report in list(node.claims.holdings.reports.items()):
        if report.state not in {RELEASED, BindingState.FAILED, BindingState.PENDING}:
            node.release(name)
            node.until(name, RELEASED)
    node.end()


def said(node: Node) -> dict[str, Any]:
    news = node.claims.holdings.take()
    return {name: one.state.value for name, one in news.reports.items()} if news else {}


def test_an_order_is_carried_out_in_the_thread_and_told_until_it_was_heard(node: Node) -> None:
    node.claims.ordered(node.prepare("b1"))
    report = node.until("b1", READY)
    assert report.evidence
    assert [one.id for one in report.instances] == ["card-full"]
    assert said(node) == {"b1": "ready"}
    assert said(node) == {}
    node.claims.holdings.again()
    assert said(node) == {"b1": "ready"}, "with the next heartbeat, as nobody has heard it"
    node.standing(b1="ready")
    node.claims.holdings.again()
    assert said(node) == {}
    node.release("b1")
    node.until("b1", RELEASED)
    assert said(node) == {"b1": "released"}
    node.standing(b1="released")
    assert node.claims.holdings.reports == {}


@pytest.mark.root
def test_a_journal_that_cannot_be_written_is_a_fault_of_the_node_until_it_can(
    kernel: Kernel, tmp_path: Path, group: Cgroup
) -> None:
    disk = Disk(tmp_path / "state")
    node = Node(kernel, tmp_path, group)
    try:
        disk.fill()
        node.claims.ordered(node.prepare("b1"))
        kernel.until(lambda: "cannot record intent: no space" in node.claims.seen.unrecorded)
        assert "no space" in node.until("b1", BindingState.PENDING).note
        disk.free()
        kernel.until(lambda: node.claims.seen.unrecorded == "")
        node.claims.ordered(node.prepare("b1"))
        node.until("b1", READY)
        node.release("b1")
        node.until("b1", RELEASED)
    finally:
        node.end()
        disk.close()


def test_the_same_order_again_is_answered_again_and_a_late_one_says_that_it_has_ended(node: Node) -> None:
    node.claims.ordered(node.prepare("b1"))
    node.until("b1", READY)
    node.standing(b1="ready")
    node.claims.ordered(node.prepare("b1"))
    node.kernel.until(node.claims.holdings.pending)
    assert said(node) == {"b1": "ready"}
    node.release("b1")
    node.until("b1", RELEASED)
    node.standing(b1="released")
    node.claims.ordered(node.prepare("b1"))
    node.until("b1", RELEASED)


def test_a_hello_says_the_newest_reign_and_the_highest_number_that_the_node_has_seen(node: Node) -> None:
    node.claims.ordered(node.prepare("b12", epoch=3))
    node.until("b12", READY)
    node.again()
    assert (node.claims.holdings.epoch, node.claims.holdings.newest) == (3, 12)
    node.claims.ordered(node.prepare("b30", "zero", epoch=4))
    assert (node.claims.holdings.epoch, node.claims.holdings.newest) == (4, 30)
    node.until("b30", READY)


def test_a_release_of_what_was_never_here_is_answered(node: Node) -> None:
    node.release("b9")
    assert node.until("b9", RELEASED).reason == "it was never here"


def test_an_order_for_an_inventory_that_nobody_has_found_yet_waits_and_says_so(node: Node) -> None:
    node.inventory = None
    node.claims.ordered(node.prepare("b1"))
    report = node.until("b1", BindingState.PENDING)
    assert report.note == "this node has no inventory of cards yet"
    assert node.claims.holdings.digest() == holdings_digest([]), "it has not begun"
    node.standing(b1="pending")
    node.inventory = CARDS
    node.claims.ordered(node.prepare("b1"))
    node.until("b1", READY)


def test_an_order_that_is_refused_says_why_and_may_come_again(node: Node) -> None:
    node.claims.ordered(node.prepare("b1", epoch=7))
    node.until("b1", READY)
    node.claims.ordered(node.prepare("b2", "zero", epoch=6))
    assert "order of epoch 6 is stale" in node.until("b2", BindingState.PENDING).note
    node.claims.ordered(node.prepare("b3", "full", epoch=7))
    assert "card-full is held by binding b1" in node.until("b3", BindingState.PENDING).note


def test_an_agent_that_starts_again_says_the_digest_of_what_it_has_before_its_first_hello(node: Node) -> None:
    node.claims.ordered(node.prepare("b1"))
    node.until("b1", READY)
    node.again()
    assert node.claims.holdings.digest() == holdings_digest([("b1", READY)])
    assert node.hellos == 2


def test_after_a_reboot_bindings_wait_for_the_inventory_and_are_made_again(node: Node) -> None:
    node.claims.ordered(node.prepare("b1"))
    node.until("b1", READY)
    node.end()
    node.boot, node.inventory = "boot-2", None
    node.claims = node.begin()
    report = node.claims.holdings.reports["b1"]
    assert (report.state, report.reason) == (BindingState.PREPARING, "the host was started anew")
    node.kernel.during(0.1)
    node.claims.turn()
    assert node.claims.holdings.digest() == holdings_digest([("b1", BindingState.PREPARING)])
    node.inventory = CARDS
    node.until("b1", READY)


def test_a_node_whose_journal_is_damaged_asks_the_broker_what_it_has(node: Node) -> None:
    node.claims.ordered(node.prepare("b1"))
    node.until("b1", READY)
    node.end()
    (node.place / "state" / "claims.sqlite").write_bytes(b"")
    node.claims = node.begin()
    assert node.claims.holdings.digest() == "unknown", "the broker asks for everything"
    node.welcome(full=True)
    node.claims.turn()
    node.claims.ordered(node.prepare("b1"))
    assert "b1" not in node.claims.holdings.reports, "not before all is known"
    node.standing()
    node.until("b1", READY)
    assert node.claims.holdings.digest() == holdings_digest([("b1", READY)])


def test_an_order_that_comes_while_a_node_is_taken_up_is_carried_out_afterwards(node: Node) -> None:
    node.end()
    (node.place / "state" / "claims.sqlite").write_bytes(b"")
    node.claims = node.begin()
    node.welcome(full=True)
    node.claims.ordered(node.prepare("b1"))
    node.standing()
    node.claims.turn()  # the thread is told what there is; nobody has heard that it is done
    node.claims.ordered(node.prepare("b2", "zero"))
    assert node.claims.holdings.digest() == "unknown"
    for name in ("b1", "b2"):
        node.until(name, READY)
    assert node.claims.holdings.digest() == holdings_digest([("b1", READY), ("b2", READY)])


def test_a_node_that_takes_none_any_more_looks_after_what_it_has_and_refuses_the_rest(node: Node) -> None:
    node.claims.ordered(node.prepare("b1"))
    node.until("b1", READY)
    node.end()
    node.claims = node.begin(taking=False)
    assert node.claims.holdings.digest() == holdings_digest([("b1", READY)])
    node.claims.ordered(node.prepare("b2", "zero"))
    assert "takes no claims any more" in node.until("b2", BindingState.FAILED).reason
    node.standing(b2="failed")
    node.claims.ordered(node.prepare("b1"))
    node.until("b1", READY)
    node.release("b1")
    node.until("b1", RELEASED)


def test_what_no_claim_owns_and_is_taken_away_is_told(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `orphans: clean`: processes end and files go, and somebody will ask why."""
    node.claims.ordered(node.prepare("b1"))
    node.until("b1", READY)
    node.end()
    for path in (node.place / "state").iterdir():
        path.unlink()
    told: list[str] = []

    def cleaned() -> bool:
        node.claims.turn()
        return any(one.startswith("control group ") for one in told)

    settings = msgspec.structs.replace(settings_for(node.place, node.group), orphans=Orphans.CLEAN)
    monkeypatch.setattr("tests.agent.test_claims.settings_for", lambda *_: settings)
    node.claims = node.begin()
    node.claims.tidied = told.append
    node.standing()
    node.kernel.until(cleaned)
    assert len(told) == len(set(told))


def test_a_machine_that_cannot_serve_claims_says_why_and_takes_no_orders(kernel: Kernel) -> None:
    def make() -> Executor:
        raise OSError("no control groups of version 2 are mounted here")

    claims = Claims(kernel.loop, make, lambda _reporter: None, lambda: None)
    assert claims.fault == "no claims are served: no control groups of version 2 are mounted here"
    assert claims.holdings.digest() is None
    claims.close(5)


def test_a_profile_whose_ports_the_kernel_uses_too_is_a_trouble_of_the_agent() -> None:
    assert ports_trouble(Settings(profiles={"a": Profile(ports=ClaimPorts(low=1, high=2))})) == ""
    own = local_ports.automatic()
    if not own:
        pytest.skip("the kernel does not say which ports it uses")
    overlapping = ClaimPorts(low=own[0][0], high=own[0][0])
    told = ports_trouble(Settings(profiles={"wide": Profile(ports=overlapping)}))
    assert told.startswith(f"profile wide: the kernel gives {own[0][0]} to outgoing connections; reserve")


def test_a_journal_of_a_newer_version_serves_no_claims_and_says_what_to_install(node: Node) -> None:
    node.claims.ordered(node.prepare("b1"))
    node.until("b1", READY)
    node.end()
    path = node.place / "state/claims.sqlite"

    def of_version(number: int) -> None:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute(f"PRAGMA user_version={number}")

    of_version(99)
    node.claims = node.begin()
    assert not node.claims.holdings.serving
    assert "no claims are served" in node.claims.fault
    assert "is of version 99, this program knows up to 1: install the version" in node.claims.fault
    node.end()
    of_version(1)
    node.claims = node.begin()  # the newer agent is back, and has all of it
    assert node.claims.fault == ""
    assert node.until("b1", READY).evidence


def test_a_disk_that_does_not_answer_is_said_and_mended_by_its_answer(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for it is the thread alone, which cannot say so itself."""
    monkeypatch.setattr(claim_work, "STALLED_S", 0.2)
    node.claims.ordered(node.prepare("b0", "zero"))
    node.until("b0", READY)
    answered = threading.Event()
    node.claims.ask(lambda _executor: answered.wait(20), lambda _: None)
    node.claims.ordered(node.prepare("b1"))
    node.kernel.until(lambda: "a disk or file system does not answer" in node.claims.trouble())
    where = node.claims.trouble().rpartition("cat ")[2].rstrip(")")
    assert Path(where).exists()
    node.claims.ordered(node.prepare("b1"))  # the broker has heard nothing of it, and gives it again
    node.release("b0")
    assert "does not answer" in node.until("b1", BindingState.PENDING).note
    report = node.until("b0", READY)
    assert ("does not answer" in report.note, report.conditions) == (True, ["blocked"])
    answered.set()
    node.until("b1", READY)
    node.until("b0", RELEASED)
    node.kernel.during(0.4)
    assert node.claims.trouble() == "", "it rests"


def test_what_became_of_a_binding_is_told_once_with_its_claim(node: Node) -> None:
    told: list[tuple[str, str, str]] = []
    node.claims.tell = lambda name, one: told.append(
        (name, one.state.value, node.claims.holdings.claims[name])
    )
    node.claims.ordered(node.prepare("b1"))
    node.until("b1", READY)
    node.claims.ordered(node.prepare("b2", card="none"))
    node.until("b2", BindingState.FAILED)
    node.release("b1")
    node.until("b1", RELEASED)
    assert told == [("b1", "ready", "c"), ("b2", "failed", "c"), ("b1", "released", "c")]
    node.standing(b1="released", b2="failed")
    assert node.claims.holdings.claims == {}


def test_c_gpu_06_a_new_prepare_fails_with_the_cause_and_what_is_ready_stays(node: Node) -> None:
    """The library does not match the driver any more: nothing is gone, nothing is whole, all is unknown."""
    node.claims.ordered(node.prepare("b1"))
    node.until("b1", READY)
    why = "driver/library mismatch"
    unknown = [msgspec.structs.replace(one, health=Health.UNKNOWN, reason=why) for one in CARDS.instances]
    node.inventory = msgspec.structs.replace(CARDS, generation=2, complete=False, instances=unknown)
    node.claims.ordered(node.prepare("b2", "zero"))
    assert node.until("b2", BindingState.FAILED).reason == f"instance card-zero is unknown: {why}"
    node.kernel.during(0.2)  # some looks for drift
    report = node.claims.holdings.reports["b1"]
    assert (report.state, report.conditions) == (READY, [])
    node.inventory = CARDS
    node.claims.ordered(node.prepare("b3", "zero"))
    node.until("b3", READY)
    node.inventory = msgspec.structs.replace(CARDS, complete=False, instances=CARDS.instances[:1])
    node.claims.ordered(node.prepare("b4", "other"))
    assert "has no inventory of cards yet" in node.until("b4", BindingState.PENDING).note, "it may come"


def test_an_order_for_a_machine_that_cannot_serve_claims_says_why_and_ends_nothing(node: Node) -> None:
    """What its journal holds is not known: nothing may be said to have failed, or to be gone."""

    def make() -> Executor:
        raise OSError(1, "no control groups of version 2 are mounted here, and they cannot be: no")

    node.end()
    node.claims = Claims(node.kernel.loop, make, lambda _: CARDS, lambda: None)
    node.kernel.until(lambda: "no claims are served" in node.claims.fault)
    node.claims.ordered(node.prepare("b1"))
    note = node.until("b1", BindingState.PENDING).note
    assert note.startswith("no claims are served: ")
    assert "no control groups of version 2" in note


@pytest.mark.parametrize(
    ("phase", "states", "at_work"),
    [
        (Phase.PREPARING, [StepState.DONE, StepState.BEGUN, StepState.BEGUN], "step 2"),
        (Phase.RELEASING, [StepState.DONE, StepState.DONE, StepState.UNDONE], "step 2"),
        (Phase.UNDOING, [StepState.DONE, StepState.BEGUN, StepState.BEGUN], "step 3"),
        (Phase.RELEASING, [StepState.UNDONE, StepState.UNDONE, StepState.UNDONE], "nothing is left to do"),
    ],
)
def test_why_names_the_step_that_is_at_work(phase: Phase, states: list[StepState], at_work: str) -> None:
    """`done` from the first to the last, `undone` from the last to the first."""
    steps = [{"what": f"step {number}", "state": state.value} for number, state in enumerate(states, 1)]
    binding = {"note": "", "reason": "", "ready": False, "state": "x", "phase": phase.value, "steps": steps}
    assert sentence(binding) == f"it is {phase}: {at_work}"


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("5", 60),
        (None, 60),
        (2, 2),
        (0.5, 0.5),
        (-1, 0),
        (10**400, 86400),
        (-(10**400), 0),
        (math.nan, 86400),
    ],
)
def test_whoever_waits_waits_for_a_time_that_ends(given: object, seconds: float) -> None:
    """A number that no float holds was an internal error of the agent, which stayed in its status."""
    assert seconds_of(given) == seconds
