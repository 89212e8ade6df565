"""What providers and profiles say of a volume reaches the plugin, and nobody else: neither disk nor words."""

import sqlite3
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.prepare.csi_world import FLAG, HIDDEN, WORDS, CsiWorld, asked
from xce.agent import claim_plan
from xce.model.claim import AccessMode, Ask, BindingState, MountAsk
from xce.model.profile import CsiVolume, Volume
from xce.prepare.csi import words
from xce.prepare.journalfile import copied

READY, FAILED, PREPARING = BindingState.READY, BindingState.FAILED, BindingState.PREPARING
root = pytest.mark.root
VOLUME = Volume(options=["a"], csi=CsiVolume(plugin="p", context={"k": "profile", "l": "profile"}))


def test_a_providers_words_go_over_the_profiles_and_those_for_this_host_over_those_for_all() -> None:
    told = words.of(WORDS, mount="m", host="here", only=True)
    assert (told.id, told.bytes) == ("vol1", 0)
    assert told.publish_context == {"lun": "lun-of-this-host"}
    assert words.of(WORDS, mount="m", host="third", only=True).publish_context == {"lun": "any-old-lun"}
    said = words.said(VOLUME, words.Words(context={"k": "provider"}))
    assert said.context == {"k": "provider", "l": "profile"}


def test_of_several_volumes_each_has_the_words_that_name_its_mount() -> None:
    several = {"one/volume_id": "1", "two/volume_id": "2", "volume_id": "3", "two/capacity_bytes": "7"}
    assert words.of(several, mount="one", host="h", only=False) == words.Words(id="1")
    assert words.of(several, mount="two", host="h", only=False) == words.Words(id="2", bytes=7)
    assert words.of(several, mount="three", host="h", only=False) == words.Words()
    assert words.of(several, mount="three", host="h", only=True).id == "3"


@pytest.mark.parametrize("size", ["", "-1", "1e9", "७", " 5", "five", "9" * 19, "9" * 5000])
def test_a_size_that_is_no_plain_number_is_none(size: str) -> None:
    assert words.of({"capacity_bytes": size}, mount="m", host="h", only=True).bytes == 0


@given(st.dictionaries(st.text(), st.text()), st.text(), st.text())
def test_whatever_a_provider_says_is_taken_as_far_as_it_is_known(
    given_words: dict[str, str], mount: str, host: str
) -> None:
    words.said(VOLUME, words.of(given_words, mount=mount, host=host, only=True)).digest()


def test_the_digest_changes_with_each_of_them_and_not_with_the_order_of_keys() -> None:
    said = words.Said(["a"], {"k": "1", "l": "2"}, {"p": "3"})
    assert said.digest() == words.Said(["a"], {"l": "2", "k": "1"}, {"p": "3"}).digest()
    others = [said._replace(flags=["b"]), said._replace(context={}), said._replace(publish_context={})]
    assert len({one.digest() for one in (said, *others)}) == 4


# ------------------------------------------------------------------------------------------------- the node


@root
def test_a_providers_words_reach_every_call_and_no_disk_or_report(csi: CsiWorld) -> None:
    report = csi.provide(WORDS, binding="b1")
    report = csi.settled("b1")
    assert (report.state, report.reason) == (READY, "")
    for call in (*csi.plugin.calls("NodeStageVolume"), *csi.plugin.calls("NodePublishVolume")):
        assert call["volume_id"] == "vol1"
        assert call["volume_context"] == {"share": "horse-drawn-cart", "kept": "x"}
        assert call["publish_context"] == {"lun": "lun-of-this-host"}
    assert (csi.place_of("b1") / "data").read_text() == "payload of vol1"
    for word in HIDDEN:
        assert word.encode() not in csi.kept()
        assert word not in str(csi.executor.entries["b1"].works) + str(report)
    assert csi.release("b1").state is BindingState.RELEASED


@root
def test_flags_and_contexts_of_the_profile_reach_the_plugin_and_no_disk(csi: CsiWorld) -> None:
    report = csi.bind(asked("flagged"), binding="b1")
    assert report.state is READY
    (stage,) = csi.plugin.calls("NodeStageVolume")
    assert FLAG in stage["volume_capability"]
    assert stage["volume_context"] == {"ticket": "made-of-glass"}
    with copied(csi.journal.path) as copy, closing(sqlite3.connect(copy)) as journal:
        bodies = b"".join(body for (body,) in journal.execute("SELECT body FROM record"))
    assert b'"volume":"vol1"' in bodies
    for word in HIDDEN:
        assert word.encode() not in csi.kept()
    csi.release("b1")


