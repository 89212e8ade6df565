"""What must hold for CSI volumes, C-CSI-01 to C-CSI-04, C-CSI-06 and C-CSI-07; and a kill during any call."""

import os
import signal
from pathlib import Path

import msgspec
import pytest

from tests.linux.hangfs import HangingMount
from tests.prepare.csi_world import FAILED, READY, RELEASED, CsiWorld, asked, gone, ready
from xce.model.claim import AccessMode, BindingState

pytestmark = pytest.mark.root


@pytest.mark.parametrize("habits", [[], ["ignores-read-only"]], ids=["obeys", "ignores"])
@pytest.mark.parametrize(
    ("source", "read_only", "access"),
    [("vol1", True, "RWX"), ("vol1", False, "ROX"), ("fixed", False, "RWX"), ("locked", False, "RWX")],
    ids=["request", "claim's access", "volume's access", "volume"],
)
def test_c_csi_04_read_only_holds_whoever_says_it(
    csi: CsiWorld, source: str, *, read_only: bool, access: str, habits: list[str]
) -> None:
    csi.plugin.control(behaviours=habits)
    report = csi.bind(asked(source, read_only=read_only), access=AccessMode(access))
    assert report.state is READY, report
    place = csi.place_of(report.binding)
    assert "ro" in csi.at(str(place))[-1].options.split(",")
    with pytest.raises(OSError, match="Read-only file system"):
        (place / "new").write_text("x")
    if source != "vol1":
        assert "ro" in csi.at(csi.target(source))[-1].options.split(",")
    gone(csi, report.binding)


def test_c_csi_01_published_twice_is_mounted_once(csi: CsiWorld) -> None:
    order = csi.order(asked(), binding="b9")
    for op_id in ("one", "one", "two", "two"):
        csi.executor.prepare(op_id=op_id, epoch=1, binding=order[0], claim=order[1], instances={})
        csi.settled("b9")
    assert len(csi.at(csi.target())) == len(csi.at(str(csi.place_of("b9")))) == 1
    gone(csi, "b9")
    assert csi.release("b9").state is RELEASED


def test_c_csi_02_users_are_counted_across_a_restart(csi: CsiWorld) -> None:
    first, second = ready(csi), ready(csi)
    assert csi.rpcs() == ["stage", "publish"]
    device = (csi.place_of(second) / "data").stat().st_dev
    csi.restart()
    assert csi.release(first).state is RELEASED
    assert (csi.place_of(second) / "data").stat().st_dev == device
    csi.executor.check()
    assert csi.report(second).note == ""
    assert csi.rpcs() == ["stage", "publish"]
    gone(csi, second)
    assert csi.rpcs() == ["stage", "publish", "unpublish", "unstage"]


def test_c_csi_02_a_restart_needs_no_plugin(csi: CsiWorld) -> None:
    binding = ready(csi)
    csi.plugin.stop()
    csi.restart()
    csi.executor.check()
    assert (csi.report(binding).state, csi.report(binding).note) == (READY, "")


def test_c_csi_03_a_volume_in_use_is_waited_for_and_keeps_its_files(csi: CsiWorld) -> None:
    backing = csi.plugin.volume("vol1", **{f"f{number}": "x" for number in range(100)})
    binding = ready(csi)
    with (csi.place_of(binding) / "f7").open():
        report = csi.release(binding)
        assert report.state is BindingState.RELEASING
        assert f"pid {os.getpid()}" in report.note
        assert "busy" in report.note
    gone(csi, binding)
    assert len(list(backing.glob("f*"))) == 100


def test_c_csi_03_a_target_in_use_by_a_stranger_is_named(csi: CsiWorld) -> None:
    binding = ready(csi)
    with Path(csi.target(), "data").open():
        csi.executor.release(op_id="end", epoch=1, binding=binding)
        csi.until(lambda: f"is busy: pid {os.getpid()} (" in csi.report(binding).note)
    gone(csi, binding)


