"""The cage as a plan: whom it admits, what it asks for. That it holds is tried in test_supervisor.py."""

import json
import resource
import subprocess
from pathlib import Path

import pytest

from tests.reporters.node import ROOT, Node
from xce.linux.users import User
from xce.model.configuration import Limits, ReporterSettings
from xce.reporters import cage
from xce.reporters.directory import Candidate

SITE = User("site", 990, 991)
USERS = {"xce-reporter": User("xce-reporter", 999, 998), "site": SITE, "root": User("root", 0, 0)}
POLICY = cage.Policy(uid=0, user="xce-reporter", allow_root=["smart"])


def candidate(
    *,
    name: str = "free",
    mode: int = 0o755,
    uid: int = 0,
    gid: int = 0,
    settings: ReporterSettings | None = None,
) -> Candidate:
    return Candidate(
        name=name,
        path=f"/r/{name}",
        interpreter="/bin/sh",
        mode=mode,
        uid=uid,
        gid=gid,
        settings=settings or ReporterSettings(),
    )


def admit(one: Candidate) -> cage.Person:
    return cage.admit(one, POLICY, USERS.get)


def test_the_default_user_the_reporters_own_and_root_by_name() -> None:
    assert admit(candidate()).user == USERS["xce-reporter"]
    assert admit(candidate(settings=ReporterSettings(user="site"))).user == SITE
    assert admit(candidate(name="smart", settings=ReporterSettings(user="root"))).user == USERS["root"]


def test_an_alias_of_root_is_root() -> None:
    alias = {"toor": User("toor", 0, 0)}
    with pytest.raises(cage.NotAdmittedError, match=r"under reporters\.allow_root"):
        cage.admit(candidate(settings=ReporterSettings(user="toor")), POLICY, alias.get)


@pytest.mark.parametrize(
    ("mode", "uid", "gid", "admitted"),
    [
        (0o755, 0, 0, True),
        (0o711, 0, 0, False),  # an interpreter could not read it
        (0o750, 0, 998, True),
        (0o750, 0, 0, False),
        (0o500, 999, 0, True),
        (0o055, 999, 0, False),  # the owner's bits count for the owner
    ],
)
def test_a_script_must_be_readable_by_its_user(mode: int, uid: int, gid: int, admitted: bool) -> None:
    one = candidate(mode=mode, uid=uid, gid=gid)
    if admitted:
        admit(one)
    else:
        with pytest.raises(cage.NotAdmittedError, match="cannot read and execute /r/free"):
            admit(one)


@pytest.mark.parametrize("argument", ["", "$(id)", "a b", "--", "--help", "'\"`\n", "7=1"])
def test_arguments_reach_the_script_as_they_are(node: Node, argument: str) -> None:
    script = "#!/bin/sh\nprintf '%s' \"$1\" >got; echo $#\n"
    node.script("odd", script, json.dumps({"arguments": [argument]}))
    node.start()
    assert node.ran("odd").lines == [b"1"]
    assert (node.base / "state/reporters/odd/got").read_text() == argument


def test_limits_stay_below_what_we_may_give_and_are_left_out_where_the_group_holds_them() -> None:
    def ceiling(which: int) -> tuple[int, int]:
        return (0, 100) if which == resource.RLIMIT_NOFILE else (0, resource.RLIM_INFINITY)

    limits = Limits(open_files=256, memory_mb=1, file_size_mb=1, processes=7, cpu_s=9)
    bounds = cage.bounds(limits, memory_held=False, processes_held=False, own_user=True, ceiling=ceiling)
    assert bounds == {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: 100,
        resource.RLIMIT_FSIZE: 1 << 20,
        resource.RLIMIT_CPU: 9,
        resource.RLIMIT_DATA: 1 << 20,
        resource.RLIMIT_NPROC: 7,
    }
    held = cage.bounds(limits, memory_held=True, processes_held=True, own_user=True, ceiling=ceiling)
    assert not held.keys() & {resource.RLIMIT_DATA, resource.RLIMIT_NPROC}
    shared = cage.bounds(limits, memory_held=False, processes_held=False, own_user=False, ceiling=ceiling)
    assert resource.RLIMIT_NPROC not in shared  # the kernel counts them per user: others would be hit


def test_a_failed_start_is_told_from_a_scripts_own_failure() -> None:
    one = candidate()
    fd = "xce-cage: cannot execute /proc/self/fd/9: "
    missing = "cannot start /r/free: the interpreter on its first line, /bin/sh, is not there"
    assert cage.start_problem(126, fd + "No such file or directory", one) == missing
    assert cage.start_problem(126, fd + "Permission denied", one) == "cannot start /r/free: Permission denied"
    entering = cage.start_problem(125, "xce-cage: cannot enter /d: Not a directory", one)
    assert entering == "cannot enter its cage: cannot enter /d: Not a directory"
    assert cage.start_problem(127, "free: 3: lmstat: not found", one) == ""
    assert cage.start_problem(125, "no licence", one) == ""
    assert cage.start_problem(1, fd, one) == ""


def enter(person: cage.Person, limits: dict[int, int], *, group: str = "", directory: str = "/") -> str:
    """What the cage says when it cannot be entered; its exit status in front."""
    argv = cage.command(person, limits, group=group, directory=directory)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False)
    return f"{done.returncode} {done.stderr.strip()}"


