"""`xce-agent removal`: may the agent's package be removed now? The package asks before it goes.

It says no while anything of a job is on this host: a claim in the journal, a process in the jobs' control
groups, a mount below the agent's directories. The CSI helper's package asks for volumes of plugins alone.
Where it is forced, what was mounted for claims is unmounted first, unless it is in use. Nothing is ever
deleted here.
"""

import os
from collections.abc import Iterator, Sequence

from xce.agent.cli import GOOD, TROUBLE, output, settings
from xce.agent.cli.options import Options, UsageError
from xce.linux import mountapi, mountinfo
from xce.linux.cgroup import Cgroup
from xce.linux.mountinfo import Mount
from xce.model.configuration import AgentFile
from xce.prepare import journal
from xce.prepare.csi.paths import FOLDER as CSI
from xce.prepare.local import HOLDER, JOBS

SUMMARY = "may this agent be removed? no, while anything of a job is on the host"
PROGRAM = "xce-agent removal"
FORCE = "XCE_FORCE_REMOVAL"
USAGE_TEXT = f"""\
usage: {PROGRAM} [--csi] [--config FILE]

  --csi  may the CSI helper be removed? no, while a volume of a plugin is mounted here

The package asks this before it is removed. With {FORCE}=1 in the environment, what is mounted for
claims is unmounted first, unless somebody uses it, and the answer is yes whatever is there: jobs then go on
without an agent, and a mount in use stays until somebody unmounts it. Nothing is deleted.
exit status: 0 nothing of a job is here, or {FORCE}=1; 1 something is, and is named"""


def run(argv: Sequence[str]) -> int:
    """Answer; 1 is no."""
    if "--help" in argv:
        print(USAGE_TEXT)
        return GOOD
    options = Options(argv, flags=["--csi"], values=["--config"])
    if options.arguments:
        raise UsageError(f"cannot understand {options.arguments[0]!r}")
    forced = os.environ.get(FORCE) == "1"
    agent = _settings(options.get("--config"), forced=forced)
    if forced and not options.has("--csi"):
        unmount(agent.claims.directory)
    table = mountinfo.read()
    if options.has("--csi"):
        left = [*mounts(table, [f"{agent.claims.directory}/{CSI}"])]
    else:
        directories = (agent.state_directory, agent.run_directory, agent.claims.directory, "/run/xce")
        left = [*claims(agent.state_directory), *processes(table), *mounts(table, directories)]
    for line in left:
        output.fail(PROGRAM, line)
    if not left:
        return GOOD
    if forced:
        output.fail(PROGRAM, f"{FORCE}=1: removed all the same")
        return GOOD
    output.fail(PROGRAM, f"release the claims of this host first, or set {FORCE}=1")
    return TROUBLE


def _settings(path: str, *, forced: bool) -> AgentFile:
    """What says where things are; one that cannot be read may have anything, and stops nobody who forces."""
    try:
        return settings.read(path, AgentFile)
    except UsageError as error:
        if not forced:
            hint = f"it says where claims are: correct it first, or set {FORCE}=1"
            raise UsageError(f"{error}\n  hint: {hint}") from error
        output.fail(PROGRAM, f"{error}: the default directories are looked at")
        return AgentFile()


def claims(directory: str) -> Iterator[str]:
    """What the journal has under way, in words; one that cannot be read may have anything."""
    try:
        orders = journal.live(directory)
    except ValueError as error:
        yield str(error)
        return
    for order in orders:
        binding = order.binding
        yield f"claim {order.claim.id} is {order.phase} here: {binding.id}, consumer {binding.consumer.name}"


def processes(table: Sequence[Mount]) -> Iterator[str]:
    """The groups of jobs that hold processes, in words."""
    for mount in table:
        if mount.kind == "cgroup2":
            for group in Cgroup(f"{mount.point}/{JOBS}").children():
                if group.name != HOLDER and (pids := group.pids()):
                    yield f"job {group.name} runs: {len(pids)} processes, the first is {pids[0]}"
            return


def mounts(table: Sequence[Mount], directories: Sequence[str]) -> Iterator[str]:
    """What is mounted below the agent's directories, in words."""
    for mount in table:
        if any(mount.point.startswith(f"{directory.rstrip('/')}/") for directory in directories):
            yield f"{mount.source} is mounted at {mount.point}"


def unmount(directory: str) -> None:
    """Take back what was mounted for claims, the newest first; what is in use stays."""
    for mount in reversed(mountinfo.read()):
        if mount.point.startswith(f"{directory.rstrip('/')}/"):
            try:
                mountapi.unmount(mount.point)
            except OSError as error:
                output.fail(PROGRAM, f"cannot unmount {mount.point}: {error.strerror}")
            else:
                output.fail(PROGRAM, f"unmounted {mount.point}")
