"""Three hosts with addresses of their own: joined, cut off, upgraded, crashed, with claims all the time.

The hosts are booted once for all tests here; each leaves them available and without claims.
"""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.box import Host
from tests.hosts.cluster import NAMES, Cluster, alive, rpm
from tests.hosts.conftest import NEXT

pytestmark = [pytest.mark.root, pytest.mark.system, pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster(base: Path, packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), packages) as running:
        yield running


@pytest.fixture
def job(cluster: Cluster) -> Iterator[tuple[str, int]]:
    """A claim on node2 with a mount and a process: its binding, and the pid there."""
    binding = cluster.bind("node2", "full", "4711", "--mount", "data=data")
    pid = cluster.start("node2", "4711")
    yield binding, pid
    for name in NAMES:
        cluster.until(name, "available")
    cluster.release("4711")
    assert not alive(cluster.hosts["node2"], pid), "a release still ends the job"


def seen(cluster: Cluster, job: tuple[str, int]) -> dict[str, Any]:
    """All that a job has on its host, as others see it."""
    binding, pid = job
    host = cluster.hosts["node2"]
    mounts = host.read("/proc/1/mountinfo").splitlines()
    return {
        "alive": alive(host, pid),
        "group": host.read(f"/proc/{pid}/cgroup"),
        "mounts": [line for line in mounts if f"/run/xce-claims/{binding}/" in line],
        "state": cluster.bindings("4711"),
        "opens": cluster.opens("node2", "4711", "full", "zero"),
    }


def test_hosts_join_over_the_network_and_both_doctors_are_content(cluster: Cluster) -> None:
    assert {one["host"]: one["state"] for one in cluster.broker("hosts")} == dict.fromkeys(NAMES, "available")
    for host in cluster.hosts.values():
        done = host.run("xce-agent", "doctor")
        assert done.returncode == 0, done.stdout
        assert "is in the mount namespace of PID 1" in done.stdout
        assert "device filters can be loaded (bpf)" in done.stdout
    done = cluster.hosts["node1"].run("xce-broker", "doctor")
    assert done.returncode == 0, done.stdout


def test_a_partition_loses_the_host_and_touches_no_claim(cluster: Cluster, job: tuple[str, int]) -> None:
    before = seen(cluster, job)
    assert before["opens"] == [True, False]
    assert len(before["mounts"]) == 1
    cluster.lab.cut(2)
    cluster.until("node2", "lost")
    away = seen(cluster, job)
    assert away == before
    assert cluster.state("node3") == "available", "nobody else is touched"
    status = cluster.hosts["node2"].run("xce-agent", "status")
    assert status.returncode == 1, "the node says that it is alone"
    cluster.lab.heal()
    cluster.until("node2", "available")
    assert seen(cluster, job) == before


def test_all_hosts_are_upgraded_and_taken_back_below_a_running_job(
    cluster: Cluster, job: tuple[str, int]
) -> None:
    before = seen(cluster, job)
    for arguments in (("-U", "/packages/next/*.rpm"), ("-U", "--oldpackage", "/packages/*.rpm")):
        for host in cluster.hosts.values():
            rpm(host, "--nodeps", *arguments)
        for name in NAMES:
            cluster.until(name, "available")
        new = {NEXT in host.must("xce-agent", "status") for host in cluster.hosts.values()}
        assert new == {"/packages/next/*.rpm" in arguments}
        assert seen(cluster, job) == before


def test_the_brokers_host_may_lose_power_and_be_started_anew(cluster: Cluster, job: tuple[str, int]) -> None:
    before = seen(cluster, job)
    first = cluster.hosts["node1"]
    first.crash()
    assert alive(cluster.hosts["node2"], job[1])
    first.boot()
    for name in NAMES:
        cluster.until(name, "available")
    assert seen(cluster, job) == before
    first.shut_down()
    first.boot()
    for name in NAMES:
        cluster.until(name, "available")
    assert seen(cluster, job) == before


