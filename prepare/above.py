"""Device filters of others above a consumer's control group: what they deny, it cannot have.

All programs from the group up to the root must allow an access, and one that was not made to be joined by
others does not hold any more where one is below it. So they are looked at before a binding is ready, and
whenever they have changed: a process in the group asks for each device file, without opening it.
"""

import os
from collections.abc import Iterable

import msgspec

from xce.linux import bpf
from xce.prepare.devices import File, place_of
from xce.prepare.handler import ERRAND_S, At, StepFailed, Wait


class _Progress(msgspec.Struct):
    """Kept while a filter is looked after."""

    denied: tuple[list[str], list[list[str]]] | None = None
    """The programs and devices of which it was found out last that they deny some."""
    why: str = ""


def ids(group: int) -> set[int]:
    """Programs that are asked for a group and do not hang on it."""
    return set(bpf.query(group, effective=True).ids) - set(bpf.query(group).ids)


def words(numbers: Iterable[int]) -> list[str]:
    """The programs by name and by the hash of their rules, which stay the same where one is put on anew."""
    return sorted(f"{program.name} {program.tag}" for program in bpf.described(numbers))


def refuse_lifted(lifted: Iterable[int], path: str) -> None:
    """Nobody else's filter ends by ours. Raises `StepFailed`."""
    for number in lifted:
        raise StepFailed(
            f"device isolation unavailable: {_named(number, path)} would not hold below it any more"
        )


def refuse_denied(numbers: set[int], path: str, files: Iterable[File], at: At) -> Wait | None:
    """What is given to the consumer it can open, whatever is above. Raises `StepFailed`."""
    devices = [[place_of(file.path, at.node.dev), file.access] for file in files]
    if not numbers or not devices:
        return None
    held, asked = at.kept(_Progress), (words(numbers), devices)
    if held.denied == asked:  # nothing is different since
        raise StepFailed(held.why)
    arguments = {"group": path, "devices": devices}
    answer = at.node.errands(f"{at.binding}/{at.number}.above", "permitted", arguments, True)
    if answer is None:
        return Wait(ERRAND_S, f"looking whether filters above {path} let its devices through")
    if answer["denied"]:
        who = " or ".join(_named(number, path) for number in sorted(numbers))
        held.denied, held.why = asked, f"{who} denies the consumer {', '.join(answer['denied'])}"
        raise StepFailed(held.why)
    return None


def _named(number: int, path: str) -> str:
    """A program and where it hangs."""
    name = next((program.name for program in bpf.described([number])), "that is gone")
    while (path := os.path.dirname(path)) != "/":
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            break
        try:
            if number in bpf.query(fd).ids:
                return f"program '{name}' (id {number}) on {path}"
        except OSError:
            break  # no control group any more
        finally:
            os.close(fd)
    return f"program '{name}' (id {number})"
