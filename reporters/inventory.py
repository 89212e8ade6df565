"""The `instances` of a frame: each unit checked alone, and whether the set that is left can be trusted whole.

Pure. A unit that is refused makes the inventory incomplete: what is missing from an incomplete inventory is
not known to be gone.
"""

import re

import msgspec

from xce.model.instance import INSTANCES, Health, Instance, Inventory
from xce.reporters.frame import Refusal, escape, repeated_names, shown

TEXT_BYTES = 1024
_KEYS = {field.encode_name for field in msgspec.structs.fields(Instance)}


class Found(msgspec.Struct, frozen=True):
    """The units of one frame. The agent gives them a generation when they differ from the ones before."""

    instances: list[Instance]
    complete: bool

    def numbered(self, reporter: str, generation: int) -> Inventory:
        """As an inventory."""
        return Inventory(
            reporter=reporter, generation=generation, complete=self.complete, instances=self.instances
        )


def check(raw: list[object], *, complete: bool, line: int = 0) -> tuple[Found | None, list[Refusal]]:
    """The units that are sound, and the others as refusals. None: too many, nothing is taken."""
    if len(raw) > INSTANCES:
        return None, [
            Refusal(name="instances", reason=f"{len(raw)} of them, more than {INSTANCES}", line=line)
        ]
    sound: dict[str, Instance] = {}
    twice: set[str] = set()
    refusals = []
    for item in raw:
        unit = _instance(item)
        if isinstance(unit, str):
            refusals.append(Refusal(name=_label(item), reason=unit, text=shown(item), line=line))
        elif unit.id in sound:
            twice.add(unit.id)
        else:
            sound[unit.id] = unit
    for name in twice:
        sound.pop(name, None)
        refusals.append(Refusal(name=f"instance {name}", reason="its id occurs twice", line=line))
    refusals += _drop_overdrawn(sound, line)
    refusals += _drop_orphans(sound, line)
    return Found(list(sound.values()), complete and not refusals), refusals


def strange_keys(raw: list[object]) -> list[str]:
    """Keys in the units that mean nothing: a slip of the pen costs what it was to say, and no more."""
    return sorted({key for item in raw if isinstance(item, dict) for key in item} - _KEYS)


def _drop_overdrawn(sound: dict[str, Instance], line: int) -> list[Refusal]:
    """Takes out units that take from their parent what it does not have: no choice could ever be right."""
    refusals = []
    for unit in list(sound.values()):
        parent = sound.get(unit.parent)
        held = parent.capacity if parent else unit.consumes  # without a parent it goes as an orphan
        for name, amount in unit.consumes.items():
            if amount > held.get(name, 0):
                why = f"it takes {amount} {name} from {unit.parent}, which has {held.get(name, 0)}"
                refusals.append(Refusal(name=f"instance {unit.id}", reason=why, line=line))
                sound.pop(unit.id, None)
                break
    return refusals


def _drop_orphans(sound: dict[str, Instance], line: int) -> list[Refusal]:
    """Takes out units that no line of parents leads to a whole unit from: orphans, theirs, and circles."""
    children: dict[str, list[Instance]] = {}
    for unit in sound.values():
        children.setdefault(unit.parent, []).append(unit)
    whole = children.get("", [])
    for unit in whole:
        whole += children.get(unit.id, ())
    kept = {unit.id for unit in whole}
    lost = [unit for unit in sound.values() if unit.id not in kept]
    refusals = []
    for unit in lost:
        why = "is not taken, or is a part of it" if unit.parent in sound else "is not in the inventory"
        refusals.append(
            Refusal(name=f"instance {unit.id}", reason=f"its parent {unit.parent} {why}", line=line)
        )
    for unit in lost:
        del sound[unit.id]
    return refusals


def _label(item: object) -> str:
    name = item.get("id") if isinstance(item, dict) else None
    return f"instance {escape(name, 80)}" if isinstance(name, str) else "instance"


def _instance(item: object) -> Instance | str:
    """The unit, or what is wrong with it."""
    if not isinstance(item, dict):
        return "an instance is an object"
    if repeated := repeated_names(item):
        return f"'{escape(repeated[0], 63)}' occurs twice in it"
    health = item.get("health", Health.AVAILABLE)
    if isinstance(health, str) and health not in set(Health):
        return f"'health': expected one of {', '.join(Health)}, got {shown(health)}"
    try:
        unit = msgspec.convert(item, Instance)
    except msgspec.ValidationError as error:
        return in_words(error)
    except UnicodeEncodeError:  # a lone surrogate in one of its keys
        return _INVISIBLE
    return _text_problem(unit) or unit


def _text_problem(unit: Instance) -> str:
    texts = [unit.kind, unit.parent, unit.reason, unit.evidence, unit.since, unit.recovery, *unit.notes]
    texts += [*unit.attributes, *unit.capacity, *unit.consumes]
    for value in unit.attributes.values():
        texts += value if isinstance(value, list) else [value] if isinstance(value, str) else []
    for text in texts:
        if len(text.encode(errors="surrogatepass")) > TEXT_BYTES:
            return f"a text in it is longer than {TEXT_BYTES} bytes"
        if not text.isprintable():
            return _INVISIBLE
    return ""


_INVISIBLE = "a text in it holds a control or invisible character"
_NAMES = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "null": "null",
    "array": "a list",
    "object": "an object",
    "Unfit": "a number that cannot be kept",
}


_QUOTED = re.compile("`([^`]*)`")


def _word(name: str) -> str:
    return _NAMES.get(name, f"'{name}'")


def in_words(error: msgspec.ValidationError) -> str:
    """msgspec's message in the words of this project: `'capacity': expected an integer, got a string`."""
    text, _, place = str(error).partition(" - at `$")
    text = _QUOTED.sub(lambda quoted: " or ".join(map(_word, quoted[1].split(" | "))), text)
    where = place.rstrip("`").lstrip(".")
    return f"'{where}': {text[:1].lower()}{text[1:]}" if where else text[:1].lower() + text[1:]
