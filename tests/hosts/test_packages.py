"""The packages on a real systemd host: installed, started, upgraded, crashed, taken back and removed."""

import json
import re
import time

import pytest

from tests.hosts.box import Host
from tests.hosts.cluster import RPM, alive, rpm
from tests.hosts.conftest import NEXT
from tests.project import tree

pytestmark = [pytest.mark.root, pytest.mark.system, pytest.mark.slow]

PACKAGES = ("xce-libs", "xce-agent", "xce-broker", "xce-csi-node-helper")


def install(host: Host) -> None:
    rpm(host, "-i", "--nodeps", "/packages/*.rpm")


def serve(host: Host) -> None:
    """A broker and an agent of one host, by the commands of the guide."""
    host.must("xce-broker", "key", "new", "broker")
    host.write("/etc/xce/hosts.yaml", f"hosts:\n  - name: {host.name}\n")
    host.must("systemctl", "start", "xce-broker")
    host.must("xce-broker", "token", "new", "--hosts", host.name, "--out", "/root/token")
    host.must("xce-agent", "join", "127.0.0.1", "--token", "/root/token")
    available(host)


def available(host: Host) -> None:
    """As systemd and the broker see it."""
    host.until(
        lambda: host.unit("xce-agent", "StatusText")["StatusText"].startswith("synced, host available"),
        "to be available",
        within_s=30,
    )
    assert host.run("xce-agent", "status").returncode == 0


def job_of(host: Host) -> int:
    """A process in a group of its own where jobs live."""
    script = (
        "g=/sys/fs/cgroup/xce.slice/xce-jobs.service/job1; mkdir -p $g; "
        "(echo 0 >$g/cgroup.procs; exec sleep 600 </dev/null >/dev/null 2>&1) & "
        "until grep -q . $g/cgroup.procs; do sleep 0.01; done; cat $g/cgroup.procs"
    )
    return int(host.must("sh", "-c", script).split()[0])


def test_no_host_may_set_the_clock_that_it_shares_with_this_machine(host: Host) -> None:
    """Neither its PID 1 nor a command of an admin. What they may do is read; nobody tries."""
    for process in ("1", "self"):
        status = host.read(f"/proc/{process}/status")
        held = {name: int(bits, 16) for name, bits in re.findall(r"Cap(Eff|Prm|Bnd):\s*([0-9a-f]+)", status)}
        assert held["Eff"] >> 21 & 1, "a host's root is root"
        assert not any(bits >> 25 & 1 for bits in held.values()), f"CAP_SYS_TIME: {process}"


def test_a_fresh_host_is_served_after_install_and_key(host: Host) -> None:
    install(host)
    enabled = host.must("systemctl", "is-enabled", "xce-agent", "xce-broker", "xce-jobs").split()
    assert enabled == ["enabled"] * 3
    # Without a key nothing runs, nothing fails, and the reason is to be read.
    host.must("systemctl", "start", "xce-agent")
    assert host.unit("xce-agent", "ActiveState", "ConditionResult") == {
        "ActiveState": "inactive",
        "ConditionResult": "no",
    }
    serve(host)
    assert "available" in host.must("xce-broker", "hosts")
    status = host.unit("xce-agent", "StatusText", "NRestarts", "Type")
    assert status["StatusText"].startswith("synced, host available")
    assert (status["NRestarts"], status["Type"]) == ("0", "notify")
    assert host.unit("xce-broker", "User", "NRestarts") == {"User": "xce-broker", "NRestarts": "0"}
    assert "Traceback" not in host.journal("xce-*")
    # Only what was changed by hand differs from what was installed.
    changed = host.run(*RPM, "-V", "--nodeps", *PACKAGES).stdout.split("\n")
    assert {line.split()[-1] for line in changed if line} == {"/etc/xce/agent.yaml", "/etc/xce/hosts.yaml"}


