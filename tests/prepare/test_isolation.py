"""C-DEV-01, C-DEV-03, C-DEV-04: what a consumer may open, whatever happens meanwhile."""

import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from tests.prepare import machine
from tests.prepare.test_ports import listener
from tests.prepare.world import DENIED, FULL_ASK, OTHER, OWN, World, number
from xce.linux import bpf, mountapi, mountinfo
from xce.model.claim import Ask, BindingState, Condition, Consumer
from xce.model.instance import Instance
from xce.model.profile import Claims
from xce.prepare import isolation, local
from xce.prepare.filter import program_name

pytestmark = pytest.mark.root

OWN_AND_OTHER = (OWN, OTHER)
OLD = pytest.mark.parametrize("world", [{"mechanisms": ["v1"]}], indirect=True)


def group_of(world: World, binding: str) -> int:
    return os.open(world.evidence(binding, "group")["groups"][0], os.O_RDONLY | os.O_DIRECTORY)


def take_off(group: int) -> None:
    for each in bpf.query(group).ids:
        program = bpf.open_program(each)
        bpf.detach(group, program)
        os.close(program)


def put_on(group: int, code: bytes, flags: int = bpf.BPF_F_ALLOW_MULTI) -> None:
    """A program of somebody else."""
    program = bpf.load(code, "stranger")
    bpf._bpf(bpf.BPF_PROG_ATTACH, struct.pack("<IIIII", group, program, bpf.BPF_CGROUP_DEVICE, flags, 0))
    os.close(program)


ALLOW_ALL = bpf.compile_rules(
    [bpf.Rule(bpf.BPF_DEVCG_DEV_CHAR, None, None, 7), bpf.Rule(bpf.BPF_DEVCG_DEV_BLOCK, None, None, 7)]
)


def test_c_dev_01_a_filter_that_was_taken_away_is_put_back(world: World) -> None:
    report = world.bind(Ask(), cards=["full"])
    group = group_of(world, report.binding)
    take_off(group)
    assert world.opened(report.binding, *OWN_AND_OTHER) == ["ok", "ok"]  # that is the fault
    world.until(lambda: bpf.query(group).ids)
    assert world.opened(report.binding, *OWN_AND_OTHER) == ["ok", DENIED]
    assert world.report(report.binding).conditions == []
    os.close(group)


def test_c_dev_01_an_empty_filter_in_its_place_is_joined_by_ours_and_told(world: World) -> None:
    report = world.bind(Ask(), cards=["full"])
    group = group_of(world, report.binding)
    take_off(group)
    put_on(group, ALLOW_ALL)
    world.until(lambda: world.report(report.binding).conditions == [Condition.DEGRADED])
    assert "a program 'stranger'" in world.report(report.binding).note
    assert world.opened(report.binding, *OWN_AND_OTHER) == ["ok", DENIED]
    os.close(group)


def test_c_dev_01_a_filter_that_lets_no_other_in_makes_it_degraded(world: World) -> None:
    report = world.bind(Ask(), cards=["full"])
    group = group_of(world, report.binding)
    take_off(group)
    put_on(group, ALLOW_ALL, flags=0)
    world.until(lambda: world.report(report.binding).conditions == [Condition.DEGRADED])
    assert "lets no other in" in world.report(report.binding).note
    take_off(group)
    world.until(lambda: world.report(report.binding).conditions == [])
    assert world.opened(report.binding, *OWN_AND_OTHER) == ["ok", DENIED]
    os.close(group)


def test_c_dev_01_what_was_opened_while_the_filter_was_away_is_told_until_it_is_closed(world: World) -> None:
    """No filter takes back an open descriptor; somebody has to end that process."""
    report = world.bind(Ask(), cards=["full"])
    group = group_of(world, report.binding)
    take_off(group)
    command = ["sh", "-c", f"exec sleep 60 < {OTHER}"]
    thief = subprocess.Popen(world.inside(report.binding, command))
    while Path(f"/proc/{thief.pid}/comm").read_text() != "sleep\n":
        time.sleep(0.01)
    world.until(lambda: bpf.query(group).ids and "sleep" in world.report(report.binding).note)
    told = f"opened while its device filter was away: pid {thief.pid} (sleep): fd 0 on {number(OTHER)}"
    assert world.report(report.binding).note == told
    assert world.report(report.binding).conditions == [Condition.DEGRADED]
    thief.kill()
    thief.wait()
    world.until(lambda: world.report(report.binding).conditions == [])
    os.close(group)