def test_a_reload_of_the_service_manager_leaves_the_device_filter(
    cluster: Cluster, job: tuple[str, int]
) -> None:
    """C-DEV-01(c); also a restart of the manager itself, and a change of the unit's own device rules."""
    host = cluster.hosts["node2"]
    assert cluster.opens("node2", "4711", "full", "zero") == [True, False]
    for command in (
        ("daemon-reload",),
        ("daemon-reexec",),
        ("set-property", "--runtime", "xce-jobs.service", "DeviceAllow=/dev/full rw"),
        ("daemon-reload",),
    ):
        host.must("systemctl", *command)
        time.sleep(0.5)  # two check periods
        assert cluster.opens("node2", "4711", "full", "zero") == [True, False], command
        assert set(cluster.bindings("4711").values()) == {"ready"}


def test_a_policy_of_the_service_manager_that_denies_a_claims_device_is_told_until_it_is_lifted(
    cluster: Cluster, job: tuple[str, int]
) -> None:
    """C-DEV-01: its filter is above the job's, and all must allow."""
    host = cluster.hosts["node2"]
    unit = ("systemctl", "set-property", "--runtime", "xce-jobs.service")
    host.must(*unit, "DevicePolicy=strict", "DeviceAllow=", "DeviceAllow=/dev/null rw")
    assert cluster.opens("node2", "4711", "full", "zero") == [False, False]
    host.until(
        lambda: "denies the consumer /dev/full" in host.run("xce-agent", "claim", "why", "4711").stdout,
        "to say who denies it",
    )
    assert "xce-jobs.service" in host.run("xce-agent", "claim", "why", "4711").stdout
    host.must(*unit, "DevicePolicy=auto", "DeviceAllow=", "DeviceAllow=/dev/full rw")  # with the usual ones
    host.until(
        lambda: host.run("xce-agent", "claim", "why", "4711").stdout == "it is ready\n", "to be ready again"
    )
    assert cluster.opens("node2", "4711", "full", "zero") == [True, False]


def another(host: Host, pid: str) -> bool:
    """Whether the agent's unit has a new process."""
    return host.unit("xce-agent", "MainPID")["MainPID"] not in {pid, "0"}


def test_a_restart_of_the_agents_unit_changes_nothing_for_a_job(
    cluster: Cluster, job: tuple[str, int]
) -> None:
    """Not one that is asked for, and not one after it was killed."""
    host, before = cluster.hosts["node2"], seen(cluster, job)
    for command in (("restart", "xce-agent"), ("kill", "--signal=KILL", "xce-agent")):
        pid = host.unit("xce-agent", "MainPID")["MainPID"]
        host.must("systemctl", *command)
        host.until(partial(another, host, pid), "a new one")
        cluster.until("node2", "available")
        host.until(
            lambda: "ready" in host.run("xce-agent", "claim", "list").stdout, "to have its claim again"
        )
        assert seen(cluster, job) == before, command


def test_a_host_that_loses_power_makes_its_claim_anew(cluster: Cluster) -> None:
    """The job is gone with the machine, and its claim is ready for it again until it is released."""
    host = cluster.hosts["node2"]
    binding = cluster.bind(
        "node2", "full", "4712", "--mount", "data=data", "--scratch", "8M", "--owner", "root"
    )
    cluster.start("node2", "4712")
    boot = host.read("/proc/sys/kernel/random/boot_id")
    host.crash()
    cluster.until("node2", "lost")
    host.boot()
    assert host.read("/proc/sys/kernel/random/boot_id") != boot
    cluster.until("node2", "available")
    host.until(lambda: cluster.bindings("4712") == {binding: "ready"}, "to make the claim ready again")
    assert cluster.opens("node2", "4712", "full", "zero") == [True, False]
    mounts = [line.split()[4] for line in host.read("/proc/1/mountinfo").splitlines()]
    here = sorted(point for point in mounts if point.startswith("/run/xce-claims/"))
    assert here == [f"/run/xce-claims/{binding}/{name}" for name in ("data", "scratch")]
    cluster.release("4712")
    assert "/run/xce-claims/" not in host.read("/proc/1/mountinfo")