def test_an_upgrade_keeps_what_the_admin_wrote_and_runs_the_new_version(host: Host) -> None:
    """C-PKG-01: the edited file is active byte for byte, the new default lies beside it."""
    install(host)
    serve(host)
    host.write("/etc/xce/reporters.d/one", "#!/bin/sh\necho '{\"one_free\": 1}'\n", mode="0755")
    host.write("/etc/xce/reporters.d/one.yaml", "types: [{name: one_free, kind: numeric}]\n")
    before = host.read("/etc/xce/agent.yaml")
    pids = {unit: host.unit(unit, "MainPID")["MainPID"] for unit in ("xce-agent", "xce-jobs")}
    rpm(host, "-U", "--nodeps", "/packages/next/*.rpm")
    assert host.read("/etc/xce/agent.yaml") == before
    assert "novelty" in host.read("/etc/xce/agent.yaml.rpmnew")
    assert host.must("cat", "/etc/xce/reporters.d/one").startswith("#!/bin/sh")
    available(host)
    assert NEXT in host.must("xce-agent", "status")
    after = host.unit("xce-agent", "MainPID", "NRestarts", "UnitFileState")
    assert after["MainPID"] != pids["xce-agent"]
    assert (after["NRestarts"], after["UnitFileState"]) == ("0", "enabled")
    assert host.unit("xce-jobs", "MainPID")["MainPID"] == pids["xce-jobs"]
    starts = host.journal("xce-agent").count(" runs, pid ")
    assert starts == 2, "restarted once"


def test_jobs_outlive_restart_upgrade_and_downgrade_of_the_agent(host: Host) -> None:
    """C-PKG-02: the same pid afterwards, outside the unit's own group."""
    install(host)
    serve(host)
    pid = job_of(host)
    host.must("systemctl", "restart", "xce-agent")
    assert alive(host, pid)
    rpm(host, "-U", "--nodeps", "/packages/next/*.rpm")
    rpm(host, "-U", "--nodeps", "--oldpackage", "/packages/*.rpm")
    available(host)
    assert alive(host, pid)
    host.must("systemctl", "stop", "xce-agent")
    assert alive(host, pid)
    assert "xce-jobs.service/job1" in host.read(f"/proc/{pid}/cgroup")
    refused = host.run("systemctl", "stop", "xce-jobs")
    assert refused.returncode != 0, "the holder of jobs is not stopped by hand"
    assert alive(host, pid)


def test_the_key_of_a_running_host_is_rotated_and_revoked(host: Host) -> None:
    install(host)
    serve(host)
    pid = host.unit("xce-agent", "MainPID")["MainPID"]
    before = host.read("/etc/xce/keys/agent.key")
    host.must("xce-agent", "key", "rotate")
    now = host.read("/etc/xce/keys/agent.key")
    assert now != before
    available(host)
    assert host.unit("xce-agent", "MainPID")["MainPID"] == pid
    known = json.loads(host.must("xce-broker", "key", "list", "--json"))
    ended = {key["role"]: key["revoked"] for key in known if key.get("revoked")}
    assert ended == {"agent": f"{host.name} has a new one", "joiner": f"used by {host.name}"}
    host.must("xce-broker", "key", "revoke", host.name, "--reason", "sold")
    host.until(lambda: "revoked" in host.run("xce-agent", "status").stdout, "to be refused")
    assert host.run("xce-agent", "status").returncode == 1
    secrets = [text.split('secret-key = "')[1].split('"')[0] for text in (before, now)]
    host.write("/root/secrets", "\n".join([*secrets, host.read("/root/token").strip()]) + "\n", mode="0600")
    assert not [one for one in secrets if one in host.must("journalctl", "--no-pager")], (
        "no secret in any log"
    )
    search = "grep -rlsF -f /root/secrets /etc /run /var /tmp /home /root"
    holding = set(host.run("sh", "-c", search).stdout.split())
    assert holding == {"/etc/xce/keys/agent.key", "/root/token", "/root/secrets"}
    modes = host.must("stat", "-c", "%a", *sorted(holding)).split()
    assert set(modes) == {"600"}
    commands = (
        "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; tr '\\0' ' ' <$p/environ; done 2>/dev/null"
    )
    assert host.run("sh", "-c", f"{commands} | grep -cF -f /root/secrets").stdout == "0\n", (
        "nor in a process's"
    )
    host.must("xce-broker", "token", "new", "--hosts", host.name, "--out", "/root/token2")
    host.must("mv", "/etc/xce/keys/agent.key", "/root/revoked.key")
    host.must("xce-agent", "join", "127.0.0.1", "--token", "/root/token2")
    host.until(lambda: host.run("xce-agent", "status").returncode == 0, "to come back", within_s=20)


