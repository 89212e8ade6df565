"""The status document: what `xce-agent status --json` prints, what metrics and all commands are made from.

Plain data with seconds as floats; an age counts from the moment of the answer. `trouble` holds every line
that needs a person, and is empty if and only if all is well. Pure.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from xce.agent.core import NEVER, Core
from xce.agent.node import Node
from xce.model import human
from xce.model.link import Phase
from xce.model.message import ReporterState
from xce.model.value import Presence, presence_of

if TYPE_CHECKING:
    from xce.agent.intake import Account
    from xce.reporters.result import View

Document = dict[str, Any]


def link_document(core: Core, endpoint: str, now: float) -> Document:
    """The link to the broker."""
    due = core.due(now)
    return {
        "phase": core.phase.value,
        "since_s": now - core.since,
        "endpoint": endpoint,
        "trouble": core.trouble,
        "heard_s": now - core.heard if core.welcome else None,
        "heartbeat_s": core.welcome.heartbeat_ms / 1000 if core.welcome else None,
        "next_try_s": max(0.0, due - now) if core.phase is not Phase.SYNCED and due != NEVER else None,
        "welcomes": core.welcomes,
        "resyncs": core.resyncs,
    }


def host_document(core: Core) -> Document:
    """What the broker says of this host, as last heard."""
    standing = core.standing
    return {
        "state": standing.state,
        "conditions": list(standing.conditions),
        "holds": [
            {"owner": hold.owner, "reason": hold.reason, "since": hold.since} for hold in standing.holds
        ],
        "refused": list(standing.refused),
    }


def reporter_document(
    name: str, state: ReporterState, node: Node, *, view: "View | None", account: "Account | None", now: float
) -> Document:
    """One reporter; `view` and `account` are None for the built-in source."""
    ages = node.ages_ms(now)
    values = {presence.value: 0 for presence in Presence}
    readings = node.table.readings()
    for one in node.table.names(name):
        values[presence_of(readings[one]).value] += 1
    document: Document = {
        "name": name,
        "state": view.state if view else state.state,
        "cause": state.cause,
        "note": state.note,
        "warning": "",
        "values": values,
        "age_s": ages[name] / 1000 if name in ages else None,
        "runs": state.runs,
        "failures": state.failures,
        "overruns": state.overruns,
        "mode": state.mode,
        "interval_s": state.interval_ms / 1000,
        "ttl_s": state.ttl_ms / 1000,
        "path": state.path,
        "script": state.script,
        "refused": [],
        "notes": [],
        "conditions": [
            {"name": one.name, "reason": one.reason, "hold": one.hold} for one in state.conditions
        ],
        "last_run_s": None,
        "next_run_s": None,
        "took_s": None,
        "last_script": "",
        "exit": "",
        "stderr": "",
        "user": "",
        "pid": None,
        "running_s": None,
        "abandoned": [],
    }
    if view is not None:
        document |= _run_of(view)
    if account is not None:
        document["refused"] = [
            {"name": one.name, "reason": one.reason, "text": one.text, "line": one.line}
            for one in account.refusals
        ]
        document["notes"] = [*account.notes]
    return document


def _run_of(view: "View") -> Document:
    """What only the supervisor knows."""
    return {
        "warning": view.warning,
        "last_run_s": view.last_run_ago,
        "next_run_s": view.next_run_in,
        "took_s": view.last_duration,
        "last_script": view.last_script[:16],
        "exit": view.last_exit,
        "stderr": view.stderr,
        "user": view.user,
        "pid": view.pid,
        "running_s": view.running_for,
        "abandoned": [
            {
                "pid": one.pid,
                "name": one.name,
                "state": one.state,
                "wchan": one.wait_channel,
                "for_s": view.unkillable_for,
            }
            for one in view.unkillable
        ],
    }


def troubles(document: Document, faults: Mapping[str, str]) -> list[str]:
    """Every line that needs a person; `faults` are those of the agent itself, by what they are about."""
    lines = [f"{about}: {text}" for about, text in faults.items() if text]
    link = document["link"]
    if link["endpoint"] and link["phase"] != Phase.SYNCED:
        lines.append(f"broker: {link['trouble'] or 'not linked yet'}")
    shown = {"unknown-host", "duplicate"}.intersection(document["host"]["conditions"])
    lines += [f"host: the broker shows it as {condition}" for condition in sorted(shown)]
    lines += [f"broker: refuses {words}" for words in document["host"]["refused"]]
    for reporter in document["reporters"]:
        lines += _of_reporter(reporter)
    return lines


def _of_reporter(reporter: Document) -> list[str]:
    name = reporter["name"]
    lines = [f"{name}: {line}" for line in reporter["cause"].splitlines()]
    lines += [f"{name}: {line}" for line in reporter["warning"].splitlines()]
    told = reporter["cause"]
    for one in reporter["refused"][:8]:
        line = f"line {one['line']}: " if one["line"] else ""
        what = f"{one['name']}: " if one["name"] else ""
        text = f": {one['text']}" if one["text"] else ""
        refusal = f"{line}{what}{one['reason']}{text}"
        if not told.startswith(refusal):
            lines.append(f"{name}: refused {refusal}")
    for condition in reporter["conditions"]:
        held = ", which holds the host" if condition["hold"] else ""
        lines.append(f"{name}: reports {human.condition(condition['name'], condition['reason'])}{held}")
    for one in reporter["abandoned"]:
        where = f" in {one['wchan']}" if one["wchan"] else ""
        lines.append(
            f"{name}: pid {one['pid']} ({one['name']}) cannot be killed, state {one['state']}{where}"
        )
    return lines
