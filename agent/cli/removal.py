"""`xce-agent removal`: may the agent's package be removed now? The package asks before it goes.

It says no while anything of a job is on this host: a process in the jobs' control groups, a mount below the
agent's directories. Nothing is deleted here, and nothing is unmounted.
"""

import os
from collections.abc import Iterator, Sequence

from xce.agent.cli import GOOD, TROUBLE, output, settings
from xce.agent.cli.options import Options, UsageError
from xce.linux import mountinfo
from xce.linux.cgroup import Cgroup
from xce.linux.mountinfo import Mount
from xce.model.configuration import AgentFile
from xce.prepare.local import HOLDER, JOBS

SUMMARY = "may this agent be removed? no, while anything of a job is on the host"
PROGRAM = "xce-agent removal"
FORCE = "XCE_FORCE_REMOVAL"
USAGE_TEXT = f"""\
usage: {PROGRAM} [--config FILE]

The package asks this before it is removed. With {FORCE}=1 in the environment it is answered yes
whatever is there; jobs then go on without an agent, and their mounts stay until somebody unmounts them.
exit status: 0 nothing of a job is here, or {FORCE}=1; 1 something is, and is named"""


def run(argv: Sequence[str]) -> int:
    """Answer; 1 is no."""
    if "--help" in argv:
        print(USAGE_TEXT)
        return GOOD
    options = Options(argv, values=["--config"])
    if options.arguments:
        raise UsageError(f"cannot understand {options.arguments[0]!r}")
    agent = settings.read(options.get("--config"), AgentFile)
    table = mountinfo.read()
    directories = (agent.state_directory, agent.run_directory, agent.claims.directory, "/run/xce")
    left = [*processes(table), *mounts(table, directories)]
    for line in left:
        output.fail(PROGRAM, line)
    if not left:
        return GOOD
    if os.environ.get(FORCE) == "1":
        output.fail(PROGRAM, f"{FORCE}=1: removed all the same")
        return GOOD
    output.fail(PROGRAM, f"release the claims of this host first, or set {FORCE}=1")
    return TROUBLE


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