@root
def test_what_a_plugin_repeats_of_a_context_is_hidden(csi: CsiWorld) -> None:
    csi.plugin.control(
        behaviours=["echoes-secrets"], faults={"NodePublishVolume": {"code": 9, "message": "no"}}
    )
    csi.provide(WORDS, binding="b1")
    reason = csi.settled("b1").reason
    assert "[hidden]" in reason
    assert not [word for word in HIDDEN if word in reason]


@root
def test_after_a_restart_the_words_are_asked_for_again_and_what_was_begun_goes_on(csi: CsiWorld) -> None:
    csi.plugin.control(faults={"NodePublishVolume": {"code": 14}})
    csi.provide(WORDS, binding="b1")
    csi.until(lambda: "publish" in csi.rpcs())
    csi.restart()
    csi.plugin.control()
    count = len(csi.rpcs())
    csi.until(lambda: "has not said again" in csi.report("b1").note)
    assert csi.report("b1").wants_words
    assert len(csi.rpcs()) == count, "no call without the words"
    csi.provide(WORDS, binding="b1")
    assert csi.settled("b1").state is READY
    assert not csi.report("b1").wants_words
    calls = csi.plugin.calls("NodePublishVolume")
    assert calls[0] == calls[-1], "the same call"
    assert csi.release("b1").state is BindingState.RELEASED


@root
def test_what_is_ready_asks_for_the_words_too_and_needs_none(csi: CsiWorld) -> None:
    """Its provider may have said meanwhile that the volume has grown."""
    csi.provide(WORDS, binding="b1")
    assert csi.settled("b1").state is READY
    csi.restart()
    csi.executor.check()
    report = csi.report("b1")
    assert (report.state, report.wants_words, report.note) == (READY, True, "")
    csi.provide(WORDS | {"capacity_bytes": "4096"}, binding="b1")
    assert not csi.report("b1").wants_words
    csi.until(lambda: csi.plugin.calls("NodeExpandVolume"))
    csi.restart()
    assert csi.release("b1").state is BindingState.RELEASED, "without them"
    assert not csi.bind(asked(), binding="b9").wants_words, "whose claim has no provider"


@root
def test_other_words_for_a_call_that_may_have_been_made_undo_it(csi: CsiWorld) -> None:
    csi.plugin.control(faults={"NodePublishVolume": {"code": 14}})
    csi.provide(WORDS, binding="b1")
    csi.until(lambda: "publish" in csi.rpcs())
    csi.provide(WORDS | {"volume_context/share": "something-else"}, binding="b1")
    csi.plugin.control()
    report = csi.settled("b1")
    assert report.state is FAILED
    assert "were changed" in report.reason
    assert csi.rpcs()[-2:] == ["unpublish", "unstage"]
    assert csi.leftovers() == []


@root
def test_after_a_reboot_it_is_planned_anew_once_the_words_are_there(csi: CsiWorld) -> None:
    csi.provide(WORDS, binding="b1")
    assert csi.settled("b1").state is READY
    csi.reboot()
    for _ in range(5):
        csi.executor.advance()
    report = csi.report("b1")
    assert (report.state, report.wants_words) == (PREPARING, True)
    csi.provide(WORDS, binding="b1")
    assert csi.settled("b1").state is READY
    assert csi.rpcs().count("stage") == 2
    assert csi.release("b1").state is BindingState.RELEASED


@root
@pytest.mark.parametrize(
    ("source", "said", "problem"),
    [
        ("provided", {}, "must say a volume_id"),
        ("provided", {"volume_id": "v" * 129}, "must say a volume_id"),
        ("provided", {"volume_id": "a\0b"}, "must say a volume_id"),
        ("solo", {"volume_id": "vol1"}, "another one"),
    ],
)
def test_a_volume_that_nobody_or_two_name_is_refused_before_anything_is_done(
    csi: CsiWorld, source: str, said: dict[str, str], problem: str
) -> None:
    report = csi.provide(said, ask=asked(source))
    assert report.state is FAILED
    assert problem in report.reason
    assert csi.rpcs() == []


# ---------------------------------------------------------------------------------------------- admission