def test_a_host_that_lost_power_comes_back_by_itself(host: Host) -> None:
    install(host)
    serve(host)
    machine = host.read("/etc/machine-id")
    host.crash()
    host.boot()
    assert host.read("/etc/machine-id") == machine
    available(host)
    assert host.must("xce-broker", "hosts", "--json").count('"available"') == 1


def test_an_agent_that_hangs_is_ended_and_started_again(host: Host) -> None:
    install(host)
    host.must("mkdir", "-p", "/etc/systemd/system/xce-agent.service.d")
    host.write(
        "/etc/systemd/system/xce-agent.service.d/test.conf", "[Service]\nWatchdogSec=1\nRestartSec=0\n"
    )
    host.must("systemctl", "daemon-reload")
    serve(host)
    time.sleep(2.5)
    assert host.unit("xce-agent", "NRestarts")["NRestarts"] == "0", "a good one is left alone"
    host.must("kill", "-STOP", host.unit("xce-agent", "MainPID")["MainPID"])
    host.until(lambda: host.unit("xce-agent", "NRestarts")["NRestarts"] == "1", "to be restarted")
    available(host)
    assert "Watchdog timeout" in host.journal("xce-agent")


def test_one_that_cannot_start_says_why_and_is_not_tried_for_ever(host: Host) -> None:
    """C-PKG-05: one clear line, and a limit."""
    install(host)
    serve(host)
    host.must("systemctl", "stop", "xce-agent")
    host.must("mv", "/usr/lib/xce/site/msgspec", "/usr/lib/xce/site/msgspec.gone")
    host.run("systemctl", "start", "xce-agent")
    host.until(
        lambda: host.unit("xce-agent", "ActiveState")["ActiveState"] == "failed", "to give up", within_s=40
    )
    said = host.journal("xce-agent")
    assert "xce-agent: cannot start: No module named 'msgspec'; its packages are not whole" in said
    assert "Traceback" not in said
    assert said.count("cannot start") <= 6, "and is not tried for ever"


def test_without_systemds_library_units_start_and_their_lines_are_plain(host: Host) -> None:
    """A start once waited for a READY that nobody could say."""
    install(host)
    host.must("mv", "/usr/lib/xce/site/systemd", "/usr/lib/xce/site/systemd.gone")
    serve(host)
    for unit in ("xce-broker", "xce-agent"):
        host.must("systemctl", "restart", unit)
    available(host)
    assert "Traceback" not in host.journal("xce-agent")
    assert "listening on" in host.journal("xce-broker"), "said on stderr"


def test_the_packages_demand_the_minor_version_of_python_that_they_were_built_for(host: Host) -> None:
    requires = rpm(host, "-qpR", "/packages/xce-libs*.rpm")
    assert "python3.11" in requires.split()
    provided = rpm(host, "-qp", "--provides", "/packages/xce-libs*.rpm").split("\n")
    assert {line.split(" ")[0].split("(")[0] for line in provided if line} == {"xce-libs"}
    assert "rpath" not in rpm(host, "-qpl", "/packages/xce-libs*.rpm")


