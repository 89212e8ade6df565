"""`xce-agent key rotate`: give this host a new key, while the agent runs."""

import time
from collections.abc import Sequence
from pathlib import Path

from xce.agent.cli import GOOD, NOT_RUNNING, TROUBLE, client, output, settings
from xce.agent.cli.options import Options, UsageError
from xce.model.configuration import AgentFile

SUMMARY = "give this host a new key, without a gap"
PROGRAM = "xce-agent key"
USAGE_TEXT = f"""\
usage: {PROGRAM} rotate [--config FILE] [--timeout SECONDS]

Makes a new key, has the broker accept it beside the old one, lets the running agent connect with it, and has
the old one accepted no longer. It may be repeated when it was broken off.
exit status: 0 rotated, 1 refused, 2 wrong usage or files, 3 the broker cannot be reached"""
STEP_S = 0.1


def run(argv: Sequence[str]) -> int:
    """Rotate."""
    if "--help" in argv:
        print(USAGE_TEXT)
        return GOOD
    options = Options(argv, values=["--config", "--timeout"])
    if options.arguments != ["rotate"]:
        raise UsageError(f"one thing can be done with the key: {PROGRAM} rotate")
    return _rotate(settings.read(options.get("--config"), AgentFile), options)


def _rotate(agent: AgentFile, options: Options) -> int:
    from xce.wire import joining, keys  # noqa: PLC0415 - not for a wrong usage
    from xce.wire.ask import Denied, NoAnswer  # noqa: PLC0415
    from xce.wire.dealer import HINTS  # noqa: PLC0415

    within_s = options.number("--timeout", 10)
    try:
        put = joining.asking(agent.broker, within_s)
        broker = keys.load(Path(agent.broker_key), secret=False).public
        fresh = joining.rotate(put, Path(agent.key), broker)
        if problem := _taken_up(options, within_s):
            output.fail(
                PROGRAM, f"{problem}; the old key is still accepted. Run this again when it is mended"
            )
            return TROUBLE
        joining.retire(put, fresh, broker)
    except (keys.KeyFileError, ValueError, OSError) as error:
        raise UsageError(str(error)) from error
    except Denied as denied:
        output.fail(PROGRAM, str(denied))
        return TROUBLE
    except NoAnswer as failed:
        hint = HINTS.get(failed.state, "")
        output.fail(PROGRAM, f"{failed}\n  hint: {hint}" if hint else str(failed))
        return NOT_RUNNING
    print(f"{agent.key} is new, and the old key is accepted no longer")
    return GOOD


def _taken_up(options: Options, within_s: float) -> str:
    """Lets the running agent take up the key; '' once it is linked with it, or when no agent runs."""
    try:
        path = client.socket_path("", options.get("--config"))
        welcomes = client.ask(path, op="rekey")["welcomes"]
    except client.NotRunning:
        return ""
    except client.AgentError as error:
        return str(error)
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        link = client.ask(path, op="status")["link"]
        if link["phase"] == "synced" and link["welcomes"] > welcomes:
            return ""
        time.sleep(STEP_S)
    return "the agent has not connected with the new key"
