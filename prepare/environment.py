"""The files in which a consumer finds what it was given: `env`, `claim.json`, and a CDI file for containers.

Written last, from the evidence of the steps before, each replaced whole and readable by root alone, since the
user's variables are in them. Variables of the user never replace one that is rendered. In a container the
paths are others (`/xce/NAME`) than on the host. It has `claim.json` mounted, which is the binding's alone: by
that it is known that it has something of it, and it cannot be started any more when the file is gone.
"""

import contextlib
import os
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from xce.linux.holders import Sought
from xce.model.claim import name_variable
from xce.model.claim_check import CLAIM_FILE, ENV_FILE
from xce.prepare import names
from xce.prepare.block import device_of
from xce.prepare.devices import Resolved
from xce.prepare.errand import described, opened
from xce.prepare.handler import At, Done, Outcome, Plain
from xce.prepare.mountpoints import own_directory, take_directory
from xce.prepare.mounts import elsewhere
from xce.prepare.render import (
    BINDING,
    CDI_KIND,
    INSIDE,
    cdi,
    cdi_name,
    device_variables,
    env_file,
)
from xce.prepare.step import Bind, Block, Environment, Evidence, Filter, Ports, Scratch, Shared, Step

CDI_PREFIX = "xce-claim_"
"""Before the binding in the name of its CDI file."""
_GONE = "//deleted"
"""Behind the root of a mount whose file has no name any more."""
Earlier: TypeAlias = Sequence[tuple[Step, Evidence]]


class EnvironmentHandler(Plain[Environment]):
    """See the module."""

    def key(self, step: Environment) -> str:
        """The directory."""
        return f"environment:{step.directory}"

    def describe(self, step: Environment) -> str:
        """One line."""
        return f"environment of {step.binding} in {step.directory}" + (f" and {step.cdi}" if step.cdi else "")

    def do(self, step: Environment, evidence: Evidence, at: At) -> Outcome:
        """Write the files."""
        files, variables = _contents(step, at)
        recorded = "files" in evidence
        for place in _elsewhere(step):
            at.node.owner.refuse_foreign(place, recorded=recorded)
        said = take_directory(step.directory, "", at, recorded=recorded)
        for place in _elsewhere(step):
            own_directory(os.path.dirname(place))
        for path, text in files.items():
            write_whole(path, text, at if path in _elsewhere(step) else None)
            at.node.mark(f"environment.written-{os.path.basename(path).partition('_')[0]}")
        return Done(
            {
                "files": {path: _signature(path) for path in files},
                "variables": variables,
                "device": f"{CDI_KIND}={cdi_name(step.binding)}",
                **({"sign": _described(_sign(step))} if step.cdi else {}),
                **said,
            }
        )

    def observe(self, step: Environment, evidence: Evidence, at: At) -> str:
        """Whether each file is the one that was written, as its inode and times say."""
        for path, signature in evidence["files"].items():
            if _signature(path) != signature:
                return f"{path} was changed or removed"
        for place in (step.directory, *_elsewhere(step)):
            if words := at.node.owner.lacking(place):
                return f"{place}: {words}"
        return ""

    def quiesce(self, step: Environment, evidence: Evidence, at: At) -> Outcome:
        """One look is to tell who has it, and mounts of the binding."""
        if sought := _sought(step, evidence):
            at.copies.off(sought)
        return Done()

    def undo(self, step: Environment, evidence: Evidence, at: At) -> Outcome:
        """Remove the files, and wait for containers that were made with them."""
        ours = _ours(step, evidence, at)
        for path in _paths(step).values():
            if path in ours or os.path.dirname(path) in ours:
                _remove(path)
        at.node.mark("environment.removed")
        if step.directory in ours:
            with contextlib.suppress(OSError):
                os.rmdir(step.directory)
        sought = _sought(step, evidence)
        exclusive = (one.id for one in _devices(at.earlier) if any(file.exclusive for file in one.files))
        return (sought and elsewhere(sought, at, tuple(exclusive))) or Done()


def _ours(step: Environment, evidence: Evidence, at: At) -> set[str]:
    """What is not foreign of the places that bear marks."""
    owner, recorded = at.node.owner, "files" in evidence
    return {
        place for place in (step.directory, *_elsewhere(step)) if not owner.foreign(place, recorded=recorded)
    }


def _sign(step: Environment) -> str:
    return f"{step.directory}/{CLAIM_FILE}"


def _described(path: str) -> Evidence:
    """How a file is told from all others in any mount table; {} where the kernel is older than Linux 5.8."""
    with opened(os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)) as fd:
        try:
            return described(fd)
        except OSError:
            return {}


