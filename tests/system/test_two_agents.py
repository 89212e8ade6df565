"""Two agents on one host leave each other's reporters alone, whatever they are called."""

from pathlib import Path

import pytest

from tests.system.harness import AgentProgram, Site
from xce.linux import proc

pytestmark = [pytest.mark.system, pytest.mark.root]

STAYS = "#!/bin/sh\nexec sleep 300\n"
"""It writes nothing: when its agent is gone, nothing would end it but a sweep."""


def pid_of(agent: AgentProgram, site: Site) -> int:
    """The running reporter `stays`."""
    return int(site.until(lambda: agent.reporter("stays").get("pid")))


def alive(pid: int) -> bool:
    found = proc.process(pid)
    return found is not None and found.state != "Z"


def pair(site: Site) -> tuple[AgentProgram, AgentProgram]:
    """Two of the same name, with directories of their own."""
    site.broker.start()
    agents = site.agent("node1"), site.agent("node1")
    for agent in agents:
        agent.script("stays", STAYS, mode="persistent", interval=60)
    return agents


def test_agents_of_one_name_do_not_sweep_each_other_and_each_finds_its_own_after_a_crash(site: Site) -> None:
    if site.cgroup is None:
        pytest.skip("needs a writable cgroup2 file system")
    first, second = pair(site)
    for agent in (first, second):
        agent.settings["cgroup"] = ""
        agent.start()
    mine, other = pid_of(first, site), pid_of(second, site)
    first.kill()
    second.stop()
    second.start()
    assert alive(mine)
    assert pid_of(second, site) != other
    first.start()
    site.until(lambda: not alive(mine))
    assert alive(pid_of(first, site))
    for agent in (first, second):
        assert agent.stop() == 0


def test_a_group_that_another_agent_was_given_too_is_left_to_it(site: Site) -> None:
    if site.cgroup is None:
        pytest.skip("needs a writable cgroup2 file system")
    first, second = pair(site)
    second.settings["cgroup"] = first.settings["cgroup"]
    first.start()
    mine = pid_of(first, site)
    second.start()
    assert alive(pid_of(second, site))
    told = f"control group: cannot use {first.settings['cgroup']}: it is another agent's"
    assert any(line.startswith(told) for line in second.status()["trouble"])
    assert second.stop() == 0
    assert alive(mine)
    assert first.stop() == 0
    assert not Path(first.settings["cgroup"]).exists()


def test_a_state_directory_belongs_to_one_agent(site: Site) -> None:
    first, second = pair(site)
    second.settings["state_directory"] = first.settings["state_directory"]
    first.start()
    site.until(first.status)
    second.start()
    assert second.ended() == 1
    assert f"cannot start: pid {first.pid} is already running with {first.folder}/state" in second.tail()
