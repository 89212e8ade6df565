"""The packages from a repository, by dnf with its solver: what an admin of an EL host types."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.box import Host
from tests.hosts.conftest import NEXT

pytestmark = [pytest.mark.root, pytest.mark.system, pytest.mark.slow]

REPOSITORIES = """\
[xce]
name=XCE
baseurl=file:///repository/now
gpgcheck=0
[xce-next]
name=XCE next
baseurl=file:///repository/next
gpgcheck=0
enabled=0
"""


@pytest.fixture
def site(base: Path, repository: Path, tmp_path: Path) -> Iterator[Host]:
    """A host that knows the repositories."""
    with Host("h1", tmp_path, binds=(f"{repository}:/repository",)) as running:
        running.must("mkdir", "-p", "/etc/yum.repos.d", "/etc/rpm")
        running.write("/etc/rpm/macros", "%_dbpath /var/lib/rpm\n")
        running.write("/etc/yum.repos.d/xce.repo", REPOSITORIES)
        yield running


def dnf(host: Host, *arguments: str) -> str:
    return host.must("dnf", "-y", "-q", "--setopt=install_weak_deps=False", *arguments)


def version(host: Host, package: str = "xce-agent") -> str:
    return host.run("rpm", "-q", "--qf", "%{VERSION}", package).stdout


def test_dnf_installs_upgrades_downgrades_and_removes(site: Host) -> None:
    dnf(site, "install", "xce-broker", "xce-agent")
    assert version(site, "xce-libs") == version(site, "xce-broker") == "0.1.0"
    site.must("xce-broker", "key", "new", "broker")
    site.write("/etc/xce/hosts.yaml", "hosts:\n  - name: h1\n")
    site.must("systemctl", "start", "xce-broker")
    site.must("xce-broker", "token", "new", "--hosts", "h1", "--out", "/root/token")
    site.must("xce-agent", "join", "127.0.0.1", "--token", "/root/token")
    available = ("sh", "-c", "xce-broker hosts | grep -q ' available '")
    site.until(lambda: site.run(*available).returncode == 0, "to be available")

    checked = site.run("dnf", "-q", "--enablerepo=xce-next", "check-update")
    assert checked.returncode == 100, "updates are there"
    dnf(site, "--enablerepo=xce-next", "upgrade")
    assert version(site) == version(site, "xce-libs") == NEXT
    site.until(lambda: NEXT in site.run("xce-agent", "status").stdout, "to run the new version")
    dnf(site, "--enablerepo=xce-next", "downgrade", "xce-agent-0.1.0", "xce-broker-0.1.0", "xce-libs-0.1.0")
    assert version(site) == "0.1.0"
    site.until(lambda: site.run(*available).returncode == 0, "to be available")
    assert "Traceback" not in site.journal("xce-*")

    dnf(site, "remove", "xce-agent", "xce-broker")
    assert "not installed" in site.run("rpm", "-q", "xce-agent").stdout
    assert site.run("systemctl", "is-active", "xce-agent").stdout.strip() == "inactive"
    assert "127.0.0.1" in site.read("/etc/xce/agent.yaml.rpmsave")


def test_dnf_leaves_the_agent_while_a_job_runs(site: Host) -> None:
    dnf(site, "install", "xce-agent")
    site.must("systemctl", "start", "xce-jobs")
    script = (
        "g=/sys/fs/cgroup/xce.slice/xce-jobs.service/job1; mkdir -p $g; "
        "(echo 0 >$g/cgroup.procs; exec sleep 600 </dev/null >/dev/null 2>&1) & "
        "until grep -q . $g/cgroup.procs; do sleep 0.01; done"
    )
    site.must("sh", "-c", script)
    refused = site.run("dnf", "-y", "remove", "xce-agent")
    assert "job job1 runs: 1 processes" in refused.stdout + refused.stderr
    assert version(site) == "0.1.0"
    assert version(site, "xce-libs") == "0.1.0", "dnf takes what nobody needs any more, and this is needed"
    assert site.run("xce-agent", "removal").returncode == 1
    site.must("sh", "-c", "kill $(cat /sys/fs/cgroup/xce.slice/xce-jobs.service/job1/cgroup.procs)")
    site.until(lambda: site.run("xce-agent", "removal").returncode == 0, "to be free")
    dnf(site, "remove", "xce-agent")
    assert "not installed" in site.run("rpm", "-q", "xce-agent", "xce-libs").stdout
