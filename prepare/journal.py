"""What this node has begun, done and ended for claims: on disk before anything is done.

SQLite with a write-ahead log: one sync for what is written in one stroke, none for what is of this boot
alone. That a log was lost is seen by `claims.head`, which says how many strokes there were when the disk was
last waited for; it is not synced, and never ahead.
Every record is JSON with a checksum over its very bytes and its place; fields that this version does not
know are kept when a record is written anew. A file that is empty or damaged is set aside, what is whole in
it is carried over, and the journal says that it is *recovering*, as it does when the file is gone: then
nothing may be prepared or released until somebody who knows has settled what the node holds. A file of an
older version is brought up, one of a newer version is refused and left as it is.

Used by one thread. A record that cannot be written raises `NotRecorded`, and nothing of it was written.
"""

import contextlib
import os
import sqlite3
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from xce.model.claim import Binding, BindingState, Claim, binding_number
from xce.prepare import journalfile, journalnames
from xce.prepare.journalfile import COUNT, STEPS, Head, Key, copied, salvage
from xce.prepare.journalnames import FILE, HEAD
from xce.prepare.step import Clocks, Evidence, Kept, Step

TOMBSTONES = 4096
"""Ended bindings that are remembered; their ids are never used again, so the oldest may be forgotten."""
ROOM = 1 << 20
"""Bytes that must be free before a disk that was full counts as having room."""
T = TypeVar("T", bound=msgspec.Struct)


class NotRecorded(Exception):
    """The disk did not take a record; nothing was written, and nothing may be done."""


