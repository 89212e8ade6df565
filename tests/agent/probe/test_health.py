"""Memory of health: probation, quarantine, what ends an XID, and what an admin may clear."""

import hypothesis
import hypothesis.strategies as st
import msgspec
import pytest

from xce.agent.probe import health
from xce.agent.probe.health import Record, Rules, State
from xce.agent.probe.verdict import Fault, Verdict
from xce.model.instance import Health

RULES = Rules(probation_s=(0.0, 50.0, 200.0), event_probation_s=30.0, settle_s=10.0, memory_s=5000.0, falls=3)
WELL = Verdict()
PENDING = Verdict(faults=(Fault(cause="remap-pending", reason="waits", evidence="e", recovery="r"),))
FABRIC = Verdict(faults=(Fault(cause="fabric", reason="in progress"),))
LOST = Verdict(faults=(Fault(cause="lost", reason="GPU is lost", health=Health.LOST),))
UNKNOWN = Verdict(faults=(Fault(cause="library", reason="mismatch", health=Health.UNKNOWN),))


def xid(at: float, cured: bool | None = None) -> Verdict:
    return Verdict(events=(Fault(cause="xid-79", reason="XID 79", at=at),), cured=cured)


class Patient:
    """One instance through time."""

    def __init__(self) -> None:
        self.record = Record()
        self.verdict = WELL
        self.boot = "boot-1"

    def at(self, now: float, verdict: Verdict) -> health.Shown:
        self.verdict = verdict
        raw = msgspec.json.encode(
            health.step(self.record, verdict, now=now, wall=f"T{now:.0f}", boot=self.boot, rules=RULES)
        )
        self.record = msgspec.json.decode(raw, type=Record)  # it survives its keeper
        return health.shown(self.record, verdict)

    def clear(self, now: float, why: str = "replaced the riser") -> health.Shown:
        self.record = health.clear(
            self.record, self.verdict, who="admin:mo", why=why, now=now, wall=f"T{now:.0f}"
        )
        return health.shown(self.record, self.verdict)


def test_a_gpu_that_was_lost_once_is_the_same_and_there_again_as_soon_as_it_is_found() -> None:
    """C-GPU-02."""
    gpu = Patient()
    assert gpu.at(0, WELL).health == Health.AVAILABLE
    lost = gpu.at(30, LOST)
    assert (lost.health, lost.reason, lost.since) == (Health.LOST, "GPU is lost", "T30")
    assert gpu.at(60, LOST).since == "T30"
    back = gpu.at(90, WELL)
    assert (back.health, back.since) == (Health.AVAILABLE, "T90")


def test_what_falls_again_stays_out_longer_each_time_and_then_until_an_admin_comes() -> None:
    gpu = Patient()
    gpu.at(0, LOST)
    assert gpu.at(10, WELL).health == Health.AVAILABLE
    gpu.at(20, LOST)
    second = gpu.at(30, WELL)
    assert (second.health, second.reason) == (Health.UNAVAILABLE, "on probation after: GPU is lost")
    assert second.recovery == "by itself after 50 s without a fault"
    assert gpu.at(79, WELL).health == Health.UNAVAILABLE
    assert gpu.at(80, WELL).health == Health.AVAILABLE
    gpu.at(90, FABRIC)
    assert gpu.at(100, WELL).recovery == "by itself after 200 s without a fault"
    gpu.at(110, FABRIC)
    out = gpu.at(120, WELL)
    assert (out.health, out.recovery) == (Health.QUARANTINED, "by an admin")
    assert out.reason == "ill 4 times, last: in progress"
    assert gpu.at(100_000, WELL).health == Health.QUARANTINED
    assert gpu.clear(100_001).health == Health.AVAILABLE
    assert gpu.at(100_002, WELL).health == Health.AVAILABLE


def test_falls_are_forgotten_after_a_long_time_in_health() -> None:
    gpu = Patient()
    gpu.at(0, LOST)
    gpu.at(10, WELL)
    gpu.at(5100, WELL)
    gpu.at(5200, LOST)
    assert gpu.at(5210, WELL).health == Health.AVAILABLE, "it is a first time again"


