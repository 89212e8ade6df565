"""`xce-agent claim list | show | plan | why | wait | release`: the claims of this host, by hand."""

import json
import sys
from collections.abc import Sequence
from typing import Any

from xce.agent.cli import GOOD, TROUBLE, client, output
from xce.agent.cli.options import Options, UsageError
from xce.model import human

SUMMARY = "the claims of this host: list, show, plan, why, wait, release"
PROGRAM = "xce-agent claim"
USAGE_TEXT = f"""\
usage: {PROGRAM} list [--json]
       {PROGRAM} show NAME [--json]
       {PROGRAM} plan NAME [--json]
       {PROGRAM} plan --file FILE [--instances ID,...] [--consumer NAME]
                            [--user NAME] [--profile NAME] [--json]
       {PROGRAM} why NAME
       {PROGRAM} wait NAME [--wait SECONDS]
       {PROGRAM} release NAME [--wait SECONDS]

Each takes --socket PATH or --config FILE too. NAME is a binding, a claim or a consumer; of release no claim,
since others may use it too. To run a command in a claim: xce-agent run --claim NAME -- COMMAND ...

list     what is bound on this host, and how far it is
show     all that is known of it, with what was read back from the kernel
plan     its steps, and how far each is; with --file, of a binding that is not there: nothing is done.
         FILE holds a claim as of 'xce-broker claim create -f'; - is the standard input
why      one sentence: why it is not ready, or what keeps it from being released
wait     until it is ready (60 s, or as --wait says); at once, if it has failed or is being released
release  take bindings back, whatever the broker says; for repairs (root). With --wait until nothing is left

exit status: 0 good, 1 not so, 2 wrong usage, 3 the agent is not running, 4 (wait) it will not be ready"""

Document = dict[str, Any]
WAIT_S = 60.0


def run(argv: Sequence[str]) -> int:
    """Carry the command out."""
    if "--help" in argv:
        print(USAGE_TEXT)
        return GOOD
    values = ["--socket", "--config", "--wait", "--file", "--instances", "--consumer", "--user", "--profile"]
    options = Options(argv, flags=["--json"], values=values)
    verb, *names = options.arguments or [""]
    nameless = verb == "list" or (verb == "plan" and options.has("--file"))
    if verb not in _VERBS or len(names) != (not nameless):
        raise UsageError(f"expected a verb and its NAME\n{USAGE_TEXT}")
    path = client.socket_path(options.get("--socket"), options.get("--config"))
    return _VERBS[verb](path, options, names[0] if names else "")


def _list(path: str, options: Options, _name: str) -> int:
    document = client.ask(path, op="claims")
    if options.has("--json"):
        output.print_json(document["bindings"])
    elif document["bindings"]:
        headers = ("BINDING", "CLAIM", "CONSUMER", "STATE", "STANDING", "INSTANCES", "CONDITIONS", "NOTE")
        rows = [
            (
                *(one["binding"], one["claim"], one["consumer"]["name"], one["state"], one["standing"]),
                ",".join(one["instances"]),
                ",".join(one["conditions"]),
                one["note"] or one["reason"],
            )
            for one in document["bindings"]
        ]
        output.table(headers, rows)
    elif not document["trouble"]:
        print("no claims on this host", file=sys.stderr)
    if document["trouble"]:
        output.fail(PROGRAM, document["trouble"])
        return TROUBLE
    return GOOD


def _found(path: str, name: str) -> list[Document]:
    found: list[Document] = client.ask(path, op="claim", name=name)["bindings"]
    return found


def _show(path: str, options: Options, name: str) -> int:
    found = _found(path, name)
    if options.has("--json"):
        output.print_json(found)
        return GOOD
    for one in found:
        fields = {
            "binding": one["binding"],
            "claim": one["claim"],
            "consumer": one["consumer"]["name"],
            "state": ", ".join([one["state"], *one["conditions"]]),
            "standing": one["standing"] or "the broker has not said",
            "why": sentence(one),
            "instances": ", ".join(one["instances"]) or "none",
            "ports": ", ".join(f"{name} {', '.join(map(str, some))}" for name, some in one["ports"].items()),
            "groups": ", ".join(one["groups"]),
            "files": ", ".join(one["files"]),
            "evidence": one["evidence"],
        }
        for label, text in fields.items():
            if text:
                print(human.printable(f"{label:<10} {text}"))
        for step in one["steps"]:
            print(human.printable(f"{'step':<10} {step['what']}: {step['state']} {_plain(step['evidence'])}"))
        print()
    return GOOD