NO_MEMORY = bpf.compile_rules([bpf.Rule(bpf.BPF_DEVCG_DEV_CHAR, 1, None, 7)])
"""Of somebody else: devices of the kernel's memory driver, and no other."""


def test_c_dev_01_a_filter_above_that_denies_the_device_fails_the_binding(world: World) -> None:
    """All must allow it, so ours alone says nothing."""
    parent = os.open(world.group.path, os.O_RDONLY | os.O_DIRECTORY)
    put_on(parent, NO_MEMORY)
    report = world.bind(Ask(), cards=["full"])
    assert report.state is BindingState.FAILED
    assert f"program 'stranger' (id {bpf.query(parent).ids[0]}) on {world.group.path} denies" in report.reason
    assert report.reason.endswith(f"denies the consumer {OWN}")
    assert world.bind(Ask()).state is BindingState.READY
    os.close(parent)


def test_c_dev_01_a_filter_above_that_comes_later_makes_it_degraded_until_it_goes(world: World) -> None:
    report = world.bind(Ask(), cards=["full"])
    before = world.evidence(report.binding, "filter")
    parent = os.open(world.group.path, os.O_RDONLY | os.O_DIRECTORY)
    put_on(parent, NO_MEMORY)
    words = f"on {world.group.path} denies the consumer {OWN}"
    world.until(lambda: words in world.report(report.binding).note, within=5)
    assert world.report(report.binding).conditions == [Condition.DEGRADED]
    note = world.report(report.binding).note
    for _ in range(20):
        world.executor.check()
        assert world.report(report.binding).note == note, "it is not found out anew each time"
        time.sleep(0.01)
    take_off(parent)
    world.until(lambda: world.report(report.binding).conditions == [], within=5)
    assert world.opened(report.binding, *OWN_AND_OTHER) == ["ok", DENIED]
    put_on(parent, ALLOW_ALL)
    world.until(lambda: "above" in world.evidence(report.binding, "filter"), within=5)
    world.until(lambda: world.report(report.binding).conditions == [], within=5)
    assert world.evidence(report.binding, "filter")["program"] == before["program"]
    os.close(parent)


def test_c_dev_03_a_filter_above_that_would_end_by_ours_is_left_in_force(world: World) -> None:
    """As some batch systems put them on: without ours below, it holds."""
    parent = os.open(world.group.path, os.O_RDONLY | os.O_DIRECTORY)
    put_on(parent, NO_MEMORY, flags=bpf.BPF_F_ALLOW_OVERRIDE)
    report = world.bind(Ask(), cards=["full"])
    assert report.state is BindingState.FAILED
    assert report.reason.startswith("device isolation unavailable: program 'stranger'")
    assert "would not hold below it any more" in report.reason
    assert world.leftovers() == []
    os.close(parent)


def test_the_evidence_names_the_program_that_the_kernel_has(world: World) -> None:
    report = world.bind(Ask(), cards=["full"])
    evidence = world.evidence(report.binding, "filter")
    group = group_of(world, report.binding)
    [program] = bpf.programs(group)
    assert evidence["program"] == {"id": program.id, "tag": program.tag, "name": program.name}
    assert program.name == program_name(f"job-{report.binding}")
    assert f"c {number(OWN)} rw" in evidence["rules"]
    os.close(group)


@pytest.mark.parametrize("world", [{"mechanisms": []}], indirect=True)
def test_c_dev_03_without_isolation_a_claim_without_devices_is_ready_and_one_with_fails(world: World) -> None:
    assert world.bind(Ask()).state is BindingState.READY
    report = world.bind(Ask(), cards=["full"])
    assert report.state is BindingState.FAILED
    assert report.reason.startswith("device isolation unavailable: ")


