"""The halves of C-GPU-03, C-GPU-06 and C-DEV-02 that are about claims, with the real programs.

There is none: the kernel's table of drivers is told to have NVIDIA's number, and nobody is behind it. An open
that is denied gives EPERM; ENXIO means that it was not.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.linux.kernel import in_place_of
from tests.prepare import machine
from tests.system.hardware import Rig
from tests.system.harness import Site
from tests.system.test_cases_hardware import uuid
from tests.system.test_claims import REFUSED, bindings_of, ended, ready, run_in
from xce.broker.client import BrokerRefused, Client
from xce.linux.cgroup import Cgroup
from xce.model import message as m
from xce.model.claim import Ask, Claim, Consumer, InstanceAsk

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="cgroups, device filters and mounts need root"),
]
DRIVERS = "Character devices:\n  1 mem\n195 nvidia\n510 nvidia-uvm\n\nBlock devices:\n"
BASE = ["c *:* m", "b *:* m", "c 1:3 rwm", "c 1:9 rwm"]
NOBODY_BEHIND = "No such device or address"


@pytest.fixture(autouse=True)
def nvidia(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[None]:
    """The driver is loaded, as far as the table says. This process has mounts of its own."""
    table = tmp_path / "devices"
    table.write_text(getattr(request, "param", DRIVERS))
    with in_place_of("/proc/devices", table):
        yield


def node(site: Site, folder: Path, case: str) -> Rig:
    """An agent that takes claims, with the GPUs of a case."""
    rig = Rig(site, folder, case)
    jobs = Cgroup(f"{site.cgroup_of(rig.node.folder.name)}-jobs")
    jobs.create()
    rig.node.settings["claims"] = {
        "enabled": True,
        "directory": str(rig.node.folder / "claims"),
        "cgroup": jobs.path,
        "cdi_directory": "",
        "check_s": 0.1,
        "profiles": {"default": {"devices": BASE, "grace_s": 0.3}},
    }
    return rig.start()


def place(client: Client, claim: str, gpu: str) -> m.Place:
    client.ask(m.ClaimCreate(id="", claim=Claim(id=claim, ask=Ask(instances=[InstanceAsk(kind="gpu")]))))
    ref = client.snapshot(["host:node1"]).locations["host:node1"].inventories["discovery"]
    pick = m.Pick(id=gpu, reporter="discovery", generation=ref.generation)
    return m.Place(claim=claim, host="node1", consumer=Consumer(name=claim), instances=[pick])


def test_c_gpu_03_the_claim_opens_the_device_of_its_minor_and_no_other(site: Site, tmp_path: Path) -> None:
    rig = node(site, tmp_path, "minor-swap")
    site.until(lambda: len(rig.health()) == 4)
    nodes = [str(tmp_path / f"nvidia{minor}") for minor in range(4)]
    for minor, path in enumerate(nodes):
        os.mknod(path, 0o20666, os.makedev(195, minor))
    with site.client() as client:
        (binding,) = ready(client, place(client, "job", uuid("c", 0)))
        assert run_in(rig.node, "job", *nodes) == [REFUSED, REFUSED, NOBODY_BEHIND, REFUSED]
        (shown,) = rig.node.ask(op="publish", name="job")["bindings"]
        (rules,) = (step["evidence"]["rules"] for step in shown["steps"] if "rules" in step["evidence"])
        assert [rule for rule in rules if rule.startswith("c 195:")] == ["c 195:2 rw", "c 195:255 rw"]
        assert shown["variables"]["CUDA_VISIBLE_DEVICES"] == uuid("c", 0)
        assert shown["variables"]["NVIDIA_VISIBLE_DEVICES"] == uuid("c", 0)
        client.ask(m.ClaimRelease(id="", claim="job"))
        ended(site, client, binding)


@pytest.mark.parametrize(
    ("nvidia", "uvm"),
    [(machine.proc_devices("A"), 510), (machine.proc_devices("B"), 509)],
    indirect=["nvidia"],
    ids=["A", "B"],
)
def test_c_dev_02_the_filter_has_the_numbers_of_today_s_table(site: Site, tmp_path: Path, uvm: int) -> None:
    """In B 510 is a stranger's."""
    rig = node(site, tmp_path, "minor-swap")
    site.until(lambda: len(rig.health()) == 4)
    nodes = {}
    for major, minor in ((195, 2), (509, 0), (510, 0)):
        nodes[major] = str(tmp_path / f"device{major}")
        os.mknod(nodes[major], 0o20666, os.makedev(major, minor))
    with site.client() as client:
        (binding,) = ready(client, place(client, "job", uuid("c", 0)))
        opened = dict(zip(nodes, run_in(rig.node, "job", *nodes.values()), strict=True))
        assert opened == {195: NOBODY_BEHIND, uvm: NOBODY_BEHIND, 1019 - uvm: REFUSED}
        (shown,) = rig.node.ask(op="claim", name="job")["bindings"]
        (rules,) = (step["evidence"]["rules"] for step in shown["steps"] if "rules" in step["evidence"])
        majors = {rule.split()[1].partition(":")[0] for rule in rules}
        assert majors == {"*", "1", "195", str(uvm)}
        client.ask(m.ClaimRelease(id="", claim="job"))
        ended(site, client, binding)


def test_c_gpu_06_a_ready_claim_outlives_the_mismatch_and_no_new_one_is_made(
    site: Site, tmp_path: Path
) -> None:
    rig = node(site, tmp_path, "mismatch")
    one, other = uuid("f", 0), uuid("f", 1)
    site.until(lambda: rig.health() == {one: "available", other: "available"})
    pid = rig.node.pid
    with site.client() as client:
        (binding,) = ready(client, place(client, "job", one))
        before = client.ask(m.ClaimsRequest(id="")).bindings[binding]
        rig.step(1)
        site.until(lambda: rig.health() == {one: "unknown", other: "unknown"})
        with pytest.raises(BrokerRefused, match="mismatch"):
            client.ask(m.ClaimBind(id="", places=[place(client, "late", other)]))
        site.until(lambda: rig.probe()["runs"] >= 6)
        assert bindings_of(rig.node)[binding]["state"] == "ready"
        assert client.ask(m.ClaimsRequest(id="")).bindings[binding] == before, "nothing was said of it"
        rig.step(2)
        site.until(lambda: rig.health() == {one: "available", other: "available"})
        assert client.ask(m.ClaimsRequest(id="")).bindings[binding] == before
        assert rig.node.pid == pid
        client.ask(m.ClaimRelease(id="", claim="job"))
        ended(site, client, binding)
