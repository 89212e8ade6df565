"""`xce-agent run`: the agent itself, in the foreground, as systemd wants it."""

import os
import sys
from collections.abc import Sequence

from xce.agent.cli import GOOD, TROUBLE, USAGE, CommandError, output

SUMMARY = "run the agent in the foreground, or a command in a claim"
PROGRAM = "xce-agent run"
USAGE_TEXT = f"""\
usage: {PROGRAM} [--config FILE]
       {PROGRAM} --claim NAME [--wait SECONDS] -- COMMAND ...

  --config FILE   instead of /etc/xce/agent.yaml, which may be missing
  --claim NAME    no agent: wait until a claim of this host is ready, enter its control groups, set its
                  variables, and become the command (root). NAME is a binding, a claim or a consumer
  --wait SECONDS  at most so long (default 60)

TERM and INT stop the agent within 5 seconds, with all that it started; HUP reads the configuration anew.
exit status: 0 after a clean stop, 1 when it could not start. With --claim that of the command; 1 the claim is
not ready, 3 the agent is not running, 4 the claim failed or is being released, 126 the command
cannot be run, 127 it is not there"""
WAIT_S = 60.0
SILENT_S = 1.0
"""So long a claim that is not ready is waited for without a word."""


class CannotRun(CommandError):
    """As a shell's, the exit status tells it from the claim's troubles and from the command's own."""

    def __init__(self, command: str, error: OSError) -> None:
        super().__init__(f"cannot run {command}: {error.strerror}")
        self.code = 127 if isinstance(error, FileNotFoundError) else 126


def run(argv: Sequence[str]) -> int:
    """Serve until TERM or INT."""
    own = argv[: argv.index("--")] if "--" in argv else argv
    if "--help" in own:
        print(USAGE_TEXT)
        return GOOD
    if any(word.partition("=")[0] == "--claim" for word in own):
        return _in_claim(own, list(argv[len(own) + 1 :]))
    import xce.agent.diet  # noqa: F401, PLC0415 - before everything else
    from xce.agent import config, daemon  # noqa: PLC0415
    from xce.agent.lock import CannotStart  # noqa: PLC0415
    from xce.agent.memory import Memory  # noqa: PLC0415
    from xce.model.configuration import AgentFile  # noqa: PLC0415
    from xce.model.refusal import ConfigRefused  # noqa: PLC0415
    from xce.model.role import Role  # noqa: PLC0415

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
    except CannotStart as error:
        output.fail(PROGRAM, str(error))
    return TROUBLE


def _in_claim(argv: Sequence[str], command: list[str]) -> int:
    """Become the command, inside a claim. What it inherits beside the claim's variables is ours."""
    import threading  # noqa: PLC0415

    from xce.agent.cli import client  # noqa: PLC0415
    from xce.agent.cli.options import Options, UsageError  # noqa: PLC0415

    options = Options(argv, values=["--claim", "--wait", "--socket", "--config"])
    if options.arguments or not command or not options.get("--claim"):
        raise UsageError(f"expected the NAME of a claim, and a command behind --\n{USAGE_TEXT}")
    path = client.socket_path(options.get("--socket"), options.get("--config"))
    name, seconds = options.get("--claim"), options.number("--wait", WAIT_S)
    words = f"{PROGRAM}: waiting for {name!r} to be bound here and ready, at most {seconds:g} s"
    patience = threading.Timer(SILENT_S, print, [words], {"file": sys.stderr, "flush": True})
    patience.start()
    try:
        answer = client.ask(
            path, within_s=seconds + 5, op="publish", name=name, seconds=seconds, pid=os.getpid()
        )
    finally:
        patience.cancel()
    variables = {key: text for one in answer["bindings"] for key, text in one["variables"].items()}
    try:
        os.execvpe(command[0], command, {**os.environ, **variables})  # noqa: S606 - it is what was asked for
    except OSError as error:
        raise CannotRun(command[0], error) from error
