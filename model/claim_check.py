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
    name_variable,
)
from xce.model.supply import name_problem

ITEMS = 64
"""Most mounts, ranges of ports and shared volumes of one claim."""
ENVIRONMENT_BYTES = 32_768
"""Of all names and values: the kernel takes no longer ones than 128 KiB, and no more than some."""
ENV_FILE, CLAIM_FILE = "env", "claim.json"
WRITTEN = frozenset({ENV_FILE, CLAIM_FILE})
"""Files that an agent writes beside the mounts of a binding."""

T = TypeVar("T")


def text_problem(text: str, *, most: int = TEXT) -> str:
    """'' if a text from outside can be a name in a claim, otherwise what is wrong with it."""
    if 0 < len(text) <= most:
        good = text.isprintable() and text == text.strip()
        return "" if good else "printable characters only, without blanks at its ends"
    return f"must have 1 to {most} characters"


def claim_problem(claim: Claim) -> str:
    """'' if a claim makes sense, otherwise what is wrong, with the field."""
    if claim.id and (problem := name_problem(claim.id)):
        return f"id {claim.id[:TEXT]!r}: {problem}"
    for field in ("owner", "project", "provider"):
        if (text := getattr(claim, field)) and (problem := text_problem(text)):
            return f"{field} {text[:TEXT]!r}: {problem}"
    if claim.retention_s is not None and not 0 <= claim.retention_s <= 3650 * 86400:
        return "retention_s: must be 0 to 3650 days"
    given = claim.parameters
    if given and sum(len(f"{name}{text}".encode()) for name, text in given.items()) > ENVIRONMENT_BYTES:
        return f"parameters: more than {ENVIRONMENT_BYTES} bytes"
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
        or ((ask.mounts or ask.shared or ask.ports) and _variables_problem(ask))
        or (ask.environment and _environment_problem(ask.environment))
        or (ask.profile and _name_problem("profile", ask.profile))
        or (ask.scratch and _name_problem("scratch", ask.scratch))
    )
    return problem or ""


def _list_problem(field: str, entries: Sequence[T], problem_of: Callable[[T], str]) -> str:
    if len(entries) > ITEMS:
        return f"ask.{field}: at most {ITEMS}"
    for entry in entries:
        if problem := problem_of(entry):
            return f"ask.{field}[{entries.index(entry)}].{problem}"
    return ""


def _variables_problem(ask: Ask) -> str:
    """Each thing has a variable of its own, and a place: of two with the same a job would see one."""
    named = [("mounts", "XCE_DIR_", one.name) for one in ask.mounts]
    if ask.shared:
        named += [("shared", "XCE_DIR_", part) for one in ask.shared for part in one.parts]
    if ask.ports:
        named += [("ports", "XCE_PORTS_", one.name) for one in ask.ports]
    seen = {"XCE_DIR_SCRATCH": ("scratch", "scratch")} if ask.scratch_bytes else {}
    for field, prefix, name in named:
        variable = name_variable(prefix, name)
        if variable in seen:
            before, other = seen[variable]
            where = f"ask.{field}: " if field == before else f"ask.{before}, ask.{field}: "
            return f"{where}{other!r} and {name!r} would both be {variable}; give one of them another name"
        seen[variable] = (field, name)
    return ""


def _name_problem(field: str, name: str) -> str:
    problem = name_problem(name)
    return f"ask.{field}: {name[:TEXT]!r} {problem}" if problem else ""


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
    if mount.name.removesuffix(".new") in WRITTEN:
        return f"name {mount.name!r}: a file of that name is beside the mounts; take another"
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
    size = 0
    for name, text in environment.items():
        size += len(name) + len(text.encode())
        if not (name.isascii() and name.isidentifier()) or len(name) > TEXT:
            return f"ask.environment: {name[:TEXT]!r} cannot name a variable"
        if "\0" in text or "\n" in text or "\r" in text:
            return f"ask.environment.{name}: may not have a zero byte or a line end"
    if size > ENVIRONMENT_BYTES:
        return f"ask.environment: more than {ENVIRONMENT_BYTES} bytes"
    return ""


def consumer_problem(consumer: Consumer) -> str:
    """'' if a consumer can be one, otherwise what is wrong, with the field."""
    if problem := text_problem(consumer.name):
        return f"name {consumer.name[:TEXT]!r}: {problem}"
    for field, text in (("user", consumer.user), ("job", consumer.job), ("index", consumer.index)):
        if text and (problem := text_problem(text)):
            return f"{field} {text[:TEXT]!r}: {problem}"
    return ""
