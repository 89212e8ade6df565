"""The device filter of a consumer: exactly what its bindings have, and the profile's base list.

One program of ours hangs on the group, known by its name; it is changed by atomic replacement and read back.
Programs of others are never touched: all must allow an access, so they can only take away, which is said. A
descriptor that is open is never revoked: the filter is there before the first process, and a binding is gone
only when nobody has its devices open any more.
"""

import hashlib
import os
from collections.abc import Iterable, Sequence

import msgspec

from xce.linux import bpf, holders
from xce.linux.bpf import Program, Rule
from xce.linux.openfiles import DeviceNumber
from xce.prepare import above, isolation, names
from xce.prepare.block import device_of, number_of
from xce.prepare.devices import File, Finder, Resolved, place_of
from xce.prepare.group import group_of, old_group_of
from xce.prepare.handler import At, Done, Outcome, Plain, StepFailed
from xce.prepare.inuse import listed, refuse_used, still_used
from xce.prepare.render import INSIDE
from xce.prepare.step import Block, Evidence, Filter


class _Progress(msgspec.Struct):
    """Kept while a filter is looked after."""

    gap: bool = False
    """It may have been away for a moment."""


def program_name(group: str) -> str:
    """The name of our program on a consumer's group: at most 15 characters."""
    return "xce_" + hashlib.blake2b(group.encode(), digest_size=5).hexdigest()