def test_the_units_are_as_tight_as_is_said_and_lines_are_found_by_their_fields(host: Host) -> None:
    """C-PKG-04: the agent lives in the mount namespace of PID 1."""
    install(host)
    serve(host)
    host.write("/etc/xce/reporters.d/bad", "#!/bin/sh\nexit 4\n", mode="0755")
    pid = host.unit("xce-agent", "MainPID")["MainPID"]
    assert host.must("readlink", f"/proc/{pid}/ns/mnt") == host.must("readlink", "/proc/1/ns/mnt")
    page = (tree.ROOT / "docs/packaging.md").read_text()
    for unit in ("xce-broker", "xce-agent"):
        last = host.must("systemd-analyze", "security", "--no-pager", unit).strip().splitlines()[-1]
        (said,) = re.findall(rf"`{unit}` (\d\.\d)", page)
        assert abs(float(last.rpartition(": ")[2].split()[0]) - float(said)) < 0.25, (
            f"the page says {said}: {last}"
        )
    sound = host.run("xce-agent", "doctor")
    assert sound.returncode == 0, sound.stdout
    assert "system.slice/xce-agent.service" in sound.stdout, "judged where the agent is, not in this shell"
    line = ("journalctl", "-o", "cat", "--no-pager", "-u", "xce-agent", "XCE_HOST=h1", "XCE_REPORTER=bad")
    host.until(lambda: "reporter bad: exit status 4" in host.run(*line).stdout, "to log it with its fields")


def test_the_doctor_names_what_a_drop_in_has_taken_from_the_agent(host: Host) -> None:
    install(host)
    serve(host)
    host.must("mkdir", "-p", "/etc/systemd/system/xce-agent.service.d")
    drop_in = "/etc/systemd/system/xce-agent.service.d/site.conf"
    host.write(drop_in, "[Service]\nCapabilityBoundingSet=~CAP_KILL CAP_SYS_ADMIN\n")
    host.must("systemctl", "daemon-reload")
    host.must("systemctl", "restart", "xce-agent")
    available(host)
    less = host.run("xce-agent", "doctor")
    assert less.returncode == 1
    assert "the agent lacks CAP_KILL" in less.stdout
    assert "the agent lacks CAP_SYS_ADMIN" in less.stdout
    host.write(drop_in, "[Service]\nDelegate=no\nPrivateTmp=yes\n")
    host.must("systemctl", "stop", "xce-agent")
    unit = host.run("xce-agent", "doctor")
    assert unit.returncode == 1
    assert "does not delegate it" in unit.stdout
    assert "PrivateTmp=... gives the agent a view of its own" in unit.stdout


def test_the_brokers_key_may_be_a_credential(host: Host) -> None:
    """As docs/packaging.md says for keys that are sealed."""
    install(host)
    host.must("mkdir", "-p", "/etc/systemd/system/xce-broker.service.d")
    drop_in = "[Service]\nLoadCredential=broker.key:/etc/xce/keys/broker.key\n"
    host.write("/etc/systemd/system/xce-broker.service.d/key.conf", drop_in)
    key = "key: /run/credentials/xce-broker.service/broker.key\n"
    host.write("/etc/xce/broker.yaml", host.read("/etc/xce/broker.yaml") + key)
    host.must("systemctl", "daemon-reload")
    host.must("xce-broker", "key", "new", "broker")
    host.must("chown", "root:root", "/etc/xce/keys/broker.key")
    host.write("/etc/xce/hosts.yaml", f"hosts:\n  - name: {host.name}\n")
    host.must("systemctl", "start", "xce-broker")


def test_a_removal_leaves_the_admins_files_and_takes_the_units(host: Host) -> None:
    install(host)
    serve(host)
    host.write("/etc/xce/reporters.d/one", "#!/bin/sh\n", mode="0755")
    rpm(host, "-e", "--nodeps", *PACKAGES)
    assert host.run("systemctl", "is-active", "xce-agent").stdout.strip() == "inactive"
    assert "broker: tcp://127.0.0.1:7400" in host.read("/etc/xce/agent.yaml.rpmsave")
    assert host.read("/etc/xce/reporters.d/one") == "#!/bin/sh\n"
    assert host.run("systemctl", "cat", "xce-agent").returncode != 0


