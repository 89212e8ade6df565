"""`xce-agent inventory`: the GPUs, slices, NICs and ports of this node, and whether they may be used."""

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from xce.agent.cli import GOOD, TROUBLE, inventory_clear, machine, output
from xce.agent.cli.options import Options, UsageError
from xce.agent.picture.plan import Plan, shown
from xce.agent.probe import attributes
from xce.model import human
from xce.model.instance import Health, Instance, ill

SUMMARY = "the node's GPUs, slices, NICs and ports, and whether they may be used"
PROGRAM = "xce-agent inventory"
HELP = """
NAME is an instance's id, the beginning of one, a PCI address, or a name as in the table (GPU0, mlx5_0/1).
Names and numbers are for people; only ids last."""
USAGE_TEXT = f"""\
usage: {PROGRAM} [--json] [--kind KIND[,KIND]] [options] [NAME]
       {PROGRAM} --record FILE [--anonymous] [options]
       {PROGRAM} clear ID ... --reason TEXT    see 'clear --help'

  --json         for programs
  --kind KIND    only these: gpu, mig, nic, ...
  --record FILE  write what the machine shows into a file that --from reads
  --anonymous    without serial numbers, hardware addresses and GUIDs
{machine.HELP}

exit status: 0 all is well, 1 a device is lost, ill or unknown, or not everything could
             be seen, 2 wrong usage, 3 the agent is not running"""
WIDTH = 80
ID_CHARACTERS, LEAST_PRODUCT = (12, 8), 13
SOME = 8
"""Names before `and N more`."""


def run(argv: Sequence[str]) -> int:
    """Show it; the exit code tells good from bad."""
    if argv and argv[0] == "clear":
        return inventory_clear.run(argv[1:])
    if "--help" in argv:
        print(f"{USAGE_TEXT}\n{HELP}")
        return GOOD
    options = Options(
        argv, flags=[*machine.FLAGS, "--anonymous"], values=[*machine.VALUES, "--kind", "--record"]
    )
    if len(options.arguments) > 1:
        raise UsageError(f"expected one NAME\n{USAGE_TEXT}")
    if options.has("--record"):
        return _record(options)
    found = machine.seen(options)
    if options.arguments:
        return _one(found, options.arguments[0], as_json=options.has("--json"))
    return _all(found, options.get("--kind"), as_json=options.has("--json"))


def _record(options: Options) -> int:
    from xce.agent.probe import machinefile  # noqa: PLC0415

    file = options.get("--record")
    text = machinefile.encode(machine.read(options), anonymous=options.has("--anonymous"))
    try:
        with Path(file).open("xb") as out:
            out.write(text)
    except FileExistsError:
        raise UsageError(f"cannot write {file}: it is there already") from None
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}") from error
    print(f"wrote {file}; look at it with {PROGRAM} --from {file}")
    return GOOD


# ---------------------------------------------------------------------------------------- all of them


def _all(found: machine.Seen, kinds: str, *, as_json: bool) -> int:
    wanted = set(kinds.split(",")) - {""}
    listed = [one for one in found.instances if not wanted or one.kind in wanted]
    if wanted and not listed:
        there = ", ".join(sorted({one.kind for one in found.instances})) or "nothing"
        output.fail(PROGRAM, f"no instance of the kind {kinds}; there is: {there}")
    if as_json:
        output.print_json(
            {
                "machine": found.title,
                "generation": found.generation,
                "complete": found.complete,
                "trouble": found.trouble,
                "instances": msgspec.to_builtins(listed),
            }
        )
    else:
        for line in lines(found, listed):
            print(line)
    bad = any(ill(one) for one in listed) or not found.complete
    return TROUBLE if bad else GOOD


