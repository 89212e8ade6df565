"""What `xce-agent doctor` says of a host, against made-up roots and the running kernel."""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.fakes.nvml.stand_in import StandIn
from xce.agent import checks, claim_checks, host_checks, scratch_roots
from xce.agent.host_checks import Finding
from xce.linux import cgroup, mountinfo
from xce.model.claim import Binding, Claim, Consumer
from xce.model.configuration import AgentFile, AgentReporters, Discovery, PortRange
from xce.model.profile import Claims, Profile, ScratchRoot
from xce.prepare import isolation
from xce.prepare.handler import Isolation
from xce.prepare.journal import Journal, Order
from xce.reporters import cage
from xce.wire import keys

PLAIN = "[Service]\nExecStart=/usr/bin/xce-agent run\nWatchdogSec=30\nTimeoutStopSec=60\n"


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A root file system in which systemd runs."""
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    (tmp_path / "usr/lib/systemd/system").mkdir(parents=True)
    return f"{tmp_path}/"


def levels(found: list[Finding]) -> list[str]:
    return [one.level for one in found]


def put(root: str, path: str, text: str) -> None:
    Path(root, path).parent.mkdir(parents=True, exist_ok=True)
    Path(root, path).write_text(text)


def unit(root: str) -> list[Finding]:
    return list(host_checks.unit(AgentFile(), root))


def test_a_unit_that_is_enabled_is_good_and_one_that_is_not_is_told(root: str) -> None:
    assert "nothing starts the agent" in unit(root)[0].text
    put(root, "usr/lib/systemd/system/xce-agent.service", PLAIN)
    assert [one.text for one in unit(root)] == ["xce-agent.service is not started at boot"]
    put(root, "etc/systemd/system/multi-user.target.wants/xce-agent.service", PLAIN)
    assert levels(unit(root)) == ["ok"]
    Path(root, "etc/systemd/system/xce-agent.service").symlink_to("/dev/null")
    assert "masked" in unit(root)[0].text
    group, why = host_checks.home(AgentFile(), None, root)
    assert "delegate" not in why, "no option of a unit that is masked is judged"
    assert group is None or not group.path.endswith("xce-agent.service")


@pytest.mark.parametrize("option", ["PrivateTmp=yes", "ProtectSystem=strict", "ReadOnlyPaths=/usr"])
def test_a_drop_in_that_hides_mounts_is_a_problem(root: str, option: str) -> None:
    put(root, "usr/lib/systemd/system/xce-agent.service", PLAIN)
    put(root, "etc/systemd/system/multi-user.target.wants/xce-agent.service", PLAIN)
    put(root, "etc/systemd/system/xce-agent.service.d/site.conf", f"[Service]\n{option}\n")
    [problem] = [one for one in unit(root) if one.level == "problem"]
    assert "mounts would not be visible outside" in problem.text
    assert "site.conf" in problem.text
    put(
        root,
        "etc/systemd/system/xce-agent.service.d/site.conf",
        f"[Service]\n{option.split('=', maxsplit=1)[0]}=no\n",
    )
    assert levels(unit(root)) == ["ok"]


def test_times_of_the_unit_that_are_too_short_are_told(root: str) -> None:
    put(root, "usr/lib/systemd/system/xce-agent.service", PLAIN.replace("30", "2"))
    assert "WatchdogSec=2 is short" in unit(root)[-1].text


def test_without_systemd_there_is_nothing_to_say(tmp_path: Path) -> None:
    assert levels(unit(f"{tmp_path}/")) == ["ok"]


@pytest.mark.parametrize(
    ("works", "level", "word"),
    [
        ({"bpf", "v1"}, "ok", "bpf"),
        ({"v1"}, "warning", "old devices controller"),
        (set(), "problem", "device isolation unavailable"),
    ],
)
def test_how_devices_can_be_kept_from_jobs(
    works: set[str], level: str, word: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def find(_group: object, *, mechanisms: tuple[str, ...]) -> Isolation:
        (one,) = mechanisms
        return Isolation(one) if one in works else Isolation("none", reason="not allowed")

    monkeypatch.setattr(isolation, "find", find)
    settings = AgentFile(claims=Claims(enabled=True, cgroup=str(tmp_path)))
    (found,) = claim_checks.filters(settings)
    assert found.level == level
    assert word in found.text


@pytest.mark.root
def test_a_mount_namespace_that_nobody_sees_is_told() -> None:
    """C-PKG-04; this process stands for PID 1."""
    inside, stop = os.pipe()
    child = os.posix_spawn(
        "/usr/bin/unshare",
        ["unshare", "-m", "--propagation", "private", "sh", "-c", "echo >&9; exec sleep 60"],
        dict(os.environ),
        file_actions=[(os.POSIX_SPAWN_DUP2, stop, 9)],
    )
    try:
        os.read(inside, 1)
        (found,) = claim_checks.mounts(AgentFile(), child, os.getpid())
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(inside)
        os.close(stop)
    assert found.level == "problem", found.text
    assert "mounts would not be visible outside" in found.text
    (same,) = claim_checks.mounts(AgentFile(), os.getpid(), os.getpid())
    assert same.level == "ok"


def test_a_range_of_ports_that_the_kernel_uses_is_told() -> None:
    own = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    first = int(own[0])
    inside = AgentFile(discovery=Discovery(ports=[PortRange(name="jobs", first=first, last=first + 9)]))
    (found,) = claim_checks.port_ranges(inside)
    assert found.level == "warning"
    assert "ip_local_reserved_ports" in found.advice
    outside = AgentFile(discovery=Discovery(ports=[PortRange(name="jobs", first=first - 9, last=first - 1)]))
    assert levels(list(claim_checks.port_ranges(outside))) == ["ok"]


def test_leftovers_are_groups_mounts_and_journals_that_no_claim_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = tmp_path / "groups"
    (groups / "xce-4711").mkdir(parents=True)
    claims = Claims(cgroup=str(groups), directory=str(tmp_path / "claims"))
    settings = AgentFile(state_directory=str(tmp_path), claims=claims)
    mount = mountinfo.Mount(1, 0, "0:1", "/", f"{tmp_path}/claims/b1/data", "rw", "tmpfs", "x", "rw")
    monkeypatch.setattr(mountinfo, "read", lambda *_a, **_k: [mount])
    (tmp_path / "claims.sqlite.damaged-1").touch()
    monkeypatch.setattr(cgroup, "own", lambda **_: None)
    found = list(host_checks.leftovers(settings, "node1", running=False))
    assert levels(found) == ["warning"] * 3
    assert all(one.advice for one in found)
    (tmp_path / "claims.sqlite").write_bytes(b"no database at all, and long enough to be looked at" * 20)
    (problem, *_rest) = host_checks.leftovers(settings, "node1", running=True)
    assert (problem.level, "cannot read the journal" in problem.text) == ("problem", True)


def test_claims_that_are_left_where_none_are_taken_any_more_are_told(tmp_path: Path) -> None:
    assert levels(list(claim_checks.claims(AgentFile(state_directory=str(tmp_path))))) == ["ok"]
    binding = Binding(id="b1", claim="c", host="node1", consumer=Consumer(name="job-7"))
    journal = Journal(str(tmp_path))
    order = Order(binding=binding, claim=Claim(id="c"), op_id="o", epoch=1, boot="b", phase="ready", steps=0)
    journal.begin(order, [], epoch=1)
    journal.close()
    (left,) = claim_checks.claims(AgentFile(state_directory=str(tmp_path)))
    assert (left.level, "those of job-7" in left.text) == ("warning", True)
    taken = AgentFile(state_directory=str(tmp_path), claims=Claims(enabled=True))
    assert levels(list(claim_checks.claims(taken))) == ["ok"]


def test_a_scratch_root_is_there_and_roots_alone(tmp_path: Path) -> None:
    def found(path: Path) -> list[Finding]:
        settings = {"enabled": True, "profiles": {"default": {"scratch": {"tmp": {"path": str(path)}}}}}
        return list(claim_checks.claims(AgentFile(claims=msgspec.convert(settings, Claims))))[1:]

    root = tmp_path / "scratch"
    (missing,) = found(root)
    assert (missing.level, missing.advice) == ("problem", f"install -d -m 755 {root}")
    root.mkdir(mode=0o755)
    assert found(root) == []
    root.chmod(0o777)
    (open_to_all,) = found(root)
    assert (open_to_all.level, "can be written by others" in open_to_all.text) == ("problem", True)
    settings = Claims(profiles={"default": Profile(scratch={"tmp": ScratchRoot(path=str(root))})})
    assert scratch_roots.trouble(settings) == f"{open_to_all.text}; {open_to_all.advice}"
    root.chmod(0o755)
    assert scratch_roots.trouble(settings) == ""


def test_times_that_work_against_each_other_are_told() -> None:
    assert levels(list(checks._timeouts(AgentFile()))) == ["ok"]
    late = AgentFile(reporters=AgentReporters(interval=5, timeout=10), discovery=Discovery(unknown_after=60))
    assert levels(list(checks._timeouts(late))) == ["warning", "warning"]


def test_a_key_that_is_anothers_is_told(tmp_path: Path) -> None:
    pair = keys.new("node7", "agent")
    keys.save(pair, tmp_path / "agent.key")
    keys.save(keys.KeyPair("broker", "broker", keys.new("b", "broker").public), tmp_path / "broker.pub")
    settings = AgentFile(
        broker="tcp://127.0.0.1:1",
        name="node8",
        key=str(tmp_path / "agent.key"),
        broker_key=str(tmp_path / "broker.pub"),
    )
    (mine, _theirs) = checks._keys(settings)
    assert "is for node7, and this host is called node8" in mine.text


@pytest.fixture
def cards(tmp_path: Path) -> Callable[[dict[str, object]], AgentFile]:
    """A host with one NVIDIA GPU, whose library answers as told."""
    device = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030200\n")

    def settings(answers: dict[str, object]) -> AgentFile:
        stand_in = StandIn(tmp_path / "nvml", answers)
        found = Discovery(root=str(tmp_path), library=str(stand_in.library), environment=stand_in.environment)
        return AgentFile(discovery=found)

    return settings


def test_nvidias_library_is_asked_where_there_are_cards(
    cards: Callable[[dict[str, object]], AgentFile], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    good = cards({"driver": "550.54"})
    for name, value in good.discovery.environment.items():
        monkeypatch.setenv(name, value)
        ctypes.CDLL(None).setenv(name.encode(), value.encode(), 1)
    (found,) = host_checks.library(good)
    assert (found.level, found.text) == ("ok", "1 NVIDIA GPUs, driver 550.54")
    (tmp_path / "nvml/control").write_text("code.nvmlInitWithFlags.-1=18\n")
    (broken,) = host_checks.library(good)
    assert broken.level == "problem"
    missing = AgentFile(discovery=Discovery(root=str(tmp_path), library="/nonexistent/libnvidia-ml.so.1"))
    (gone,) = host_checks.library(missing)
    assert "cannot be used" in gone.text


def test_csi_is_looked_at_where_there_are_plugins(tmp_path: Path) -> None:
    def found(helper: str, **csi: object) -> list[Finding]:
        claims = msgspec.convert({"csi": {"helper": helper, **csi}}, Claims)
        return list(claim_checks.csi(AgentFile(claims=claims)))

    assert levels(found("/nowhere")) == ["ok"], "nobody needs it"
    (missing,) = found("/nowhere", registration=str(tmp_path))
    assert (missing.level, "dnf install xce-csi-node-helper" in missing.advice) == ("problem", True)
    assert levels(found("/bin/true", registration=str(tmp_path))) == ["ok"]
    gone = found("/bin/true", plugins={"a": str(tmp_path / "a.sock")}, registration=str(tmp_path / "none"))
    assert [(one.level, one.text.split(":")[0]) for one in gone] == [
        ("warning", "plugin a"),
        ("warning", "registration"),
    ]
    tmp_path.chmod(0o777)
    (open_to_all,) = found("/bin/true", registration=str(tmp_path))
    assert (open_to_all.level, "can be written by others" in open_to_all.text) == ("problem", True)


def status_of(tmp_path: Path, uid: int, capabilities: int) -> str:
    """A /proc in which the agent has pid 7."""
    (tmp_path / "7").mkdir(exist_ok=True)
    (tmp_path / "7/status").write_text(f"Name:\tx\nUid:\t{uid}\t{uid}\t0\t0\nCapEff:\t{capabilities:016x}\n")
    return str(tmp_path)


def test_what_the_running_agent_may_not_do_is_told_with_what_fails_without_it(tmp_path: Path) -> None:
    claims = AgentFile(claims=Claims(enabled=True))
    everything, unable = (1 << 41) - 1, (1 << 41) - 1 & ~(1 << 7) & ~(1 << 21)
    (good,) = host_checks.privileges(claims, 7, status_of(tmp_path, 0, everything))
    assert (good.level, "the agent runs as root" in good.text) == ("ok", True)
    bad = list(host_checks.privileges(claims, 7, status_of(tmp_path, 0, unable)))
    assert [(one.level, one.text.split(":")[0]) for one in bad] == [
        ("problem", "the agent lacks CAP_SETUID"),
        ("problem", "the agent lacks CAP_SYS_ADMIN"),
    ]
    assert all("CapabilityBoundingSet" in one.advice for one in bad)
    without = list(host_checks.privileges(AgentFile(), 7, status_of(tmp_path, 0, unable)))
    assert levels(without) == ["problem", "warning"], "no claims, no mounts"
    (quotas,) = host_checks.privileges(claims, 7, status_of(tmp_path, 0, everything & ~(1 << 24)))
    assert (quotas.level, "project quotas" in quotas.text) == ("warning", True), "only some volumes have them"
    (user,) = host_checks.privileges(claims, 7, status_of(tmp_path, 1000, 0))
    assert (user.level, "uid 1000" in user.text) == ("warning", True)


def test_control_groups_are_judged_where_the_agents_unit_will_be(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An admin's shell is elsewhere, and says nothing about it."""
    hierarchy = mountinfo.Mount(1, 0, "0:1", "/", str(tmp_path / "cg"), "rw", "cgroup2", "cgroup2", "rw")
    monkeypatch.setattr(mountinfo, "read", lambda *_a, **_k: [hierarchy])
    put(root, "usr/lib/systemd/system/xce-agent.service", PLAIN)
    (undelegated,) = host_checks.control_groups(AgentFile(), None, root)
    assert (undelegated.level, "does not delegate" in undelegated.text) == ("problem", True)
    assert "Delegate=yes" in undelegated.advice
    put(root, "usr/lib/systemd/system/xce-agent.service", PLAIN + "Delegate=yes\n")
    (good,) = host_checks.control_groups(AgentFile(), None, root)
    assert (good.level, f"{tmp_path}/cg/system.slice/xce-agent.service" in good.text) == ("ok", True)
    put(root, "etc/systemd/system/xce-agent.service.d/site.conf", "[Service]\nDelegate=no\n")
    assert levels(list(host_checks.control_groups(AgentFile(), None, root))) == ["problem"]
    monkeypatch.setattr(mountinfo, "read", lambda *_a, **_k: [])
    (none,) = host_checks.control_groups(AgentFile(), None, root)
    assert (none.level, "no cgroup2" in none.text) == ("problem", True)


