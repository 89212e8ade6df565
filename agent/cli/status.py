"""`xce-agent status`: is this node all right, and if not, why."""

import sys
import time
from collections.abc import Sequence
from typing import Any

from xce.agent.cli import GOOD, NOT_RUNNING, TROUBLE, client, output
from xce.agent.cli.options import Options, UsageError
from xce.model import human
from xce.wire.ending import need_reader

SUMMARY = "what the agent, its link and its reporters are doing, and what is wrong"
PROGRAM = "xce-agent status"
USAGE_TEXT = """\
usage: {program} [--json] [--watch] [--socket PATH | --config FILE]

  --json         print what the {of.name} answered, for programs
  --watch        print it anew at every change, until Ctrl-C
  --socket PATH  of the {of.name}'s local socket (default: where {of.file} says)
  --config FILE  of the {of.name}, instead of /etc/xce/{of.file}

exit status: 0 all is well, 1 something is wrong, 3 the {of.name} is not running"""

Status = dict[str, Any]


def run(argv: Sequence[str], program: str = PROGRAM, of: client.Program = client.AGENT) -> int:
    """Ask the agent, or an external reporter, and print; the exit code tells good from bad."""
    usage = USAGE_TEXT.format(program=program, of=of)
    if "--help" in argv:
        print(usage)
        return GOOD
    options = Options(argv, flags=["--json", "--watch"], values=["--socket", "--config"])
    if options.arguments:
        raise UsageError(f"cannot understand {options.arguments[0]!r}\n{usage}")
    try:
        path = client.socket_path(options.get("--socket"), options.get("--config"), of=of)
        return _print(path, of, as_json=options.has("--json"), watch=options.has("--watch"))
    except (client.NotRunning, client.AgentError) as error:
        if options.has("--json"):
            output.print_json({"running": False, "error": str(error)})
        else:
            output.fail(program, str(error))
        return NOT_RUNNING


def _print(path: str, of: client.Program, *, as_json: bool, watch: bool) -> int:
    if watch:
        answers = client.follow(path, of=of, op="watch", idle=need_reader)
    else:
        answers = iter([client.ask(path, of=of, op="status")])
    code = GOOD
    for status in answers:
        if as_json:
            output.print_json(status)
        else:
            if watch and sys.stdout.isatty():
                sys.stdout.write("\x1b[H\x1b[2J")  # ECMA-48: cursor home, erase display
            elif watch:
                print(time.strftime("-- %H:%M:%S"))
            show(status)
        sys.stdout.flush()
        code = TROUBLE if status["trouble"] else GOOD
    return code


def show(status: Status) -> None:
    """Print a status for people."""
    output.table((), head(status))
    if status["reporters"]:
        print()
        headers = ("REPORTER", "STATE", "VALUES", "AGE", "LAST RUN", "NEXT RUN", "TOOK", "RUNS", "FAILED")
        output.table(headers, [row(reporter) for reporter in status["reporters"]])
    if status["trouble"]:
        print()
        for line in status["trouble"]:
            print(human.printable(line))


def head(status: Status) -> list[tuple[str, str]]:
    """The lines about the agent, its link and its host."""
    agent, link, host = status["agent"], status["link"], status["host"]
    lines = [
        (
            agent["role"],
            f"{agent['name']}, pid {agent['pid']}, running for {human.span(agent['running_s'])}, "
            f"{agent['software']}, {agent['memory_kb'] // 1024} MB",
        ),
        ("broker", _link(link)),
    ]
    if agent["role"] == "agent":  # an external reporter is no host
        state = " ".join([host["state"] or "unknown", *(f"[{name}]" for name in host["conditions"])])
        heard = " (as last heard)" if link["phase"] != "synced" and host["state"] else ""
        lines.append(("host", f"{state}{heard}"))
    if claims := status.get("claims"):
        kept = f", devices are kept by {claims['devices']}" if claims["devices"] else ""
        lines.append(("claims", f"{len(status['bindings'])} on this host{kept}"))
    for hold in host["holds"]:
        since = f", since {hold['since']}" if hold["since"] else ""
        lines.append(("held by", f"{hold['owner']}: {hold['reason']}{since}"))
    return lines


def row(reporter: Status) -> tuple[str, ...]:
    """One reporter's line."""
    counted = reporter["mode"] != "builtin"
    running = f"{human.span(reporter['running_s'])} so far" if reporter["running_s"] is not None else ""
    return (
        reporter["name"],
        reporter["state"],
        _presences(reporter["values"]),
        human.span(reporter["age_s"]),
        running or human.ago(reporter["last_run_s"]),
        f"in {human.span(reporter['next_run_s'])}" if reporter["next_run_s"] is not None else "",
        human.span(reporter["took_s"]),
        str(reporter["runs"]) if counted else "",
        str(reporter["failures"]) if counted else "",
    )


def _link(link: Status) -> str:
    if not link["endpoint"]:
        return "none: set 'broker:' in agent.yaml"
    text = f"{link['phase']} for {human.span(link['since_s'])}, {link['endpoint']}"
    if link["phase"] == "synced":
        return f"{text}, heard {human.ago(link['heard_s'])}"
    # Each try begins a phase anew: how long there has been no broker is in the answer that came last.
    heard = "never linked" if link["heard_s"] is None else f"last heard {human.ago(link['heard_s'])}"
    again = f", next try in {human.span(link['next_try_s'])}" if link["next_try_s"] is not None else ""
    return f"{text}, {heard}{again}"


def _presences(counts: dict[str, int]) -> str:
    """`12`, `10, 2 unknown`: how many names, and how many of them are no value."""
    parts = [str(counts["value"])] if counts.get("value") else []
    parts += [f"{count} {presence}" for presence, count in counts.items() if count and presence != "value"]
    return ", ".join(parts) or "none"
