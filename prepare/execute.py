"""Carries out orders on a node: prepare, release, and going on after a crash, a reboot, a full disk.

No loop and no threads: whoever owns an `Executor` calls `advance` when it says so, or when something was
ordered, always from one thread, and reads `news`. In the agent that is the journal's thread, since records
are synced to disk; the loop's thread hands orders in and takes reports out through queues.
Nothing here waits: what can hang is a child's, what needs time is looked at again.

Everything of one binding is in order; bindings do not wait for each other, unless they share a step's key.
With many of them `advance` takes some, and is to be called again: an order never waits for all.
"""

import contextlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from xce.linux.beneath import NOT_FINISHED
from xce.linux.cgroup import Cgroup
from xce.model.claim import Binding, BindingState, Chosen, Claim
from xce.model.profile import Orphans
from xce.prepare import orphans
from xce.prepare.carry import AGAIN_S, Carrier
from xce.prepare.entry import Entry, Event, Phase, Report, StepState, ended
from xce.prepare.handler import Node, StepFailed
from xce.prepare.journal import Journal, NotRecorded, Order, Tombstone, Work
from xce.prepare.plan import PlanRefused, plan
from xce.prepare.shared import directory_of, left_of, lies_in, removal_key
from xce.prepare.step import CLOCK_SET_S, InstanceMap, Kept, Shared, given

_LOOK_S = 0.02
SLICE_S = 0.05
"""After which others have their turn: orders, the look for drift."""
_SCAN_S = 600.0
_TRIAL_S = 1.0
"""Between looks whether a disk that took no record takes one again."""
_KEPT_AGAIN_S = 60.0
"""For a directory that could not be removed, though its time was over."""
_LONG_S = 7 * 86400.0
"""For which other nodes may have a directory whose time is over, before an admin is told."""
_READ_CLOCKS_S = 3600.0
"""Between two records of the clocks, for what is kept."""


class Known(NamedTuple):
    """An order to have a binding, with its provider's words."""

    op_id: str
    epoch: int
    binding: Binding
    claim: Claim
    words: Mapping[str, str]


class _Settling(msgspec.Struct):
    """What is left of what the cluster knows of this node, after its journal was lost."""

    known: deque[Known]
    instances: InstanceMap
    at: float = 0.0
    """Clock at which to go on, after the disk was full."""
    problem: str = ""


class Refused(Exception):
    """An order that this node does not take, in words; nothing was done or written."""


