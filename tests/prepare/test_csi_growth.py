"""A volume that is to be larger: when it is made and when its provider says so, by the table of errors."""

import os
import signal
from typing import Any

import pytest

from tests.prepare.csi_world import FAILED, READY, SIZE, WORDS, CsiWorld, asked, gone
from xce.prepare.csi.survey import in_use

pytestmark = pytest.mark.root
SIZED = WORDS | {"capacity_bytes": str(SIZE)}
LARGER = WORDS | {"capacity_bytes": str(2 * SIZE)}


def grown(csi: CsiWorld) -> list[int]:
    """The sizes that the plugin was asked for, in their order."""
    return [call["capacity_range"] for call in expands(csi)]


def expands(csi: CsiWorld) -> list[dict[str, Any]]:
    calls = csi.plugin.calls("NodeExpandVolume")
    return [call | {"capacity_range": int(call["capacity_range"].split()[1])} for call in calls]


def size_of(csi: CsiWorld) -> tuple[int, str]:
    (volume,) = in_use(csi.executor)
    return volume.bytes, volume.unmet


def test_a_size_of_the_profile_is_asked_for_once_it_is_published(csi: CsiWorld) -> None:
    report = csi.bind(asked("sized"))
    assert (report.state, report.reason) == (READY, "")
    (call,) = expands(csi)
    assert (call["volume_path"], call["staging_target_path"]) == (csi.target(), csi.staging())
    assert "mode: 5" in call["volume_capability"]
    assert grown(csi) == [SIZE]
    names = [one["rpc"] for one in csi.plugin.calls()]
    assert names.index("NodeExpandVolume") > names.index("NodePublishVolume")
    assert size_of(csi) == (SIZE, "")
    csi.restart()
    csi.executor.check()
    assert csi.bind(asked("sized")).state is READY
    assert grown(csi) == [SIZE], "neither a restart nor a second consumer asks again"


def test_a_volume_without_a_size_is_left_as_it_is(csi: CsiWorld) -> None:
    assert csi.bind(asked()).state is READY
    csi.executor.check()
    assert grown(csi) == []


def test_a_plugin_that_does_not_announce_it_has_nothing_to_do_on_the_node(csi: CsiWorld) -> None:
    csi.plugin.stop()
    csi.plugin.control(abilities=[1, 2])
    csi.plugin.start()
    csi.until(lambda: (seen := csi.node.csi.seen("fake")) and seen.ready and seen.abilities == [1, 2])
    assert csi.bind(asked("sized")).state is READY
    assert grown(csi) == []
    assert size_of(csi) == (0, ""), "nobody has said how large it is"


def test_the_plugins_word_on_how_large_it_became_is_kept(csi: CsiWorld) -> None:
    csi.plugin.control(capacity=SIZE + 4096)
    assert csi.bind(asked("sized")).state is READY
    assert size_of(csi) == (SIZE + 4096, "")


@pytest.mark.parametrize("code", [3, 5, 7, 8, 9, 11, 16])
def test_a_binding_whose_volume_cannot_have_its_size_fails_with_the_plugins_words(
    csi: CsiWorld, code: int
) -> None:
    csi.plugin.control(faults={"NodeExpandVolume": {"code": code, "message": "not so large"}})
    report = csi.bind(asked("sized"))
    assert report.state is FAILED
    assert "expand of volume vol1: not so large" in report.reason
    assert grown(csi) == [SIZE], "the same call would get the same answer"
    assert csi.rpcs()[-2:] == ["unpublish", "unstage"]
    assert csi.leftovers() == []


def test_a_plugin_that_does_not_offer_what_it_announces_is_not_asked_again(csi: CsiWorld) -> None:
    csi.plugin.control(faults={"NodeExpandVolume": {"code": 12}})
    assert csi.bind(asked("sized")).state is READY
    csi.executor.check()
    assert grown(csi) == [SIZE]


@pytest.mark.parametrize("code", [2, 4, 10, 13, 14])
def test_an_answer_that_says_nothing_is_followed_by_the_same_call(csi: CsiWorld, code: int) -> None:
    csi.plugin.control(faults={"NodeExpandVolume": {"code": code, "times": 1}})
    assert csi.bind(asked("sized")).state is READY
    first, second = expands(csi)
    assert first == second