def test_control_groups_of_a_running_agent_are_its_own(tmp_path: Path) -> None:
    """This process stands for the agent; what it is in can be written, a file system for reading cannot."""
    mine = cgroup.own(pid=os.getpid())
    assert mine is not None
    found = list(host_checks.control_groups(AgentFile(), os.getpid(), f"{tmp_path}/"))
    expected = "ok" if mine.writable() else "problem"
    assert found[0].level == expected
    assert mine.path in found[0].text
    shut = AgentFile(cgroup="/proc/nowhere/agent")
    (bad,) = host_checks.control_groups(shut, os.getpid())
    assert (bad.level, "cannot be written" in bad.text) == ("problem", True)


def test_a_clock_that_is_wrong_or_kept_by_nobody_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_checks, "unsynchronised", lambda: False)
    assert levels(list(host_checks.clock(AgentFile()))) == ["ok"]
    (old,) = host_checks.clock(AgentFile(), lambda: 1e9)
    assert (old.level, old.text) == ("warning", "the date is 2001-09-09: only for showing, but wrong")
    monkeypatch.setattr(host_checks, "unsynchronised", lambda: True)
    (adrift,) = host_checks.clock(AgentFile())
    assert (adrift.level, "nobody keeps the clock right" in adrift.text) == ("warning", True)


