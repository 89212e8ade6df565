"""`xce-agent topology`: who is close to whom, as a matrix, a tree, JSON, or a picture."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xce.agent.cli import GOOD, machine, output
from xce.agent.cli.options import Options, UsageError
from xce.agent.picture import matrix, svg, tree
from xce.agent.picture.plan import Branch, Plan, shown
from xce.model import human

SUMMARY = "which GPUs and NICs are close to each other: matrix, tree, picture"
PROGRAM = "xce-agent topology"
HELP = """
The matrix has the words of `nvidia-smi topo -m`, for GPUs of all vendors. A level that the platform does not
tell is `?`, and not the farthest one."""
USAGE_TEXT = f"""\
usage: {PROGRAM} [--matrix | --tree | --json | --svg FILE] [options]

  --matrix       each pair in a word (default)
  --tree         NUMA nodes, host bridges, switches, devices
  --json         devices, places and pairs, for programs
  --svg FILE     a picture; - for standard output
{machine.HELP}

exit status: 0 shown, 1 the agent refused, 2 wrong usage, 3 the agent is not running"""


def run(argv: Sequence[str]) -> int:
    """Show it."""
    if "--help" in argv:
        print(f"{USAGE_TEXT}\n{HELP}")
        return GOOD
    options = Options(argv, flags=[*machine.FLAGS, "--matrix", "--tree"], values=[*machine.VALUES, "--svg"])
    forms = [name for name in ("--matrix", "--tree", "--json", "--svg") if options.has(name)]
    if options.arguments or len(forms) > 1:
        wrong = options.arguments[0] if options.arguments else " and ".join(forms)
        raise UsageError(f"cannot understand {wrong!r}\n{USAGE_TEXT}")
    found = machine.seen(options)
    _show(found, forms[0] if forms else "--matrix", options.get("--svg"))
    return GOOD


def _show(found: machine.Seen, form: str, file: str) -> None:
    plan = Plan(found.instances)
    if form == "--json":
        output.print_json(document(plan, found))
    elif form == "--svg":
        _write(file, svg.svg(plan, found.title))
    elif form == "--tree":
        marks = tree.UNICODE if "utf" in (sys.stdout.encoding or "").lower() else tree.ASCII
        _print(tree.tree(plan, marks), found)
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        _print(matrix.matrix(plan, width=width), found)


def _print(lines: list[str], found: machine.Seen) -> None:
    for line in lines or ["no GPU, accelerator or NIC was found"]:
        print(human.printable(line))
    for note in (*found.notes, *([] if found.complete else [f"not complete: {found.trouble}"])):
        output.fail(PROGRAM, note)


def _write(file: str, text: str) -> None:
    if file == "-":
        sys.stdout.write(text)
        return
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}") from error
    print(f"wrote {file}")


def document(plan: Plan, found: machine.Seen) -> dict[str, Any]:
    """All of it for programs. A level is unknown where the platform does not tell."""
    devices = [*plan.compute, *plan.nics]
    pairs = []
    for at, a in enumerate(devices):
        for b in devices[at + 1 :]:
            pair = plan.pair(a, b)
            pairs.append(
                {
                    "a": a.id,
                    "b": b.id,
                    "word": pair.word,
                    "level": pair.level,
                    "common": pair.common,
                    "link": pair.link,
                    "links": pair.links,
                }
            )
    return {
        "machine": found.title,
        "complete": found.complete,
        "devices": [
            {
                "name": one.name,
                "id": one.id,
                "kind": one.kind,
                "product": shown(one.instance.attributes.get("product", "")),
                "health": one.instance.health.value,
                "pci": one.text("pci") or None,
                "numa": one.number("numa"),
                "cpus": one.text("cpus") or None,
                "rails": list(one.texts("rails")),
                "nearest_nics": list(one.texts("nearest_nics")),
                "parts": [part.id for part in one.parts],
            }
            for one in devices
        ],
        "pairs": pairs,
        "tree": [_branch(numa) for numa in plan.numas],
        "notes": list(found.notes),
    }


def _branch(branch: Branch) -> dict[str, Any]:
    return {
        "kind": branch.kind,
        "names": list(branch.names),
        "devices": [device.id for device in branch.devices],
        "branches": [_branch(below) for below in branch.branches],
    }