class Executor(Carrier):
    """The bindings of one node."""

    def __init__(self, journal: Journal, node: Node, boot: str) -> None:
        super().__init__(journal, _as_made(node, journal, boot), boot)
        self._next_check = self._next_scan = self._next_trial = 0.0
        self._settling: _Settling | None = None
        self._apart = self.node.wall() - self.node.clock()
        """What is between the two clocks."""
        self._read_clocks_at = 0.0
        """By the clock, when they are to be written down again, whatever they show; 0: they never were."""
        self._kept_later: dict[str, float] = {}
        """By the clock, when to try once more to remove what was kept."""
        self.unremoved: dict[str, str] = {}
        """What was kept, its time is over, and it cannot be removed: where and why, by its name."""
        self._unchecked: list[Entry] = []
        """Left of a look for drift that began."""
        self.orphans: list[str] = []
        self.cleaned: list[str] = []
        """Those that were taken away, until somebody has asked."""
        """What of ours nobody owns, as of the last look, in words."""
        self._strangers: list[Cgroup] = []
        """Control groups among that."""
        for order, works in journal.orders().values():
            entry = self._add(Entry(order, works, served=node.clock()))
            if order.boot != boot and not entry.leaving:
                entry.void = True

    # ---------------------------------------------------------------------------------------------- orders

    def prepare(
        self,
        *,
        op_id: str,
        epoch: int,
        binding: Binding,
        claim: Claim,
        instances: InstanceMap,
        words: Mapping[str, str] | None = None,
    ) -> Report:
        """Begin a binding; the same one again gets the same answer. Raises `Refused`, `NotRecorded`.

        `words`: what the claim's provider says now; they may be new, or were lost with the process before.
        """
        if (entry := self.entries.get(binding.id)) is not None:
            if entry.leaving and entry.phase is Phase.RELEASING:
                raise Refused(f"binding {binding.id} is being released")
            entry.words = words or {}
            entry.wake = 0.0
            return self._report(entry)
        if (stone := self.journal.tombstone(binding.id)) is not None:
            if stone.state is BindingState.FAILED and stone.op_id == op_id:
                return ended(binding.id, stone)
            raise Refused(f"binding {binding.id} has ended here: it is {stone.state}")
        self._check_order(epoch)
        self._check_instances(binding.instances)
        return self._begin(Known(op_id, epoch, binding, claim, words or {}), instances)

    def release(self, *, op_id: str, epoch: int, binding: str) -> Report:
        """Take a binding back; one that was never here is written down as ended. Raises as `prepare`."""
        entry = self.entries.get(binding)
        stone = self.journal.tombstone(binding)
        if entry is None and stone is not None:
            return ended(binding, stone)
        if entry is not None and entry.phase is Phase.RELEASING:
            return self._report(entry)
        self._check_order(epoch)
        if entry is not None and entry.being_taken_up:
            raise Refused(f"binding {binding} is being taken up again: what there is of it is not known yet")
        if entry is None:
            stone = Tombstone(
                state=BindingState.RELEASED, epoch=epoch, op_id=op_id, reason="it was never here"
            )
            self.journal.end(binding, stone)
            return ended(binding, stone)
        self._move(entry, Event.RELEASE, epoch=max(epoch, entry.order.epoch), release_op=op_id, reason="")
        entry.quiesced, entry.void, entry.drift, entry.served = False, False, "", 0.0
        return self._report(entry)

    def resume(self, instances: InstanceMap) -> None:
        """After a reboot, once the inventory is known: plan anew what is to be there, or let it fail."""
        self.inventory = instances

    def settle(self, known: Iterable[Known], instances: InstanceMap) -> None:
        """End recovery: what the cluster says that this node has, and the instances of all of it.

        What is not in the journal is prepared again, which takes what is there: some of it with each
        `advance`, and nothing of it is gone on with before all of it is written down.
        """
        self._settling = _Settling(deque(known), instances)

    def _settle_some(self, settling: _Settling, now: float) -> bool:
        """For a slice of time, or until the disk takes no more; whether there is more to do at once."""
        if now < settling.at:
            return False
        try:
            while settling.known:
                one = settling.known[0]
                if one.binding.id not in self.entries and self.journal.tombstone(one.binding.id) is None:
                    self._begin(one, settling.instances, taken_up=True)
                settling.known.popleft()
                if self.node.clock() >= now + SLICE_S:
                    return True
            self.journal.settle()
        except NotRecorded as error:
            settling.problem, settling.at = str(error), now + AGAIN_S
            return False
        self._settling = None
        return False

    @property
    def trouble(self) -> str:
        """Why recovery does not end though the cluster has said what this node has; ''."""
        return self._settling.problem if self._settling is not None else ""

    def _check_order(self, epoch: int) -> None:
        standing = self.journal.standing
        if standing.recovering:
            raise Refused(f"this node is recovering: {standing.recovering}")
        if epoch < standing.epoch:
            raise Refused(f"order of epoch {epoch} is stale: this node has seen epoch {standing.epoch}")

    def _check_instances(self, wanted: Sequence[Chosen]) -> None:
        for chosen, entry in self.holders(wanted):
            raise Refused(f"instance {chosen.id} is held by binding {entry.id}, which is {entry.phase}")
        if not wanted:
            return
        if not self._next_scan:
            self.scan()
        self._strangers = [group for group in self._strangers if group.populated()]
        if self._strangers:  # its filter lets them, whether they have it open now or not
            words = f"control group {self._strangers[0].path} has processes and no binding"
            raise Refused(f"{words}: they may use any instance; end them (orphans: clean does)")

    def _begin(self, known: Known, instances: InstanceMap, *, taken_up: bool = False) -> Report:
        op_id, epoch, binding, claim, words = known
        try:
            planned = plan(binding, claim, instances, self.node.settings, words)
            self.admit(planned, binding.id)
        except PlanRefused as error:
            stone = Tombstone(state=BindingState.FAILED, epoch=epoch, op_id=op_id, reason=str(error))
            self.journal.end(binding.id, stone)
            return self._tell(ended(binding.id, stone))
        works = [
            Work(
                step=step,
                state=StepState.BEGUN,
                evidence=given(step, binding.ports) if taken_up else {},
            )
            for step in planned
        ]
        order = Order(
            binding=binding,
            claim=claim,
            op_id=op_id,
            epoch=epoch,
            boot=self.boot,
            phase=Phase.PREPARING,
            steps=len(works),
            since=self.node.wall(),
            taken_up=taken_up,
        )
        entry = Entry(order, works, words)
        with contextlib.suppress(StepFailed):  # it will say it again, and fail
            entry.looked = self._note(entry) is None
        self.node.mark("order.before-intent")
        try:
            self.journal.begin(order, entry.works, epoch=epoch)
        except NotRecorded:
            self.node.errands.forget(entry.id)
            raise
        self.node.mark("order.after-intent")
        entry.unwritten.clear()
        return self._report(self._add(entry))

    # --------------------------------------------------------------------------------------------- working

    def advance(self) -> float | None:
        """Do what can be done now, for a slice of time; in how many seconds there is more.

        None: only an order brings more. What was ordered is first, then whoever has waited longest.
        """
        if not self.node.errands.alone():
            return _LOOK_S
        self._follow_wall()
        now = self.node.clock()
        for key in (*self.node.errands.answered(), *self.node.csi.answered()):
            self.wake(key)
        more = self._settling is not None and self._settle_some(self._settling, now)
        more |= self._carry_some(now)
        more |= self._check_some(now)
        if self.journal.fault and now >= self._next_trial:
            self.journal.trial()
            self._next_trial = now + _TRIAL_S
        if now >= self._next_scan:
            self.scan()
        self._clean_kept()
        return 0.0 if more else self._next()

    def _carry_some(self, now: float) -> bool:
        """Whether there are more for which there was no time."""
        due = [entry for entry in self.entries.values() if self._goes_on(entry) and entry.wake <= now]
        due.sort(key=lambda entry: entry.served)
        for number, entry in enumerate(due, 1):
            self.carry(entry)
            if self.node.clock() >= now + SLICE_S:
                return number < len(due)
        return False

    def _goes_on(self, entry: Entry) -> bool:
        """Whether there is something to do for it, now or at its time."""
        if entry.void:
            return self.inventory is not None and not entry.wants_words
        if self.recovering and entry.order.taken_up:
            return False  # what it shares with others is known when all of them are
        return entry.phase is Phase.PREPARING or (entry.leaving and not self.recovering)

    def _next(self) -> float | None:
        times = [entry.wake for entry in self.entries.values() if self._goes_on(entry)]
        if self.entries or self.journal.kept:
            times.append(self._next_check)
        if (due := self.node.errands.due()) is not None:
            times.append(due)
        if self._settling is not None:
            times.append(self._settling.at)
        if self.journal.fault:
            times.append(self._next_trial)
        return max(0.0, min(times) - self.node.clock()) if times else None

    def _uncertain(self) -> bool:
        return bool(self.recovering) or any(entry.void for entry in self.entries.values())

    def scan(self) -> None:
        """Look for what nobody owns; clean it if the admin wants that."""
        if self._uncertain():
            return
        self._next_scan = self.node.clock() + _SCAN_S
        owned = [work.step for entry in self.entries.values() for work in entry.works]
        found = orphans.find(self.node, owned)
        self._strangers = [
            Cgroup(one.path) for one in found if one.kind == "control group" and not one.foreign
        ]
        if self.node.settings.orphans is Orphans.CLEAN:
            kept = [(orphan._replace(foreign=""), orphans.clean(orphan, self.node)) for orphan in found]
            self.orphans = [f"{orphan}: {why}" for orphan, why in kept if why]
            self.cleaned += [str(orphan) for orphan, why in kept if not why]
        else:
            self.orphans = [str(orphan) for orphan in found]

    def _follow_wall(self) -> None:
        """Who sets the clock, rightly or not, shortens no time for which something is kept."""
        now = self.node.read_clocks()
        apart = now.wall - now.clock
        if now.clock >= self._read_clocks_at or abs(apart - self._apart) >= CLOCK_SET_S:
            if self.journal.fault:
                return  # its trial comes first
            try:
                self.journal.read_clocks(now)
            except NotRecorded:
                return  # that is told by itself
            self._read_clocks_at = now.clock + _READ_CLOCKS_S
        self._apart = apart

    def _clean_kept(self) -> None:
        """Directories whose time is over and that nobody has again, one at a time."""
        if self.recovering or not self._read_clocks_at:
            return  # who has them, or when their time is over, is not known
        clock = self.node.clock()
        now = clock + self._apart
        for name, kept in list(self.journal.kept.items()):
            if kept.due > now or self._kept_later.get(name, 0.0) > clock:
                continue
            if self._lived_in(kept):
                self.unremoved.pop(name, None)
                continue
            arguments: dict[str, Any] = {"root": kept.root, "elements": kept.elements, "agent": kept.agent}
            arguments |= {"owner": list(self.node.owner), "home": kept.home}
            key = removal_key(kept.root, kept.elements)
            try:
                gone = self.node.errands(key, "remove", arguments, kept.remote)
                if gone is None or (gone["left"] and gone["left"][0][1] == NOT_FINISHED):
                    return
                if not gone["left"]:
                    self.journal.forget_kept(name)
                    self.node.errands.forget(key)
                    self._kept_later.pop(name, None)
                    self.unremoved.pop(name, None)
                    return
                if gone.get("shared") and now - kept.due < _LONG_S:
                    self.unremoved.pop(name, None)  # other nodes have something of it, which is no trouble
                else:
                    self.unremoved[name] = left_of(kept.root, kept.elements, gone["left"])
            except NotRecorded:
                pass  # that is told by itself
            except (OSError, StepFailed) as error:
                words = error.strerror if isinstance(error, OSError) else str(error)
                self.unremoved[name] = f"{'/'.join([kept.root, *kept.elements])}: {words}"
            self._kept_later[name] = clock + _KEPT_AGAIN_S  # the others need not wait for it

    def _lived_in(self, kept: Kept) -> bool:
        """Whether a binding has such a directory now: its job runs again, or an element of it still does."""
        return any(
            work.step.root == kept.root
            and work.state != StepState.UNDONE
            and lies_in(directory_of(work.step, work.evidence), kept.elements)
            for entry in self.entries.values()
            for work in entry.works
            if isinstance(work.step, Shared)
        )

    # ----------------------------------------------------------------------------------------------- drift

    def check(self) -> None:
        """Compare all READY bindings with the kernel; repair what has drifted, or say that it is degraded."""
        for entry in list(self.entries.values()):
            self.check_one(entry)

    def _check_some(self, now: float) -> bool:
        """The same at its time, for a slice of time; whether it has not come through."""
        if now >= self._next_check and not self._unchecked:
            self._unchecked = list(self.entries.values())
            self._next_check = now + self.node.settings.check_s
        end = self.node.clock() + SLICE_S
        while self._unchecked:
            self.check_one(self._unchecked.pop())
            if self.node.clock() >= end:
                break
        return bool(self._unchecked)


def _as_made(node: Node, journal: Journal, boot: str) -> Node:
    """With what was in force when this boot's things were made, whatever the settings are now.

    They bear the name of the directory of claims that there was, and processes are in the groups of then.
    """
    held = journal.standing
    if held.owner and any(order.boot == boot for order, _ in journal.orders().values()):
        node = node._replace(owner=node.owner._replace(id=held.owner))
        if (groups := Cgroup(held.groups)).exists():
            node = node._replace(groups=groups)
    new = journal.strokes == 0 and not held.recovering
    if new and (group := orphans.any_of_ours(node)):
        # Nothing else tells that this node is not free: its state directory is another, or was emptied.
        journal.settle(f"there is no journal in {journal.directory}, and {group.path} is there")
    journal.belong(owner=node.owner.id, groups=node.groups.path)
    return node
