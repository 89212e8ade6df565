"""The same packages for Debian: installed, upgraded with an edited file, kept while a job runs, removed."""

import subprocess
from pathlib import Path

import pytest

from tests.hosts.box import Host
from tests.hosts.cluster import alive
from tests.hosts.conftest import NEXT, NOW, OLDER
from tests.hosts.test_packages import available, job_of, serve
from tests.project import tree

pytestmark = [pytest.mark.root, pytest.mark.system, pytest.mark.slow]


@pytest.fixture(scope="module", autouse=True)
def debs(packages: Path, older: Path) -> None:
    """Beside the RPM packages that they are made of."""
    for folder in (packages, packages / "next", older):
        command = [str(tree.ROOT / "packaging/deb/build"), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr


def dpkg(host: Host, *arguments: str) -> str:
    return host.must("sh", "-c", " ".join(["dpkg", *arguments]))


def test_a_debian_host_is_served_upgraded_and_freed(host: Host) -> None:
    dpkg(host, "-i", "/packages/*.deb")
    assert (
        host.must("systemctl", "is-enabled", "xce-agent", "xce-broker", "xce-jobs").split() == ["enabled"] * 3
    )
    serve(host)
    assert host.unit("xce-broker", "User")["User"] == "xce-broker"
    before = host.read("/etc/xce/agent.yaml")
    pid = job_of(host)
    dpkg(host, "--force-confold", "-i", "/packages/next/*.deb")
    available(host)
    assert NEXT in host.must("xce-agent", "status")
    assert host.read("/etc/xce/agent.yaml") == before
    assert "novelty" in host.read("/etc/xce/agent.yaml.dpkg-dist")
    assert alive(host, pid)
    refused = host.run("dpkg", "-r", "xce-agent")
    assert refused.returncode != 0
    assert "job job1 runs" in refused.stderr
    assert host.run("xce-agent", "status").returncode == 0, "nothing has been stopped"
    host.must("kill", str(pid))
    host.until(lambda: host.run("xce-agent", "removal").returncode == 0, "to be free")
    dpkg(host, "-r", "xce-agent", "xce-broker", "xce-csi-node-helper", "xce-libs")
    assert host.run("systemctl", "is-active", "xce-agent").stdout.strip() == "inactive"
    assert "127.0.0.1" in host.read("/etc/xce/agent.yaml")
    assert host.run("test", "-e", "/usr/lib/xce/site").returncode != 0


def test_the_helpers_files_move_to_its_own_package_and_back(host: Host) -> None:
    dpkg(host, "-i", "/packages/older/*.deb")
    dpkg(host, "-i", "/packages/*.deb")
    assert NOW in host.must("xce-csi-node-helper", "--version")
    recommended = host.must("sh", "-c", "dpkg-deb -f /packages/xce-agent_*.deb Recommends").strip()
    assert recommended == f"xce-csi-node-helper (= {NOW})"
    assert "xce-csi-node-helper:" in host.must("dpkg", "-S", "/usr/lib/xce/site/grpclib")
    dpkg(host, "-r", "xce-csi-node-helper")
    host.must("xce-agent", "--help")
    assert host.run("test", "-e", "/usr/lib/xce/site/grpclib").returncode != 0
    dpkg(host, "-i", "/packages/older/*.deb")
    assert OLDER in host.must("xce-csi-node-helper", "--version")


def test_a_unit_that_is_masked_or_cannot_start_leaves_no_package_half_done(host: Host) -> None:
    """And a configuration that cannot be read stops a removal, but not one that is forced."""
    host.must("systemctl", "mask", "xce-agent", "xce-broker")
    dpkg(host, "-i", "/packages/*.deb")
    doctors = host.run("xce-agent", "doctor").stdout + host.run("xce-broker", "doctor").stdout
    assert "systemctl unmask xce-agent.service" in doctors
    assert "does not delegate" not in doctors
    assert "xce-agent join BROKER --token FILE" in doctors
    assert "systemctl unmask xce-broker; systemctl start xce-broker" in doctors
    dpkg(host, "-i", "/packages/next/*.deb")
    host.must("systemctl", "unmask", "xce-agent", "xce-broker")
    serve(host)
    for _ in range(4):  # five starts in five minutes are its limit
        host.must("systemctl", "restart", "xce-agent")
    dpkg(host, "--force-confold", "-i", "/packages/*.deb")
    available(host)

    host.write("/etc/xce/agent.yaml", "claims: [\n")
    dpkg(host, "--force-confold", "-i", "/packages/next/*.deb")
    assert host.run("dpkg", "--audit").stdout == ""
    refused = host.run("dpkg", "-r", "xce-agent")
    assert refused.returncode != 0
    assert "correct it first, or set XCE_FORCE_REMOVAL=1" in refused.stderr
    host.must("env", "XCE_FORCE_REMOVAL=1", "dpkg", "-r", "xce-agent")
    assert host.run("systemctl", "is-active", "xce-agent").stdout.strip() == "inactive"