class FilterHandler(Plain[Filter]):
    """See the module."""

    def key(self, step: Filter) -> str:
        """The consumer."""
        return f"filter:{step.group}"

    def describe(self, step: Filter) -> str:
        """One line."""
        names = ", ".join([one.id for one in step.devices] + [f"volume {one.name}" for one in step.volumes])
        return f"device filter of {step.group}: {names or 'no devices'} and {len(step.base)} base rules"

    def do(self, step: Filter, evidence: Evidence, at: At) -> Outcome:
        """Find the devices, put the filter on, read it back."""
        how = at.node.isolation
        if how.mechanism == "none":
            if step.devices or step.volumes:
                raise StepFailed(f"device isolation unavailable: {how.reason}")
            return Done({"mechanism": "none", "reason": how.reason, "devices": [], "rules": []})
        finder = Finder(at.node.proc, at.node.sys, at.node.dev)
        found = [finder.find(device) for device in step.devices]
        if extras := finder.extras(step.extras):
            found.append(Resolved(id="extras", kind="extras", files=extras))
        found += [_volume(volume, at) for volume in step.volumes]
        if not evidence and (waiting := refuse_used(found, step.daemons, group_of(step.group, at), at)):
            return waiting
        rules = _rules(step.base, found, at)
        program = self._apply(step.group, rules, at)
        if evidence:
            at.kept(_Progress).gap = True  # it may have been away
        made = {
            "mechanism": how.mechanism,
            "program": program,
            "rules": bpf.words(rules),
            "devices": msgspec.to_builtins(found),
        }
        if how.mechanism == "bpf":
            path = group_of(step.group, at).path
            files = [file for one in found for file in one.files]
            numbers = _above(path)
            if (waiting := above.refuse_denied(numbers, path, files, at)) is not None:
                return waiting
            made |= {"above": there} if (there := above.words(numbers)) else {}
        return Done(made)

    def observe(self, step: Filter, evidence: Evidence, at: At) -> str:
        """Whether our program hangs there, alone, and the devices have the numbers that it allows."""
        mechanism = evidence["mechanism"]
        if mechanism == "none":
            return ""
        if mechanism != at.node.isolation.mechanism:
            return f"devices were kept by {mechanism}, which does not work any more"
        if moved := _moved(evidence["devices"], at):
            return moved
        rules = _rules(step.base, _resolved(evidence), at)
        if mechanism == "v1":
            agreed = isolation.agrees(old_group_of(step.group, at), rules)
            problem = "" if agreed else "its device rules changed"
        else:
            problem = self._changed(step.group, rules, evidence.get("above", []), at)
        return problem or _slipped(step.group, rules, at)

    def undo(self, step: Filter, evidence: Evidence, at: At) -> Outcome:
        """Nobody may have a device open; then the filter is narrowed, or goes with its group."""
        if (waiting := still_used(_resolved(evidence), _peers(at), step.daemons, at)) is not None:
            return waiting
        there = os.path.isdir(group_of(step.group, at).path)
        if at.peers and there and at.node.isolation.mechanism != "none":
            self._apply(step.group, _rules(step.base, [], at), at)
        return Done()

    def _apply(self, group: str, rules: Sequence[Rule], at: At) -> Evidence:
        if at.node.isolation.mechanism == "v1":
            old = old_group_of(group, at)
            isolation.set_old_rules(old, rules)
            if not isolation.agrees(old, rules):
                raise StepFailed(f"device isolation unavailable: {old} does not hold the rules given to it")
            return {"group": old}
        return self._put(group, rules, at)

    def _put(self, group: str, rules: Sequence[Rule], at: At) -> Evidence:
        name = program_name(group)
        fd = os.open(group_of(group, at).path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            new = bpf.load(code := bpf.compile_rules(rules), name)
            before = above.ids(fd)
            try:
                ours = _swap(fd, new, name)
            finally:
                os.close(new)
            at.node.mark("filter.attached")
            above.refuse_lifted(sorted(before - above.ids(fd)), group_of(group, at).path)
        except PermissionError as error:
            raise StepFailed(f"device isolation unavailable: {_why(group_of(group, at).path)}") from error
        finally:
            os.close(fd)
        _TAGS.know(code, ours.tag)
        return {"id": ours.id, "tag": ours.tag, "name": name}

    def _changed(self, group: str, rules: Sequence[Rule], known: list[str], at: At) -> str:
        """Compared with what the rules give now, and what was `known` to be above: the kernel's tag is a hash
        of the instructions."""
        path = group_of(group, at).path
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            return f"control group {path}: {error.strerror}"
        try:
            there, higher = bpf.programs(fd), above.words(above.ids(fd))
        finally:
            os.close(fd)
        name = program_name(group)
        ours = [program for program in there if program.name == name]
        if len(ours) != 1:
            return f"its device filter was taken away{_others(there, name)}"
        if ours[0].tag != _TAGS.of(bpf.compile_rules(rules)):
            return "its device filter was changed"
        if higher != known:
            return f"device filters above it changed{': ' if higher else ''}{', '.join(higher)}"
        return (
            f"a stranger's device filter may deny it its devices{others}"
            if (others := _others(there, name))
            else ""
        )


def _above(path: str) -> set[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return above.ids(fd)
    finally:
        os.close(fd)


def _swap(group: int, new: int, name: str) -> Program:
    """One program of ours, in one stroke; a second one can only be left by a crash of an older version."""
    ours = [program for program in bpf.programs(group) if program.name == name]
    made = bpf.describe(new)
    if len(ours) == 1 and ours[0].tag == made.tag:
        return ours[0]
    held = [bpf.open_program(program.id) for program in ours]
    try:
        bpf.attach(group, new, replacing=held[0] if held else None)
        for extra in held[1:]:
            bpf.detach(group, extra)
    finally:
        for fd in held:
            os.close(fd)
    return made


class _Tags:
    """The kernel's hashes of programs, as it said when one was loaded: they are looked at every second."""

    def __init__(self, most: int = 1024) -> None:
        self._most, self._tags = most, dict[bytes, str]()

    def know(self, code: bytes, tag: str) -> None:
        """As it was loaded just now."""
        self._tags.pop(code, None)
        if len(self._tags) >= self._most:
            del self._tags[next(iter(self._tags))]
        self._tags[code] = tag

    def of(self, code: bytes) -> str:
        """The tag; one that is not known is asked for."""
        if code not in self._tags:
            program = bpf.load(code, "xce_tag")
            try:
                self.know(code, bpf.describe(program).tag)
            finally:
                os.close(program)
        return self._tags[code]


_TAGS = _Tags()


def _others(there: Iterable[Program], name: str) -> str:
    strangers = [f"'{program.name}' (id {program.id})" for program in there if program.name != name]
    return f"; there is a program {', '.join(strangers)}" if strangers else ""


def _why(path: str) -> str:
    """Which program, here or above, does not let another in."""
    while path.count("/") > 1:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            break
        try:
            attached = bpf.query(fd)
            if attached.ids and not attached.flags & bpf.BPF_F_ALLOW_MULTI:
                [program, *_] = bpf.programs(fd)
                return f"program '{program.name}' (id {program.id}) on {path} lets no other in"
        except OSError:
            break
        finally:
            os.close(fd)
        path = os.path.dirname(path)
    return f"the kernel does not let us ({isolation.NEEDED})"


def _resolved(evidence: Evidence) -> list[Resolved]:
    return msgspec.convert(evidence.get("devices", []), list[Resolved])


def _volume(volume: Block, at: At) -> Resolved:
    """The device of a volume, with as much as may be done to it: mounts keep nobody from writing to one."""
    major, minor = number_of(volume, at)
    file = File(
        path=device_of(volume),
        kind="b",
        major=major,
        minor=minor,
        exclusive=False,
        access="r" if volume.read_only else "rw",
        inside=f"{INSIDE}/{names.encode(volume.name)}",
    )
    return Resolved(id=f"volume {volume.name}", kind="volume", files=[file])


def _peers(at: At) -> list[Resolved]:
    return [one for peer in at.peers for one in _resolved(peer.evidence)]


def _rules(base: Sequence[str], found: Iterable[Resolved], at: At) -> list[Rule]:
    """The base list, ours, and those of the consumer's other bindings."""
    rules = list(base)
    for peer in at.peers:
        rules += peer.step.base if isinstance(peer.step, Filter) else []
    rules += [file.rule() for one in (*found, *_peers(at)) for file in one.files]
    return isolation.merged(rules)


def _slipped(group: str, rules: Sequence[Rule], at: At) -> str:
    """Who opened something while the filter was away: no filter takes back what is open."""
    if not at.kept(_Progress).gap:
        return ""
    slipped = [
        holder
        for holder, device in holders.devices_of(group_of(group, at).pids())
        if not any(_covers(rule, device) for rule in rules)
    ]
    if not slipped:
        at.kept(_Progress).gap = False
        return ""
    return f"opened while its device filter was away: {listed(slipped)}"


def _covers(rule: Rule, device: DeviceNumber) -> bool:
    """Whether a rule lets a device be opened, to read or to write."""
    numbers = ((rule.major, os.major(device.number)), (rule.minor, os.minor(device.number)))
    opens = bpf.BPF_DEVCG_ACC_READ | bpf.BPF_DEVCG_ACC_WRITE
    return (
        rule.kind == isolation.KINDS[device.kind]
        and bool(rule.access & opens)
        and all(wanted in {None, number} for wanted, number in numbers)
    )


def _moved(devices: Sequence[Evidence], at: At) -> str:
    """A device file with another number than when the filter was made."""
    for file in (file for one in devices for file in one.get("files", [])):
        path = file["path"]
        try:
            found = os.stat(place_of(path, at.node.dev), follow_symlinks=False)
        except OSError:
            continue  # it need not be there
        if found.st_rdev != os.makedev(file["major"], file["minor"]):
            now = f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"
            return f"{path} has number {now} now, not {file['major']}:{file['minor']}"
    return ""
