"""The cage of a reporter: as whom it runs, with what limits, environment and command line.

A run begins in `xce-cage` (cage.c), which joins the run's control group before anything else, goes to the
reporter's directory, sets the limits and takes user, groups and privileges away. What it executes is the
descriptor that was checked, /proc/self/fd/9, whatever lies at the path by then. Nothing is started here: a
plan can be printed before it is carried out.
"""

import os
import resource
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from xce.linux.users import User
from xce.model.configuration import Limits, Mode, ReporterSettings
from xce.reporters.directory import Candidate
from xce.reporters.frame import escape

SCRIPT_FD = 9
PROGRAM = os.path.join(os.path.dirname(__file__), "xce-cage")
"""Compiled by `./dev setup`, by pip, or with the packages."""
REMEDY = "install xce-agent again; in a clone, ./dev setup makes it"
"""What to do when it is not there, or not executable."""
CAGE_BROKEN, NOT_EXECUTED = 125, 126
"""Exit statuses of it: the cage could not be entered; the script could not be executed."""
ELIM_ABORT = 97
"""LSF's ELIM_ABORT_VALUE: an elim that ends with it has nothing to report here."""

EXPECT_BYTES = 120_000
"""Of the names in XCE_EXPECT and LSF_RESOURCES."""


class NotAdmittedError(Exception):
    """A reporter that may not run as its settings want; the text says why and what would be right."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Whom this agent starts reporters as."""

    uid: int
    """The agent's own effective uid."""
    user: str
    """For reporters that name none."""
    allow_root: Collection[str] = ()
    """Reporters that may ask for `user: root`."""


class Person(msgspec.Struct, frozen=True, kw_only=True):
    """As whom a reporter runs."""

    user: User | None
    """None: as the agent itself, which is not root and cannot change that."""
    note: str = ""
    """What people should know about it; '' when it is as the settings say."""


def admit(candidate: Candidate, policy: Policy, find_user: Callable[[str], User | None]) -> Person:
    """As whom a reporter is to run; raises `NotAdmittedError` if it must not."""
    if candidate.problem:
        raise NotAdmittedError(_about(candidate))
    wanted = candidate.settings.user or policy.user
    if policy.uid != 0:
        return Person(user=None, note=f"runs as uid {policy.uid}, not as '{wanted}': the agent is not root")
    try:
        user = find_user(wanted)
    except OSError as error:
        raise NotAdmittedError(f"cannot look up user '{wanted}': {error.strerror}") from error
    if user is None:
        hint = "users of a directory service are not asked for, since that can hang"
        raise NotAdmittedError(f"cannot find user '{escape(wanted)}' in /etc/passwd ({hint})")
    if user.uid == 0 and candidate.name not in policy.allow_root:
        raise NotAdmittedError(
            f"asks for user '{escape(wanted)}': to allow it, name '{candidate.name}' under "
            "reporters.allow_root in agent.yaml"
        )
    if problem := _access_problem(candidate, user):
        raise NotAdmittedError(problem)
    return Person(user=user)


def _about(candidate: Candidate) -> str:
    """The problem with the path in front, unless it is in it."""
    if candidate.path in candidate.problem:
        return candidate.problem
    return f"cannot run {escape(candidate.path)}: {candidate.problem}"


def _access_problem(candidate: Candidate, user: User) -> str:
    """An interpreter opens its script again, as the reporter's user: it must be allowed to."""
    needed = 0o5 if candidate.interpreter else 0o1
    if user.uid == 0:
        return ""
    if candidate.uid == user.uid:
        held = candidate.mode >> 6
    elif candidate.gid == user.gid:
        held = candidate.mode >> 3
    else:
        held = candidate.mode
    if held & needed == needed:
        return ""
    verb = "read and execute" if candidate.interpreter else "execute"
    path = escape(candidate.path)
    return f"user '{user.name}' cannot {verb} {path} (mode {candidate.mode:04o}): chmod 755 {path}"


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """What a reporter is told about where it runs."""

    name: str
    external: bool = False
    """Off the nodes (`xce-reporter run`)."""