def test_an_agent_in_a_mount_namespace_of_its_own_says_so_and_fails_claims_with_volumes(
    cluster: Cluster,
) -> None:
    """C-PKG-04."""
    host, first = cluster.hosts["node3"], cluster.hosts["node1"]
    host.must("systemctl", "stop", "xce-agent")
    hidden = ("unshare", "-m", "--propagation", "private", "xce-agent", "run")
    host.must("systemd-run", "--unit=hidden", "--property=Delegate=yes", *hidden)
    cluster.until("node3", "available")
    doctor = host.run("xce-agent", "doctor")
    assert doctor.returncode == 1
    assert "mounts would not be visible outside" in doctor.stdout
    assert "mounts would not be visible outside" in host.run("xce-agent", "status").stdout
    first.must("xce-broker", "claim", "create", "job-hidden", "--mount", "data=data")
    bind = ("xce-broker", "claim", "bind", "job-hidden", "node3", "--consumer", "hidden", "--wait", "20")
    done = first.run(*bind)
    assert done.returncode == 4
    assert set(cluster.bindings("hidden").values()) <= {"failed"}
    shown = first.run("xce-broker", "claim", "show", "job-hidden").stdout + done.stdout + done.stderr
    assert "mounts would not be visible outside" in shown
    line = ("journalctl", "-o", "cat", "--no-pager", "XCE_HOST=node3", "XCE_CLAIM=job-hidden")
    host.until(lambda: "failed: mounts would not be" in host.run(*line).stdout, "to log it by its claim")
    host.must("systemctl", "stop", "hidden")
    host.must("systemctl", "start", "xce-agent")
    cluster.until("node3", "available")
    assert "would not be visible" not in host.run("xce-agent", "doctor").stdout


def test_the_agent_is_not_removed_while_the_journal_has_a_claim_and_by_force_it_unmounts_first(
    cluster: Cluster,
) -> None:
    """A claim with a mount and no process, on a host whose agent has crashed."""
    host = cluster.hosts["node3"]
    erase = ("sh", "-c", "rpm --dbpath /var/lib/rpm -e --nodeps xce-agent")
    binding = cluster.bind("node3", "zero", "idle")
    refused = host.run(*erase)
    assert refused.returncode != 0
    assert f"claim job-idle is ready here: {binding}, consumer idle" in refused.stderr
    pid = host.unit("xce-agent", "MainPID")["MainPID"]
    host.must("systemctl", "kill", "--signal=KILL", "xce-agent")
    assert host.run(*erase).returncode != 0, "a crash frees nothing"
    host.until(partial(another, host, pid), "a new one")
    host.until(lambda: host.run("xce-agent", "status").returncode == 0, "to be linked again")
    cluster.until("node3", "available")
    cluster.release("idle")
    assert host.run("xce-agent", "removal").returncode == 0

    host.write("/srv/data/precious", "kept")
    binding = cluster.bind("node3", "zero", "last", "--mount", "data=data")
    at = f"/run/xce-claims/{binding}"
    assert at in host.read("/proc/1/mountinfo")
    assert host.run(*erase).returncode != 0
    host.must("env", "XCE_FORCE_REMOVAL=1", *erase)
    assert at not in host.read("/proc/1/mountinfo")
    assert host.read("/srv/data/precious") == "kept"
    # As for a host that broke: whoever installs the agent again gets the claim back, and can end it.
    rpm(host, "-i", "--nodeps", "/packages/xce-agent*.rpm")
    if host.run("test", "-e", "/etc/xce/agent.yaml.rpmsave").returncode == 0:
        host.must("mv", "/etc/xce/agent.yaml.rpmsave", "/etc/xce/agent.yaml")
    host.must("systemctl", "restart", "xce-agent")
    cluster.until("node3", "available")
    cluster.release("last")
    assert host.run("xce-agent", "removal").returncode == 0