class Order(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A binding that this node works on, and how far it is."""

    binding: Binding
    claim: Claim
    op_id: str
    epoch: int
    boot: str
    """Boot of the machine in which it was planned."""
    phase: str
    """See `entry.Phase`."""
    steps: int
    """How many there are."""
    reason: str = ""
    since: float = 0
    """Wall time, only for showing."""
    release_op: str = ""
    stood: bool = False
    """It was ready before the machine was started anew."""
    taken_up: bool = False
    """It was made ready before the journal was lost."""


class Work(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step of a binding."""

    step: Step
    state: str
    """See `entry.StepState`."""
    evidence: Evidence = {}


class Tombstone(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A binding that has ended here: an order for it that comes late is refused."""

    state: BindingState
    epoch: int
    op_id: str
    reason: str = ""
    number: int = 0
    """Later ones have higher numbers."""


class Standing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the node knows of itself."""

    epoch: int = 0
    """Highest seen in an order."""
    recovering: str = ""
    """Why it has to be settled what the node holds; '' if that is known."""
    tombstones: int = 0
    owner: str = ""
    """`tags.Owner.id` that stands on what was made."""
    groups: str = ""
    """Where the control groups were made."""


_BINDINGS = frozenset({"order", "tombstone"})


class Journal:
    """The records of one node, in `directory`.

    Raises `TooNew`, and OSError if it cannot be opened now: the file is left as it is then, and whoever wants
    it tries again.
    """

    def __init__(self, directory: str, *, steps: Sequence[str] = STEPS) -> None:
        self.directory = directory
        self.path, self._head = f"{directory}/{FILE}", f"{directory}/{HEAD}"
        with contextlib.suppress(FileExistsError):
            os.makedirs(directory, 0o700)
        self.set_aside = ""
        """Where a damaged file was put, by this start."""
        journalfile.finish(self.path)
        problem = journalfile.damage(self.path, self._head, steps)
        if problem:
            self._start_again(problem, steps)
        self._connection = journalfile.opened(self.path, steps)
        self._raw: dict[Key, bytes] = dict(self._rows())
        self._found = set(self._raw)
        """Records that are as this process found them."""
        self._unknown: dict[Key, dict[str, Any]] = {}
        self.strokes = (self._get(*COUNT, Head) or Head()).strokes
        """How often something was written."""
        self.fault = ""
        """Why the disk did not take what was to be written last; '' if it did."""
        self._synced = True
        self._tell_head()
        self.standing = self._get("standing", "", 0, Standing) or Standing()
        self.kept: dict[str, Kept] = {
            name: self._need("kept", name, 0, Kept) for kind, name, _ in self._raw if kind == "kept"
        }
        """Directories whose time is not over, by their path."""
        stones = [name for kind, name, _ in self._raw if kind == "tombstone"]
        self._stones = deque(
            sorted(stones, key=lambda name: self._need("tombstone", name, 0, Tombstone).number)
        )

    # -------------------------------------------------------------------------------------------- reading

    def orders(self) -> dict[str, tuple[Order, list[Work]]]:
        """All bindings that are worked on, with their steps."""
        found: dict[str, tuple[Order, list[Work]]] = {}
        for kind, name, _ in list(self._raw):
            if kind == "order":
                order = self._need("order", name, 0, Order)
                found[name] = (order, [self._need("work", name, n, Work) for n in range(order.steps)])
        return found

    def newest(self) -> int:
        """The highest number of a binding that is or was here."""
        return max((binding_number(name) for kind, name, _ in self._raw if kind in _BINDINGS), default=0)

    def tombstone(self, binding: str) -> Tombstone | None:
        """How a binding ended here."""
        return self._get("tombstone", binding, 0, Tombstone)

    # -------------------------------------------------------------------------------------------- writing

    def begin(self, order: Order, works: list[Work], *, epoch: int) -> None:
        """An intent: the order, its steps, and the epoch, or nothing."""
        with self._writing() as changes:
            changes[("order", order.binding.id, 0)] = order
            for number, work in enumerate(works):
                changes[("work", order.binding.id, number)] = work
            changes[("standing", "", 0)] = msgspec.structs.replace(
                self.standing, epoch=max(epoch, self.standing.epoch)
            )

    def put(
        self,
        order: Order | None,
        works: Mapping[int, Work],
        binding: str,
        kept: Kept | None = None,
        *,
        synced: bool = True,
    ) -> None:
        """What has changed in an order and in some of its steps, in one stroke.

        Not `synced`: it is about this boot alone, and is not missed after the machine has failed.
        """
        with self._writing(synced=synced) as changes:
            if order is not None:
                changes[("order", binding, 0)] = order
            for number, work in works.items():
                changes[("work", binding, number)] = work
            if kept is not None:
                path = f"{kept.root}/{'/'.join(kept.elements)}"
                if (before := self.kept.get(path)) is not None and not before.agent:
                    kept = msgspec.structs.replace(kept, agent="")
                changes[("kept", path, 0)] = kept
        if kept is not None:
            self.kept[path] = kept

    def end(self, binding: str, tombstone: Tombstone) -> None:
        """The order is over: its records go, a tombstone comes."""
        count = self.standing.tombstones + 1
        with self._writing() as changes:
            for key in (("order", binding, 0), *self._works(binding)):
                if key in self._raw:
                    changes[key] = None
            changes[("tombstone", binding, 0)] = msgspec.structs.replace(tombstone, number=count)
            changes[("standing", "", 0)] = msgspec.structs.replace(
                self.standing, tombstones=count, epoch=max(self.standing.epoch, tombstone.epoch)
            )
            forgotten = self._stones[0] if len(self._stones) >= TOMBSTONES else None
            if forgotten is not None:
                changes[("tombstone", forgotten, 0)] = None
        self._stones.append(binding)
        if forgotten is not None:
            self._stones.popleft()

    def _works(self, binding: str) -> Iterator[Key]:
        """Of all its steps, those of an earlier plan included."""
        number = 0
        while (key := ("work", binding, number)) in self._raw:
            yield key
            number += 1

    def read_clocks(self, now: Clocks) -> None:
        """Wall time may have been set: what is kept goes by that."""
        later = {name: kept.as_of(now) for name, kept in self.kept.items()}
        if later:
            with self._writing() as changes:
                changes.update({("kept", name, 0): kept for name, kept in later.items()})
            self.kept = later

    def forget_kept(self, name: str) -> None:
        """A kept directory is gone."""
        with self._writing() as changes:
            changes[("kept", name, 0)] = None
        self.kept.pop(name, None)

    def settle(self, recovering: str = "") -> None:
        """What the node holds is known (or not, and why)."""
        with self._writing() as changes:
            changes[("standing", "", 0)] = msgspec.structs.replace(self.standing, recovering=recovering)

    def belong(self, *, owner: str, groups: str) -> None:
        """What stands on things from now on, and where groups are made; if it cannot be written, later."""
        if (owner, groups) != (self.standing.owner, self.standing.groups):
            with contextlib.suppress(NotRecorded), self._writing() as changes:
                standing = msgspec.structs.replace(self.standing, owner=owner, groups=groups)
                changes[("standing", "", 0)] = standing

    def trial(self) -> None:
        """See whether the disk takes something again, and has room for more than that: `fault` says."""
        with contextlib.suppress(OSError, NotRecorded):
            found = os.statvfs(os.path.dirname(self.path))
            if found.f_bavail * found.f_frsize >= ROOM:
                with self._writing():
                    pass

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._connection.close()

    @contextlib.contextmanager
    def _writing(self, *, synced: bool = True) -> Iterator[dict[Key, msgspec.Struct | None]]:
        """Changes to be written in one transaction; memory follows the disk.

        One that is not `synced` outlives this process; a failure of the machine, once a later one is synced.
        """
        changes: dict[Key, msgspec.Struct | None] = {}
        yield changes
        merged: dict[Key, bytes | None] = {}
        for key, record in changes.items():
            merged[key] = None if record is None else self._body(key, record)
        merged[COUNT] = msgspec.json.encode(Head(strokes=self.strokes + 1))
        try:
            if synced is not self._synced:
                self._connection.execute(f"PRAGMA synchronous={'FULL' if synced else 'NORMAL'}")
                self._synced = synced
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                for key, body in merged.items():
                    journalfile.write(self._connection, key, body)
        except sqlite3.Error as error:
            self.fault = f"cannot record intent: {journalfile.cause_of(error, self.path)} ({self.path})"
            raise NotRecorded(self.fault) from error
        self.fault = ""
        for key, body in merged.items():
            if body is None:
                self._raw.pop(key, None)
                self._unknown.pop(key, None)
            else:
                self._raw[key] = body
        self.strokes += 1
        if synced:  # otherwise it would be ahead of what the machine may have after it has failed
            self._tell_head()
        if standing := changes.get(("standing", "", 0)):
            assert isinstance(standing, Standing)
            self.standing = standing

    def _body(self, key: Key, record: msgspec.Struct) -> bytes:
        """As JSON; what this version does not know of a record from the file is looked for once."""
        if key in self._found:
            self._found.remove(key)
            if unknown := _unknown(self._raw[key], type(record)):
                self._unknown[key] = unknown
        return _with_unknown(self._unknown.get(key), record)

    def _tell_head(self) -> None:
        """After the disk has it. Where that cannot be, a loss would not be seen; nothing else is wrong."""
        with contextlib.suppress(OSError):
            journalfile.tell(self._head, self.strokes)

    def _get(self, kind: str, name: str, number: int, type_: type[T]) -> T | None:
        body = self._raw.get((kind, name, number))
        return None if body is None else msgspec.json.decode(body, type=type_)

    def _need(self, kind: str, name: str, number: int, type_: type[T]) -> T:
        found = self._get(kind, name, number, type_)
        if found is None:
            raise ValueError(f"internal error: no {kind} {number} of {name} in the journal")
        return found

    # --------------------------------------------------------------------------------------------- opening

    def _start_again(self, problem: str, steps: Sequence[str]) -> None:
        self.set_aside = journalnames.aside(os.path.dirname(self.path))
        carried = self._salvaged()
        held = carried.pop(("standing", "", 0), b"{}")
        counts = {
            key[1]: msgspec.json.decode(body, type=Order).steps
            for key, body in carried.items()
            if key[0] == "order"
        }
        whole = {
            name for name, count in counts.items() if all(("work", name, n) in carried for n in range(count))
        }
        kept = f"; it is kept as {self.set_aside}" if os.path.exists(self.path) else ""
        words = f"the journal was damaged ({problem}){kept}"
        standing = msgspec.structs.replace(msgspec.json.decode(held, type=Standing), recovering=words)
        rows = {
            key: body for key, body in carried.items() if key[0] not in {"order", "work"} or key[1] in whole
        }
        rows[("standing", "", 0)] = _with_unknown(_unknown(held, Standing), standing)
        journalfile.begin_anew(self.path, steps, rows, self.set_aside)

    def _salvaged(self) -> dict[Key, bytes]:
        """What is whole in a damaged file; of one that lacks its newest strokes only what has ended."""
        found = salvage(self.path)
        strokes = msgspec.json.decode(found.get(COUNT, b"{}"), type=Head).strokes
        if strokes < journalfile.told(self._head):
            found = {key: body for key, body in found.items() if key[0] in {"tombstone", "standing"}}
        return found

    def _rows(self) -> Iterator[tuple[Key, bytes]]:
        query = "SELECT kind, name, number, body FROM record"
        for kind, name, number, body in self._connection.execute(query):
            yield (kind, name, number), body


def live(directory: str) -> list[Order]:
    """What a node's journal has under way, read by somebody who does not own it and changes nothing.

    Raises ValueError in words when that cannot be known.
    """
    path = f"{directory}/{FILE}"
    if os.path.exists(complete := journalfile.complete_of(path)):
        path = complete
    if not os.path.exists(path):
        if journalfile.told(f"{directory}/{HEAD}"):
            raise ValueError(f"cannot read the journal {path}: {journalfile.GONE}")
        return []
    try:
        with copied(path) as copy, contextlib.closing(sqlite3.connect(copy)) as connection:
            rows = connection.execute("SELECT body FROM record WHERE kind = 'order'").fetchall()
        return [msgspec.json.decode(body, type=Order) for (body,) in rows]
    except (OSError, sqlite3.Error, msgspec.MsgspecError) as error:
        raise ValueError(f"cannot read the journal {path}: {error}") from error


def _unknown(held: bytes, kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Those fields of a record that this version does not know."""
    known = set(kind.__struct_fields__)
    return {name: value for name, value in msgspec.json.decode(held).items() if name not in known}


def _with_unknown(unknown: Mapping[str, Any] | None, record: msgspec.Struct) -> bytes:
    body = msgspec.json.encode(record)
    return msgspec.json.encode({**unknown, **msgspec.json.decode(body)}) if unknown else body
