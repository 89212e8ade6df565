"""Discovery end to end: what happens to the probe, and what the node and the broker say of it meanwhile."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.system.hardware import Rig
from tests.system.harness import Site
from xce.agent.cli import client
from xce.linux import proc

pytestmark = [pytest.mark.system]

A, B = "GPU-aaaa0000-0000-4000-8000-000000000000", "GPU-aaaa0001-0000-4000-8000-000000000001"
FOUR = [f"GPU-bbbb000{number}-0000-4000-8000-00000000000{number}" for number in range(4)]
WELL = dict.fromkeys(FOUR, "available")
UNKNOWN = dict.fromkeys(FOUR, "unknown")
NULL = Path("/sys/class/mem/null/uevent")


def over(pid: int) -> bool:
    """Whether it has ended; as an orphan it may wait for somebody to reap it."""
    found = proc.process(pid)
    return found is None or found.state in "ZX"


def four(site: Site, folder: Path, **settings: Any) -> Rig:
    made = Rig(site, folder, "one-lost", **settings).start()
    site.until(lambda: made.health() == WELL)
    return made


@pytest.fixture
def rig(site: Site, tmp_path: Path) -> Rig:
    """Four GPUs, all well."""
    return four(site, tmp_path)


@pytest.fixture
def hasty(site: Site, tmp_path: Path) -> Rig:
    """The same, and what was not read for a second and a half is unknown."""
    return four(site, tmp_path, unknown_after=1.5, timeout=1.2)


def test_what_reads_devices_is_never_loaded_where_it_could_hang_the_agent(site: Site, tmp_path: Path) -> None:
    rig = Rig(site, tmp_path, "one-lost")
    rig.node.environment["PYTHONPROFILEIMPORTTIME"] = "1"
    rig.start()
    site.until(lambda: rig.health() == WELL)
    rig.node.signal(signal.SIGHUP)
    rig.node.stop()
    lines = rig.node.log.read_text().splitlines()
    loaded = {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}
    assert "xce.agent.discovery.keep" in loaded, "or nothing was seen"
    kept_out = {"pynvml", "pyroute2", "asyncio", "subprocess", "multiprocessing"}
    assert {name.partition(".")[0] for name in loaded} & kept_out == set()


def test_a_library_that_crashes_makes_gpus_unknown_and_hurts_nobody_else(site: Site, hasty: Rig) -> None:
    hasty.node.script("neighbour", "#!/bin/sh\necho '{}'\n", interval=0.5)
    agent = hasty.node.pid
    hasty.orders(crash="nvmlDeviceGetCount_v2")
    site.until(lambda: hasty.health() == UNKNOWN)
    site.until(lambda: "killed by SIG" in hasty.probe()["cause"])
    assert hasty.probe()["failures"] >= 1
    assert "ended by itself" in hasty.all()[FOUR[0]].reason
    assert (hasty.node.pid, hasty.node.running()) == (agent, True)
    site.until(lambda: hasty.node.reporter("neighbour").get("runs", 0) > 2)
    hasty.orders()
    hasty.node.command("reporter", "reset", "discovery")
    site.until(lambda: hasty.health() == WELL)
    site.until(lambda: hasty.probe()["cause"] == "")


def test_a_call_that_hangs_is_told_ended_and_ends_with_the_fault(site: Site, hasty: Rig) -> None:
    hasty.orders(hang="nvmlDeviceGetCount_v2")
    site.until(lambda: "said nothing for" in hasty.probe()["cause"])
    site.until(lambda: hasty.health() == UNKNOWN)
    begun = time.monotonic()
    hasty.node.status()
    assert time.monotonic() - begun < 10, "the agent itself answers"
    hasty.orders()
    hasty.node.command("reporter", "reset", "discovery")
    site.until(lambda: hasty.health() == WELL)


def test_a_library_that_leaks_costs_a_new_process_now_and_then(site: Site, tmp_path: Path) -> None:
    rig = four(site, tmp_path, recycle_memory_mb=150)
    assert rig.library is not None
    rig.library.control({"leak.nvmlDeviceGetCount_v2.*": 40 << 20})
    site.until(lambda: rig.probe()["runs"] >= 3)
    assert (rig.probe()["failures"], rig.health()) == (0, WELL)


def test_a_gpu_with_a_condemning_xid_is_not_offered_until_an_admin_says_so(site: Site, rig: Rig) -> None:
    assert rig.library is not None
    rig.library.xid(2, 79)
    site.until(lambda: rig.health() == WELL | {FOUR[2]: "unavailable"})
    ill = rig.all()[FOUR[2]]
    assert "XID 79" in ill.reason
    assert ill.recovery
    with pytest.raises(client.AgentError, match="without a reason"):
        rig.node.ask(op="inventory-clear", id=FOUR[2], reason=" ")
    assert rig.node.command("inventory", "clear", FOUR[2]).returncode == 2, "it wants a reason"
    (told,) = [line for line in rig.node.status()["trouble"] if line.startswith("devices: ")]
    assert told.startswith(f"devices: {FOUR[2]} is unavailable (XID 79"), "status says it too"
    assert told.endswith(f"xce-agent inventory {FOUR[2]}"), "and what to look at next"
    by_name = rig.node.command("inventory", "clear", "GPU2", "--reason", "looked at it")
    assert (by_name.returncode, "xce-agent inventory NAME" in by_name.stderr) == (2, True), (
        "no index is an id"
    )
    cleared = rig.node.command("inventory", "clear", FOUR[2][:12], "--reason", "looked at it")
    assert (cleared.returncode, cleared.stdout) == (0, f"{FOUR[2]}: cleared\n")
    site.until(lambda: rig.health() == WELL)


def test_what_is_known_of_health_outlives_the_agent(site: Site, rig: Rig) -> None:
    assert rig.library is not None
    rig.library.xid(1, 79)
    ill = WELL | {FOUR[1]: "unavailable"}
    site.until(lambda: rig.health() == ill)
    since = rig.all()[FOUR[1]].since
    generation = rig.reference().generation
    rig.node.kill()
    (rig.library.folder / "events").write_text("")
    rig.node.start()
    site.until(lambda: rig.probe().get("pid"))
    site.until(lambda: rig.probe()["runs"] == 1 and rig.health() == ill)
    time.sleep(1)
    assert (rig.health(), rig.all()[FOUR[1]].since) == (ill, since)
    assert rig.reference().generation == generation


def test_an_inventory_file_that_is_damaged_frees_nothing(site: Site, rig: Rig) -> None:
    rig.node.stop()
    file = rig.node.folder / "state" / "inventory.msgpack"
    file.write_bytes(file.read_bytes()[:-7])
    rig.node.start()
    site.until(lambda: set(rig.health().values()) == {"unavailable"})
    assert "what was known of its faults is lost" in rig.all()[FOUR[0]].reason
    assert any("inventory file" in line and "damaged" in line for line in rig.node.status()["trouble"])
    assert file.with_name("inventory.msgpack.damaged").exists()
    for one in FOUR:
        rig.node.ask(op="inventory-clear", id=one, reason="all of them are new")
    site.until(lambda: rig.health() == WELL)


def test_a_steady_node_tells_nothing_new(site: Site, tmp_path: Path) -> None:
    rig = four(site, tmp_path, interval=0.8)
    time.sleep(1)
    generation, position = rig.reference().generation, site.snapshot().position
    time.sleep(2.5)
    assert rig.reference().generation == generation
    assert site.snapshot().position == position, "not one delta in three readings"


def test_release_gives_up_the_library_until_resume(site: Site, hasty: Rig) -> None:
    pid = hasty.probe()["pid"]
    released = hasty.node.command("discovery", "release")
    assert (released.returncode, released.stdout) == (0, "released: nothing of the library is open\n")
    assert any("is given up until" in line for line in hasty.node.status()["trouble"])
    hasty.orders(hang="*")
    site.until(lambda: hasty.health() == UNKNOWN)
    assert hasty.probe()["pid"] == pid, "it was not asked, or it would hang"
    assert "not read for 1.5 s" in hasty.all()[FOUR[0]].reason
    hasty.orders()
    assert hasty.node.command("discovery", "resume").returncode == 0
    site.until(lambda: hasty.health() == WELL)


def test_a_library_that_hangs_is_released_by_the_end_of_its_process(site: Site, rig: Rig) -> None:
    pid = rig.probe()["pid"]
    rig.orders(hang="nvmlDeviceGetCount_v2")
    site.until(lambda: "pause" in Path(f"/proc/{pid}/wchan").read_text())
    assert rig.node.command("discovery", "release").returncode == 0
    assert over(pid)


def test_the_probe_leaves_with_its_agent(site: Site, rig: Rig) -> None:
    pid = rig.probe()["pid"]
    rig.node.kill()
    site.until(lambda: over(pid))


def test_a_host_without_what_it_should_have_is_held_until_it_fits(site: Site, tmp_path: Path) -> None:
    rig = Rig(site, tmp_path, "one-lost", expected=[{"kind": "gpu", "count": 4}]).start()
    site.until(lambda: rig.health() == WELL)

    def holds() -> list[tuple[str, str]]:
        place = site.snapshot().locations["host:node1"]
        return [(hold.owner, hold.reason) for hold in place.holds]

    assert holds() == []
    rig.step(1)
    site.until(lambda: holds() == [("reporter:discovery", "inventory: gpu: 4 expected, 3 found")])
    rig.step(2)
    site.until(lambda: holds() == [])


def test_port_ranges_are_instances_and_an_overlap_is_told(site: Site, tmp_path: Path) -> None:
    """Case C-DIR-01, for what is declared."""
    own = tmp_path / "root" / "proc/sys/net/ipv4"
    ranges = [
        {"name": "jobs", "first": 32768, "last": 33767},
        {"name": "free", "first": 20000, "last": 20099},
    ]
    rig = Rig(site, tmp_path, ports=ranges)
    own.mkdir(parents=True)
    (own / "ip_local_port_range").write_text("32768\t60999\n")
    rig.start()
    site.until(lambda: len(rig.all("port-range")) == 2)
    assert rig.all("port-range")["ports:free"].capacity == {"ports": 100}
    told = [line for line in rig.node.status()["trouble"] if "ports jobs" in line]
    assert len(told) == 1
    assert "32768-33767" in told[0]


def test_a_node_without_accelerators_keeps_no_probe_and_is_woken_by_a_device(
    site: Site, tmp_path: Path
) -> None:
    if not os.access(NULL, os.W_OK):
        pytest.skip("needs root and /sys")
    rig = Rig(site, tmp_path).start()
    site.until(lambda: rig.probe()["state"] == "waiting" and rig.probe()["pid"] is None)
    runs = rig.probe()["runs"]
    card = "bus/pci/devices/0000:41:00.0"
    rig.sysfs({f"{card}/class": "0x030200\n", f"{card}/vendor": "0x1002\n"})
    NULL.write_text("change")
    site.until(lambda: "pci:0000:41:00.0" in rig.all())
    assert rig.probe()["runs"] > runs


def test_a_described_machine_stands_in_for_this_one(site: Site, tmp_path: Path) -> None:
    described = tmp_path / "machine.json"
    gpu: dict[str, Any] = {"index": 0, "uuid": A, "pci": "0000:0f:00.0", "name": "NVIDIA H200"}
    described.write_text(json.dumps({"nvidia": {"driver": "550.54.15", "count": 1, "gpus": [gpu]}}))
    rig = Rig(site, tmp_path / "rig", machine=str(described))
    rig.start()
    site.until(lambda: rig.health() == {A: "available"})
    described.write_text(json.dumps({"nvidia": {"count": 1, "gpus": [gpu | {"colour": 7}]}}))
    site.until(lambda: any("colour" in line for line in rig.node.status()["trouble"]))
    assert set(rig.all()) == {A}


def test_a_reload_changes_what_is_expected_without_losing_anything(site: Site, rig: Rig) -> None:
    rig.discovery["expected"] = [{"kind": "gpu", "count": 5}]
    rig.node.configure()
    rig.node.signal(signal.SIGHUP)
    site.until(lambda: site.snapshot().locations["host:node1"].holds)
    assert rig.health() == WELL
    rig.discovery["enabled"] = False
    rig.node.configure()
    rig.node.signal(signal.SIGHUP)
    site.until(lambda: "discovery" not in site.snapshot().locations["host:node1"].inventories)
    assert site.snapshot().locations["host:node1"].holds == []
