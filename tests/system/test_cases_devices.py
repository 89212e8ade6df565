"""What went wrong for people with devices, tried with all programs: who has them, and which of two agents.

The steps alone, at every moment and with every fault, are tried in tests/prepare.
"""

import json
import os
import signal
import subprocess
from typing import Any

import pytest

from tests.system.harness import AgentProgram, Site
from tests.system.one_node import CARD, FAILED, RELEASED, Node, starting
from tests.system.test_claims import OTHER, OWN, ended, node, until_there
from xce.linux.cgroup import Cgroup
from xce.model import message as m
from xce.model.claim import Ask

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts and control groups need root"),
]


def unable(agent: AgentProgram) -> None:
    """It can neither load filters nor write to the old controller, nor mount."""
    agent.prefix = ["setpriv", "--bounding-set=-bpf,-sys_admin", "--inh-caps=-all"]


@starting(unable)
def test_c_dev_03_an_agent_that_cannot_keep_devices_takes_claims_without_any(one: Node) -> None:
    why = "cannot load device filters: Operation not permitted (CAP_BPF"
    assert f"devices are kept by nothing ({why}" in one.agent.command("status").stdout
    plain = one.ready("plain", Ask(environment={"GREETING": "hello"}))
    assert one.run("plain", "sh", "-c", "echo $GREETING").stdout == "hello\n"
    view = one.bound("gpu", Ask(instances=CARD), card="card-own")
    assert view.binding.state is FAILED
    assert view.binding.reason.startswith(f"device isolation unavailable: {why}")
    one.release("plain")
    one.ended(plain)


def test_c_dev_04_released_is_said_when_the_last_process_is_gone_and_its_group_too(one: Node) -> None:
    """One that ignores TERM; another that was put into the claim long after the first."""
    binding = one.ready("job", Ask(instances=CARD), card="card-own")
    group = Cgroup(one.claims["cgroup"]).child("xce-consumer-job")
    look = f"(: <{OWN}) && echo own; (: <{OTHER}) || echo no other; while :; do sleep 60; done"
    enter = f'echo $$ >{group.path}/cgroup.procs; exec env -i sh -c "$0"'
    how: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with (
        subprocess.Popen(["sh", "-c", enter, f"trap '' TERM; {look}"], **how) as first,
        subprocess.Popen(
            ["sh", "-c", 'read go; exec sh -c "$0"', look], stdin=subprocess.PIPE, **how
        ) as late,
    ):
        assert first.stdout is not None
        assert late.stdout is not None
        assert [first.stdout.readline() for _ in range(2)] == ["own\n", "no other\n"]
        one.agent.ask(op="add-process", name="job", pid=late.pid)
        assert late.stdin is not None
        print("go", file=late.stdin, flush=True)
        assert [late.stdout.readline() for _ in range(2)] == ["own\n", "no other\n"]
        one.release("job")
        one.site.until(lambda: over(one, binding) or None, every_s=0)
        assert not group.exists(), "released, and its group is there"
        assert (first.wait(5), late.wait(5)) == (-signal.SIGKILL, -signal.SIGTERM)
    one.ended(binding)


def over(one: Node, binding: str) -> bool:
    found = one.client.ask(m.ClaimsRequest(id="")).bindings.get(binding)
    return found is None or found.binding.state is RELEASED


def test_c_msg_01_of_two_agents_of_one_name_one_prepares_and_the_other_touches_nothing(site: Site) -> None:
    key = site.key("node1", "agent", hosts=("node1",))
    first = node(site, "node1")
    second = site.agent("node1", key=key)
    second.settings["claims"] = json.loads(json.dumps(first.settings["claims"]))
    second.settings["claims"] |= {
        "cgroup": f"{first.settings['claims']['cgroup']}-2",
        "directory": str(second.folder / "claims"),
    }
    Cgroup(second.settings["claims"]["cgroup"]).create()
    site.broker.start()
    first.start()
    until_there(site, "node1")
    second.start()
    site.until(lambda: "already served by" in second.status().get("link", {}).get("trouble", ""))
    with site.client() as client:
        one = Node(site, client, first)
        binding = one.ready("job", Ask(instances=CARD), card="card-own")
        assert [group.path for group in Cgroup(one.claims["cgroup"]).children()] == [
            f"{one.claims['cgroup']}/xce-consumer-job"
        ]
        assert list(Cgroup(second.settings["claims"]["cgroup"]).children()) == []
        assert second.status()["bindings"] == []
        assert one.agent.ask(op="claims")["bindings"][0]["binding"] == binding
        one.release("job")
        ended(site, client, binding)
