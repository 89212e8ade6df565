"""Secrets that a program answers with, through the real helper: for each call anew, within a deadline."""

from pathlib import Path

import pytest

from tests.csi_node_helper.world import CAPABILITY, World, until
from xce.linux import proc
from xce.model import csi
from xce.model.csi import Outcome

pytestmark = pytest.mark.root
SECRET = "correct-horse"


def program(world: World, text: str, mode: int = 0o700) -> str:
    path = world.folder / "vault"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(mode)
    return str(path)


def test_the_answer_of_a_program_is_the_secret_and_it_is_asked_for_each_call(world: World) -> None:
    asked = world.folder / "asked"
    path = program(world, f"""echo "$@" >> {asked}; echo '{{"key": "{SECRET}"}}'; echo {SECRET} >&2""")
    world.plugin.control(secret=SECRET)
    for _ in range(2):
        assert world.call(world.stage(secrets=path)).outcome is Outcome.OK
    assert asked.read_text() == "fake stage vol1\n" * 2
    path = program(world, "echo '{}'")
    told = world.call(world.stage(secrets=path))
    assert (told.outcome, told.code) == (Outcome.REFUSED, 16), "nothing was kept of the answer before"


def test_what_a_program_answers_is_hidden_in_the_plugins_words(world: World) -> None:
    path = program(world, f"""echo '{{"key": "{SECRET}"}}'""")
    world.plugin.control(
        behaviours=["echoes-secrets"], faults={"NodeStageVolume": {"code": 9, "message": "denied"}}
    )
    told = world.call(world.stage(secrets=path))
    assert "denied [hidden]" in told.message
    assert SECRET not in told.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"echo {SECRET}; exit 3", "it ended with status 3"),
        (f"echo {SECRET}; kill -9 $$", "it ended with signal 9"),
        (f"echo {SECRET}", "not one JSON object of texts"),
        (f"yes {SECRET}", "more than 65536 bytes"),
        ("", "not one JSON object of texts"),
    ],
)
def test_a_program_without_an_answer_keeps_the_plugin_from_being_asked(
    world: World, text: str, words: str
) -> None:
    told = world.call(world.stage(secrets=program(world, text)))
    assert told.outcome is Outcome.NEVER_SENT
    assert words in told.message
    assert SECRET not in told.message
    assert world.plugin.calls("NodeStageVolume") == []


def test_a_program_that_is_late_is_ended_with_all_that_it_has_started(world: World) -> None:
    pids = world.folder / "pids"
    path = program(world, f"echo $$ >> {pids}; sleep 300 & echo $! >> {pids}; wait")
    told = world.call(world.stage(secrets=path), s=0.5)
    assert told.outcome is Outcome.NEVER_SENT
    assert "no answer within 0.5 s" in told.message
    started = [int(line) for line in pids.read_text().split()]
    assert len(started) == 2
    until("they are gone", lambda: all(_is_over(pid) for pid in started))


def _is_over(pid: int) -> bool:
    found = proc.process(pid)
    # Who reaps what is left of it is not the helper's business.
    return found is None or found.state == "Z" or found.name not in {"vault", "sleep"}


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_program_that_others_may_change_is_not_run(world: World, mode: int) -> None:
    ran = world.folder / "ran"
    told = world.call(world.stage(secrets=program(world, f"touch {ran}", mode)))
    assert told.outcome is Outcome.NEVER_SENT
    assert "root alone may change" in told.message
    assert not Path(ran).exists()


def test_what_cannot_be_run_is_told(world: World) -> None:
    path = world.folder / "vault"
    path.write_text("#!/nowhere/at/all\n")
    path.chmod(0o700)
    told = world.call(world.stage(secrets=str(path)))
    assert told.outcome is Outcome.NEVER_SENT
    assert "cannot run" in told.message


def test_a_volume_that_no_argument_can_name_is_told_and_leaves_no_descriptor(world: World) -> None:
    world.seen()
    call = csi.Stage(
        volume="a\0b", staging=world.place("s"), capability=CAPABILITY, secrets=program(world, "echo '{}'")
    )
    descriptors = Path(f"/proc/{world.client.pid}/fd")
    told = world.call(call)
    before = len(list(descriptors.iterdir()))
    for _ in range(3):
        told = world.call(call)
    assert (told.outcome, "cannot run" in told.message) == (Outcome.NEVER_SENT, True)
    assert len(list(descriptors.iterdir())) == before
