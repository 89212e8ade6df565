"""What somebody changes under a claim, and what nobody owns: seen, mended or told, by all who should know."""

import os
import struct
import subprocess
import time
from pathlib import Path

import pytest

from tests.prepare.test_isolation import take_off
from tests.system.harness import Site
from tests.system.test_claims import ASK, OTHER, OWN, REFUSED, node, place, ready, run_in, until_there
from xce.agent import daemon
from xce.broker.client import Watch
from xce.linux import bpf
from xce.linux.cgroup import Cgroup
from xce.model import message as m
from xce.model.claim import Claim

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="cgroups and device filters need root"),
]
ALL = bpf.compile_rules([bpf.Rule(bpf.BPF_DEVCG_DEV_CHAR, None, None, 7)])
SOON_S = 1.0
SLACK_S = 2.0
"""For a busy machine."""


def exclude_others(group: int) -> None:
    """A program of somebody else in the place of ours, beside which the kernel lets no other."""
    take_off(group)
    program = bpf.load(ALL, "stranger")
    bpf._bpf(bpf.BPF_PROG_ATTACH, struct.pack("<IIIII", group, program, bpf.BPF_CGROUP_DEVICE, 0, 0))
    os.close(program)


def heard(watch: Watch, binding: str, conditions: list[str]) -> float:
    """Seconds until a watcher has heard that the binding has these conditions, and what is the matter."""
    start = time.monotonic()
    while time.monotonic() - start < 20:
        watch.next(1)
        view = watch.mirror.bindings.get(binding) if watch.mirror is not None else None
        if view and list(view.conditions) == conditions and bool(view.note) == bool(conditions):
            return time.monotonic() - start
    raise AssertionError(f"never heard of {conditions}")


def test_drift_is_heard_by_a_watcher_within_a_second(site: Site) -> None:
    """C-DEV-01(b), at the default interval: not mendable, so the claim is degraded until it is."""
    agent = node(site, "node1")
    del agent.settings["claims"]["check_s"]
    site.broker.start()
    agent.start()
    until_there(site, "node1")
    with site.client() as client:
        client.ask(m.ClaimCreate(id="", claim=Claim(id="job", ask=ASK)))
        (binding,) = ready(client, place(client, "job", "node1", "card-own", "j"))
        watch = client.watch()
        heard(watch, binding, [])
        path = f"{agent.settings['claims']['cgroup']}/xce-consumer-j"
        group = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        exclude_others(group)
        assert heard(watch, binding, ["degraded"]) < SOON_S + SLACK_S
        assert "lets no other in" in agent.status()["bindings"][0]["note"]
        shown = agent.command("status")
        assert f"binding {binding}: ready, degraded: " in shown.stdout, shown.stdout[-900:]
        assert shown.returncode == 1
        take_off(group)
        assert heard(watch, binding, []) < SOON_S + SLACK_S
        assert not any(line.startswith("binding") for line in agent.status()["trouble"])
        assert run_in(agent, "j", OWN, OTHER) == ["open", REFUSED]
        site.until(lambda: f"binding {binding}: all right again after" in agent.log.read_text())
        exclude_others(group)
        heard(watch, binding, ["degraded"])
        site.until(lambda: agent.log.read_text().count(f"binding {binding}: ready, degraded") == 2)
        client.ask(m.ClaimRelease(id="", claim="job"))
        site.until(lambda: f"binding {binding}: released" in agent.log.read_text())
        time.sleep(2 * daemon.LOOK_S)
        assert agent.log.read_text().count("all right again after") == 1, "it is gone"
        os.close(group)


def test_what_no_claim_owns_is_in_the_status_with_what_keeps_devices(site: Site) -> None:
    agent = node(site, "node1")
    lost = Cgroup(agent.settings["claims"]["cgroup"]).child("xce-consumer-lost")
    lost.create()
    enter = f"echo $$ > {lost.path}/cgroup.procs; exec sleep 60"
    process = subprocess.Popen(["sh", "-c", enter])
    directory = Path(agent.settings["claims"]["directory"], "b99")
    directory.mkdir(parents=True)
    while not lost.pids():
        time.sleep(0.01)
    agent.start()
    site.until(lambda: agent.status()["claims"]["orphans"])
    claims = agent.status()["claims"]
    group, place = f"control group {lost.path} (1 processes)", f"directory {directory}"
    foreign = "not ours: no agent has written its name on it"
    assert claims["orphans"] == [f"{group}: {foreign}", f"{place}: {foreign}"]
    shown = agent.command("status")
    assert f"no claim owns {group}: {foreign}, {place}: {foreign}" in shown.stdout
    assert f"0 on this host, devices are kept by {claims['devices']}" in shown.stdout
    assert claims["devices"] in {"bpf", "v1"}
    assert shown.returncode == 1, "somebody has to look at it"
    process.kill()
    process.wait()
    agent.stop()
    lost.remove()
