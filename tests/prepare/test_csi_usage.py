"""What may be done with a plugin's volume when: the pure decisions."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xce.linux.mountinfo import Mount
from xce.model.claim import AccessMode
from xce.prepare.csi import paths, usage
from xce.prepare.csi.usage import VOLUME, Event, State
from xce.prepare.handler import Peer
from xce.prepare.step import Csi

STEP = Csi(plugin="p", volume="v", staging="/r/s", target="/r/t", access="RWX")
HAS = {"state": "published"}


def peer(*, step: Csi = STEP, leaving: bool = False, evidence: dict[str, str] = HAS) -> Peer:
    return Peer("b7", step, evidence, leaving)


@given(st.text(), st.text(min_size=1))
def test_a_path_is_plain_and_short_whatever_the_names_are(plugin: str, volume: str) -> None:
    for path in (paths.staging("/run/xce-claims", plugin, volume), paths.target("/run/x", plugin, volume)):
        assert len(path) < 128
        assert set(path) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/")


@given(st.tuples(st.text(), st.text()), st.tuples(st.text(), st.text()))
def test_two_volumes_never_share_a_path(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (paths.staging("/r", *one) == paths.staging("/r", *other)) == (one == other)


@pytest.mark.parametrize("folder", ["relative", "/a b", "/run/$(id)", "/x" * 60, "/a/../b", ""])
def test_a_folder_that_plugins_cannot_take_is_refused(folder: str) -> None:
    with pytest.raises(paths.PathRefused, match=r"claims\.directory"):
        paths.target(folder + "/" if folder == "" else folder, "p", "v")


@pytest.mark.parametrize(
    ("access", "plain", "exact"),
    [("RWO", 1, 7), ("RWOP", 1, 6), ("ROX", 3, 3), ("RWX", 5, 5)],
)
def test_access_modes_as_plugins_with_and_without_exact_ones_know_them(
    access: str, plain: int, exact: int
) -> None:
    assert usage.mode(AccessMode(access), [1, 2]) == plain
    assert usage.mode(AccessMode(access), [1, 5]) == exact


def test_a_group_needs_a_plugin_that_can_give_one() -> None:
    step = Csi(plugin="p", volume="v", staging="/s", target="/t", access="RWX", group="42")
    assert "VOLUME_MOUNT_GROUP" in usage.unable(step, [1, 2, 5])
    assert usage.unable(step, [6]) == ""
    assert usage.unable(STEP, []) == ""


def test_one_consumer_at_a_time_is_enforced_from_both_sides() -> None:
    alone = Csi(plugin="p", volume="v", staging="/r/s", target="/r/t", access="RWX", alone=True)
    for mine, theirs in ((alone, alone), (alone, STEP), (STEP, alone)):
        assert "one consumer" in usage.conflict(mine, [peer(step=theirs)])
    assert usage.conflict(STEP, [peer()]) == ""
    assert "one consumer" in usage.conflict(alone, [peer(step=alone, evidence={})]), "it was promised"
    assert usage.conflict(alone, [peer(step=alone, leaving=True)]) == ""


@pytest.mark.parametrize(
    "change",
    [
        {"type": "xfs"},
        {"group": "7"},
        {"read_only": True},
        {"access": "ROX"},
        {"said": "x"},
        {"secrets": "/s"},
    ],
)
def test_another_use_of_the_same_volume_is_refused(change: dict[str, Any]) -> None:
    other = msgspec.structs.replace(STEP, **change)
    assert "in another way, by binding b7" in usage.conflict(STEP, [peer(step=other)])
    assert usage.conflict(STEP, [peer(step=other, leaving=True), peer()]) == ""


def test_whose_mount_of_which_profile_it_is_makes_no_difference() -> None:
    other = msgspec.structs.replace(STEP, profile="p2", source="s2", mount="m2", only=False, provided=True)
    assert usage.conflict(STEP, [peer(step=other)]) == ""


@pytest.mark.parametrize(
    ("others", "most", "shared", "good"),
    [(0, 1, False, True), (1, 1, False, False), (1, 1, True, True), (9, None, False, True)],
)
def test_a_plugin_has_no_more_volumes_here_than_it_takes(
    others: int, most: int | None, *, shared: bool, good: bool
) -> None:
    assert (usage.too_many(STEP, others, most, shared=shared) == "") is good


def test_a_newcomer_waits_for_the_last_one_to_leave_and_for_nobody_else() -> None:
    assert usage.must_wait([peer(leaving=True)]) == "b7"
    assert usage.must_wait([peer(leaving=True), peer()]) == ""
    assert usage.must_wait([peer(leaving=True, evidence={})]) == ""
    assert usage.must_wait([]) == ""


peers = st.lists(
    st.tuples(st.booleans(), st.booleans()).map(
        lambda one: peer(leaving=one[0], evidence=HAS if one[1] else {})
    ),
    max_size=6,
)


@given(peers)
def test_nobody_can_enter_while_somebody_may_unstage(others: list[Peer]) -> None:
    """A leaving one unstages when no other has evidence; then a newcomer among its peers must wait."""
    for leaver in (one for one in others if one.leaving and one.evidence):
        rest = [one for one in others if one is not leaver]
        if not usage.others(rest):
            assert usage.must_wait(others) != ""


def mount(point: str, *, device: str = "8:1", root: str = "/", number: int = 1) -> Mount:
    return Mount(number, 0, device, root, point, "rw", "ext4", "src", "rw")


@pytest.mark.parametrize(
    ("device", "root", "good"),
    [
        ("0:77", "/", True),
        ("8:1", "/srv/export/vol", True),
        ("8:1", "/var/run/xce2", True),
        ("8:1", "/var/run/xce", False),
        ("8:1", "/var/run/xce/.csi/s/1", False),
        ("8:1", "/var/run/xce/b7", False),
        ("8:1", "/var/run", False),
        ("8:1", "/", False),
        ("0:77", "/var/run/xce/.csi/s/1", True),
    ],
)
def test_a_target_that_is_a_directory_of_ours_is_not_the_volume(
    device: str, root: str, *, good: bool
) -> None:
    """Our directory lies on 8:1, of which /var is mounted on /."""
    table = [mount("/", root="/var"), mount("/run/xce/.csi/p/1/v", device=device, root=root, number=9)]
    assert (usage.not_the_volume(table[1], "/run/xce", table) == "") is good


def test_mounts_at_and_below_a_directory_and_not_beside_it() -> None:
    table = [mount("/s/1"), mount("/s/1/inner"), mount("/s/12"), mount("/s")]
    assert [one[0] for one in usage.at_or_below("/s/1", table)] == ["/s/1", "/s/1/inner"]


def test_a_volume_is_published_only_after_it_was_staged_and_left_in_the_opposite_order() -> None:
    into = [(state, event) for (state, event), to in VOLUME.table.items() if to is State.PUBLISHING]
    assert into == [(State.STAGING, Event.STAGED)]
    assert VOLUME.step(State.PUBLISHED, Event.LEFT) is State.UNPUBLISHING
    assert VOLUME.step(State.UNPUBLISHING, Event.CLEARED) is State.UNSTAGING