def test_a_removal_is_refused_while_a_job_runs_and_forced_by_the_documented_switch(host: Host) -> None:
    install(host)
    serve(host)
    pid = job_of(host)
    refused = host.run("sh", "-c", " ".join([*RPM, "-e", "--nodeps", "xce-agent"]))
    assert refused.returncode != 0
    assert f"job job1 runs: 1 processes, the first is {pid}" in refused.stderr
    assert host.run("xce-agent", "status").returncode == 0, "nothing has been stopped"
    host.must("mkdir", "-p", "/run/xce/somewhere")
    host.must("mount", "-t", "tmpfs", "kept", "/run/xce/somewhere")
    host.must("touch", "/run/xce/somewhere/data")
    host.must("env", "XCE_FORCE_REMOVAL=1", *RPM, "-e", "--nodeps", "xce-agent")
    assert alive(host, pid)
    assert host.run("test", "-e", "/run/xce/somewhere/data").returncode == 0


def test_a_forced_removal_is_stopped_by_nothing_that_is_broken(host: Host) -> None:
    install(host)
    erase = (*RPM, "-e", "--nodeps", "xce-agent")
    host.write("/etc/xce/agent.yaml", "claims: [\n")
    refused = host.run(*erase)
    assert refused.returncode != 0
    assert "correct it first, or set XCE_FORCE_REMOVAL=1" in refused.stderr
    host.must("mv", "/usr/lib/xce/site/msgspec", "/usr/lib/xce/site/msgspec.gone")
    assert host.run(*erase).returncode != 0, "what cannot be asked may have anything"
    host.must("env", "XCE_FORCE_REMOVAL=1", *erase)
    assert host.run("systemctl", "cat", "xce-agent").returncode != 0


def test_a_copy_is_brought_to_a_host_whose_broker_never_ran_and_its_key_is_not_changed_unheard(
    host: Host,
) -> None:
    install(host)
    serve(host)
    host.must("xce-broker", "drain", host.name, "--reason", "fan")
    host.must("xce-broker", "backup", "/root/copy.db")
    host.must("systemctl", "stop", "xce-broker")
    host.must("mv", "/var/lib/xce-broker", "/root/lost")
    host.must("xce-broker", "restore", "/root/copy.db")
    host.must("systemctl", "start", "xce-broker")
    draining = ("sh", "-c", f"xce-broker hosts | grep -q '^{host.name} *draining'")
    host.until(lambda: host.run(*draining).returncode == 0, "to know what was drained")
    owners = host.must("sh", "-c", "stat -c %U /var/lib/xce-broker /var/lib/xce-broker/*")
    assert set(owners.split()) == {"xce-broker"}

    host.must("xce-broker", "key", "rotate")
    early = host.run("xce-broker", "key", "rotate", "--finish")
    assert early.returncode == 2
    assert "has told nobody of its next key" in early.stderr
    host.must("systemctl", "reload", "xce-broker")
    finish = ("xce-broker", "key", "rotate", "--finish")
    host.until(lambda: host.run(*finish).returncode == 0, "to announce the next key")


def test_an_agent_is_upgraded_and_serves_on_a_full_disk(host: Host) -> None:
    install(host)
    serve(host)
    host.must("systemctl", "stop", "xce-agent")
    host.must("mkdir", "/root/small")
    host.must("mount", "-t", "tmpfs", "-o", "size=24m", "small", "/root/small")
    host.must("cp", "-a", "/var/lib/xce-agent/.", "/root/small")
    host.must("mount", "--bind", "/root/small", "/var/lib/xce-agent")
    host.must("systemctl", "start", "xce-agent")
    available(host)
    fill = "cat /dev/zero >/root/small/fill 2>/dev/null; df --output=avail /root/small | tail -n 1"
    assert host.must("sh", "-c", fill).strip() == "0"
    rpm(host, "-U", "--nodeps", "/packages/next/*.rpm")
    available(host)
    assert NEXT in host.run("xce-agent", "status").stdout
    assert "/var/lib/xce-agent is nearly full" in host.run("xce-agent", "doctor").stdout
    assert host.unit("xce-agent", "NRestarts")["NRestarts"] == "0"
    assert "Traceback" not in host.journal("xce-agent")
