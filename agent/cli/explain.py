"""`xce-agent explain RESOURCE`: where a value comes from, why it is not there, and what the broker holds."""

import json
from collections.abc import Sequence
from typing import Any

from xce.agent.cli import GOOD, TROUBLE, client, output
from xce.agent.cli.options import Options, UsageError
from xce.model import human

SUMMARY = "where a value comes from, why it is not there, and what the broker holds"
PROGRAM = "xce-agent explain"
USAGE_TEXT = """\
usage: {program} [--json] [--socket PATH | --config FILE] RESOURCE

exit status: 0 there is a value and the broker holds it, 1 not so, 3 the {of.name} is not running"""

Document = dict[str, Any]


def run(argv: Sequence[str], program: str = PROGRAM, of: client.Program = client.AGENT) -> int:
    """Ask the agent, or an external reporter, which asks the broker; 0 if both have the value."""
    usage = USAGE_TEXT.format(program=program, of=of)
    if "--help" in argv:
        print(usage)
        return GOOD
    options = Options(argv, flags=["--json"], values=["--socket", "--config"])
    if len(options.arguments) != 1:
        raise UsageError(f"expected one RESOURCE\n{usage}")
    path = client.socket_path(options.get("--socket"), options.get("--config"), of=of)
    document = client.ask(path, of=of, op="explain", resource=options.arguments[0])
    if options.has("--json"):
        output.print_json(document)
    else:
        for label, text in lines(document, external=of is client.EXTERNAL):
            print(human.printable(f"{label:<10} {text}".rstrip()))
    held, broker = document["held"], document["broker"]
    good = held and held["presence"] == "value" and broker["known"] and not broker["differs"]
    return GOOD if good else TROUBLE


def lines(document: Document, *, external: bool = False) -> list[tuple[str, str]]:
    """What is printed, with a label each."""
    return [
        *_value(document, external=external),
        *_source(document["reporter"]),
        *_others(document),
        *([] if external else _host(document["host"])),
        _broker(document["broker"]),
    ]


def _value(document: Document, *, external: bool) -> list[tuple[str, str]]:
    kind, held = document["type"], document["held"]
    unit = f" {kind['unit']}" if kind and kind.get("unit") else ""
    if held is None and not external and kind and kind.get("scope", "host") != "host":
        elsewhere = (
            f"is of scope {kind['scope']}, which no host reports; xce-broker supply {document['name']}"
        )
        found = [(document["name"], elsewhere)]
    elif held is None:
        found = [
            (document["name"], f"no value: no reporter {'here' if external else 'of this host'} has given it")
        ]
    elif held["presence"] == "value":
        found = [(document["name"], f"= {json.dumps(held['value'], ensure_ascii=False)}{unit}")]
    else:
        last = held["last"]
        had = "" if last is None else f"; it was {json.dumps(last, ensure_ascii=False)}{unit}"
        found = [(document["name"], f"is {held['presence']}: {held['cause']}{had}")]
    if kind:
        words = [kind["kind"], kind.get("scope", "host"), kind.get("description", "")]
        found.append(("type", ", ".join(word for word in words if word)))
    elif document["waiting"]:
        found.append(("type", f"declared in {document['waiting']}; waits for the broker to let it in"))
    else:
        found.append(("type", "none: declare it in resources.yaml, or under 'types:' in the reporter's YAML"))
    if held:
        found.append(("freshness", _freshness(held)))
    return found


def _freshness(held: Document) -> str:
    run = f", of run {held['run']}" if held["run"] else ""
    age = [f"{human.span(held['age_s'])} old{run}"] if held["age_s"] is not None else []
    stale = [f"stale after {human.span(held['ttl_s'])}"] if held["ttl_s"] else []
    return "; ".join(filter(None, [", ".join(age + stale), f"unchanged for {human.span(held['since_s'])}"]))


def _source(reporter: Document | None) -> list[tuple[str, str]]:
    if reporter is None:
        return []
    script, ran = reporter["script"], reporter["last_script"]
    script = f", script {script}" if script else ""
    if ran not in ("", reporter["script"]):
        script += f", and what is known is of script {ran}"
    found = [("reporter", f"{reporter['name']} ({reporter['state']}) {reporter['path']}{script}")]
    user = f", as {reporter['user']}" if reporter["user"] else ""
    if reporter["running_s"] is not None:
        pid = f", pid {reporter['pid']}" if reporter["pid"] else ""
        found.append(("running", f"for {human.span(reporter['running_s'])}{pid}{user}"))
    if reporter["last_run_s"] is not None:
        took = f", took {human.span(reporter['took_s'])}" if reporter["took_s"] is not None else ""
        how = reporter["exit"] or "no exit"
        found.append(("last run", f"{human.ago(reporter['last_run_s'])}{took}, {how}{user}"))
    if reporter["next_run_s"] is not None:
        found.append(("next run", f"in {human.span(reporter['next_run_s'])}"))
    found += [("trouble", line) for line in reporter["cause"].splitlines()]
    found += [("stderr", line) for line in reporter["stderr"].splitlines()[-5:]]
    notes = [reporter["note"], *reporter["notes"]]
    return found + [("note", line) for note in notes for line in note.splitlines()]


def _others(document: Document) -> list[tuple[str, str]]:
    held = document["held"] or {"rivals": [], "history": []}
    found = []
    for one in document["refused"]:
        place = f", line {one['line']}" if one["line"] else ""
        text = f": {one['text']}" if one["text"] else ""
        found.append(("refused", f"of {one['reporter']}{place}: {one['reason']}{text}"))
    for one in held["rivals"]:
        text = f" ({one['text']})" if one["text"] else ""
        found.append(
            ("rival", f"{one['reporter']} gives it too{text}, {human.ago(one['ago_s'])}, and is not taken")
        )
    for one in held["history"][1:]:
        reading = one["reading"]
        absent = isinstance(reading, dict)
        was = reading.get("presence", "") if absent else json.dumps(reading, ensure_ascii=False)
        found.append(("before", f"{was}, {human.ago(one['ago_s'])}"))
    return found


def _host(host: Document) -> list[tuple[str, str]]:
    found = [("host", host["state"] or "unknown")]
    return found + [("held by", f"{hold['owner']}: {hold['reason']}") for hold in host["holds"]]


def _broker(broker: Document) -> tuple[str, str]:
    if not broker["known"]:
        return ("broker", f"cannot be asked: {broker['trouble']}")
    reading = broker["reading"]
    if reading is None:
        text = "holds nothing"
    elif reading["presence"] == "value":
        text = f"holds {json.dumps(reading['value'], ensure_ascii=False)}"
    else:
        text = f"holds {reading['presence']}: {reading['cause']}"
    differs = f"; differs: {broker['differs']}" if broker["differs"] else ""
    return ("broker", f"{text} (revision {broker['revision']}){differs}")