def test_a_helper_that_dies_meanwhile_is_followed_by_the_same_call(csi: CsiWorld) -> None:
    csi.plugin.control(faults={"NodeExpandVolume": {"delay_s": 0.3, "times": 1}})
    order = csi.order(asked("sized"))
    csi.executor.prepare(op_id="o", epoch=1, binding=order[0], claim=order[1], instances={})
    csi.until(lambda: expands(csi))
    os.kill(csi.helper, signal.SIGKILL)
    assert csi.settled(order[0].id, 20).state is READY
    assert set(grown(csi)) == {SIZE}
    assert len(csi.at(csi.target())) == 1


def test_a_release_does_not_wait_for_a_volume_to_grow(csi: CsiWorld) -> None:
    csi.plugin.control(faults={"NodeExpandVolume": {"delay_s": 1.0, "times": 1}})
    order = csi.order(asked("sized"))
    csi.executor.prepare(op_id="o", epoch=1, binding=order[0], claim=order[1], instances={})
    csi.until(lambda: expands(csi))
    gone(csi, order[0].id)


# ------------------------------------------------------------------------------------- while it is in use


def provided(csi: CsiWorld, words: dict[str, str], binding: str = "b1") -> None:
    csi.provide(words, binding=binding)
    assert csi.settled(binding).state is READY


def test_a_volume_in_use_grows_when_its_provider_says_so(csi: CsiWorld) -> None:
    provided(csi, SIZED)
    assert grown(csi) == [SIZE]
    provided(csi, SIZED)
    csi.executor.check()
    assert grown(csi) == [SIZE], "it says the same again"
    provided(csi, LARGER)
    csi.until(lambda: size_of(csi) == (2 * SIZE, ""))
    assert grown(csi) == [SIZE, 2 * SIZE]
    assert csi.report("b1").state is READY
    assert csi.report("b1").conditions == []
    provided(csi, SIZED)
    csi.executor.check()
    assert grown(csi) == [SIZE, 2 * SIZE], "nothing ever shrinks"
    gone(csi, "b1")


def test_a_volume_in_use_that_cannot_grow_stays_ready_says_why_and_is_not_asked_again(csi: CsiWorld) -> None:
    provided(csi, SIZED)
    csi.plugin.control(faults={"NodeExpandVolume": {"code": 9, "message": "in use"}})
    provided(csi, LARGER)
    csi.until(lambda: "in use" in csi.report("b1").note)
    for _ in range(5):
        csi.executor.check()
    assert grown(csi) == [SIZE, 2 * SIZE]
    assert (csi.report("b1").state, csi.report("b1").conditions) == (READY, [])
    assert size_of(csi)[0] == SIZE
    assert "in use" in size_of(csi)[1]
    csi.restart()
    csi.executor.check()
    assert "in use" in csi.report("b1").note, "a restart does not forget it"
    csi.plugin.control()
    provided(csi, WORDS | {"capacity_bytes": str(3 * SIZE)})
    csi.until(lambda: size_of(csi) == (3 * SIZE, ""))
    assert csi.report("b1").note == ""
    gone(csi, "b1")


def test_a_plugin_that_gives_no_answer_is_not_asked_at_every_look(csi: CsiWorld) -> None:
    provided(csi, SIZED)
    csi.plugin.control(faults={"NodeExpandVolume": {"code": 14, "message": "away"}})
    provided(csi, LARGER)
    csi.until(lambda: "away" in csi.report("b1").note)
    for _ in range(40):
        csi.executor.check()
    assert len(grown(csi)) < 10
    csi.plugin.control()
    csi.until(lambda: size_of(csi) == (2 * SIZE, ""))
    gone(csi, "b1")


def test_a_claims_own_size_is_its_providers_matter(csi: CsiWorld) -> None:
    """Users do not let an admin's volume grow."""
    binding, claim = csi.order(asked())
    claim = type(claim)(id=claim.id, owner="alice", ask=claim.ask, size_bytes=SIZE)
    csi.executor.prepare(op_id="o", epoch=1, binding=binding, claim=claim, instances={})
    assert csi.settled(binding.id).state is READY
    csi.executor.check()
    assert grown(csi) == []