def test_a_fault_in_probation_starts_it_over() -> None:
    gpu = Patient()
    gpu.at(0, xid(0.5))
    gpu.at(20, Verdict(cured=True))
    assert gpu.record.state == State.PROBATION
    gpu.at(40, FABRIC)
    assert gpu.at(45, WELL).health == Health.UNAVAILABLE
    assert gpu.at(94, WELL).health == Health.UNAVAILABLE
    assert gpu.at(95, WELL).health == Health.AVAILABLE


def test_an_xid_lasts_after_it_was_told_until_the_driver_says_that_nothing_is_needed() -> None:
    gpu = Patient()
    gpu.at(0, WELL)
    assert gpu.at(100, xid(99.0)).reason == "XID 79"
    assert gpu.at(1000, WELL).reason == "XID 79", "a driver that says nothing ends nothing"
    assert gpu.at(1010, Verdict(cured=False)).reason == "XID 79"
    assert gpu.at(1020, Verdict(cured=True)).reason == "on probation after: XID 79"
    assert gpu.at(1050, Verdict(cured=True)).health == Health.AVAILABLE


def test_the_drivers_word_is_not_believed_in_the_same_moment_as_the_xid() -> None:
    gpu = Patient()
    gpu.at(100, xid(99.0, cured=True))
    assert gpu.at(108, Verdict(cured=True)).reason == "XID 79"
    assert gpu.at(109, Verdict(cured=True)).reason.startswith("on probation")


def test_an_xid_told_again_by_the_next_reading_is_not_another_one() -> None:
    gpu = Patient()
    gpu.at(100, xid(99.0))
    gpu.at(120, xid(99.0, cured=True))
    assert gpu.at(150, xid(99.0, cured=True)).health == Health.AVAILABLE
    assert gpu.record.falls == 1
    assert gpu.at(160, xid(155.0)).reason == "XID 79", "a new one is"


@pytest.mark.parametrize("how", ["reboot", "gone and back"])
def test_what_ends_an_xid_besides_the_drivers_word(how: str) -> None:
    gpu = Patient()
    gpu.at(100, xid(99.0))
    if how == "reboot":
        gpu.boot = "boot-2"
        assert gpu.at(5, WELL).reason == "on probation after: XID 79"
        assert gpu.at(35, WELL).health == Health.AVAILABLE
        assert gpu.at(50, xid(40.0)).reason == "XID 79", "the clock of the new boot began at 0"
    else:
        gpu.at(110, LOST)
        assert gpu.at(120, WELL).reason == "on probation after: GPU is lost"
        assert gpu.at(150, WELL).health == Health.AVAILABLE


def test_an_xid_of_a_gpu_that_was_lost_when_it_was_told_ended_with_its_return() -> None:
    """While it is lost the library cannot say who it is: the event reaches its record when it is back."""
    gpu = Patient()
    gpu.at(100, LOST)
    gpu.at(110, LOST)
    back = gpu.at(120, xid(105.0))
    assert back.reason == "on probation after: GPU is lost"
    assert back.recovery == "by itself after 30 s without a fault"
    assert gpu.at(150, xid(105.0)).health == Health.AVAILABLE
    assert gpu.at(160, xid(155.0)).reason == "XID 79"


def test_what_cannot_be_read_is_unknown_and_neither_mends_nor_condemns() -> None:
    """C-GPU-06: a mismatch of driver and library says nothing of the GPUs."""
    gpu = Patient()
    gpu.at(0, WELL)
    unknown = gpu.at(30, UNKNOWN)
    assert (unknown.health, unknown.reason, unknown.since) == (Health.UNKNOWN, "mismatch", "T30")
    assert gpu.at(120, WELL).health == Health.AVAILABLE
    assert gpu.record.falls == 0
    gpu.at(130, PENDING)
    assert gpu.at(140, UNKNOWN).health == Health.UNKNOWN
    assert gpu.record.state == State.FAULTY


def test_time_in_which_nothing_could_be_read_is_not_served() -> None:
    gpu = Patient()
    gpu.at(0, xid(0.5))
    gpu.at(20, Verdict(cured=True))
    gpu.at(25, UNKNOWN)
    gpu.at(60, UNKNOWN)
    assert gpu.at(61, WELL).health == Health.UNAVAILABLE
    assert gpu.at(90, WELL).health == Health.AVAILABLE


