"""Volumes of a CSI plugin from order to release: real helper, real plugin with every habit, real mounts."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.linux.hangfs import HangingMount
from tests.prepare.csi_world import FLAG, HIDDEN, SECRET, CsiWorld, asked
from xce.model.claim import AccessMode, BindingState
from xce.prepare import orphans
from xce.prepare.step import Csi

pytestmark = pytest.mark.root
READY, RELEASED, FAILED = BindingState.READY, BindingState.RELEASED, BindingState.FAILED


def ready(csi: CsiWorld, source: str = "vol1", **fields: Any) -> str:
    report = csi.bind(asked(source), **fields)
    assert (report.state, report.reason) == (READY, "")
    return report.binding


def gone(csi: CsiWorld, binding: str, within: float = 20) -> None:
    csi.executor.release(op_id=f"end-{binding}", epoch=1, binding=binding)
    csi.until(lambda: csi.report(binding).state is RELEASED, within)
    assert csi.leftovers() == []


def test_a_job_gets_the_volume_at_its_place_and_nothing_is_left_of_it(csi: CsiWorld) -> None:
    binding = ready(csi)
    assert (csi.place_of(binding) / "data").read_text() == "payload of vol1"
    (csi.place_of(binding) / "new").write_text("x")
    gone(csi, binding)
    assert (csi.plugin.folder / "backing/vol1/new").read_text() == "x"
    assert csi.rpcs() == ["stage", "publish", "unpublish", "unstage"]


@pytest.mark.parametrize(
    "how",
    [
        {"stage": "nothing", "filesystem": "tmpfs"},
        {"stage": "below", "filesystem": "bind"},
        {"stage": "below", "filesystem": "loop"},
        {"stage": "mount", "filesystem": "loop"},
        {"abilities": [], "filesystem": "bind"},
    ],
    ids=str,
)
def test_staging_is_not_always_a_mount(csi: CsiWorld, how: dict[str, Any]) -> None:
    csi.plugin.control(**how)
    binding = ready(csi)
    (csi.place_of(binding) / "new").write_text("x")
    csi.executor.check()
    assert csi.report(binding).note == ""
    gone(csi, binding)


def test_a_plugin_that_refuses_an_empty_context_is_understood_and_gets_the_settings(csi: CsiWorld) -> None:
    csi.plugin.control(behaviours=["wants-context"])
    report = csi.bind(asked())
    assert (report.state, "volume context is missing" in report.reason) == (FAILED, True)
    gone(csi, ready(csi, "flagged"))


def test_a_plugin_that_binds_the_nodes_own_disk_is_found_out(csi: CsiWorld) -> None:
    """It says OK to everything and publishes its empty staging directory."""
    csi.plugin.control(stage="nothing-yet", behaviours=["blind"])
    report = csi.bind(asked())
    assert report.state is FAILED
    assert "is a directory of this node" in report.reason
    assert csi.leftovers() == []


def test_a_volume_whose_staged_mount_has_vanished_is_not_published_from_there(csi: CsiWorld) -> None:
    csi.plugin.control(behaviours=["blind"], faults={"NodePublishVolume": {"code": 14, "times": 2}})
    order = csi.order(asked())
    csi.executor.prepare(op_id="o", epoch=1, binding=order[0], claim=order[1], instances={})
    csi.until(lambda: csi.rpcs().count("publish") == 1)
    subprocess.run(["umount", csi.staging()], check=True)
    report = csi.settled(order[0].id)
    assert report.state is READY
    assert csi.rpcs().count("stage") == 2
    assert (csi.place_of(report.binding) / "data").read_text() == "payload of vol1"


def test_a_staged_mount_that_vanishes_under_a_job_is_told(csi: CsiWorld) -> None:
    binding = ready(csi)
    subprocess.run(["umount", csi.staging()], check=True)
    csi.executor.check()
    assert "is not mounted any more" in csi.report(binding).note
    assert (csi.place_of(binding) / "data").read_text() == "payload of vol1"


def test_a_volume_that_is_gone_with_its_users_mount_is_not_replaced_by_the_nodes_disk(csi: CsiWorld) -> None:
    """As after `umount -a -t nfs`: the empty target is still there, and mending must not mount it."""
    binding = ready(csi)
    for path in (str(csi.place_of(binding)), csi.target()):
        subprocess.run(["umount", path], check=True)
    for _ in range(2):
        csi.executor.check()
    assert "not the volume that was looked at" in csi.report(binding).note
    assert csi.at(str(csi.place_of(binding))) == []
    gone(csi, binding)


@pytest.mark.parametrize("habit", ["litter", "removes-staging"])
def test_what_a_plugin_does_in_its_staging_directory_is_its_own(csi: CsiWorld, habit: str) -> None:
    csi.plugin.control(stage="nothing", behaviours=[habit])
    binding = ready(csi)
    csi.executor.release(op_id="end", epoch=1, binding=binding)
    csi.until(lambda: csi.report(binding).state is RELEASED)
    left = [path for path in csi.leftovers() if "plugin-state.json" not in path and path != csi.staging()]
    assert left == []


def test_a_late_success_is_taken(csi: CsiWorld) -> None:
    """The deadline fires, the volume is busy, the mount appears, the same call says OK."""
    ask = csi.node.csi.ask
    csi.node = csi.node._replace(csi=Hasty(csi, ask))
    csi.executor.node = csi.node
    csi.plugin.control(faults={"NodeStageVolume": {"delay_s": 1.2, "times": 1}})
    order = csi.order(asked())
    csi.executor.prepare(op_id="o", epoch=1, binding=order[0], claim=order[1], instances={})
    csi.until(lambda: "busy with an earlier call" in csi.report(order[0].id).note)
    assert "since" in csi.report(order[0].id).note
    assert csi.settled(order[0].id).state is READY
    assert len(csi.at(csi.staging())) == len(csi.at(csi.target())) == 1


class Hasty:
    """The helper with deadlines of 0.3 s."""

    def __init__(self, csi: CsiWorld, ask: Any) -> None:
        self._helper, self._ask = csi.node.csi, ask

    def ask(self, key: str, plugin: str, call: Any, _deadline_s: float | None = None, /) -> Any:
        return self._ask(key, plugin, call, 0.3)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._helper, name)


def test_a_release_during_a_call_that_hangs_is_its_opposite(csi: CsiWorld) -> None:
    csi.plugin.control(faults={"NodeStageVolume": {"delay_s": 1.0, "times": 1}})
    order = csi.order(asked())
    csi.executor.prepare(op_id="o", epoch=1, binding=order[0], claim=order[1], instances={})
    csi.until(lambda: csi.rpcs() == ["stage"])
    gone(csi, order[0].id)
    assert csi.rpcs()[-1] == "unstage"
    assert csi.at(csi.staging()) == []


@pytest.mark.parametrize("habits", [["stacks"], ["says-unmounted"]], ids=str)
def test_ok_to_unpublish_is_believed_when_nothing_is_mounted(csi: CsiWorld, habits: list[str]) -> None:
    csi.plugin.control(behaviours=habits)
    binding = ready(csi)
    assert len(csi.at(csi.target())) == 1
    gone(csi, binding)
    assert csi.at(csi.target()) == []


def test_several_mounts_at_the_target_are_all_taken_off(csi: CsiWorld) -> None:
    binding = ready(csi)
    for _ in range(2):
        subprocess.run(["mount", "--bind", csi.staging(), csi.target()], check=True)
    gone(csi, binding)


@pytest.mark.parametrize(
    "habits", [["picky-absent"], ["picky-present"], ["forgets"], ["keeps-leaf"]], ids=str
)
def test_an_error_to_unpublish_does_not_mean_that_it_is_mounted(csi: CsiWorld, habits: list[str]) -> None:
    binding = ready(csi)
    csi.plugin.stop()
    subprocess.run(["umount", csi.target()], check=True)  # e.g. it was taken off with the plugin's container
    csi.plugin.control(behaviours=habits)
    csi.plugin.start()
    gone(csi, binding)


def test_the_last_words_of_a_plugin_that_is_not_content_stay_with_the_binding(csi: CsiWorld) -> None:
    binding = ready(csi)
    csi.plugin.stop()
    subprocess.run(["umount", csi.target()], check=True)
    csi.plugin.control(behaviours=["forgets"])
    csi.plugin.start()
    gone(csi, binding)
    stone = csi.executor.journal.tombstone(binding)
    assert stone is not None
    assert "unpublish of volume vol1: no volume vol1; nothing is mounted there any more" in stone.reason
    assert csi.report(binding).reason == stone.reason


def test_a_silence_does_not_unsay_what_a_plugin_said(csi: CsiWorld) -> None:
    """It says why it cannot, then hangs; then the helper dies in the middle of its answer."""
    binding = ready(csi)
    sick = {"code": 13, "message": "the array is sick", "times": 1}
    csi.plugin.control(faults={"NodeUnpublishVolume": sick})
    csi.executor.release(op_id="end", epoch=1, binding=binding)
    csi.until(lambda: "the array is sick" in csi.report(binding).note)
    csi.plugin.control(faults={"NodeUnpublishVolume": {"hang": True}})
    before = "; it said before: the array is sick"
    csi.until(lambda: csi.report(binding).note.endswith(before))
    csi.kill_helper()
    csi.until(lambda: "helper is not there" in csi.report(binding).note)
    assert csi.report(binding).note.endswith(before)
    csi.plugin.stop()
    csi.plugin.control()
    csi.plugin.start()
    csi.until(lambda: csi.report(binding).state is RELEASED)


def test_a_plugin_that_has_forgotten_the_volume_does_not_keep_it_mounted(csi: CsiWorld) -> None:
    binding = ready(csi)
    csi.plugin.stop()
    csi.plugin.control(behaviours=["forgets"])
    csi.plugin.start()
    gone(csi, binding)


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


def test_a_volume_over_a_dead_file_system_is_refused_within_the_deadline(
    csi: CsiWorld, tmp_path: Path
) -> None:
    """The plugin says OK, and whoever looks at the target hangs."""
    (tmp_path / "hang").mkdir()
    hanging = HangingMount(tmp_path / "hang")
    try:
        csi.plugin.control(stage="nothing", source=str(tmp_path / "hang"))
        report = csi.bind(asked())
        assert "did not answer" in report.reason
        assert report.state is not READY
    finally:
        hanging.release()  # until then whoever was sent to look keeps the target busy
    csi.until(lambda: csi.report(report.binding).state is FAILED)
    assert csi.at(csi.target()) == []


@pytest.mark.parametrize("habit", ["wants-target", "wants-no-target", "deletes-target", "keeps-leaf"])
def test_a_target_may_be_wanted_or_not(csi: CsiWorld, habit: str) -> None:
    csi.plugin.control(behaviours=[habit])
    gone(csi, ready(csi))
    assert (csi.plugin.folder / "backing/vol1/data").exists()


def test_what_a_plugin_left_in_the_target_is_not_removed(csi: CsiWorld) -> None:
    os.makedirs(csi.target())
    Path(csi.target(), "precious").write_text("x")
    report = csi.bind(asked())
    assert "not empty" in (report.reason or report.note)
    assert Path(csi.target(), "precious").read_text() == "x"
    assert "publish" not in csi.rpcs()


def test_a_plugin_with_odd_capabilities_is_used(csi: CsiWorld) -> None:
    csi.plugin.control(abilities=[0, 1, 1, 99], behaviours=["no-info", "silent-probe"], version="")
    gone(csi, ready(csi))


def test_capabilities_that_change_under_way_change_no_call(csi: CsiWorld) -> None:
    csi.plugin.control(abilities=[1, 5])
    binding = ready(csi, "solo")
    csi.plugin.stop()
    csi.plugin.control(abilities=[])
    csi.plugin.start()
    csi.until(lambda: (seen := csi.node.csi.seen("fake")) and seen.ready and seen.abilities == [])
    gone(csi, binding)
    assert csi.rpcs()[-2:] == ["unpublish", "unstage"]
    assert "mode: 6" in csi.plugin.calls("NodeStageVolume")[0]["volume_capability"]


@pytest.mark.parametrize(("code", "words"), [(5, "no such"), (16, "wrong key"), (12, "not offered")])
def test_a_refusal_fails_the_binding_with_the_plugins_words(csi: CsiWorld, code: int, words: str) -> None:
    csi.plugin.control(faults={"NodeStageVolume": {"code": code, "message": words}})
    report = csi.bind(asked())
    assert report.state is FAILED
    assert words in report.reason
    assert csi.rpcs() == ["stage", "unpublish", "unstage"]
    assert csi.leftovers() == []


@pytest.mark.parametrize(
    ("method", "code"), [("NodeStageVolume", 2), ("NodeStageVolume", 14), ("NodePublishVolume", 13)]
)
def test_an_error_that_says_nothing_is_followed_by_the_same_call(
    csi: CsiWorld, method: str, code: int
) -> None:
    csi.plugin.control(faults={method: {"code": code, "times": 1}})
    binding = ready(csi)
    calls = csi.plugin.calls(method)
    assert len(calls) == 2
    assert calls[0] == calls[1]
    gone(csi, binding)


def test_a_plugin_that_was_never_reached_holds_up_no_release(csi: CsiWorld) -> None:
    csi.plugin.stop()
    order = csi.order(asked())
    csi.executor.prepare(op_id="o", epoch=1, binding=order[0], claim=order[1], instances={})
    csi.until(lambda: "plugin fake" in csi.report(order[0].id).note)
    gone(csi, order[0].id)
    assert csi.rpcs() == []


def test_a_dead_plugin_harms_no_job_and_nothing_is_released_before_it_is_gone(csi: CsiWorld) -> None:
    binding = ready(csi)
    csi.plugin.stop()
    csi.executor.check()
    assert csi.report(binding).note == ""
    assert (csi.place_of(binding) / "data").read_text() == "payload of vol1"
    report = csi.release(binding)
    assert report.state is BindingState.RELEASING
    assert "plugin fake, unpublish" in report.note
    csi.plugin.start()
    csi.until(lambda: csi.report(binding).state is RELEASED, 20)
    assert csi.leftovers() == []


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


def test_c_csi_07_a_volume_whose_file_service_is_dead_is_told_and_can_be_released(
    csi: CsiWorld, tmp_path: Path
) -> None:
    """The plugin publishes a FUSE file system; its server ends while a job has the volume."""
    point = tmp_path / "served"
    point.mkdir()
    served = HangingMount(point, after=0.01)
    csi.settings = msgspec.structs.replace(csi.settings, probe_s=0.05, remote_s=5)
    csi.stop()
    csi.start()
    csi.plugin.control(stage="nothing", source=str(point))
    binding = ready(csi)
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
    point = tmp_path / "served"
    point.mkdir()
    served = HangingMount(point, after=0.01)
    csi.settings = msgspec.structs.replace(csi.settings, probe_s=0.05, remote_s=1)
    csi.stop()
    csi.start()
    csi.plugin.control(stage="nothing", source=str(point))
    binding = ready(csi)
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


def test_a_volume_for_one_consumer_is_had_by_one(csi: CsiWorld) -> None:
    first = ready(csi, "solo")
    report = csi.bind(asked("solo"))
    assert report.state is FAILED
    assert f"binding {first} has it" in report.reason
    gone(csi, first)
    gone(csi, ready(csi, "solo"))


def test_another_use_of_a_volume_is_refused_while_somebody_has_it(csi: CsiWorld) -> None:
    first = ready(csi)
    report = csi.bind(asked("flagged"))
    assert report.state is FAILED
    assert "in another way" in report.reason
    gone(csi, first)


def test_the_last_one_leaves_while_another_comes(csi: CsiWorld) -> None:
    """The newcomer waits until the volume is unstaged, and then has the volume, not the node's disk."""
    first = ready(csi)
    csi.plugin.control(faults={"NodeUnstageVolume": {"delay_s": 0.4}}, behaviours=["blind"])
    csi.executor.release(op_id="end", epoch=1, binding=first)
    csi.until(lambda: "unstage" in csi.rpcs())
    second = ready(csi)
    assert (csi.place_of(second) / "data").read_text() == "payload of vol1"
    assert csi.report(first).state is RELEASED
    assert csi.rpcs() == ["stage", "publish", "unpublish", "unstage", "stage", "publish"]
    gone(csi, second)


