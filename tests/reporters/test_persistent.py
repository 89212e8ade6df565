"""Reporters that run all the time, and LSF's elims."""

import pytest

from tests.reporters.node import Node

STREAM = """#!/bin/sh
number=0
while :; do
    number=$((number + 1))
    echo "{\\"number\\": $number}"
    sleep 0.05
done
"""


def test_frames_are_told_as_they_come(node: Node) -> None:
    node.script("stream", STREAM, "mode: persistent\n")
    node.start()
    node.until(lambda: len(node.frames.get("stream", [])) >= 5)
    assert node.frames["stream"][:2] == [b'{"number": 1}', b'{"number": 2}']
    told = node.now("stream")
    assert (told.state, told.mode, told.interval_ms, told.ttl_ms) == ("running", "persistent", 500, 5500)
    assert node.runs("stream") == []


@pytest.mark.parametrize("rest", ["exec sleep 300", "while echo; do sleep 0.1; done"])
def test_silence_is_ended_and_started_anew(node: Node, rest: str) -> None:
    """A line with nothing on it is silence, too."""
    node.script(
        "mute", f"#!/bin/sh\necho '{{}}'\n{rest}\n", "mode: persistent\ninterval: 0.2\ntimeout: 0.3\n"
    )
    node.start()
    result = node.ran("mute")
    assert result.fault == "printed no frame for 0.5 s"
    assert result.duration >= 0.5
    assert node.reaches("mute", "backoff").cause == "printed no frame for 0.5 s"
    node.until(lambda: len([line for line in node.frames["mute"] if line]) == 2)
    assert node.now("mute").state == "running"


def test_one_that_ends_by_itself_is_backed_off(node: Node) -> None:
    node.script("short", "#!/bin/sh\necho '{}'\n", "mode: persistent\ninterval: 0.05\n")
    node.start(failures_to_quarantine=3)
    told = node.reaches("short", "quarantined")
    cause = "ended (exit status 0); with 'mode: persistent' it goes on until it is told to end"
    assert told.cause == f"failed 3 times in a row: {cause}"
    assert len(node.frames["short"]) == 3


def test_one_that_prints_more_than_it_may_is_said_to_be_late_while_it_runs(node: Node) -> None:
    """Its values looked fresh, and were as old as what waited in its pipe."""
    path = node.script("flood", "#!/bin/sh\nwhile :; do echo '{}'; done\n", "mode: persistent\n")
    node.start()
    node.until(lambda: "its values are late" in node.now("flood").note)
    assert node.now("flood").state == "running"
    path.with_suffix(".yaml").unlink()
    node.script("flood", STREAM, "mode: persistent\n")
    node.until(lambda: node.frames["flood"][-1] == b'{"number": 3}')
    assert node.now("flood").note == ""


def test_a_changed_script_is_started_anew_at_once_and_that_is_no_fault(node: Node) -> None:
    node.script("stream", STREAM, "mode: persistent\n")
    node.start()
    node.until(lambda: node.frames.get("stream"))
    node.script("stream", STREAM.replace("number", "other"), "mode: persistent\n")
    node.until(lambda: node.frames["stream"][-1] == b'{"other": 2}')
    assert node.runs("stream") == []
    assert node.now("stream").failures == 0
    assert node.now("stream").state == "running"


def test_a_script_that_must_not_run_any_more_is_ended(node: Node) -> None:
    path = node.script("stream", STREAM, "mode: persistent\n")
    node.start()
    node.until(lambda: node.frames.get("stream"))
    path.chmod(0o777)
    assert "writable by everybody" in node.reaches("stream", "refused").cause
    view = node.supervisor.view("stream")
    assert view is not None
    assert view.user == "", "it runs as nobody at all"
    node.until(lambda: not node.children())
    path.chmod(0o755)
    node.reaches("stream", "running")


def test_persistent_reporters_take_no_share_of_the_budget(node: Node) -> None:
    for number in range(3):
        node.script(f"stream{number}", STREAM, "mode: persistent\nweight: 5\n")
    node.script("free", "#!/bin/sh\necho '{}'\n")
    node.start(budget=1)
    node.until(lambda: len(node.frames) == 3)
    node.ran("free")


def test_an_elim_finds_the_environment_of_lsf(node: Node) -> None:
    script = (
        '#!/bin/sh\nwhile :; do echo "1 env $LSF_MASTER:$LSF_RESOURCES:$ELIM_ABORT_VALUE"; sleep 0.05; done\n'
    )
    node.script("elim.site", script, "mode: elim\nreports: [lic, scratch]\n")
    node.start()
    node.until(lambda: node.frames.get("elim.site"))
    assert node.frames["elim.site"][0] == b"1 env N:lic scratch:97"


def test_an_elim_that_has_nothing_to_report_here_is_not_started_again(node: Node) -> None:
    node.script("elim", "#!/bin/sh\nexit $ELIM_ABORT_VALUE\n", "mode: elim\ninterval: 0.05\n")
    node.start()
    assert node.ran("elim").not_applicable
    node.reaches("elim", "not-applicable")
    node.kernel.during(0.3)
    assert len(node.runs("elim")) == 1


def test_the_cluster_may_shorten_the_interval_and_name_what_is_expected(node: Node) -> None:
    node.script("free", "#!/bin/sh\necho $XCE_INTERVAL $XCE_EXPECT\n", "interval: 60\nreports: [own]\n")
    node.start()
    assert node.ran("free").lines == [b"60 own"]
    node.supervisor.assign("free", interval=0.3, names=["given", "own"])
    assert node.ran("free", 2).lines == [b"0.3 own given"]
    assert node.now("free").interval_ms == 300
    node.supervisor.assign("later", interval=7)
    node.script("later", "#!/bin/sh\ntrue\n")
    node.ran("later")
    assert node.now("later").interval_ms == 7000
