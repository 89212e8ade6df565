"""The packages from a repository, by dnf with its solver: what an admin of an EL host types."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.box import Host
from tests.hosts.conftest import NEXT, NOW, OLDER

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
[xce-python]
name=the distribution with another Python
baseurl=file:///repository/python
gpgcheck=0
enabled=0
[xce-older]
name=XCE before the helper had a package
baseurl=file:///repository/older
gpgcheck=0
enabled=0
"""
HELPER = "xce-csi-node-helper"


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


def has(host: Host, package: str) -> bool:
    return host.run("rpm", "-q", package).returncode == 0


def test_the_csi_helper_comes_with_the_agent_unless_weak_dependencies_are_off(site: Host) -> None:
    dnf(site, "install", "xce-agent")
    assert not has(site, HELPER)
    site.must("xce-agent", "--help")
    site.write("/etc/xce/agent.yaml", "claims: {csi: {plugins: {p: /run/p.sock}}}\n")
    assert f"install {HELPER}" in site.run("xce-agent", "doctor").stdout
    assert f"install {HELPER}" in site.run("xce-agent", "csi", "list").stderr
    site.must("dnf", "-y", "-q", "install", HELPER)
    assert f"{HELPER} {NOW} (grpclib " in site.must(HELPER, "--version")
    assert "there is no socket /run/p.sock" in site.run("xce-agent", "csi", "list").stdout
    by_hand = site.run(HELPER)
    assert (by_hand.returncode, "xce-agent starts it" in by_hand.stderr) == (2, True)
    dnf(site, "remove", HELPER)
    site.must("dnf", "-y", "-q", "reinstall", "xce-agent")
    assert not has(site, HELPER)
    dnf(site, "remove", "xce-agent")
    site.must("dnf", "-y", "-q", "install", "xce-agent")
    assert has(site, HELPER)


def test_the_csi_helper_is_not_removed_under_a_volume(site: Host) -> None:
    dnf(site, "install", "xce-agent", HELPER)
    site.must("mkdir", "-p", "/run/xce-claims/.csi/p/x/v")
    site.must("mount", "-t", "tmpfs", "volume", "/run/xce-claims/.csi/p/x/v")
    refused = site.run("dnf", "-y", "remove", HELPER)
    assert "volume is mounted at /run/xce-claims/.csi/p/x/v" in refused.stdout + refused.stderr
    assert has(site, HELPER)
    site.must("umount", "/run/xce-claims/.csi/p/x/v")
    dnf(site, "remove", HELPER)


def test_an_upgrade_from_before_the_helper_had_a_package_brings_it_and_goes_back(site: Host) -> None:
    older = ("--disablerepo=xce", "--enablerepo=xce-older")
    dnf(site, *older, "install", "xce-agent", "distribution")
    assert (version(site), has(site, HELPER)) == (OLDER, False)
    dnf(site, "upgrade")
    assert (version(site), version(site, HELPER)) == (NOW, NOW)
    site.must(HELPER, "--version")
    assert site.run("rpm", "-V", "xce-libs", "xce-agent", HELPER).stdout == ""
    dnf(site, *older, "--allowerasing", "downgrade", f"xce-agent-{OLDER}", f"xce-libs-{OLDER}")
    assert (version(site), has(site, HELPER)) == (OLDER, False)
    assert site.run("rpm", "-V", "xce-libs", "xce-agent").stdout == ""
    site.must(HELPER, "--version")


def test_dnf_installs_upgrades_downgrades_and_removes(site: Host) -> None:
    dnf(site, "install", "xce-broker", "xce-agent")
    assert version(site, "xce-libs") == version(site, "xce-broker") == NOW
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
    back = [f"{package}-{NOW}" for package in ("xce-agent", "xce-broker", "xce-libs")]
    dnf(site, "--enablerepo=xce-next", "downgrade", *back)
    assert version(site) == NOW
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
    assert version(site) == NOW
    assert version(site, "xce-libs") == NOW, "dnf takes what nobody needs any more, and this is needed"
    assert site.run("xce-agent", "removal").returncode == 1
    site.must("sh", "-c", "kill $(cat /sys/fs/cgroup/xce.slice/xce-jobs.service/job1/cgroup.procs)")
    site.until(lambda: site.run("xce-agent", "removal").returncode == 0, "to be free")
    dnf(site, "remove", "xce-agent")
    assert "not installed" in site.run("rpm", "-q", "xce-agent", "xce-libs").stdout


def test_an_update_of_the_system_past_our_python_is_refused_and_says_for_whom(site: Host) -> None:
    """C-PKG-05: before anything is changed, by the package manager."""
    dnf(site, "install", "xce-agent")
    update = ("dnf", "-y", "--best", "--enablerepo=xce-python", "upgrade", "distribution")
    refused = site.run(*update)
    assert refused.returncode != 0
    said = refused.stdout + refused.stderr
    assert "python3.11" in said
    assert "xce-libs" in said
    assert version(site, "distribution") == "9"
    assert site.run("xce-agent", "--help").returncode == 0