def _plain(evidence: Document) -> str:
    return ", ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for name, value in evidence.items()
    )


def _plan(path: str, options: Options, name: str) -> int:
    if options.has("--file"):
        return _dry_run(path, options)
    found = _found(path, name)
    if options.has("--json"):
        output.print_json([{"binding": one["binding"], "steps": one["steps"]} for one in found])
        return GOOD
    rows = [
        (one["binding"], str(number), step["state"], step["what"])
        for one in found
        for number, step in enumerate(one["steps"], 1)
    ]
    output.table(("BINDING", "STEP", "STATE", "WHAT"), rows)
    return GOOD


def _dry_run(path: str, options: Options) -> int:
    """What a binding would do here that is not there."""
    request: dict[str, Any] = {
        "claim": _claim_of(options.get("--file"), options.get("--profile")),
        "consumer": {"name": options.get("--consumer", "dry-run"), "user": options.get("--user")},
        "instances": [one for one in options.get("--instances").split(",") if one],
    }
    answer = client.ask(path, op="plan", **request)
    if options.has("--json"):
        output.print_json(answer)
    else:
        output.table(("STEP", "WHAT"), [(str(n), what) for n, what in enumerate(answer["steps"], 1)])
        for one in answer["against"]:
            output.fail(PROGRAM, f"now in its way: {one}")
    return TROUBLE if answer["against"] else GOOD


def _claim_of(file: str, profile: str) -> object:
    """The claim in a file, checked as the broker does it; by another profile, if one is named."""
    from pathlib import Path  # noqa: PLC0415 - and YAML: only for a dry run

    import msgspec  # noqa: PLC0415

    from xce.model import document  # noqa: PLC0415
    from xce.model.claim import Claim  # noqa: PLC0415

    read = sys.stdin.buffer.read if file == "-" else Path(file).read_bytes
    claim = document.given(read, file, Claim, UsageError)
    ask = msgspec.structs.replace(claim.ask, profile=profile or claim.ask.profile)
    return msgspec.to_builtins(msgspec.structs.replace(claim, ask=ask))


def sentence(one: Document) -> str:
    """Why a binding is where it is."""
    if one["note"]:
        return str(one["note"])
    if one["reason"]:
        return str(one["reason"])
    if one["ready"]:
        return "it is ready"
    if one["state"] == "ready":
        return f"it is ready here, and waits for the rest of gang {one['gang']}"
    return f"it is {one['phase']}: {_undone(one)}"


def _undone(one: Document) -> str:
    """The step that is at work, or the next one."""
    steps, over = one["steps"], "done"
    if one["phase"] != "preparing":  # the last is taken back first
        steps, over = reversed(steps), "undone"
    return next((str(step["what"]) for step in steps if step["state"] != over), "nothing is left to do")


def _why(path: str, _options: Options, name: str) -> int:
    found = _found(path, name)
    for one in found:
        prefix = f"{one['binding']}: " if len(found) > 1 else ""
        print(human.printable(prefix + sentence(one)))
    return GOOD if all(one["ready"] for one in found) else TROUBLE


def _wait(path: str, options: Options, name: str) -> int:
    seconds = options.number("--wait", WAIT_S)
    found = client.ask(path, within_s=seconds + 5, op="wait", name=name, seconds=seconds)["bindings"]
    print(human.printable(f"{', '.join(one['binding'] for one in found)} ready"))
    return GOOD


def _release(path: str, options: Options, name: str) -> int:
    seconds = options.number("--wait", WAIT_S) if options.has("--wait") else 0
    answer = client.ask(path, within_s=seconds + 5, op="unpublish", name=name, seconds=seconds)
    words = "is being released" if answer.get("releasing") else "is released"
    print(f"{human.printable(name)} {words}")
    return GOOD


_VERBS = {"list": _list, "show": _show, "plan": _plan, "why": _why, "wait": _wait, "release": _release}