def test_c_dev_03_without_the_right_to_load_filters_the_reason_is_said(world: World) -> None:
    """In a process without the capabilities; the old controller wants one of them, too."""
    code = (
        "from xce.linux.cgroup import Cgroup; from xce.prepare import isolation; "
        f"print(isolation.find(Cgroup({world.group.path!r})).reason)"
    )
    command = ["setpriv", "--bounding-set=-bpf,-sys_admin", "--inh-caps=-all", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert "cannot load device filters: Operation not permitted (CAP_BPF" in done.stdout


@OLD
def test_c_dev_03_the_old_controller_keeps_devices_as_well(world: World) -> None:
    if world.node.isolation.mechanism != "v1":
        pytest.skip(f"no devices controller of version 1 here: {world.node.isolation.reason}")
    report = world.bind(Ask(), cards=["full"])
    assert report.state is BindingState.READY
    assert world.evidence(report.binding, "filter")["mechanism"] == "v1"
    assert world.opened(report.binding, *OWN_AND_OTHER, "/dev/null") == ["ok", DENIED, "ok"]
    old = world.evidence(report.binding, "group")["groups"][1]
    Path(old, "devices.allow").write_text("a")
    world.until(lambda: "a *:* rwm" not in isolation.old_rules(old))
    assert world.opened(report.binding, *OWN_AND_OTHER) == ["ok", DENIED]
    world.release(report.binding)
    assert not os.path.exists(old)


def test_c_dev_04_a_process_that_comes_later_is_confined_whatever_its_environment(world: World) -> None:
    report = world.bind(Ask(), cards=["full"])
    first = subprocess.Popen(world.inside(report.binding, ["sleep", "60"]))
    assert world.opened(report.binding, *OWN_AND_OTHER) == ["ok", DENIED]
    world.release(report.binding)
    assert first.wait(20) == -15


def test_c_dev_04_release_ends_the_processes_before_it_says_released(world: World) -> None:
    """One that ignores TERM, with a child in a session of its own."""
    report = world.bind(Ask(), cards=["full"])
    stubborn = "trap '' TERM; setsid sleep 60 & while :; do sleep 60; done"
    job = subprocess.Popen(world.inside(report.binding, ["sh", "-c", stubborn]))
    group = world.evidence(report.binding, "group")["groups"][0]
    world.until(lambda: len(Path(group, "cgroup.procs").read_text().split()) >= 3)
    before = time.monotonic()
    world.executor.release(op_id="end", epoch=1, binding=report.binding)
    note = world.until(lambda: "s to end" in (text := world.report(report.binding).note) and text)
    assert note.startswith(f"control group {group} still has processes: ")
    assert str(job.pid) in note
    assert note.endswith("; they have 0.3 s to end")
    assert world.over(report.binding).state is BindingState.RELEASED
    assert time.monotonic() - before >= 0.3  # its time to end by itself
    assert job.wait(20) == -9
    assert not os.path.exists(group)


def test_c_dev_04_no_groups_or_programs_pile_up(world: World) -> None:
    for _ in range(30):
        world.release(world.bind(Ask(), cards=["full"]).binding)
    assert world.leftovers() == []
    assert len(world.journal._raw) == 32  # tombstones, what the node knows of itself, and a count


def test_two_bindings_of_one_consumer_have_the_devices_of_both_until_one_goes(world: World) -> None:
    both = Consumer(name="both", user="alice")
    one = world.bind(Ask(), cards=["full"], consumer=both)
    assert world.opened(one.binding, *OWN_AND_OTHER) == ["ok", DENIED]
    other = world.bind(Ask(), cards=["zero"], consumer=both)
    assert world.opened(one.binding, *OWN_AND_OTHER) == ["ok", "ok"]
    job = subprocess.Popen(world.inside(one.binding, ["sleep", "60"]))
    world.release(one.binding)
    assert world.opened(other.binding, *OWN_AND_OTHER) == [DENIED, "ok"]
    assert job.poll() is None  # the consumer is still there
    world.release(other.binding)
    assert job.wait(20) == -15
    assert world.leftovers() == []


@OLD
def test_the_old_controller_is_narrowed_too_when_one_of_two_bindings_goes(world: World) -> None:
    if world.node.isolation.mechanism != "v1":
        pytest.skip(f"no devices controller of version 1 here: {world.node.isolation.reason}")
    both = Consumer(name="both", user="alice")
    one, other = (
        world.bind(Ask(), cards=["full"], consumer=both),
        world.bind(Ask(), cards=["zero"], consumer=both),
    )
    assert world.opened(other.binding, *OWN_AND_OTHER) == ["ok", "ok"]
    world.release(one.binding)
    assert world.opened(other.binding, *OWN_AND_OTHER) == [DENIED, "ok"]
    old = world.evidence(other.binding, "group")["groups"][1]
    world.release(other.binding)
    assert not os.path.exists(old)


def test_a_device_whose_number_changes_is_allowed_under_its_new_one_and_told_so(
    world: World, tmp_path: Path
) -> None:
    """A driver was loaded anew: the filter, and the files that rest on it, follow."""
    (tmp_path / "dev").mkdir()
    node = tmp_path / "dev/nvidia9"
    os.mknod(node, 0o20600, os.makedev(195, 9))
    world.executor.node = world.node = world.node._replace(dev=str(tmp_path / "dev"))
    world.instances["card-full"] = msgspec.structs.replace(
        world.instances["card-full"], attributes={"device_files": ["/dev/nvidia9"]}
    )
    report = world.bind(Ask(), cards=["full"])
    assert "c 195:9 rw" in world.evidence(report.binding, "filter")["rules"]
    node.unlink()
    os.mknod(node, 0o20600, os.makedev(241, 1))
    world.until(lambda: "c 241:1 rw" in world.evidence(report.binding, "filter")["rules"])
    told = msgspec.json.decode(Path(world.settings.directory, report.binding, "claim.json").read_bytes())
    assert told["devices"][0]["files"][0]["major"] == 241
    assert world.opened(report.binding, str(node)) == ["No such device or address"]  # not denied: no driver


def test_a_device_that_somebody_has_open_is_not_given_away(world: World) -> None:
    with open(OWN) as held:
        user = subprocess.Popen(["sleep", "60"], stdin=held)
    report = world.bind(Ask(), cards=["full"])
    assert report.state is BindingState.FAILED
    assert f"a device is in use already: pid {user.pid} (sleep): fd 0 on {number(OWN)}" in report.reason
    user.kill()
    user.wait()


def test_a_release_waits_for_whoever_has_the_device_and_says_that_it_is_not_clean(world: World) -> None:
    """Out of the consumer's group, so that no signal reaches it."""
    report = world.bind(Ask(), cards=["full"])
    with open(OWN) as held:
        user = subprocess.Popen(["sleep", "60"], stdin=held)
    waiting = world.release(report.binding)
    assert (waiting.state, waiting.conditions) == (BindingState.RELEASING, [Condition.BLOCKED])
    assert f"still in use: pid {user.pid} (sleep)" in waiting.note
    world.until(lambda: world.report(report.binding).quarantine)
    assert list(world.report(report.binding).quarantine) == ["card-full"]
    user.kill()
    user.wait()
    world.until(lambda: world.report(report.binding).state is BindingState.RELEASED)


@pytest.mark.parametrize("text", ["c 1:3", "x 1:3 rw", "c 1 rw", "c 1:3 rx", "c a:3 r", ""])
def test_a_rule_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="device"):
        isolation.parse_rule(text)


