"""What a claim, an ask and a consumer may say: '' or the words for what is wrong, with the field.

Pure. The broker refuses by it what an order brings, and `xce-broker claim create` a file, with the place.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from xce.model.claim import (
    LIST,
    PORTS,
    TEXT,
    Ask,
    Claim,
    ClaimForm,
    Consumer,
    InstanceAsk,
    MountAsk,
    PortsAsk,
    Reclaim,
    SharedAsk,
)
from xce.model.supply import name_problem

ITEMS = 64
"""Most mounts, ranges of ports and shared volumes of one claim."""
ENVIRONMENT_CHARS = 32_768

T = TypeVar("T")


def text_problem(text: str, *, most: int = TEXT) -> str:
    """'' if a text from outside can be a name in a claim, otherwise what is wrong with it."""
    if not text or len(text) > most:
        return f"must have 1 to {most} characters"
    if not text.isprintable() or text != text.strip():
        return "printable characters only, without blanks at its ends"
    return ""


def claim_problem(claim: Claim) -> str:
    """'' if a claim makes sense, otherwise what is wrong, with the field."""
    if claim.id and (problem := name_problem(claim.id)):
        return f"id {claim.id[:TEXT]!r}: {problem}"
    for field, text in (("owner", claim.owner), ("project", claim.project), ("provider", claim.provider)):
        if text and (problem := text_problem(text)):
            return f"{field} {text[:TEXT]!r}: {problem}"
    if claim.retention_s is not None and not 0 <= claim.retention_s <= 3650 * 86400:
        return "retention_s: must be 0 to 3650 days"
    if claim.parameters and _characters(claim.parameters) > ENVIRONMENT_CHARS:
        return f"parameters: more than {ENVIRONMENT_CHARS} characters"
    if claim.form is ClaimForm.TEMPLATE and claim.reclaim is Reclaim.DELETE:
        return "reclaim: only a standalone claim has data to delete; a template's end with its job"
    return ask_problem(claim.ask)


def ask_problem(ask: Ask) -> str:
    """'' if what is asked for makes sense, otherwise what is wrong, with the field."""
    problem = (  # most claims ask for a few of these
        (ask.instances and _list_problem("instances", ask.instances, _instances_problem))
        or (ask.mounts and _list_problem("mounts", ask.mounts, _mount_problem))
        or (ask.ports and _list_problem("ports", ask.ports, _ports_problem))
        or (ask.shared and _list_problem("shared", ask.shared, _shared_problem))
        or _repeated("mounts", ask.mounts)
        or _repeated("ports", ask.ports)
        or (ask.environment and _environment_problem(ask.environment))
    )
    if problem:
        return problem
    for field, name in (("profile", ask.profile), ("scratch", ask.scratch)):
        if name and (problem := name_problem(name)):
            return f"ask.{field}: {name[:TEXT]!r} {problem}"
    return ""


def _list_problem(field: str, entries: Sequence[T], problem_of: Callable[[T], str]) -> str:
    if len(entries) > ITEMS:
        return f"ask.{field}: at most {ITEMS}"
    for entry in entries:
        if problem := problem_of(entry):
            return f"ask.{field}[{entries.index(entry)}].{problem}"
    return ""


def _repeated(field: str, entries: Sequence[MountAsk | PortsAsk]) -> str:
    if len(entries) < 2 or len({one.name for one in entries}) == len(entries):
        return ""
    return f"ask.{field}: a name occurs twice"


def _instances_problem(wanted: InstanceAsk) -> str:
    if problem := text_problem(wanted.kind):
        return f"kind: {problem}"
    if not 1 <= wanted.count <= LIST or len(wanted.ids) > LIST:
        return f"count: must be 1 to {LIST}"
    if wanted.ids and (any(map(text_problem, wanted.ids)) or len(set(wanted.ids)) != len(wanted.ids)):
        return "ids: must be different names of instances"
    return ""


def _mount_problem(mount: MountAsk) -> str:
    if problem := name_problem(mount.name):
        return f"name {mount.name[:TEXT]!r}: {problem}"
    if problem := name_problem(mount.source):
        return f"source {mount.source[:TEXT]!r}: {problem}"
    if not mount.subdirectory:
        return ""
    parts = mount.subdirectory.split("/")
    if len(mount.subdirectory) > 4096 or any(
        part in {"", ".", ".."} or not part.isprintable() for part in parts
    ):
        return "subdirectory: must be names with '/' between them"
    return ""


def _ports_problem(ports: PortsAsk) -> str:
    if problem := name_problem(ports.name):
        return f"name {ports.name[:TEXT]!r}: {problem}"
    if len(ports.exact) > PORTS or len(set(ports.exact)) != len(ports.exact):
        return f"exact: at most {PORTS}, all different"
    if any(not 1 <= port <= 65535 for port in ports.exact):
        return "exact: a port is 1 to 65535"
    if ports.exact:
        return ""
    if not 1 <= ports.count <= PORTS:
        return f"count: must be 1 to {PORTS}"
    if (ports.low, ports.high) != (0, 0) and not 1 <= ports.low <= ports.high <= 65535:
        return "low, high: must be 1 to 65535, the lower first"
    if ports.low and ports.high - ports.low + 1 < ports.count:
        return f"count: {ports.count} ports do not fit in {ports.low} to {ports.high}"
    return ""


def _shared_problem(shared: SharedAsk) -> str:
    if problem := name_problem(shared.volume):
        return f"volume {shared.volume[:TEXT]!r}: {problem}"
    if not 1 <= len(shared.parts) <= ITEMS or len(set(shared.parts)) != len(shared.parts):
        return f"parts: must be 1 to {ITEMS} different names"
    for part in shared.parts:
        if problem := name_problem(part):
            return f"parts: {part[:TEXT]!r} {problem}"
    return ""


def _environment_problem(environment: dict[str, str]) -> str:
    for name, text in environment.items():
        good = name.isascii() and name.replace("_", "a").isalnum() and not name[0].isdigit()
        if not good or len(name) > TEXT:
            return f"ask.environment: {name[:TEXT]!r} cannot name a variable"
        if "\0" in text or "\n" in text:
            return f"ask.environment.{name}: may not have a zero byte or a line end"
    if _characters(environment) > ENVIRONMENT_CHARS:
        return f"ask.environment: more than {ENVIRONMENT_CHARS} characters"
    return ""


def _characters(texts: dict[str, str]) -> int:
    """Of all names and texts."""
    return sum(map(len, texts)) + sum(map(len, texts.values()))


def consumer_problem(consumer: Consumer) -> str:
    """'' if a consumer can be one, otherwise what is wrong, with the field."""
    if problem := text_problem(consumer.name):
        return f"name {consumer.name[:TEXT]!r}: {problem}"
    for field, text in (("user", consumer.user), ("job", consumer.job), ("index", consumer.index)):
        if text and (problem := text_problem(text)):
            return f"{field} {text[:TEXT]!r}: {problem}"
    return ""