def test_nothing_left_is_said_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = AgentFile(state_directory=str(tmp_path), claims=Claims(directory=str(tmp_path / "claims")))
    monkeypatch.setattr(mountinfo, "read", lambda *_a, **_k: [])
    monkeypatch.setattr(cgroup, "own", lambda **_: None)
    (none,) = host_checks.leftovers(settings, "node1", running=False)
    assert (none.level, none.text) == ("ok", "none")


def test_a_name_that_no_host_should_have_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert levels(list(checks._identity(AgentFile(name="node7"))))[0] == "ok"
    assert levels(list(checks._identity(AgentFile(name="localhost"))))[0] == "problem"
    assert levels(list(checks._identity(AgentFile(name="no name"))))[0] == "problem"


def test_a_directory_that_is_missing_shut_or_full_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = AgentFile(state_directory=str(tmp_path), run_directory=str(tmp_path / "none"))
    assert levels(list(checks._state(settings)))[:2] == ["ok", "warning"]
    full = os.statvfs_result((4096, 4096, 100, 1, 1, 10, 10, 10, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _path: full)
    assert "nearly full" in next(checks._state(settings)).text
    monkeypatch.setattr(os, "access", lambda *_a, **_k: False)
    assert "cannot write" in next(checks._state(settings)).text


@pytest.mark.root
def test_a_state_directory_that_reporters_cannot_pass_through_is_told(tmp_path: Path) -> None:
    """The cage goes there as root, so that only a script that uses the path of its directory fails."""
    state = tmp_path / "state"
    settings = AgentFile(state_directory=str(state))
    (state / "reporters").mkdir(parents=True)
    state.chmod(0o750)
    advice = [one.advice for one in checks._state(settings) if one.level == "warning"]
    assert f"chmod o+x {state}" in advice
    assert f"chmod o+x {state}/reporters" not in advice
    state.chmod(0o711)
    assert f"chmod o+x {state}" not in [one.advice for one in checks._state(settings)]


def test_a_cage_that_is_missing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert levels(list(checks._cage(AgentFile()))) == ["ok"]
    monkeypatch.setattr(cage, "PROGRAM", f"{tmp_path}/xce-cage")
    (missing,) = checks._cage(AgentFile())
    assert (missing.level, missing.text) == (
        "problem",
        f"{tmp_path}/xce-cage is missing: no reporter can be started",
    )
    (tmp_path / "xce-cage").touch(mode=0o644)
    (barred,) = checks._cage(AgentFile())
    assert barred.text == f"{tmp_path}/xce-cage is not executable: no reporter can be started"


def test_a_configured_directory_that_is_no_control_group_is_told(tmp_path: Path) -> None:
    settings = AgentFile(cgroup=f"{tmp_path}/agent")
    group, why = host_checks.home(settings, None, str(tmp_path))
    assert (group and group.path, why) == (str(tmp_path), "it is no control group of version 2")


@pytest.mark.parametrize(
    ("owner", "we", "level", "advice"),
    [
        (0, 0, "problem", "findmnt -T /var/lib/xce-agent"),  # root is stopped by the file system alone
        (1000, 1000, "problem", "chmod u+rwx /var/lib/xce-agent"),
        (0, 1000, "warning", "sudo xce-agent doctor"),
    ],
)
def test_a_directory_of_somebody_else_is_not_to_be_taken_from_him(
    owner: int, we: int, level: str, advice: str
) -> None:
    """A user who typed `xce-agent doctor` was told to make the root agent's state his own."""
    found = checks._closed("/var/lib/xce-agent", owner, we)
    assert (found.level, advice in found.advice, "chown" in found.advice) == (level, True, False)
