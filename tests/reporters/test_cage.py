"""The cage as a plan: whom it admits, what it asks for. That it holds is tried in test_supervisor.py."""

import json
import resource
import subprocess
from pathlib import Path

import pytest

from tests.reporters.node import ROOT, Node
from xce.linux import users
from xce.linux.users import User
from xce.model.configuration import Limits, ReporterSettings
from xce.reporters import cage
from xce.reporters.directory import Candidate

SITE = User("site", 990, 991)
USERS = {"xce-reporter": User("xce-reporter", 999, 998), "site": SITE, "root": User("root", 0, 0)}
POLICY = cage.Policy(uid=0, user="xce-reporter", allow_root=["smart"])

SPY = r"""
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
__attribute__((constructor)) static void spy(void)
{
    dprintf(open("SEEN", O_WRONLY | O_APPEND), "%d\n", geteuid());
}
"""
KEY = """
import ctypes, platform
call = ctypes.CDLL(None).syscall
call.restype = ctypes.c_long
ADD, _, KEYCTL = {"x86_64": (248, 249, 250), "aarch64": (217, 218, 219)}[platform.machine()]
SESSION, JOIN, SEARCH = -3, 1, 10
def join(): return call(KEYCTL, JOIN, None)
def add(): return call(ADD, b"user", b"xce-test", b"secret", 6, SESSION)
def search(): return call(KEYCTL, SEARCH, SESSION, b"user", b"xce-test", 0)
"""
"""Of keyctl(2), which no library of Python has."""


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


@pytest.mark.parametrize("number", ["4294967295", "4294967296", "²", "-1", ""])
def test_a_user_whose_number_is_none_for_the_kernel_is_not_found(tmp_path: Path, number: str) -> None:
    """setresuid(2) of these leaves root as it is, or is for root itself."""
    passwd = tmp_path / "passwd"
    passwd.write_text(f"a:x:{number}:1::/:\nb:x:1:{number}::/:\nlast:x:4294967294:1::/:\n")
    assert [users.find(name, str(passwd)) for name in ("a", "b")] == [None, None]
    assert users.find("last", str(passwd)) == User("last", 4294967294, 1)


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
        ["", "/", "", "", "7=99999999999999999999", "--", "/bin/true"],
        ["", "/", "", "", "4294967303=1", "--", "/bin/true"],
        ["", "/", "-1", "0", "--", "/bin/true"],
        ["", "/", "4294967295", "0", "--", "/bin/true"],  # setresuid(2): as it is
        ["", "/", "4294967296", "0", "--", "/bin/true"],
        ["", "/", "1", "4294967295", "--", "/bin/true"],
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
def test_a_library_that_a_reporter_wants_loaded_is_loaded_after_root_was_given_up(
    node: Node, tmp_path: Path
) -> None:
    """Its user may own the library; the cage is a program that loads libraries, too, and begins as root."""
    source, library, seen = tmp_path / "spy.c", tmp_path / "spy.so", tmp_path / "seen"
    source.write_text(SPY.replace("SEEN", str(seen)))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    seen.touch()
    seen.chmod(0o666)
    for above in (tmp_path, *tmp_path.parents[:-1]):
        above.chmod(above.stat().st_mode | 0o111)
    node.script("spied", "#!/bin/sh\n:\n", json.dumps({"environment": {"LD_PRELOAD": str(library)}}))
    node.start()
    node.ran("spied")
    nobody = users.find("nobody")
    assert nobody is not None
    assert set(seen.read_text().split()) == {str(nobody.uid)}


@pytest.mark.skipif(not ROOT, reason="needs root: only it can become another user")
def test_keys_of_the_agents_session_are_left_behind() -> None:
    """An agent that was started from a login has those of who logged in."""
    argv = cage.command(cage.Person(user=SITE), {}, group="", directory="/")
    # Not that of the tests, which may lie where only root gets to.
    python = "/usr/bin/python3"
    argv[argv.index("--") + 1 :] = [python, "-c", KEY + "print(search())"]
    begin = KEY + f"join(); add(); print(search(), flush=True)\nimport os; os.execv({argv[0]!r}, {argv!r})"
    done = subprocess.run([python, "-c", begin], capture_output=True, text=True, timeout=10, check=True)
    mine, theirs = done.stdout.split()
    if mine == "-1":
        pytest.skip("no keyrings here")
    assert theirs == "-1"


@pytest.mark.root
def test_neither_umask_nor_sparing_by_the_oom_killer_is_passed_on(tmp_path: Path) -> None:
    """The agent is to outlive a shortage of memory, its reporters are not. 0 or more stays."""
    argv = cage.command(cage.Person(user=SITE), {}, group="", directory="/")
    argv[argv.index("--") + 1 :] = ["/bin/sh", "-c", "umask; cat /proc/self/oom_score_adj"]
    for given, kept in (("-500", "0"), ("300", "300")):
        adjusted = (
            tmp_path / "adjusted"
        )  # the file itself cannot be set below what it is without a capability
        adjusted.write_text(given)
        mounted = f'umask 0 && mount --bind {adjusted} /proc/$$/oom_score_adj && exec "$@"'
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", mounted, "sh", *argv],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
        assert (done.stderr, adjusted.read_text()) == ("", kept)
        assert done.stdout.startswith("0022\n")


@pytest.mark.skipif(not ROOT, reason="needs root: only it can become another user")
def test_a_user_with_too_many_processes_already_is_named_as_the_cause(node: Node) -> None:
    """Of other programs than reporters; where there is no pids controller."""
    daemon = users.find("daemon")
    assert daemon is not None
    others = [subprocess.Popen(["sleep", "60"], user=daemon.uid, group=daemon.gid) for _ in range(3)]
    try:
        node.script("full", "#!/bin/sh\n", "user: daemon\nlimits: {processes: 2}\n")
        node.start()
        why = "its user has more than 2 processes (limits.processes)"
        assert node.reaches("full", "backoff").cause == f"cannot start {node.directory}/full: {why}"
    finally:
        for other in others:
            other.kill()
            other.wait()


@pytest.mark.skipif(not ROOT, reason="needs root: only it can become another user")
def test_what_another_user_left_is_not_in_the_directory_of_the_next(node: Node) -> None:
    """A link of nobody's would be followed by a script that runs as root now."""
    home = node.base / "state/reporters/raised"
    node.script("raised", "#!/bin/sh\nln -sf /etc/passwd cache\ntouch mine\n")
    node.start(allow_root=["raised"])
    node.ran("raised")
    was = home.stat()
    node.script("raised", "#!/bin/sh\nls -A\n", "user: root\n")
    node.until(lambda: home.stat().st_uid == 0 and len(node.runs("raised")) > 1)
    assert node.runs("raised")[-1].lines == []
    aside = home.with_name(f".raised-of-uid-{was.st_uid}-{was.st_ino}")
    assert sorted(one.name for one in aside.iterdir()) == ["cache", "mine"]


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
    longest = json.dumps({"environment": {"A": "x" * 131_068}, "arguments": ["x" * 120_000]})
    node.script("long", "#!/bin/sh\necho ${#A} ${#1}\n", longest)
    node.start()
    (line,) = node.ran("many").lines
    assert isinstance(line, bytes)
    assert 2000 < int(line) < 2200
    assert f"{4000 - int(line)} of 4000 expected names do not fit into XCE_EXPECT" in node.now("many").note
    assert node.ran("long").lines == [b"131068 120000"]