@pytest.mark.parametrize("path", ["link-to-etc", "a/../../..", "dir/link/inner"])
def test_c_csi_06_a_link_in_the_volume_leads_nowhere(csi: CsiWorld, path: str) -> None:
    backing = csi.plugin.volume("vol1")
    (backing / "dir").mkdir()
    (backing / "link-to-etc").symlink_to("/etc")
    (backing / "dir/link").symlink_to("/")
    report = csi.bind(asked(subdirectory=path))
    assert report.state is FAILED
    assert csi.leftovers() == []


def from_a_file_service(csi: CsiWorld, point: Path, remote_s: float) -> tuple[HangingMount, str]:
    """A FUSE file system that the plugin publishes, and a binding that has it."""
    point.mkdir()
    served = HangingMount(point, after=0.01)
    csi.settings = msgspec.structs.replace(csi.settings, probe_s=0.05, remote_s=remote_s)
    csi.stop()
    csi.start()
    csi.plugin.control(stage="nothing", source=str(point))
    return served, ready(csi)


def test_c_csi_07_a_volume_whose_file_service_is_dead_is_told_and_can_be_released(
    csi: CsiWorld, tmp_path: Path
) -> None:
    """The plugin publishes a FUSE file system; its server ends while a job has the volume."""
    served, binding = from_a_file_service(csi, tmp_path / "served", remote_s=5)
    assert [mount.kind for mount in csi.at(str(csi.place_of(binding)))] == ["fuse"]
    csi.executor.check()
    assert csi.report(binding).note == ""
    served.release()
    csi.until(lambda: "is dead: Transport endpoint" in csi.report(binding).note)
    gone(csi, binding)


def test_c_csi_07_a_volume_whose_file_service_hangs_under_a_job_holds_nobody_else_up(
    csi: CsiWorld, tmp_path: Path
) -> None:
    """It is told; others come and go meanwhile; its own release waits, and ends once it answers again."""
    served, binding = from_a_file_service(csi, tmp_path / "served", remote_s=1)
    csi.plugin.control()
    served.hang()
    csi.until(lambda: "does not answer" in csi.report(binding).note)
    other = ready(csi, "fixed")
    csi.executor.release(op_id="other", epoch=1, binding=other)
    csi.until(lambda: csi.report(other).state is RELEASED)
    csi.executor.release(op_id="end", epoch=1, binding=binding)
    csi.until(lambda: "busy" in csi.report(binding).note or "does not answer" in csi.report(binding).note)
    assert csi.report(binding).state is BindingState.RELEASING
    served.go_on()
    csi.until(lambda: csi.report(binding).state is RELEASED)
    assert csi.leftovers() == []
    served.release()


@pytest.mark.parametrize("who", ["helper", "plugin"])
@pytest.mark.parametrize("verb", ["Stage", "Publish", "Unpublish", "Unstage"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_during_any_call_it_ends_well(csi: CsiWorld, who: str, verb: str, when: str) -> None:
    """Helper or plugin dies while the call is under way, with and without its effect."""
    method = f"Node{verb}Volume"
    fault = {"delay_s": 0.3} if when == "before" else {"late_s": 0.3}
    csi.plugin.control(faults={method: {**fault, "times": 1}})
    order = csi.order(asked())

    def meet() -> None:
        csi.until(lambda: csi.plugin.calls(method))
        if when == "after":
            csi.until(
                lambda: bool(csi.at(csi.staging() if "tage" in verb else csi.target())) == ("Un" not in verb)
            )
        if who == "helper":
            os.kill(csi.helper, signal.SIGKILL)
        else:
            csi.plugin.stop()
            csi.plugin.control()
            csi.plugin.start()

    csi.executor.prepare(op_id="o", epoch=1, binding=order[0], claim=order[1], instances={})
    if "Un" not in verb:
        meet()
    assert csi.settled(order[0].id, 20).state is READY
    assert (csi.place_of(order[0].id) / "data").read_text() == "payload of vol1"
    assert len(csi.at(csi.target())) == 1
    csi.executor.release(op_id="end", epoch=1, binding=order[0].id)
    if "Un" in verb:
        meet()
    csi.until(lambda: csi.report(order[0].id).state is RELEASED, 20)
    assert csi.leftovers() == []