def test_what_cannot_be_done_keeps_the_script_from_running_and_is_told_with_its_cause(tmp_path: Path) -> None:
    """A cage of which a part is missing is none."""
    us, link = cage.Person(user=None), tmp_path / "link"
    link.symlink_to("/")
    assert enter(us, {}, group="/none").endswith("of /none/cgroup.procs: No such file or directory")
    assert enter(us, {}, directory="/none") == "125 xce-cage: cannot enter /none: No such file or directory"
    assert enter(us, {}, directory=str(link)) == f"125 xce-cage: cannot enter {link}: Not a directory"
    assert enter(us, {99: 1}) == "125 xce-cage: cannot set the limit 99=1: Invalid argument"
    assert enter(us, {}) == "126 xce-cage: cannot execute /proc/self/fd/9: No such file or directory"
    empty = tmp_path / "empty"
    empty.write_text("")
    empty.chmod(0o755)
    argv = [*cage.command(us, {}, group="", directory="/")[:-1], str(empty)]
    shell = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False)
    assert shell.stderr == f"xce-cage: cannot execute {empty}: Exec format error\n"  # and by no shell instead


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["", "/", "", ""],
        ["", "/", "", "", "/bin/true", "x"],
        ["", "/", "", "", "1=1", "--"],
        ["", "/", "nobody", "0", "--", "/bin/true"],
        ["", "/", "", "", "=7", "--", "/bin/true"],
        ["", "/", "", "", "7", "--", "/bin/true"],
        ["", "/", "", "", "7=", "--", "/bin/true"],
        ["", "/", "", "", "7=1x", "--", "/bin/true"],
        ["", "/", "-1", "0", "--", "/bin/true"],
    ],
)
def test_a_command_line_that_makes_no_sense_starts_nothing(words: list[str]) -> None:
    """A word that is no number must not be taken for 0, which is root and no limit."""
    done = subprocess.run([cage.PROGRAM, *words], capture_output=True, text=True, timeout=10, check=False)
    assert (done.returncode, done.stderr[:16]) == (125, "xce-cage: cannot")


@pytest.mark.skipif(not ROOT, reason="without root there is nothing that could be given up")
def test_privileges_that_cannot_be_given_up_keep_the_script_from_running() -> None:
    bounded = ["setpriv", "--bounding-set=-setpcap", "--inh-caps=-all"]
    argv = cage.command(cage.Person(user=SITE), {}, group="", directory="/")
    done = subprocess.run([*bounded, *argv], capture_output=True, text=True, timeout=10, check=False)
    assert (done.returncode, done.stderr) == (
        125,
        "xce-cage: cannot give up the capabilities of root: Operation not permitted\n",
    )


@pytest.mark.skipif(not ROOT, reason="needs root: only it can become another user")
def test_a_reporter_with_a_user_of_its_own_cannot_start_processes_without_end(node: Node) -> None:
    """Without the pids controller; with it, the group's pids.max holds."""
    bomb = "#!/bin/sh\nn=0\nwhile [ $n -lt 60 ]; do sleep 5 & n=$((n + 1)); done\nexit 0\n"
    node.script(
        "bomb", bomb, "user: daemon\nlimits: {processes: 12}\ngrace: 0.1\ntimeout: 20\ninterval: 60\n"
    )
    node.start()
    most = 0
    while not node.runs("bomb"):
        node.kernel.during(0.02)
        most = max(most, len(node.children()))
    assert most <= 13
    assert "fork" in node.runs("bomb")[0].stderr


@pytest.mark.skipif(not ROOT, reason="needs root: only it can become another user")
def test_a_root_reporter_runs_with_privileges_that_cannot_grow(node: Node) -> None:
    script = "#!/bin/sh\ngrep -E '^(Uid|CapEff|NoNewPrivs|Groups):' /proc/self/status | tr -s '\\t ' ' '\n"
    node.script("smart", script, "user: root\n")
    node.start(allow_root=["smart"])
    lines = [line.decode().strip() for line in node.ran("smart").lines if isinstance(line, bytes)]
    status = dict(line.split(":", 1) for line in lines)
    assert status["Uid"].strip() == "0 0 0 0"
    assert int(status["CapEff"], 16) != 0
    assert status["NoNewPrivs"].strip() == "1"
    assert status["Groups"].strip() == ""


def test_a_file_that_grows_without_end_ends_at_its_limit(node: Node) -> None:
    node.script("fill", "#!/bin/sh\nexec cat /dev/zero > big\n", "limits: {file_size_mb: 1}\n")
    node.start()
    assert node.ran("fill").fault == "killed by SIGXFSZ"
    assert (node.base / "state/reporters/fill/big").stat().st_size == 1 << 20


def test_with_more_expected_names_than_an_entry_holds_it_is_started_and_says_how_many_are_missing(
    node: Node,
) -> None:
    """It once could not be started at all: E2BIG."""
    names = [f"{'n' * 50}_{number:05d}" for number in range(4000)]
    node.script("many", "#!/bin/sh\nset -- $XCE_EXPECT\necho $#\n", json.dumps({"reports": names}))
    longest = json.dumps({"environment": {"A": "x" * 131_069}, "arguments": ["x" * 120_000]})
    node.script("long", "#!/bin/sh\necho ${#A} ${#1}\n", longest)
    node.start()
    (line,) = node.ran("many").lines
    assert isinstance(line, bytes)
    assert 2000 < int(line) < 2200
    assert f"{4000 - int(line)} of 4000 expected names do not fit into XCE_EXPECT" in node.now("many").note
    assert node.ran("long").lines == [b"131069 120000"]