def environment(
    candidate: Candidate,
    person: Person,
    node: Node,
    *,
    directory: str,
    interval: float,
    timeout: float,
    expected: Sequence[str],
) -> dict[str, str]:
    """The whole environment of a run: the same whatever the agent was started with.

    `directory` is the reporter's own, `expected` the names that it is expected to report.
    """
    settings = candidate.settings
    user = person.user.name if person.user else ""
    names = " ".join(fitting(expected))
    fixed = {
        "LC_ALL": "C.UTF-8",
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
        "HOME": directory,
        "PWD": directory,
        **({"USER": user, "LOGNAME": user} if user else {}),
    }
    elim = {"LSF_MASTER": "N", "LSF_RESOURCES": names, "ELIM_ABORT_VALUE": str(ELIM_ABORT)}
    deadline = timeout if settings.mode is Mode.ONE_SHOT else interval + timeout
    ours = {
        "XCE_NODE": node.name,
        "XCE_REPORTER": candidate.path,
        "XCE_INTERVAL": f"{interval:g}",
        "XCE_DEADLINE_MS": str(round(deadline * 1000)),
        "XCE_EXPECT": names,
        "XCE_STATE_DIR": directory,
        "XCE_PROTO": "1",
    }
    return {**fixed, **(elim if settings.mode is Mode.ELIM else {}), **settings.environment, **ours}


def fitting(expected: Sequence[str]) -> Sequence[str]:
    """As many of the names, from the first on, as one entry of an environment can hold."""
    room = EXPECT_BYTES
    for count, name in enumerate(expected):
        room -= len(os.fsencode(name)) + 1
        if room < 0:
            return expected[:count]
    return expected


def bounds(
    limits: Limits,
    *,
    memory_held: bool,
    processes_held: bool,
    own_user: bool,
    ceiling: Callable[[int], tuple[int, int]] = resource.getrlimit,
) -> dict[int, int]:
    """Values by RLIMIT_* for settings, given what the control group already holds.

    Without the memory controller each process is held to `memory_mb` of its own writable memory. The number
    of processes is counted per user by the kernel, so without the pids controller it is bounded only for a
    reporter that has its user for itself (`own_user`). No limit is asked for above our own hard one.
    """
    wanted = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_FSIZE: limits.file_size_mb << 20,
        resource.RLIMIT_CPU: limits.cpu_s,
    }
    if not memory_held:
        wanted[resource.RLIMIT_DATA] = limits.memory_mb << 20
    if own_user and not processes_held:
        wanted[resource.RLIMIT_NPROC] = limits.processes
    hard = {which: ceiling(which)[1] for which in wanted}
    return {
        which: value if hard[which] == resource.RLIM_INFINITY else min(value, hard[which])
        for which, value in wanted.items()
    }


def command(
    person: Person, limits: Mapping[int, int], *, group: str, directory: str, arguments: Sequence[str] = ()
) -> list[str]:
    """The command line of a run. `group`: path of the control group to join, '' for none."""
    procs = f"{group}/cgroup.procs" if group else ""
    ids = [str(person.user.uid), str(person.user.gid)] if person.user else ["", ""]
    bounds = [f"{which}={value}" for which, value in limits.items()]
    return [PROGRAM, procs, directory, *ids, *bounds, "--", f"/proc/self/fd/{SCRIPT_FD}", *arguments]


def no_interpreter(candidate: Candidate) -> str:
    """What is said of a script whose interpreter is missing."""
    words = f"the interpreter on its first line, {candidate.interpreter}, is not there"
    return f"cannot start {escape(candidate.path)}: {words}"


def not_started(error: OSError | ValueError, candidate: Candidate) -> str:
    """Why not even the cage could be started, in words."""
    what = error.strerror if isinstance(error, OSError) else str(error)
    where = os.fsdecode(getattr(error, "filename", None) or candidate.path)
    way_out = f": {REMEDY}" if where == PROGRAM else ""
    return f"cannot start it: {escape(where)}: {what}{way_out}"


def start_problem(status: int, stderr: str, candidate: Candidate) -> str:
    """Why a script was never reached, in words, from the cage's exit status and its first line on stderr.

    '' if it does not look like that.
    """
    said = stderr.removeprefix("xce-cage: ")
    if said == stderr or status not in (CAGE_BROKEN, NOT_EXECUTED):
        return ""
    if status == CAGE_BROKEN:
        return f"cannot enter its cage: {escape(said)}"
    reason = escape(said.rpartition(": ")[2])
    if "No such file" in reason and candidate.interpreter:
        return no_interpreter(candidate)
    if "temporarily unavailable" in reason:  # EAGAIN of execve(2) has no other cause
        reason = f"its user has more than {candidate.settings.limits.processes} processes (limits.processes)"
    return f"cannot start {escape(candidate.path)}: {reason}"


def expected(settings: ReporterSettings, assigned: Mapping[str, object] | Collection[str] = ()) -> list[str]:
    """Names that a reporter is expected to give: by its settings, and by the cluster's types."""
    return list(dict.fromkeys([*settings.reports, *(one.name for one in settings.types), *assigned]))
