"""Disks of agents that are read-only, failing or hung: who asks is answered, nothing is lost or invented."""

import json
import os
import subprocess
import time

import pytest

from tests.linux.sickdisk import SickDisk
from tests.linux.surroundings import read_only
from tests.system.harness import AgentProgram
from tests.system.one_node import DATA, PENDING, READY, RELEASING, Node, starting
from tests.system.test_claims import INVENTORY, bindings_of, ended
from xce.broker.client import BrokerRefused
from xce.linux import mountapi
from xce.model.claim import Ask

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts and control groups need root"),
]


def test_an_agent_that_starts_on_a_read_only_disk_says_so_and_takes_its_claims_up_once_it_is_well(
    one: Node,
) -> None:
    stays, goes = one.ready("stays", Ask(mounts=[DATA])), one.ready("goes", Ask(mounts=[DATA]))
    before = one.view(stays)
    one.agent.stop()
    read_only(one.folder("state"))
    one.agent.start()
    words = "no claims are served: cannot open the journal: its file system is read-only"
    one.site.until(lambda: any(words in line for line in one.agent.status()["trouble"]))
    assert words in one.agent.command("claim", "why", "stays").stderr
    one.release("goes")
    one.site.until(lambda: one.site.snapshot().locations["host:node1"].state == "available")
    with pytest.raises(BrokerRefused, match="host node1 takes no claims"):
        one.order("late", Ask(mounts=[DATA]))
    view = one.view(goes)
    assert (view.binding.state, view.conditions) == (RELEASING, ["unreachable"])
    assert "its agent serves no claims" in view.note
    assert one.mounts(one.point(stays, "data"))
    subprocess.run(["mount", "-o", "remount,bind,rw", str(one.folder("state"))], check=True)
    ended(one.site, one.client, goes)
    one.site.until(lambda: bindings_of(one.agent)[stays]["state"] == "ready")
    assert one.view(stays) == before
    one.release("stays")
    one.ended(stays)
    one.agent.stop()
    mountapi.unmount(str(one.folder("state")))


def on_a_disk_of_its_own(agent: AgentProgram) -> None:
    agent.disk = SickDisk(agent.folder / "state", agent.folder / "disk")  # type: ignore[attr-defined]


def slowest(agent: AgentProgram, seconds: float) -> float:
    """Of many answers to `status`, how long the slowest took."""
    worst, end = 0.0, time.monotonic() + seconds
    while (began := time.monotonic()) < end:
        agent.ask(op="status")
        worst = max(worst, time.monotonic() - began)
        time.sleep(0.01)
    return worst


@starting(on_a_disk_of_its_own)
def test_reporters_that_come_while_the_disk_is_frozen_wait_for_it_and_nobody_else_does(one: Node) -> None:
    """Making the directory of the first of them, the agent waited until the disk thawed."""
    disk: SickDisk = one.agent.disk  # type: ignore[attr-defined]
    one.agent.script("steady", "#!/bin/sh\necho '{}'\n", interval=0.2)
    one.site.until(lambda: one.agent.reporter("steady").get("runs"))
    try:
        with disk.frozen():
            for name in ("first", "second"):
                one.agent.script(name, "#!/bin/sh\necho '{}'\n", interval=0.2)
            for name in ("first", "second"):
                cause = one.site.until(lambda name=name: one.agent.reporter(name).get("cause"))  # type: ignore[misc]
                assert "its disk does not answer" in cause
            assert slowest(one.agent, 1) < 0.5
            runs = one.agent.reporter("steady")["runs"]
            one.site.until(lambda: one.agent.reporter("steady")["runs"] > runs)
        one.site.until(lambda: all(one.agent.reporter(name)["runs"] for name in ("first", "second")))
        one.site.until(lambda: not any("disk" in line for line in one.agent.status()["trouble"]))
    finally:
        one.agent.kill()
        disk.close()


@starting(on_a_disk_of_its_own)
def test_an_agent_whose_disk_is_frozen_answers_and_runs_its_reporters_and_goes_on_when_it_thaws(
    one: Node,
) -> None:
    """A snapshot of the disk that takes its time. An inventory that changed kept the whole agent."""
    disk: SickDisk = one.agent.disk  # type: ignore[attr-defined]
    stays, goes = one.ready("stays", Ask(mounts=[DATA])), one.ready("goes", Ask(mounts=[DATA]))
    before = one.view(stays)
    try:
        with disk.frozen():
            late = one.order("late", Ask(mounts=[DATA]))
            one.release("goes")
            found = json.dumps({**INVENTORY, "instances": INVENTORY["instances"][:1]})  # type: ignore[index]
            one.agent.script("cards", f"#!/bin/sh\necho '{found}'\n", interval=0.1)
            place = "host:node1"
            one.site.until(lambda: one.site.snapshot().locations[place].inventories["cards"].count == 1)
            assert slowest(one.agent, 1.5) < 0.5
            assert [one.view(name).binding.state for name in (late, goes)] == [PENDING, RELEASING]
            assert one.site.snapshot().locations["host:node1"].state == "available"
        assert one.client.wait_bindings([late], timeout=30)[late].binding.state is READY
        ended(one.site, one.client, goes)
        assert one.view(stays) == before
        one.release("stays", "late")
        one.ended(stays, late)
    finally:
        one.agent.kill()
        disk.close()
