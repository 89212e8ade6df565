"""Carries out orders on a node: prepare, release, and going on after a crash, a reboot, a full disk.

No loop and no threads: whoever owns an `Executor` calls `advance` when it says so, or when something was
ordered, always from one thread, and reads `news`. In the agent that is the journal's thread, since every
order and step is synced to disk; the loop's thread hands orders in and takes reports out through queues.
Nothing here waits: what can hang is a child's, what needs time is looked at again.

Before anything is done for a binding its whole plan is on disk, before each step that it has begun. After a
crash a begun step is done once more, which takes what is there; after all of them the kernel is read back,
and only then is the binding READY. Everything of one binding is in order; bindings do not wait for each
other, unless they share a step's key.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from xce.model.claim import Binding, BindingState, Chosen, Claim
from xce.model.profile import Orphans
from xce.prepare import orphans, steps
from xce.prepare.books import Books
from xce.prepare.entry import PHASES, STATES, Entry, Event, Phase, Report, StepState, ended
from xce.prepare.journal import Journal, NotRecorded, Order, Tombstone, Work
from xce.prepare.plan import PlanRefused, plan
from xce.prepare.step import (
    Done,
    InstanceMap,
    Node,
    Outcome,
    Step,
    StepFailed,
    Wait,
)
from xce.prepare.steps import handler

_LOOK_S = 0.02
_AGAIN_S = 1.0
"""After what failed outside of the plan: a full disk, an error while taking back."""
_INTERNAL_S = 30.0
_SCAN_S = 600.0


class Refused(Exception):
    """An order that this node does not take, in words; nothing was done or written."""


class Executor(Books):
    """The bindings of one node."""

    def __init__(self, journal: Journal, node: Node, boot: str) -> None:
        super().__init__(journal, node)
        self.boot = boot
        self._next_check = self._next_scan = 0.0
        self.orphans: list[str] = []
        """What of ours nobody owns, as of the last look, in words."""
        for order, works in journal.orders().values():
            entry = self._add(Entry(order, works))
            if order.boot != boot and not entry.leaving:
                entry.void = True

    # ---------------------------------------------------------------------------------------------- orders

    @property
    def recovering(self) -> str:
        """Why nothing may be prepared or released before `settle`; '' if the node knows what it holds."""
        return self.journal.standing.recovering

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

        `words`: what the claim's provider says now.
        """
        if (entry := self.entries.get(binding.id)) is not None:
            if entry.leaving and entry.phase is Phase.RELEASING:
                raise Refused(f"binding {binding.id} is being released")
            return self._hear(entry, words or {}, instances)
        if (stone := self.journal.tombstone(binding.id)) is not None:
            if stone.state is BindingState.FAILED and stone.op_id == op_id:
                return ended(binding.id, stone)
            raise Refused(f"binding {binding.id} has ended here: it is {stone.state}")
        self._check_order(epoch)
        self._check_instances(binding.instances)
        return self._begin(op_id, epoch, binding, claim, instances, words or {})

    def _hear(self, entry: Entry, words: Mapping[str, str], instances: InstanceMap) -> Report:
        """The provider's words may be new, or were lost with the process before."""
        wanted, entry.words = entry.wants_words, words
        if wanted:
            entry.wake = 0.0
        if wanted and entry.void:
            self._replan(entry, instances)
        return self._report(self.entries.get(entry.id, entry))

    def release(self, *, op_id: str, epoch: int, binding: str) -> Report:
        """Take a binding back; one that was never here is written down as ended. Raises as `prepare`."""
        entry = self.entries.get(binding)
        stone = self.journal.tombstone(binding)
        if entry is None and stone is not None:
            return ended(binding, stone)
        if entry is not None and entry.phase is Phase.RELEASING:
            return self._report(entry)
        self._check_order(epoch)
        if entry is None:
            stone = Tombstone(
                state=BindingState.RELEASED, epoch=epoch, op_id=op_id, reason="it was never here"
            )
            self.journal.end(binding, stone)
            return ended(binding, stone)
        self._move(entry, Event.RELEASE, epoch=max(epoch, entry.order.epoch), release_op=op_id, reason="")
        entry.quiesced, entry.void, entry.drift = False, False, ""
        return self._report(entry)

    def resume(self, instances: InstanceMap) -> None:
        """After a reboot, once the inventory is known: plan anew what is to be there, or let it fail."""
        for entry in [entry for entry in self.entries.values() if entry.void and not entry.wants_words]:
            try:
                self._replan(entry, instances)
            except NotRecorded as error:
                self._hold(entry, Wait(_AGAIN_S, str(error)))

    def settle(
        self, known: Iterable[tuple[str, int, Binding, Claim, Mapping[str, str]]], instances: InstanceMap
    ) -> list[Report]:
        """End recovery: `known` (op_id, epoch, binding, claim, its provider's words) is what the cluster says
        that this node has.

        What is not in the journal is prepared again, which takes what is there. Raises `NotRecorded`.
        """
        reports = [
            self._begin(op_id, epoch, binding, claim, instances, words)
            for op_id, epoch, binding, claim, words in known
            if binding.id not in self.entries and self.journal.tombstone(binding.id) is None
        ]
        self.journal.settle()
        return reports

    def _check_order(self, epoch: int) -> None:
        standing = self.journal.standing
        if standing.recovering:
            raise Refused(f"this node is recovering: {standing.recovering}")
        if epoch < standing.epoch:
            raise Refused(f"order of epoch {epoch} is stale: this node has seen epoch {standing.epoch}")

    def _check_instances(self, wanted: Sequence[Chosen]) -> None:
        """Nobody may have any of them, or a part or the whole of one, in whatever phase."""
        for entry in self.entries.values():
            for held in entry.order.binding.instances:
                for chosen in wanted:
                    if {chosen.id} & {held.id, *held.parents} or held.id in chosen.parents:
                        raise Refused(
                            f"instance {chosen.id} is held by binding {entry.id}, which is {entry.phase}"
                        )

    def _begin(
        self,
        op_id: str,
        epoch: int,
        binding: Binding,
        claim: Claim,
        instances: InstanceMap,
        words: Mapping[str, str],
    ) -> Report:
        try:
            planned = plan(binding, claim, instances, self.node.settings, words)
            self._admit(planned, binding.id)
        except PlanRefused as error:
            stone = Tombstone(state=BindingState.FAILED, epoch=epoch, op_id=op_id, reason=str(error))
            self.journal.end(binding.id, stone)
            return self._tell(ended(binding.id, stone))
        works = [Work(step=step, state=StepState.BEGUN) for step in planned]
        order = Order(
            binding=binding,
            claim=claim,
            op_id=op_id,
            epoch=epoch,
            boot=self.boot,
            phase=Phase.PREPARING,
            steps=len(works),
            since=self.node.wall(),
        )
        self.node.mark("order.before-intent")
        self.journal.begin(order, works, epoch=epoch)
        self.node.mark("order.after-intent")
        return self._report(self._add(Entry(order, works, words)))

    def _replan(self, entry: Entry, instances: InstanceMap) -> None:
        order = entry.order
        try:
            planned = plan(order.binding, order.claim, instances, self.node.settings, entry.words)
            self._admit(planned, entry.id, void=False)
        except PlanRefused as error:
            entry.void = False
            self._move(entry, Event.VOID, boot=self.boot)
            self._move(entry, Event.FAILED, reason=str(error))
            return
        outlasting = [work for work in entry.works if handler(work.step).outlasts_boot]
        works = [
            next((work for work in outlasting if work.step == step), None)
            or Work(step=step, state=StepState.BEGUN)
            for step in planned
        ]
        works = [msgspec.structs.replace(work, state=StepState.BEGUN) for work in works]
        self._forget(entry)
        following = PHASES.step(entry.phase, Event.VOID)
        renewed = msgspec.structs.replace(order, phase=following, boot=self.boot, steps=len(works))
        self.journal.begin(renewed, works, epoch=0)
        self._add(Entry(renewed, works, entry.words))

    # --------------------------------------------------------------------------------------------- working

    def advance(self) -> float | None:
        """Do what can be done now; in how many seconds there is more, None if only an order brings more."""
        if not self.node.errands.alone():
            return _LOOK_S
        now = self.node.clock()
        for entry in list(self.entries.values()):
            if entry.wake <= now and entry.phase is not Phase.READY and not entry.void:
                self._work(entry)
        if now >= self._next_check:
            self.check()
            self._next_check = now + self.node.settings.check_s
        if now >= self._next_scan:
            self.scan()
            self._next_scan = now + _SCAN_S
        self._clean_kept()
        waiting = [e.wake for e in self.entries.values() if e.phase is not Phase.READY and not e.void]
        if self.entries or self.journal.kept:
            waiting.append(self._next_check)
        return max(0.0, min(waiting) - self.node.clock()) if waiting else None

    def _work(self, entry: Entry) -> None:
        """As far as one binding gets now. Its faults are its own."""
        try:
            if entry.phase is Phase.PREPARING:
                self._prepare(entry)
            if entry.leaving and not self.recovering:
                self._take_back(entry)
        except NotRecorded as error:
            self._hold(entry, Wait(_AGAIN_S, str(error)))
        except Exception as error:  # noqa: BLE001 - one binding's fault must not reach another
            words = f"internal error: {type(error).__name__}: {error}"
            self._hold(entry, Wait(_INTERNAL_S, words, blocker=True))
        if entry.id in self.entries:
            self._report(entry)

    def _prepare(self, entry: Entry) -> None:
        if not entry.looked and not self._look(entry):
            return
        for number, work in enumerate(entry.works):
            if work.state == StepState.DONE:
                continue
            outcome = self._do(entry, number)
            if outcome is None:
                return
            done = msgspec.structs.replace(
                entry.works[number], state=StepState.DONE, evidence=outcome.evidence
            )
            entry.works[number] = entry.unwritten[number] = done  # goes to disk with what is written next
        for number, work in enumerate(entry.works):
            if problem := self._observe(entry, number):
                self._fail(entry, f"not as it should be: {problem} ({steps.describe(work.step)})")
                return
        self._move(entry, Event.VERIFIED)

    def _look(self, entry: Entry) -> bool:
        """Ask every step what it will make, and write that down in one stroke, before anything is made."""
        for number, work in enumerate(entry.works):
            try:
                while outcome := handler(work.step).look(
                    work.step, entry.works[number].evidence, self._at(entry, number)
                ):
                    if isinstance(outcome, Wait):
                        self._hold(entry, outcome)
                        return False
                    noted = msgspec.structs.replace(entry.works[number], evidence=outcome.evidence)
                    entry.works[number] = entry.unwritten[number] = noted
            except (OSError, StepFailed) as error:
                self._fail(entry, self._reason(work.step, error))
                return False
        if entry.unwritten:
            self._write(entry, {}, "order.noted")
        entry.looked = True
        return True

    def _reason(self, step: Step, error: OSError | StepFailed) -> str:
        if isinstance(error, StepFailed):
            return str(error)
        return f"cannot make {steps.describe(step)}: {_words(error)}"

    def _do(self, entry: Entry, number: int) -> Done | None:
        """One step; None if the binding has to wait, or has failed."""
        step = entry.works[number].step
        while True:
            self.node.mark(f"{_kind(step)}.before-do")
            try:
                outcome = handler(step).do(step, entry.works[number].evidence, self._at(entry, number))
            except (OSError, StepFailed) as error:
                self._fail(entry, self._reason(step, error))
                return None
            self.node.mark(f"{_kind(step)}.after-do")
            if isinstance(outcome, Done):
                return outcome
            if isinstance(outcome, Wait):
                self._hold(entry, outcome)
                return None
            noted = msgspec.structs.replace(entry.works[number], evidence=outcome.evidence)
            self._write(entry, {number: noted}, f"{_kind(step)}.note")

    def _take_back(self, entry: Entry) -> None:
        if entry.undo_since is None:
            entry.undo_since = self.node.clock()
        begun = [n for n, work in enumerate(entry.works) if work.state != StepState.UNDONE]
        if not entry.quiesced:
            for number in begun:
                if not self._back(entry, number, quiesce=True):
                    return
            entry.quiesced = True
        for number in reversed(begun):
            while not (outcome := self._back(entry, number, quiesce=False)):
                if entry.wake > self.node.clock():
                    return
            work = msgspec.structs.replace(entry.works[number], state=StepState.UNDONE)
            if outcome.kept is not None:
                self._write(entry, {number: work}, f"{_kind(work.step)}.kept", kept=outcome.kept)
            entry.works[number] = work  # after a crash it is undone again, which finds nothing
        self._end(entry)

    def _back(self, entry: Entry, number: int, *, quiesce: bool) -> Done | None:
        step, evidence = entry.works[number].step, entry.works[number].evidence
        act = handler(step).quiesce if quiesce else handler(step).undo
        word = f"{_kind(step)}.{{}}-{'quiesce' if quiesce else 'undo'}"
        self.node.mark(word.format("before"))
        try:
            outcome: Outcome = act(step, evidence, self._at(entry, number))
        except (OSError, StepFailed) as error:
            outcome = Wait(_AGAIN_S, f"{steps.describe(step)}: {_words(error)}", blocker=True)
        self.node.mark(word.format("after"))
        if isinstance(outcome, Done):
            return outcome
        assert isinstance(outcome, Wait), "only doing has something to note"
        self._hold(entry, outcome)
        return None

    def _end(self, entry: Entry) -> None:
        state = STATES[PHASES.step(entry.phase, Event.CLEARED)]
        order = entry.order
        stone = Tombstone(
            state=state, epoch=order.epoch, op_id=order.release_op or order.op_id, reason=order.reason
        )
        self.node.mark("order.before-end")
        self.journal.end(entry.id, stone)
        self.node.mark("order.after-end")
        self._forget(entry)
        self._tell(ended(entry.id, stone))

    def scan(self) -> None:
        """Look for what nobody owns; clean it if the admin wants that."""
        if self.recovering or any(entry.void for entry in self.entries.values()):
            return
        owned = [work.step for entry in self.entries.values() for work in entry.works]
        found = orphans.find(self.node, owned)
        if self.node.settings.orphans is Orphans.CLEAN:
            kept = [(orphan, orphans.clean(orphan, self.node)) for orphan in found]
            self.orphans = [f"{orphan}: {why}" for orphan, why in kept if why]
        else:
            self.orphans = [str(orphan) for orphan in found]

    def _clean_kept(self) -> None:
        """Directories whose time is over, one at a time."""
        now = self.node.wall()
        for name, kept in [one for one in self.journal.kept.items() if one[1].due <= now]:
            try:
                gone = self.node.errands(
                    f"kept {name}", "remove", {"root": kept.root, "elements": kept.elements}, kept.remote
                )
                if gone is not None and not gone["left"]:
                    self.journal.forget_kept(name)
            except (OSError, StepFailed, NotRecorded):
                continue
            return

    # ----------------------------------------------------------------------------------------------- drift

    def check(self) -> None:
        """Compare READY bindings with the kernel; repair what has drifted, or say that it is degraded."""
        for entry in list(self.entries.values()):
            if entry.phase is Phase.READY and not entry.void:
                entry.drift = self._check(entry)
                self._report(entry)

    def _check(self, entry: Entry) -> str:
        """What is wrong with a binding after trying to mend it; '' if nothing is."""
        problems, mended = [], False
        for number in range(len(entry.works)):
            problem = self._observe(entry, number)
            if problem or mended:  # what follows may rest on what was mended
                mended = True
                problem = self._repair(entry, number, problem)
            problems.append(problem)
        return "; ".join(filter(None, problems))

    def _repair(self, entry: Entry, number: int, problem: str) -> str:
        work = entry.works[number]
        try:
            outcome = handler(work.step).do(work.step, work.evidence, self._at(entry, number))
        except (OSError, StepFailed) as error:
            return f"{problem}; it cannot be repaired: {_words(error)}"
        if not isinstance(outcome, Done):
            return f"{problem}; it is being repaired"
        try:
            self._write(entry, {number: msgspec.structs.replace(work, evidence=outcome.evidence)}, "repair")
        except NotRecorded as error:
            return str(error)
        return self._observe(entry, number)

    def _observe(self, entry: Entry, number: int) -> str:
        work = entry.works[number]
        try:
            return handler(work.step).observe(work.step, work.evidence, self._at(entry, number))
        except (OSError, StepFailed) as error:
            return f"cannot look at {steps.describe(work.step)}: {_words(error)}"


def _kind(step: Step) -> str:
    """The word for its kind that the journal uses."""
    return str(step.__struct_config__.tag)


def _words(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror or error)
    return str(error)
