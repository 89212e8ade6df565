"""`xce-agent run`: the agent itself, in the foreground, as systemd wants it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xce.agent.cli import GOOD, TROUBLE, USAGE, output

if TYPE_CHECKING:
    from xce.model.configuration import AgentFile, ExternalFile
    from xce.model.role import Role

SUMMARY = "run the agent in the foreground"
USAGE_TEXT = """\
usage: xce-agent run [--config FILE]

  --config FILE  instead of /etc/xce/agent.yaml, which may be missing

TERM and INT stop it within 5 seconds, with all that it started; HUP reads the configuration anew.
exit status: 0 after a clean stop, 1 when it could not start"""


def run(argv: Sequence[str]) -> int:
    """Serve until TERM or INT."""
    import xce.agent.diet  # noqa: F401, PLC0415 - before everything else
    from xce.agent import config  # noqa: PLC0415
    from xce.model.configuration import AgentFile  # noqa: PLC0415
    from xce.model.role import Role  # noqa: PLC0415

    if "--help" in argv or "-h" in argv:
        print(USAGE_TEXT)
        return GOOD
    if argv and (len(argv) != 2 or argv[0] != "--config"):
        output.fail("xce-agent run", f"cannot understand {' '.join(argv)!r}\n{USAGE_TEXT}")
        return USAGE
    path = argv[1] if argv else config.AGENT
    return start("xce-agent run", path, AgentFile, Role.AGENT, must_exist=bool(argv))


def start(
    program: str, path: str, kind: "type[AgentFile | ExternalFile]", role: "Role", *, must_exist: bool
) -> int:
    """Read the configuration and run; what prevents it goes to stderr."""
    from xce.agent import config, daemon  # noqa: PLC0415
    from xce.agent.memory import Memory  # noqa: PLC0415
    from xce.model.schema import ConfigRefused  # noqa: PLC0415

    memory = Memory(config.cache_directory())
    try:
        return daemon.run(config.read(path, kind, memory=memory, must_exist=must_exist), path, role=role)
    except ConfigRefused as refused:
        output.fail(program, "\n".join(str(error) for error in refused.errors))
    except daemon.CannotStart as error:
        output.fail(program, str(error))
    return TROUBLE
