"""How a volume is to be used, as the plugin is told: modes, file system, group; in all calls the same."""

import pytest

from tests.prepare.csi_world import FAILED, READY, CsiWorld, asked, gone
from xce.model.claim import AccessMode

pytestmark = pytest.mark.root
STAGE, STATS, EXPAND, MULTI_WRITER, MOUNT_GROUP = 1, 2, 3, 5, 6
PLAIN = {AccessMode.RWO: 1, AccessMode.RWOP: 1, AccessMode.ROX: 3, AccessMode.RWX: 5}
EXACT = {AccessMode.RWO: 7, AccessMode.RWOP: 6, AccessMode.ROX: 3, AccessMode.RWX: 5}


def can(csi: CsiWorld, *abilities: int) -> None:
    """The plugin is one that can do these."""
    csi.plugin.stop()
    csi.plugin.control(abilities=list(abilities))
    csi.plugin.start()
    wanted = sorted(abilities)
    csi.until(lambda: (seen := csi.node.csi.seen("fake")) and seen.ready and seen.abilities == wanted)


def told(csi: CsiWorld) -> set[str]:
    """The capabilities in the calls that have one."""
    calls = csi.plugin.calls("NodeStageVolume") + csi.plugin.calls("NodePublishVolume")
    assert len(calls) >= 2
    return {" ".join(call["volume_capability"].split()) for call in calls}


@pytest.mark.parametrize("access", AccessMode)
@pytest.mark.parametrize(
    ("abilities", "modes"), [((STAGE,), PLAIN), ((STAGE, MULTI_WRITER), EXACT)], ids=["without", "with"]
)
def test_an_access_mode_is_told_as_exactly_as_the_plugin_knows_it(
    csi: CsiWorld, access: AccessMode, abilities: tuple[int, ...], modes: dict[AccessMode, int]
) -> None:
    can(csi, *abilities)
    report = csi.bind(asked(access.value))
    assert report.state is READY
    (capability,) = told(csi)
    assert f"mode: {modes[access]}" in capability
    (publish,) = csi.plugin.calls("NodePublishVolume")
    assert publish.get("readonly", False) == (access is AccessMode.ROX)
    gone(csi, report.binding)


@pytest.mark.parametrize("abilities", [(STAGE,), (STAGE, MULTI_WRITER)], ids=["without", "with"])
def test_a_volume_of_one_node_has_many_writers_on_it_whatever_the_plugin_knows(
    csi: CsiWorld, abilities: tuple[int, ...]
) -> None:
    """A plugin without SINGLE_NODE_MULTI_WRITER refuses a second target; it is never asked for one."""
    can(csi, *abilities)
    bindings = [csi.bind(asked("RWO")).binding for _ in range(3)]
    for number, binding in enumerate(bindings):
        (csi.place_of(binding) / f"from-{number}").write_text("x")
    assert len(list((csi.plugin.folder / "backing/vol1").glob("from-*"))) == 3
    assert csi.rpcs() == ["stage", "publish"]
    gone(csi, *bindings)


@pytest.mark.parametrize("abilities", [(STAGE,), (STAGE, MULTI_WRITER)], ids=["without", "with"])
def test_one_consumer_means_one_whatever_the_plugin_knows(csi: CsiWorld, abilities: tuple[int, ...]) -> None:
    can(csi, *abilities)
    first = csi.bind(asked("RWOP"))
    second = csi.bind(asked("RWOP"))
    assert (first.state, second.state) == (READY, FAILED)
    assert f"binding {first.binding} has it" in second.reason
    gone(csi, first.binding)


def test_files_are_given_to_a_group_by_a_plugin_that_can(csi: CsiWorld) -> None:
    can(csi, STAGE, MOUNT_GROUP)
    report = csi.bind(asked("grouped"))
    assert report.state is READY
    (capability,) = told(csi)
    assert 'volume_mount_group: "4711"' in capability
    gone(csi, report.binding)


def test_a_plugin_that_cannot_give_files_to_a_group_is_not_asked_at_all(csi: CsiWorld) -> None:
    can(csi, STAGE)
    report = csi.bind(asked("grouped"))
    assert report.state is FAILED
    assert "VOLUME_MOUNT_GROUP" in report.reason
    assert csi.rpcs() == []


def test_nobody_who_asks_for_no_group_gets_one(csi: CsiWorld) -> None:
    can(csi, STAGE, MOUNT_GROUP)
    report = csi.bind(asked())
    assert report.state is READY
    assert "volume_mount_group" not in str(told(csi))
    gone(csi, report.binding)


def test_file_system_and_flags_are_the_settings_words(csi: CsiWorld) -> None:
    report = csi.bind(asked("typed"))
    assert report.state is READY
    (capability,) = told(csi)
    assert 'fs_type: "ext4"' in capability
    assert 'mount_flags: "noatime"' in capability
    gone(csi, report.binding)


def test_a_volume_without_a_file_system_named_has_the_plugins_own(csi: CsiWorld) -> None:
    report = csi.bind(asked())
    assert "fs_type" not in str(told(csi))
    gone(csi, report.binding)