def refused(csi: CsiWorld, ask: Ask, **fields: Any) -> str:
    """Why an order is not taken: at once, with nothing written down but that."""
    binding, claim = csi.order(ask, **fields)
    calls = len(csi.rpcs())
    report = csi.executor.prepare(op_id="o", epoch=1, binding=binding, claim=claim, instances={})
    assert report.state is FAILED
    assert binding.id not in csi.journal.orders()
    assert len(csi.rpcs()) == calls
    return report.reason


@pytest.fixture(name="hanging")
def make_hanging(csi: CsiWorld) -> CsiWorld:
    """Nobody gets a volume yet: the plugin does not answer."""
    csi.plugin.stop()
    return csi


@root
def test_a_volume_for_one_consumer_is_refused_to_the_next_when_it_is_ordered(hanging: CsiWorld) -> None:
    """Not when it is its turn: the first has not even been begun."""
    binding, claim = hanging.order(asked("solo"))
    hanging.executor.prepare(op_id="o", epoch=1, binding=binding, claim=claim, instances={})
    assert f"binding {binding.id} has it" in refused(hanging, asked("solo"))
    hanging.executor.release(op_id="e", epoch=1, binding=binding.id)
    hanging.until(lambda: hanging.report(binding.id).state is BindingState.RELEASED)


@root
def test_a_claim_for_one_consumer_excludes_others_of_a_shared_volume(hanging: CsiWorld) -> None:
    binding, claim = hanging.order(asked(), access=AccessMode.RWOP)
    hanging.executor.prepare(op_id="o", epoch=1, binding=binding, claim=claim, instances={})
    assert "one consumer at a time" in refused(hanging, asked())


@root
def test_another_way_to_use_a_volume_is_refused_when_it_is_ordered(csi: CsiWorld) -> None:
    first = csi.bind(asked())
    assert first.state is READY
    assert f"in another way, by binding {first.binding}" in refused(csi, asked("flagged"))
    assert csi.bind(asked()).state is READY


@root
def test_a_plan_says_what_would_be_refused(csi: CsiWorld) -> None:
    first = csi.bind(asked("solo"))
    binding, claim = csi.order(asked("solo"))
    shown = claim_plan.planned(csi.executor, claim_plan.Wanted(binding, claim, {}))
    assert f"binding {first.binding} has it" in shown["against"][0]
    binding, claim = csi.order(asked())
    assert claim_plan.planned(csi.executor, claim_plan.Wanted(binding, claim, {}))["against"] == []


@root
def test_no_more_volumes_are_ordered_than_the_plugin_takes(csi: CsiWorld) -> None:
    csi.plugin.stop()
    csi.plugin.control(max_volumes=2)
    csi.plugin.start()
    csi.until(lambda: (seen := csi.node.csi.seen("fake")) and seen.ready and seen.max_volumes == 2)
    first = csi.bind(asked())
    for source in ("vol1", "solo"):
        assert csi.bind(asked(source)).state is READY
    assert "takes 2 volumes" in refused(csi, asked("fixed"))
    assert csi.release(first.binding).state is BindingState.RELEASED
    assert "takes 2 volumes" in refused(csi, asked("fixed")), "another one still has it"


@root
def test_one_volume_in_two_mounts_of_a_claim_is_had_once(csi: CsiWorld) -> None:
    csi.plugin.volume("vol1", data="payload")
    two = [MountAsk(name="m", source="vol1"), MountAsk(name="again", source="vol1", read_only=True)]
    report = csi.bind(Ask(mounts=two))
    assert report.state is READY
    assert (csi.place_of(report.binding).parent / "again/data").read_text() == "payload"
    assert csi.release(report.binding).state is BindingState.RELEASED
    assert csi.rpcs() == ["stage", "publish", "unpublish", "unstage"]
    both = [MountAsk(name="m", source="vol1"), MountAsk(name="other", source="flagged")]
    assert "in two ways" in refused(csi, Ask(mounts=both))


@root
def test_settings_that_change_over_a_reboot_hold_for_all_who_had_the_volume(csi: CsiWorld) -> None:
    """The first to be planned anew is not refused for the others' old settings, nor takes what they had."""
    bindings = [csi.bind(asked()).binding for _ in range(2)]
    csi.options = ["noatime"]
    csi.reboot()
    assert [csi.settled(one).state for one in bindings] == [READY, READY]
    assert "noatime" in csi.plugin.calls("NodeStageVolume")[-1]["volume_capability"]
    for one in bindings:
        assert csi.release(one).state is BindingState.RELEASED
