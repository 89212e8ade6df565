"""`xce-agent run`: the agent itself, in the foreground, as systemd wants it."""

from collections.abc import Sequence

from xce.agent.cli import GOOD, TROUBLE, USAGE, output

SUMMARY = "run the agent in the foreground, or a command in a claim"
PROGRAM = "xce-agent run"
USAGE_TEXT = f"""\
usage: {PROGRAM} [--config FILE]
       {PROGRAM} --claim NAME [--wait SECONDS] -- COMMAND ...

  --claim NAME   no agent: run a command in a claim of this host, as `xce-agent claim run` does
  --config FILE  instead of /etc/xce/agent.yaml, which may be missing

TERM and INT stop it within 5 seconds, with all that it started; HUP reads the configuration anew.
exit status: 0 after a clean stop, 1 when it could not start"""


def run(argv: Sequence[str]) -> int:
    """Serve until TERM or INT."""
    import xce.agent.diet  # noqa: F401, PLC0415 - before everything else
    from xce.agent import config, daemon  # noqa: PLC0415
    from xce.agent.memory import Memory  # noqa: PLC0415
    from xce.model.configuration import AgentFile  # noqa: PLC0415
    from xce.model.refusal import ConfigRefused  # noqa: PLC0415
    from xce.model.role import Role  # noqa: PLC0415

    if argv and argv[0] == "--claim":
        from xce.agent.cli import claim  # noqa: PLC0415 - only then

        return claim.run(["run", *argv[1:]])
    if "--help" in argv:
        print(USAGE_TEXT)
        return GOOD
    if argv and (len(argv) != 2 or argv[0] != "--config"):
        output.fail(PROGRAM, f"cannot understand {' '.join(argv)!r}\n{USAGE_TEXT}")
        return USAGE
    path = argv[1] if argv else config.AGENT

    def read() -> AgentFile:
        memory = Memory(config.cache_directory())
        return config.read(path, AgentFile, memory=memory, must_exist=bool(argv))

    try:
        return daemon.run(read, path, role=Role.AGENT)
    except ConfigRefused as refused:
        output.fail(PROGRAM, "\n".join(str(error) for error in refused.errors))
    except daemon.CannotStart as error:
        output.fail(PROGRAM, str(error))
    return TROUBLE