def test_rules_of_one_device_become_one() -> None:
    merged = isolation.merged(["c 1:3 r", "b 8:* rwm", "c 1:3 w", "c *:* m"])
    assert bpf.words(merged) == ["b 8:* rwm", "c *:* m", "c 1:3 rw"]


def test_c_gpu_03_the_open_goes_to_the_device_of_the_drivers_number_and_to_no_other(
    world: World, tmp_path: Path
) -> None:
    """Index 0 is /dev/nvidia2. A device that nobody uses is behind it, so that the open is a real one."""
    behind = "/dev/cpu_dma_latency"
    if not os.path.exists(behind):
        pytest.skip(f"no {behind}")
    uuid = "GPU-cccc0000-0000-4000-8000-000000000000"
    finder = machine.make(
        tmp_path / "host",
        {
            "proc/devices": machine.proc_devices("A"),
            "proc/driver/nvidia/gpus/0000:0f:00.0/information": machine.gpu_information(uuid, 2),
            "dev/nvidia0": f"c {number(OTHER)}",
            "dev/nvidia2": f"c {number(behind)}",
            "dev/nvidia3": "c 1:5",
        },
    )
    world.executor.node = world.node = world.node._replace(dev=str(finder.dev), proc=str(finder.proc))
    world.instances["card-gpu"] = Instance(
        id="card-gpu", kind="gpu", attributes={"vendor": "nvidia", "pci": "0000:0f:00.0", "minor": 0}
    )
    report = world.bind(Ask(), cards=["gpu"])
    assert report.state is BindingState.READY, report.reason
    paths = [str(finder.dev / f"nvidia{minor}") for minor in (0, 2, 3)]
    assert world.opened(report.binding, *paths) == [DENIED, "ok", DENIED]
    assert f"c {number(behind)} rw" in world.evidence(report.binding, "filter")["rules"]


