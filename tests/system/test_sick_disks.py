"""Disks of agents that are read-only, failing or hung: who asks is answered, nothing is lost or invented."""

import os
import subprocess

import pytest

from tests.system.harness import AgentProgram
from tests.system.test_cases_on_nodes import DATA, RELEASING, Node, one
from tests.system.test_claims import bindings_of, ended
from xce.broker.client import BrokerRefused
from xce.linux import mountapi
from xce.model.claim import Ask

__all__ = ["one"]

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts and control groups need root"),
]


def read_only(agent: AgentProgram) -> None:
    """Its state can be read and not written, as after an error of the disk."""
    place = str(agent.folder / "state")
    for how in (["--bind", place, place], ["-o", "remount,bind,ro", place]):
        subprocess.run(["mount", *how], check=True)


def test_an_agent_that_starts_on_a_read_only_disk_says_so_and_takes_its_claims_up_once_it_is_well(
    one: Node,
) -> None:
    stays, goes = one.ready("stays", Ask(mounts=[DATA])), one.ready("goes", Ask(mounts=[DATA]))
    before = one.view(stays)
    one.agent.stop()
    read_only(one.agent)
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
