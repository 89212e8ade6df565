"""`xce-agent claim list | show | plan | why | release | run`: the claims of this host, by hand."""

import os
from collections.abc import Sequence
from typing import Any

from xce.agent.cli import GOOD, TROUBLE, client, output
from xce.agent.cli.options import Options, UsageError

SUMMARY = "the claims of this host: list, show, plan, why, release, run a command in one"
PROGRAM = "xce-agent claim"
USAGE_TEXT = f"""\
usage: {PROGRAM} list [--json]
       {PROGRAM} show NAME [--json]
       {PROGRAM} plan NAME [--json]
       {PROGRAM} why NAME
       {PROGRAM} release BINDING
       {PROGRAM} run [--wait SECONDS] NAME -- COMMAND ...

Each takes --socket PATH or --config FILE too. NAME is a binding, a claim or a consumer; BINDING is a binding.

list     what is bound on this host, and how far it is
show     all that is known of it, with what was read back from the kernel
plan     its steps, and how far each is
why      one sentence: why it is not ready, or what keeps it from being released
release  take a binding back, whatever the broker says; for repairs (root)
run      wait until it is ready, enter its control groups, set its variables, run the command (root)

exit status: 0 good, 1 not so (of run: that of the command), 2 wrong usage, 3 the agent is not running"""

Document = dict[str, Any]
WAIT_S = 60.0


def run(argv: Sequence[str]) -> int:
    """Carry the command out."""
    own, command = _split(argv)
    if "--help" in own:
        print(USAGE_TEXT)
        return GOOD
    options = Options(own, flags=["--json"], values=["--socket", "--config", "--wait"])
    verb, *names = options.arguments or [""]
    if verb not in _VERBS or len(names) != (verb != "list") or bool(command) != (verb == "run"):
        raise UsageError(f"expected a verb and its NAME\n{USAGE_TEXT}")
    path = client.socket_path(options.get("--socket"), options.get("--config"))
    return _VERBS[verb](path, options, names[0] if names else "", command)


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our own arguments, and the command behind `--`."""
    words = list(argv)
    place = words.index("--") if "--" in words else len(words)
    return words[:place], words[place + 1 :]


def _list(path: str, options: Options, _name: str, _command: list[str]) -> int:
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
    if document["trouble"]:
        output.fail(PROGRAM, document["trouble"])
        return TROUBLE
    return GOOD


def _found(path: str, name: str) -> list[Document]:
    found: list[Document] = client.ask(path, op="claim", name=name)["bindings"]
    return found


def _show(path: str, options: Options, name: str, _command: list[str]) -> int:
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
                print(output.printable(f"{label:<10} {text}"))
        for step in one["steps"]:
            print(
                output.printable(f"{'step':<10} {step['what']}: {step['state']} {_plain(step['evidence'])}")
            )
        print()
    return GOOD


def _plain(evidence: Document) -> str:
    return ", ".join(f"{name}={value}" for name, value in evidence.items())


def _plan(path: str, options: Options, name: str, _command: list[str]) -> int:
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
    wanted = {"planned", "doing"} if one["phase"] == "preparing" else {"done", "doing"}
    return next(
        (str(step["what"]) for step in one["steps"] if step["state"] in wanted), "nothing is left to do"
    )


def _why(path: str, _options: Options, name: str, _command: list[str]) -> int:
    found = _found(path, name)
    for one in found:
        prefix = f"{one['binding']}: " if len(found) > 1 else ""
        print(output.printable(prefix + sentence(one)))
    return GOOD if all(one["ready"] for one in found) else TROUBLE


def _release(path: str, _options: Options, name: str, _command: list[str]) -> int:
    client.ask(path, op="claim-release", name=name)
    print(f"{output.printable(name)} is being released")
    return GOOD


def _run(path: str, options: Options, name: str, command: list[str]) -> int:
    """Become the command, inside. What it inherits beside its variables is ours."""
    seconds = options.number("--wait", WAIT_S)
    found = client.ask(path, within_s=seconds + 5, op="claim-wait", name=name, seconds=seconds)["bindings"]
    if failed := [one for one in found if not one["ready"]]:
        raise client.AgentError(sentence(failed[0]))
    variables = {key: text for one in found for key, text in one["variables"].items()}
    client.ask(path, op="claim-add", name=name, pid=os.getpid())
    try:
        os.execvpe(command[0], command, {**os.environ, **variables})  # noqa: S606 - it is what was asked for
    except OSError as error:
        raise client.AgentError(f"cannot run {command[0]}: {error.strerror}") from error


_VERBS = {"list": _list, "show": _show, "plan": _plan, "why": _why, "release": _release, "run": _run}