def test_c_dev_03_a_host_with_control_groups_of_version_1_alone_is_served_all_the_same(
    tmp_path: Path,
) -> None:
    """The kernel has those of version 2 beside them; only nobody has mounted them."""
    command = ["unshare", "-m", sys.executable, "-m", "tests.prepare.version1", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    told = msgspec.json.decode(done.stdout)
    point = f"{tmp_path}/run/.cgroup"
    assert told.pop("group").startswith(f"{point}/xce-consumer-v1-")
    assert told == {
        "state": "ready",
        "again": ["ready"],
        "mechanism": "bpf",
        "opened": ["ok", DENIED],
        "orphans": [],
        "ended": "released",
        "left": False,
        "mounts": [point],
    }


def test_c_dev_03_where_they_cannot_be_mounted_the_reason_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(mountinfo, "read", lambda *_: [])
    monkeypatch.setattr(mountapi, "make", refused)
    with pytest.raises(OSError, match="no control groups of version 2 are mounted here, and they cannot be"):
        local.need_version_2(Claims(directory=str(tmp_path)))


def test_a_repair_touches_nothing_that_does_not_rest_on_it(world: World) -> None:
    """The job listens on its port by then, which is no fault."""
    report = world.bind(FULL_ASK, cards=["full"])
    port = report.ports["rpc"][0]
    with listener(lambda own: world.inside(report.binding, own), port, socket.SOCK_STREAM):
        take_off(group_of(world, report.binding))
        entry = world.executor.entries[report.binding]
        world.executor.check_one(entry)
        assert entry.drift == ""


def test_what_cannot_be_repaired_is_not_written_down_each_second(world: World) -> None:
    report = world.bind(FULL_ASK, cards=["full"])
    put_on(group_of(world, report.binding), ALLOW_ALL)
    entry = world.executor.entries[report.binding]
    world.executor.check_one(entry)
    assert "stranger" in entry.drift
    before = world.journal.strokes
    for _ in range(3):
        world.executor.check_one(entry)
    assert world.journal.strokes == before


@pytest.mark.parametrize("uid", [0, 4711])
def test_a_daemon_may_have_a_device_open_but_nobody_who_only_takes_its_name(world: World, uid: int) -> None:
    code = (
        "import os, sys, time; os.open(sys.argv[1], os.O_RDONLY | os.O_NOCTTY)\n"
        "open('/proc/self/comm', 'w').write('nv-hostengine')\n"
        f"os.setresuid({uid}, 0, 0)\n"  # the real one counts: a file's mode can make him another
        "print('open', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-ISc", code, OWN], stdout=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == b"open\n"
        report = world.bind(Ask(), cards=["full"])
        daemon.kill()
    assert report.state is (BindingState.FAILED if uid else BindingState.READY), report.reason
    assert not uid or "nv-hostengine" in report.reason