def lines(found: machine.Seen, listed: list[Instance]) -> Iterator[str]:
    """The table, and below it why what is not available is not."""
    names = names_of(found.instances)
    if listed:
        yield from _table(listed, names)
    elif found.complete:
        yield "no GPU, accelerator or NIC was found"
    told = [*_reasons(listed, names)]
    yield from ["", *told] if told else []
    if not found.complete:
        yield ""
        yield from _wrapped("not complete:", found.trouble or "the reason is not known")
    for note in found.notes:
        yield from _wrapped("topology file:", note)
    if any(map(ill, listed)):
        yield ""
        yield f"what was seen of one, and what ends it: {PROGRAM} NAME"


def _table(listed: Sequence[Instance], names: dict[str, str]) -> list[str]:
    """Within the width: first the product is cut, then ids are shorter."""
    short, headers = _short_addresses(listed), ["NAME", "KIND", "PRODUCT", "HEALTH", "NUMA", "PCI", "ID"]
    for least in ID_CHARACTERS:
        ids = _short_ids(listed, least)
        rows = [
            [
                _label(one, names[one.id]),
                one.kind,
                _product(one),
                one.health.value,
                _text(one, "numa"),
                _text(one, "pci").removeprefix(short),
                ids[one.id],
            ]
            for one in listed
        ]
        rows = [[human.printable(cell) for cell in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
        room = WIDTH - sum(widths) - 2 * (len(widths) - 1) + widths[2]
        if room >= min(widths[2], LEAST_PRODUCT):
            break
    room = max(room, len("PRODUCT"))
    return human.table(headers, [[*row[:2], _cut(row[2], room), *row[3:]] for row in rows])


def _reasons(listed: Sequence[Instance], names: dict[str, str]) -> Iterator[str]:
    """Why what is not available is not, and what a person should know: each once, with whom it is about."""
    by_id = {one.id: one for one in listed}
    reasons: dict[str, list[str]] = {}
    for one in listed:
        whole = by_id.get(one.parent)
        if one.health is not Health.AVAILABLE and (whole is None or whole.reason != one.reason):
            since = f" (since {one.since})" if one.since else ""
            reasons.setdefault(f"{one.health}: {one.reason or 'no reason is known'}{since}", []).append(
                one.id
            )
        for note in one.notes:
            reasons.setdefault(note, []).append(one.id)
    for told, who in reasons.items():
        more = f" and {len(who) - SOME} more" if len(who) > SOME else ""
        yield from _wrapped(f"{', '.join(names[one] for one in who[:SOME])}{more}:", told)


def names_of(found: Sequence[Instance]) -> dict[str, str]:
    """What people call an instance, by id: `GPU0`, `mlx5_0`, and its parts `GPU0/3g.20gb`, `mlx5_0/1`."""
    names = {device.id: device.name for device in Plan(found).devices}
    for one in found:
        if one.id not in names:
            above = f"{names[one.parent]}/" if one.parent in names else ""
            names[one.id] = above + (_part(one) or one.id.rpartition(":")[2])
    return names


def _label(one: Instance, name: str) -> str:
    """A name in the table: parts are set in."""
    if not one.parent:
        return name
    return f"  {'port ' * (one.kind == 'nic-port')}{name.rpartition('/')[2]}"


def _part(one: Instance) -> str:
    """A part by what tells it from its like."""
    render = _text(one, "render")
    return _text(one, "profile") or (f"renderD{render}" if render else _text(one, "port"))


def _product(one: Instance) -> str:
    if one.kind == "nic-port":
        rate = _text(one, "gbps")
        words = (f"{rate} Gb/s" if rate else "", _text(one, "fabric_kind"), _text(one, "state"))
        return " ".join(word for word in words if word and word != "unknown")
    named = (
        _text(one, "product")
        or _text(one, "architecture")
        or _text(one, "pci_id")
        or _text(one, "fabric_kind")
    )
    return named.removeprefix("NVIDIA ")


def _text(one: Instance, name: str) -> str:
    value = one.attributes.get(name)
    return "" if value is None else shown(value)


def _short_addresses(listed: Sequence[Instance]) -> str:
    """What all addresses begin with and none needs: the domain, if there is but one."""
    addresses = [_text(one, "pci") for one in listed if "pci" in one.attributes]
    return "0000:" if all(address.startswith("0000:") for address in addresses) else ""


def _short_ids(listed: Sequence[Instance], least: int) -> dict[str, str]:
    """Ids as short as they can be told apart; '' where the address says it already."""
    found = {}
    for one in listed:
        if one.id == f"pci:{_text(one, 'pci')}" or one.kind == "nic-port":
            found[one.id] = ""
        elif one.parent and one.id.startswith(f"{one.parent}/"):
            found[one.id] = "../" + one.id.rpartition("/")[2]
        else:
            size = least
            others = [other.id for other in listed if one.id not in {other.id, other.parent}]
            while size < len(one.id) and any(other.startswith(one.id[:size]) for other in others):
                size += 1
            found[one.id] = one.id[:size] if size <= 12 else f"{one.id[:6]}..{one.id[-4:]}"
    return found


def _cut(words: str, room: int) -> str:
    return words if len(words) <= room else words[: room - 2].rstrip() + ".."


def _wrapped(label: str, words: str) -> list[str]:
    """A label and words within the width, further lines set in."""
    return textwrap.wrap(
        human.printable(f"{label} {words}"), WIDTH, subsequent_indent="    ", break_on_hyphens=False
    )


# ------------------------------------------------------------------------------------------ one of them


def _one(found: machine.Seen, name: str, *, as_json: bool) -> int:
    one = find(found.instances, name)
    if as_json:
        output.print_json(msgspec.to_builtins(one))
    else:
        for label, words in details(one, found.instances):
            folded = textwrap.wrap(
                human.printable(words), WIDTH - 24, break_on_hyphens=False, break_long_words=False
            )
            for at, line in enumerate(folded):
                print(f"{'' if at else label:<23} {line}")
    return TROUBLE if ill(one) else GOOD


def find(found: Sequence[Instance], name: str) -> Instance:
    """By id, name, PCI address, or the only beginning of an id. Raises `UsageError`."""
    names = names_of(found)
    exact = [one for one in found if one.id == name] or [
        one for one in found if name in (names[one.id], one.attributes.get("pci"))
    ]
    matching = exact or [one for one in found if machine.abbreviates(name, one.id)]
    if len(matching) == 1:
        return matching[0]
    if not matching:
        raise UsageError(f"no instance {name!r}; see {PROGRAM}")
    some = ", ".join(one.id for one in matching[:4])
    raise UsageError(f"{name!r} is not one instance but {len(matching)}: {some}, ...; give the whole id")


def details(one: Instance, found: Sequence[Instance]) -> Iterator[tuple[str, str]]:
    """Everything about one, by label."""
    names = names_of(found)
    plain: dict[str, Any] = {
        "id": one.id,
        "name": names[one.id],
        "kind": one.kind,
        "part of": f"{names.get(one.parent, '')} ({one.parent})" if one.parent else "",
        "health": one.health.value,
        "reason": one.reason,
        "evidence": one.evidence,
        "since": one.since,
        "recovery": one.recovery,
    }
    yield from ((label, words) for label, words in plain.items() if words)
    yield from (("note", note) for note in one.notes)
    for label, counters in (("capacity", one.capacity), ("consumes", one.consumes)):
        if counters:
            yield label, ", ".join(f"{name} {number}" for name, number in counters.items())
    for part in found:
        if part.parent == one.id:
            yield "part", f"{names[part.id]} {part.id} {part.health}"
    order = {row.name: at for at, row in enumerate(attributes.TABLE)}
    for name in sorted(one.attributes, key=lambda name: (order.get(name, len(order)), name)):
        row = attributes.BY_NAME.get(name)
        unit = f" {row.unit}" if row and row.unit else ""
        yield name, shown(one.attributes[name]) + unit
