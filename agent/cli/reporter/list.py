"""`xce-agent reporter list`: every reporter of this host, and why it does not run if it does not."""

import os
from collections.abc import Sequence
from typing import Any

from xce.agent.cli import GOOD, TROUBLE, client, output
from xce.agent.cli.options import Options, UsageError
from xce.agent.cli.settings import read
from xce.model import human
from xce.model.configuration import AgentFile

SUMMARY = "every reporter of this host, with its script, settings and state"
PROGRAM = "xce-agent reporter list"
USAGE_TEXT = f"""\
usage: {PROGRAM} [--json] [--socket PATH | --config FILE]

Asks the running agent; without one it shows what lies in the reporters' directory.
exit status: 0 all are well, 1 some are not"""


def run(argv: Sequence[str]) -> int:
    """Print them; 1 if one of them is in trouble."""
    if "--help" in argv:
        print(USAGE_TEXT)
        return GOOD
    options = Options(argv, flags=["--json"], values=["--socket", "--config"])
    try:
        path = client.socket_path(options.get("--socket"), options.get("--config"))
        rows = client.ask(path, op="status")["reporters"]
    except client.NotRunning:
        output.fail(PROGRAM, "the agent is not running; this is what its directory holds")
        rows = _in_directory(options.get("--config"))
    if options.has("--json"):
        output.print_json(rows)
    else:
        headers = ("REPORTER", "STATE", "MODE", "EVERY", "USER", "SCRIPT", "PATH", "TROUBLE")
        output.table(headers, [_row(one) for one in rows])
    return TROUBLE if any(one["cause"] for one in rows) else GOOD


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    every = human.span(one["interval_s"]) if one["interval_s"] else ""
    return (
        one["name"],
        one["state"],
        one["mode"],
        every,
        one["user"],
        one["script"],
        one["path"],
        "; ".join((one["cause"] or one["note"]).splitlines()),
    )


def _in_directory(config_path: str) -> list[dict[str, Any]]:
    from xce.reporters.directory import scan  # noqa: PLC0415 - only without an agent

    settings = read(config_path, AgentFile).reporters
    try:
        found = scan(settings.directory, {0, os.geteuid()})
    except OSError as error:
        raise UsageError(f"cannot read {settings.directory}: {error.strerror}") from error
    return [
        {
            "name": one.name,
            "state": "refused" if one.problem else "",
            "mode": one.settings.mode.value,
            "interval_s": one.settings.interval or settings.interval,
            "user": one.settings.user or settings.user,
            "script": one.digest[:16],
            "path": one.path,
            "cause": one.problem,
            "note": one.warning,
        }
        for one in found.values()
    ]
