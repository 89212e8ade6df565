"""The helper's process against a plugin's: outcomes, queues, deadlines, ends of either, fingerprints."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.csi_node_helper.world import CAPABILITY, World, mounted, until
from xce.csi_node_helper.connection import ANSWER_BYTES
from xce.model import csi
from xce.model.csi import Outcome
from xce.prepare.csi.helper import HelperClient

pytestmark = pytest.mark.root


def test_all_calls_for_a_volume(world: World) -> None:
    staging, target = world.place("s-vol1"), world.place("p") + "/v"
    assert world.call(world.stage()).outcome is Outcome.OK
    publish = csi.Publish(volume="vol1", staging=staging, target=target, capability=CAPABILITY)
    assert world.call(publish).outcome is Outcome.OK
    assert Path(target, "data").read_text() == "payload"
    told = world.call(csi.Statistics(volume="vol1", path=target))
    assert [(one.unit, one.total, one.used, one.available) for one in told.usage] == [
        ("bytes", 1000, 300, 700),
        ("inodes", 9, 2, 7),
    ]
    assert told.abnormal is False
    expand = csi.Expand(volume="vol1", path=target, capability=CAPABILITY, required_bytes=4096)
    assert world.call(expand).capacity_bytes == 4096
    assert world.call(csi.Unpublish(volume="vol1", target=target)).outcome is Outcome.OK
    assert world.call(csi.Unstage(volume="vol1", staging=staging)).outcome is Outcome.OK
    assert mounted(staging) == mounted(target) == []


def test_the_plugin_is_asked_who_it_is(world: World) -> None:
    world.plugin.control(abilities=[1, 5, 99, 1, 0], max_volumes=8, services=[1, 2])
    seen = world.seen(max_volumes=8) if world.call(csi.Look()).outcome is Outcome.OK else None
    assert seen is not None
    assert (seen.name, seen.version, seen.node_id) == ("fake.xce.example", "7.1", "node-7")
    assert seen.abilities == [1, 5, 99]
    assert seen.services == [1, 2]
    assert seen.topology == {"zone": "a"}
    assert seen.ready
    assert seen.problem == ""


def test_a_plugin_that_says_little_is_used_all_the_same(world: World) -> None:
    world.plugin.control(behaviours=["no-info", "silent-probe"], version="")
    world.call(csi.Look())
    assert world.seen().ready


def test_a_plugin_that_is_not_ready_yet_is_shown_and_asked_again(world: World) -> None:
    world.plugin.control(ready=False)
    world.call(csi.Look())
    assert "not ready" in world.seen(ready=False, asked=True).problem
    world.plugin.control()
    world.seen(ready=True)


@pytest.mark.parametrize(
    ("code", "outcome"),
    [(5, Outcome.REFUSED), (9, Outcome.REFUSED), (10, Outcome.BUSY), (12, Outcome.UNSUPPORTED)]
    + [(code, Outcome.UNCERTAIN) for code in (1, 2, 4, 13, 14)],
)
def test_each_code_has_its_outcome(world: World, code: int, outcome: Outcome) -> None:
    world.plugin.control(faults={"NodeStageVolume": {"code": code, "message": "because"}})
    told = world.call(world.stage())
    assert (told.outcome, told.code, told.message) == (outcome, code, "because")


def test_a_plugin_that_is_not_there_has_never_heard_of_it(world: World) -> None:
    world.plugin.stop()
    assert world.call(world.stage()).outcome is Outcome.NEVER_SENT
    os.unlink(world.plugin.socket)
    told = world.call(world.stage())
    assert told.outcome is Outcome.NEVER_SENT
    assert "there is no socket" in told.message
    assert world.call(world.stage(), plugin="nobody").outcome is Outcome.NEVER_SENT


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_plugin_that_dies_during_a_call_leaves_it_uncertain(world: World, when: str) -> None:
    world.plugin.control(faults={"NodeStageVolume": {"die": when}})
    told = world.call(world.stage())
    assert told.outcome is Outcome.UNCERTAIN
    assert bool(mounted(world.place("s-vol1"))) == (when == "after")


def test_a_plugin_that_was_restarted_is_found_by_its_new_socket(world: World) -> None:
    world.seen()
    world.plugin.stop()
    world.plugin.control(abilities=[2], version="8")
    world.plugin.start()
    assert world.call(world.stage()).outcome is Outcome.OK
    assert world.seen(version="8").abilities == [2]


def test_a_plugin_that_has_died_beside_its_socket_is_seen_at_the_next_call(world: World) -> None:
    """Its file is the same as before, so only a call can tell."""
    world.seen(ready=True)
    world.plugin.stop()
    assert world.call(world.stage()).outcome is Outcome.NEVER_SENT
    assert "cannot connect" in world.seen(ready=False).problem
    world.plugin.start()
    world.seen(ready=True)


def test_a_deadline_ends_the_waiting_and_not_the_work(world: World) -> None:
    """The mount appears after the deadline; until then the volume is busy, and then the call is OK."""
    world.plugin.control(faults={"NodeStageVolume": {"delay_s": 0.6, "times": 1}})
    told = world.call(world.stage(), s=0.2)
    assert (told.outcome, told.code) == (Outcome.UNCERTAIN, 4)
    assert world.call(world.stage()).outcome is Outcome.BUSY
    until("the late mount", lambda: mounted(world.place("s-vol1")))
    until("success", lambda: world.call(world.stage()).outcome is Outcome.OK)
    assert len(mounted(world.place("s-vol1"))) == 1


def test_calls_for_one_volume_are_made_one_after_the_other_and_others_beside_them(world: World) -> None:
    world.plugin.volume("vol2")
    world.plugin.control(faults={"NodeStageVolume": {"delay_s": 0.3, "times": 1}})
    first, second = world.stage(), csi.Unstage(volume="vol1", staging=world.place("s-vol1"))
    assert world.client.ask("one", "fake", first) is None
    until("the first call", lambda: world.plugin.calls("NodeStageVolume"))
    assert world.client.ask("two", "fake", second) is None
    assert world.call(world.stage("vol2"), key="three").outcome is Outcome.OK
    assert world.plugin.calls("NodeUnstageVolume") == []
    assert world.call(first, key="one").outcome is Outcome.OK
    assert world.call(second, key="two").outcome is Outcome.OK


def test_another_call_under_the_same_key_takes_the_place_of_the_first(world: World) -> None:
    world.plugin.control(faults={"NodeStageVolume": {"hang": True}})
    assert world.client.ask("k", "fake", world.stage()) is None
    until("the first call", lambda: world.plugin.calls("NodeStageVolume"))
    told = world.call(csi.Unstage(volume="vol1", staging=world.place("s-vol1")))
    assert told.outcome is Outcome.BUSY  # the plugin still works on the first


def test_a_call_that_waits_for_its_turn_and_is_given_up_is_never_made(world: World) -> None:
    world.plugin.control(faults={"NodeStageVolume": {"delay_s": 0.3}})
    assert world.client.ask("one", "fake", world.stage()) is None
    unstage = csi.Unstage(volume="vol1", staging=world.place("s-vol1"))
    assert world.client.ask("two", "fake", unstage) is None
    world.client.forget("two")
    assert world.call(world.stage(), key="one").outcome is Outcome.OK
    world.call(csi.Look())
    assert world.plugin.calls("NodeUnstageVolume") == []


def test_a_hung_plugin_holds_up_no_other(world: World, tmp_path: Path) -> None:
    world.know(sockets={"fake": world.plugin.socket, "other": world.plugin.socket})
    world.plugin.control(faults={"NodeStageVolume": {"hang": True}})
    assert world.client.ask("one", "fake", world.stage()) is None
    assert world.call(csi.Look(), key="two", plugin="other").outcome is Outcome.OK


def test_a_helper_that_is_killed_leaves_calls_uncertain_and_is_started_again(world: World) -> None:
    world.plugin.control(faults={"NodeStageVolume": {"delay_s": 0.5}})
    assert world.client.ask("k", "fake", world.stage()) is None
    until("the call", lambda: world.plugin.calls("NodeStageVolume"))
    assert world.client.pid is not None
    os.kill(world.client.pid, signal.SIGKILL)
    told = world.call(world.stage())
    assert told.outcome is Outcome.UNCERTAIN
    until("success with a new helper", lambda: world.call(world.stage()).outcome is Outcome.OK)
    assert world.seen(ready=True).asked


def test_the_helper_ends_with_its_socket(world: World) -> None:
    world.seen()
    pid = world.client.pid
    assert pid is not None
    handle = os.pidfd_open(pid)
    assert world.client._socket is not None
    world.client._socket.close()
    end = time.monotonic() + 20
    while os.waitid(os.P_PIDFD, handle, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        assert time.monotonic() < end
        time.sleep(0.01)
    os.close(handle)
    world.client._socket = None


def test_a_helper_that_cannot_be_started_is_said_and_not_tried_all_the_time(tmp_path: Path) -> None:
    now = [0.0]
    client = HelperClient(csi.Plugins(), lambda: now[0], program=str(tmp_path / "none"))
    for _ in range(2):
        told = client.ask("k", "fake", csi.Look())
        assert told is not None
        assert told.outcome is Outcome.NEVER_SENT
        assert "No such file or directory (install xce-csi-node-helper)" in told.message
    assert client._failures == 1
    now[0] = 1.0
    client.ask("k", "fake", csi.Look())
    assert client._failures == 2


def test_secrets_are_sent_and_shown_nowhere(world: World) -> None:
    """Neither in an answer, nor in arguments and environments, nor in what the client holds."""
    secret, flag = "correct horse/battery", "password=staple-word"
    file = world.folder / "secrets.json"
    file.write_text(f'{{"key": "{secret}"}}')
    file.chmod(0o600)
    world.plugin.control(behaviours=["echoes-secrets"], faults={"NodeStageVolume": {"code": 13, "times": 1}})
    capability = csi.Capability(mode=5, flags=[flag])
    stage = csi.Stage(volume="vol1", staging=world.place("s"), capability=capability, secrets=str(file))
    told = world.call(stage)
    assert told.outcome is Outcome.UNCERTAIN
    assert told.message.startswith("told to fail")
    assert "[hidden]" in told.message
    assert world.call(stage).outcome is Outcome.OK
    assert all(call["secrets"] for call in world.plugin.calls("NodeStageVolume"))
    # Its words come back in the answer to a call that carries no secrets.
    message = f"old words: {secret} staple-word"
    world.plugin.control(faults={"NodeUnstageVolume": {"code": 13, "message": message}})
    later = world.call(csi.Unstage(volume="vol1", staging=world.place("s")))
    process = Path(f"/proc/{world.client.pid}")
    shown = [told.message, later.message]
    shown += [(process / name).read_bytes().decode(errors="replace") for name in ("cmdline", "environ")]
    for word in ("correct horse", "battery", "staple-word"):
        assert not any(word in text for text in shown)


def test_a_long_message_is_cut_after_its_secrets_are_hidden(world: World) -> None:
    secret = "correct-horse-battery"
    file = world.folder / "secrets.json"
    file.write_text(f'{{"key": "{secret}"}}')
    file.chmod(0o600)
    message = f"{'x' * 1990}{secret} and more"
    world.plugin.control(faults={"NodeStageVolume": {"code": 9, "message": message}})
    told = world.call(world.stage(secrets=str(file)))
    assert len(told.message) <= 2000
    assert "correct" not in told.message


def test_a_secrets_file_that_others_can_read_stops_the_call_before_it_is_made(world: World) -> None:
    file = world.folder / "secrets.json"
    file.write_text("{}")
    file.chmod(0o644)
    told = world.call(world.stage(secrets=str(file)))
    assert told.outcome is Outcome.NEVER_SENT
    assert "mode 0600" in told.message
    assert world.plugin.calls("NodeStageVolume") == []


@pytest.mark.parametrize("much", [ANSWER_BYTES, 3 << 20])
def test_an_answer_that_is_too_long_is_refused_and_the_next_one_heard(world: World, much: int) -> None:
    """No frame could hold it: nobody would hear of the call again."""
    world.plugin.control(longer={"NodeGetVolumeStats": much})
    statistics = csi.Statistics(volume="vol1", path="/x")
    told = world.call(statistics)
    assert told.outcome is Outcome.UNCERTAIN
    assert f"and {ANSWER_BYTES} are the most" in told.message
    world.plugin.control()
    assert world.call(statistics).outcome is Outcome.OK


def test_a_plugin_that_says_too_much_of_itself_is_shown_with_that_and_followed(world: World) -> None:
    world.plugin.control(
        topology={f"k{number}": "v" * 1000 for number in range(2000)}, abilities=[*range(1, 300_000)]
    )
    world.call(csi.Look())
    assert "are the most" in world.seen(ready=False).problem
    world.plugin.control(topology={"zone": "b"})
    assert world.seen(ready=True, topology={"zone": "b"}).problem == ""


def test_a_helper_that_hangs_is_ended_and_its_calls_are_made_again(world: World) -> None:
    """All deadlines are its own: stopped, or stuck in a dead file system, it would be waited for for ever."""
    late = [0.0]
    client = HelperClient(
        csi.Plugins(sockets={"fake": world.plugin.socket}),
        lambda: time.monotonic() + late[0],
        program=world.program,
    )
    try:
        until("the plugin", lambda: (seen := client.seen("fake")) and seen.ready)
        first = client.pid
        late[0] += 3600
        client.poll()
        assert until("an answer", lambda: client.ask("k", "fake", csi.Look())).outcome is Outcome.OK
        assert client.pid == first, "an hour in which nobody asked is no hang"
        os.kill(first or 0, signal.SIGSTOP)
        assert client.ask("k", "fake", csi.Look()) is None
        for _ in range(3):
            late[0] += 15
            client.poll()
        told = client.ask("k", "fake", csi.Look())
        assert told is not None
        assert (told.outcome, "it has hung" in told.message) == (Outcome.UNCERTAIN, True)
        late[0] += 60
        until("the plugin", lambda: (seen := client.seen("fake")) and seen.ready)
        assert client.pid not in {first, None}
    finally:
        client.close()