def test_an_unstage_that_was_interrupted_goes_on_after_a_restart(csi: CsiWorld) -> None:
    """The volume is unpublished already; only the journal knows that it is still staged."""
    binding = ready(csi)
    csi.plugin.control(faults={"NodeUnstageVolume": {"hang": True}})
    csi.executor.release(op_id="end", epoch=1, binding=binding)
    csi.until(lambda: "unstage" in csi.rpcs())
    assert csi.at(csi.target()) == []
    csi.stop()
    csi.plugin.stop()
    csi.plugin.control()
    csi.plugin.start()
    csi.start()
    csi.until(lambda: csi.report(binding).state is RELEASED, 20)
    assert csi.leftovers() == []


def test_a_release_that_a_reboot_interrupts_goes_on(csi: CsiWorld) -> None:
    """Its mounts are gone with the boot; whether the plugin holds more than those, only the plugin knows."""
    binding = ready(csi)
    csi.plugin.stop()
    csi.executor.release(op_id="end", epoch=1, binding=binding)
    csi.until(lambda: "plugin fake, unpublish" in csi.report(binding).note)
    csi.reboot()
    csi.until(lambda: csi.report(binding).state is RELEASED, 20)
    assert csi.rpcs()[-2:] == ["unpublish", "unstage"]
    assert csi.leftovers() == []