def test_an_admin_clears_what_is_still_seen_and_it_holds_until_that_is_gone() -> None:
    gpu = Patient()
    gpu.at(0, PENDING)
    cleared = gpu.clear(10)
    assert cleared.health == Health.AVAILABLE
    assert gpu.at(20, PENDING).notes == ("waits; cleared by admin:mo: replaced the riser",)
    assert gpu.at(30, FABRIC).health == Health.UNAVAILABLE, "another fault was not cleared"
    gpu.at(40, WELL)
    assert gpu.at(1000, PENDING).health == Health.UNAVAILABLE, "it was gone and is there again"


def test_an_admin_clears_an_xid_but_not_the_next_one() -> None:
    gpu = Patient()
    gpu.at(100, xid(99.0))
    assert gpu.clear(110).health == Health.AVAILABLE
    assert gpu.at(120, xid(99.0)).health == Health.AVAILABLE
    assert gpu.at(130, xid(125.0)).health == Health.UNAVAILABLE


def test_what_an_admin_cannot_clear_is_refused_with_the_reason() -> None:
    gpu = Patient()
    gpu.at(0, LOST)
    with pytest.raises(ValueError, match="cannot clear an instance that is lost"):
        gpu.clear(10)
    gpu.at(20, PENDING)
    with pytest.raises(ValueError, match="cannot clear without a reason"):
        gpu.clear(30, why=" ")
    with pytest.raises(ValueError, match="cannot clear an instance that is healthy"):
        Patient().clear(0)


def test_a_reading_without_memory_shows_its_faults_and_events() -> None:
    assert health.alone(WELL).health == Health.AVAILABLE
    assert health.alone(LOST).reason == "GPU is lost"
    assert health.alone(UNKNOWN).health == Health.UNKNOWN
    assert health.alone(xid(5.0)).reason == "XID 79"


def test_a_part_is_never_better_than_the_whole() -> None:
    well = health.Shown(health=Health.AVAILABLE, notes=("mine",))
    ill = health.Shown(health=Health.LOST, reason="GPU is lost", since="T9")
    assert health.below(well, ill) == health.Shown(
        health=Health.LOST, reason="its GPU: GPU is lost", since="T9", notes=("mine",)
    )
    assert health.below(ill, well) is ill
    assert health.below(well, well) is well


VERDICTS = [WELL, PENDING, FABRIC, LOST, UNKNOWN, Verdict(cured=True), Verdict(cured=False), "xid"]


@hypothesis.given(
    st.lists(st.tuples(st.floats(0, 400), st.sampled_from(VERDICTS), st.booleans()), max_size=40),
    st.sampled_from([0, 7]),
)
def test_whatever_happens_health_follows_the_rules(
    story: list[tuple[float, Verdict | str, bool]], every: int
) -> None:
    """No order of readings raises, offers what is ill, or leaves anything ill for ever but by rule."""
    gpu, now = Patient(), 0.0
    for number, (later, item, clears) in enumerate(story):
        now += later
        verdict = xid(now) if isinstance(item, str) else item
        if every and number % every == every - 1:
            gpu.boot += "x"
        shown = gpu.at(now, verdict)
        if verdict.health == Health.UNKNOWN:
            assert shown.health in (Health.UNKNOWN, Health.QUARANTINED)
        elif verdict.faults:
            assert shown.health != Health.AVAILABLE or verdict.faults[0].cause in gpu.record.waived
        elif gpu.record.event is not None:
            assert shown.health != Health.AVAILABLE
        if shown.health != Health.AVAILABLE:
            assert shown.reason
        clearable = gpu.record.state not in (State.HEALTHY, State.LOST) and not verdict.faults
        if clears and clearable:
            assert gpu.clear(now).health == Health.AVAILABLE
    for _ in range(8):  # after all that it is well, and says so
        now += 250.0
        shown = gpu.at(now, Verdict(cured=True))
    assert shown.health in (Health.AVAILABLE, Health.QUARANTINED)
    assert (shown.health == Health.QUARANTINED) == (gpu.record.falls > RULES.falls)
