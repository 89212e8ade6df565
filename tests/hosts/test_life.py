"""The whole life of a host with a running job: installed, joined, upgraded, edited, crashed, back, removed.

What is asserted, is what the broker, systemd, the kernel and rpm say; the agent's own word is asked last.
"""

import json
from collections.abc import Iterator

import pytest

from tests.hosts.box import Host
from tests.hosts.cluster import BROKER, RPM, alive, group, rpm
from tests.hosts.conftest import NEXT
from tests.hosts.test_packages import available, install, serve

pytestmark = [pytest.mark.root, pytest.mark.system, pytest.mark.slow]

CLAIMS = """
claims:
  enabled: true
  check_s: 0.2
  profiles:
    default:
      devices: ["c *:* m", "b *:* m", "c 1:3 rwm", "c 1:9 rwm"]
      grace_s: 0.3
      volumes:
        data: {path: /srv/data}
"""
SCRIPT = """#!/bin/sh
level=%s
echo $level >"$XCE_STATE_DIR/level" && echo "{\\"level\\": $level}"
"""
TYPES = "interval: 1\ntypes: [{name: level, kind: numeric}]\n"


@pytest.fixture
def site(host: Host) -> Iterator[Host]:
    install(host)
    text = host.read("/etc/xce/agent.yaml")
    at = text.index("\nclaims:\n")
    host.write("/etc/xce/agent.yaml", text[:at] + CLAIMS + text[text.index("\n# ", at + 1) :])
    host.write("/etc/xce/broker.yaml", host.read("/etc/xce/broker.yaml") + BROKER)
    host.must("mkdir", "-p", "/srv/data")
    host.write("/srv/data/precious", "kept")
    serve(host)
    yield host
    assert "Traceback" not in host.must("journalctl", "--no-pager", "-b", "all")


def level(host: Host) -> str:
    return host.run("sh", "-c", "xce-broker supply --host h1 | grep '^level '").stdout


def states(host: Host) -> set[str]:
    views = json.loads(host.must("xce-broker", "claim", "show", "train", "--json"))["bindings"]
    return {view["binding"].get("state", "pending") for view in views.values()}


def seen(host: Host, pid: int) -> tuple[bool, str, int]:
    """The job as the kernel sees it: alive, where, and how many of its mounts there are."""
    mounts = host.read("/proc/1/mountinfo").count("/run/xce-claims/b")
    return alive(host, pid), host.run("cat", f"/proc/{pid}/cgroup").stdout, mounts


def start(host: Host) -> int:
    script = (
        f"g={group('4711')}; (echo 0 >$g/cgroup.procs; exec sleep 600 </dev/null >/dev/null 2>&1) & "
        "until grep -q . $g/cgroup.procs; do sleep 0.01; done; cat $g/cgroup.procs"
    )
    return int(host.must("sh", "-c", script).split()[0])


def test_a_job_and_its_claim_outlive_all_that_is_done_to_their_agent(site: Host) -> None:
    # A reporter, and a claim with a process.
    site.write("/etc/xce/reporters.d/level.yaml", TYPES)
    site.write("/etc/xce/reporters.d/level", SCRIPT % 1, mode="0755")
    site.until(lambda: " 1 " in level(site), "to report")
    site.must("xce-broker", "claim", "create", "train", "--mount", "data=data", "--ports", "http=1")
    site.must("xce-broker", "claim", "bind", "train", "h1", "--consumer", "4711", "--wait", "20")
    pid = start(site)
    before = seen(site, pid)
    assert before[0]
    assert before[2] == 1

    # An upgrade; then the configuration and the reporter are edited.
    rpm(site, "-U", "--nodeps", "/packages/next/*.rpm")
    available(site)
    assert NEXT in site.must("xce-agent", "status")
    assert (seen(site, pid), states(site)) == (before, {"ready"})
    edited = site.read("/etc/xce/agent.yaml").replace("check_s: 0.2", "check_s: 0.3") + "# by an admin\n"
    site.write("/etc/xce/agent.yaml", edited)
    site.must("systemctl", "reload", "xce-agent")
    site.until(lambda: "configuration read anew" in site.journal("xce-agent"), "to take it up")
    site.write("/etc/xce/reporters.d/level", SCRIPT % 2, mode="0755")
    site.until(lambda: " 2 " in level(site), "to report the new value")
    assert (seen(site, pid), states(site)) == (before, {"ready"})

    # A crash of the agent, then of the host: the job is gone with it, the claim is made again.
    site.must("systemctl", "kill", "--signal=KILL", "xce-agent")
    site.until(lambda: site.unit("xce-agent", "NRestarts")["NRestarts"] == "1", "to be restarted")
    available(site)
    assert (seen(site, pid), states(site)) == (before, {"ready"})
    site.crash()
    site.boot()
    available(site)
    site.until(lambda: states(site) == {"ready"}, "to make the claim again")
    assert site.read("/srv/data/precious") == "kept"
    pid = start(site)
    before = seen(site, pid)
    assert before[2] == 1

    # Back to the version before, with the edited files.
    rpm(site, "-U", "--nodeps", "--oldpackage", "/packages/*.rpm")
    available(site)
    assert NEXT not in site.must("xce-agent", "status")
    assert (seen(site, pid), states(site)) == (before, {"ready"})
    assert site.read("/etc/xce/agent.yaml") == edited
    site.until(lambda: " 2 " in level(site), "to report")

    # Not removed while all that is there; then it goes, and takes nothing along.
    erase = ("sh", "-c", " ".join([*RPM, "-e", "--nodeps", "xce-agent"]))
    assert site.run(*erase).returncode != 0
    assert seen(site, pid) == before
    site.must("xce-broker", "claim", "release", "train")
    site.until(lambda: not alive(site, pid), "to end the job")
    site.until(lambda: site.run("xce-agent", "removal").returncode == 0, "to be free")
    site.must(*erase)
    assert site.read("/srv/data/precious") == "kept"
    assert site.run("systemctl", "cat", "xce-agent").returncode != 0