def test_volumes_that_bindings_have_are_no_orphans_and_others_are_not_just_unmounted(csi: CsiWorld) -> None:
    csi.plugin.control(stage="below")
    binding = ready(csi)
    steps = [work.step for work in csi.executor.entries[binding].works]
    assert orphans.find(csi.node, steps) == []
    found = orphans.find(csi.node, [step for step in steps if not isinstance(step, Csi)])
    assert {(one.kind, one.path) for one in found} == {
        ("volume", csi.target()),
        ("volume", csi.staging() + "/inner"),
    }
    assert "by hand" in orphans.clean(found[0], csi.node)
    assert csi.at(csi.target()) != []
    gone(csi, binding)


def test_secrets_and_flags_are_in_no_journal_report_or_argument(csi: CsiWorld) -> None:
    csi.plugin.control(
        behaviours=["echoes-secrets"], faults={"NodeStageVolume": {"code": 16, "message": "denied"}}
    )
    for source in ("vol1", "flagged"):
        report = csi.bind(asked(source))
        assert report.state is FAILED
        assert "denied" in report.reason
        assert "[hidden]" in report.reason
        for word in (SECRET, FLAG, *HIDDEN):
            assert word not in str(report)
    assert any(call["secrets"] for call in csi.plugin.calls("NodeStageVolume"))
    process = Path(f"/proc/{csi.helper}")
    shown = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
    for word in (SECRET, *HIDDEN):
        assert word.encode() not in shown + csi.kept()


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
