"""Volumes of a CSI plugin on their way to a job: real helper, real plugin with every habit, real mounts."""

import select
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.linux.hangfs import HangingMount
from tests.prepare.csi_world import (
    FAILED,
    FLAG,
    HIDDEN,
    READY,
    RELEASED,
    SECRET,
    CsiWorld,
    asked,
    gone,
    ready,
)

pytestmark = pytest.mark.root


def test_a_job_gets_the_volume_at_its_place_and_nothing_is_left_of_it(csi: CsiWorld) -> None:
    binding = ready(csi)
    assert (csi.place_of(binding) / "data").read_text() == "payload of vol1"
    (csi.place_of(binding) / "new").write_text("x")
    gone(csi, binding)
    assert (csi.plugin.folder / "backing/vol1/new").read_text() == "x"
    assert csi.rpcs() == ["stage", "publish", "unpublish", "unstage"]


def test_whoever_waits_for_a_plugin_is_woken_by_its_answer_and_does_not_look_meanwhile(csi: CsiWorld) -> None:
    csi.plugin.control(faults={"NodeStageVolume": {"delay_s": 0.3, "times": 1}})
    binding, claim = csi.order(asked())
    csi.executor.prepare(op_id="o", epoch=1, binding=binding, claim=claim, instances={})
    csi.until(lambda: "stage of volume vol1 since" in csi.report(binding.id).note)
    assert csi.executor.entries[binding.id].wake > csi.node.clock() + 1
    assert select.select([csi.node.csi.fileno()], [], [], 10)[0]
    csi.until(lambda: csi.report(binding.id).state is READY)
    gone(csi, binding.id)


def test_whoever_waits_for_another_binding_on_the_volume_is_woken_when_that_is_further(csi: CsiWorld) -> None:
    csi.plugin.control(faults={"NodeStageVolume": {"delay_s": 0.3, "times": 1}})
    for name in ("b1", "b2"):
        binding, claim = csi.order(asked(), binding=name)
        csi.executor.prepare(op_id=name, epoch=1, binding=binding, claim=claim, instances={})
    csi.until(lambda: "is being made ready for binding b1" in csi.report("b2").note)
    assert csi.executor.entries["b2"].wake > csi.node.clock() + 1
    csi.until(lambda: csi.report("b1").state is READY)
    assert not_waiting(csi, "b2")
    csi.until(lambda: csi.report("b2").state is READY)
    csi.plugin.control(faults={"NodeUnstageVolume": {"delay_s": 0.3, "times": 1}})
    for name in ("b1", "b2"):
        csi.executor.release(op_id=f"end-{name}", epoch=1, binding=name)
    csi.until(lambda: csi.report("b1").state is RELEASED)
    binding, claim = csi.order(asked(), binding="b3")
    csi.executor.prepare(op_id="b3", epoch=1, binding=binding, claim=claim, instances={})
    csi.until(lambda: csi.report("b2").state is RELEASED)
    assert not_waiting(csi, "b3")
    csi.until(lambda: csi.report("b3").state is READY)
    gone(csi, "b3")


def not_waiting(csi: CsiWorld, binding: str) -> bool:
    """For somebody else, any more."""
    entry = csi.executor.entries[binding]
    return not (entry.waiting and entry.waiting.on) or entry.wake <= csi.node.clock()


def test_whoever_waits_for_a_plugin_that_is_not_there_is_woken_when_it_comes(csi: CsiWorld) -> None:
    csi.plugin.stop()
    csi.restart()
    binding, claim = csi.order(asked())
    csi.executor.prepare(op_id="o", epoch=1, binding=binding, claim=claim, instances={})
    csi.until(lambda: csi.report(binding.id).note.startswith("plugin "))
    for _ in range(3):
        csi.executor.advance()
    assert csi.executor.entries[binding.id].wake > csi.node.clock() + 1
    csi.plugin.start()
    csi.until(lambda: (seen := csi.node.csi.seen(csi.name)) and seen.ready)
    csi.executor.advance()
    assert not_waiting(csi, binding.id)
    csi.until(lambda: csi.report(binding.id).state is READY)
    gone(csi, binding.id)


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


@pytest.mark.parametrize("habit", ["litter", "directory", "removes-staging"])
def test_what_a_plugin_does_in_its_staging_directory_is_its_own_and_told(csi: CsiWorld, habit: str) -> None:
    csi.plugin.control(stage="nothing", behaviours=[habit] if habit != "directory" else [])
    binding = ready(csi)
    if habit == "directory":
        Path(csi.staging(), "plugin-state").mkdir()
    csi.executor.release(op_id="end", epoch=1, binding=binding)
    csi.until(lambda: csi.report(binding).state is RELEASED)
    stays = f"{csi.staging()} stays: the plugin has something of its own in it"
    assert csi.report(binding).reason == ("" if habit == "removes-staging" else stays)
    assert [path for path in csi.leftovers() if "plugin-state" not in path and path != csi.staging()] == []


class Hasty:
    """The helper with deadlines of 0.3 s."""

    def __init__(self, csi: CsiWorld, ask: Any) -> None:
        self._helper, self._ask = csi.node.csi, ask

    def ask(self, key: str, plugin: str, call: Any, _deadline_s: float | None = None, /) -> Any:
        return self._ask(key, plugin, call, 0.3)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._helper, name)


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