def _sought(step: Environment, evidence: Evidence) -> Sought | None:
    """What a container has that was made with the CDI file; an older version did not give it."""
    if not evidence.get("sign"):
        return None
    device, root = evidence["sign"]["device"], evidence["sign"]["root"]
    return Sought(_sign(step), device, lambda mount: mount.root.removesuffix(_GONE) == root)


def _signature(path: str) -> list[int]:
    """Nobody can set back the time of change; [] if it is not there."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return []
    return [found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def _elsewhere(step: Environment) -> list[str]:
    """Its CDI file, which lies where others put theirs."""
    return [path for name, path in _paths(step).items() if name == "cdi"]


def _paths(step: Environment) -> dict[str, str]:
    paths = {"env": f"{step.directory}/{ENV_FILE}", "json": _sign(step)}
    if step.cdi:
        paths["cdi"] = f"{step.cdi}/{CDI_PREFIX}{names.encode(step.binding)}.json"
    return paths


def _contents(step: Environment, at: At) -> tuple[dict[str, str], dict[str, str]]:
    """What is in each file, and the variables on the host."""
    paths, earlier = _paths(step), at.earlier
    devices, mounts = _devices(earlier), _mounts(earlier)
    rendered = {BINDING: step.binding, "XCE_CLAIM": step.claim, **device_variables(devices)}
    variables = step.variables | rendered | _places(earlier, mounts, inside=False)
    files = {
        paths["env"]: env_file(variables),
        paths["json"]: _json(
            {
                "binding": step.binding,
                "claim": step.claim,
                "variables": variables,
                "devices": devices,
                "mounts": mounts,
            }
        ),
    }
    if step.cdi:
        within = step.variables | rendered | _places(earlier, mounts, inside=True)
        sign = {"point": paths["json"], "inside": f"{INSIDE}/{CLAIM_FILE}", "read_only": True}
        files[paths["cdi"]] = _json(cdi(step.binding, within, devices, [*mounts, sign]))
    return files, variables


def _json(document: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def _devices(earlier: Earlier) -> list[Resolved]:
    return [
        one
        for step, evidence in earlier
        if isinstance(step, Filter)
        for one in msgspec.convert(evidence.get("devices", []), list[Resolved])
    ]


def _mounts(earlier: Earlier) -> list[dict[str, Any]]:
    """Everything that is mounted or lies somewhere, by name."""
    found: list[dict[str, Any]] = []
    for step, evidence in earlier:
        if isinstance(step, Bind):
            found.append(_mount(step.name, step.point, read_only=step.read_only))
        elif isinstance(step, Scratch):
            found.append(_mount("scratch", step.point, read_only=False))
        elif isinstance(step, Shared):
            found += [_mount(part, f"{evidence['path']}/{part}", read_only=False) for part in step.parts]
    return found


def _mount(name: str, point: str, *, read_only: bool) -> dict[str, Any]:
    return {"name": name, "point": point, "inside": f"{INSIDE}/{names.encode(name)}", "read_only": read_only}


def _places(earlier: Earlier, mounts: Sequence[dict[str, Any]], *, inside: bool) -> dict[str, str]:
    """Variables that say where things are: on the host, or `inside` a container."""
    where = "inside" if inside else "point"
    found = {name_variable("XCE_DIR_", mount["name"]): mount[where] for mount in mounts}
    for step, evidence in earlier:
        if isinstance(step, Block):
            place = f"{INSIDE}/{names.encode(step.name)}" if inside else device_of(step)
            found[name_variable("XCE_DEVICE_", step.name)] = place
        if isinstance(step, Ports):
            ports = ",".join(str(port) for port in evidence["ports"])
            found[name_variable("XCE_PORTS_", step.name)] = ports
    return found


def _remove(path: str) -> None:
    """A file of ours; what is no file there is not, and stays: the look for orphans names it.

    Nobody waits until somebody takes it away: time alone changes nothing there.
    """
    for name in (path, f"{path}.new"):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError, NotADirectoryError):
            os.unlink(name)


def write_whole(path: str, text: str, at: At | None = None) -> None:
    """Replace a file: readers see the old text or the new one. `at`: one that bears our mark."""
    with contextlib.suppress(FileNotFoundError):  # of a crash, or something that is no file
        os.unlink(f"{path}.new")
    how = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    fd = os.open(f"{path}.new", how, 0o600)
    try:
        if at is not None:
            at.node.owner.take(fd, at.binding)
        left = memoryview(text.encode())
        while left:
            left = left[os.write(fd, left) :]
    finally:
        os.close(fd)
    os.rename(f"{path}.new", path)
