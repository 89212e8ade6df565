"""One binding further: its steps done, observed, taken back, mended. When is `execute`'s business.

For the journal every step has begun before the first is done. After a crash they are done once more, which
takes what is there; after all of them the kernel is read back, and only then is the binding READY.
"""

import msgspec

from xce.prepare import steps
from xce.prepare.books import Books
from xce.prepare.entry import PHASES, STATES, Entry, Event, Phase, StepState, ended
from xce.prepare.handler import Done, Node, Note, Outcome, StepFailed, Wait
from xce.prepare.journal import Journal, NotRecorded, Tombstone, Work
from xce.prepare.plan import PlanRefused, plan
from xce.prepare.step import InstanceMap, Step
from xce.prepare.steps import handler

AGAIN_S = 1.0
"""After what failed outside of the plan: a full disk, an error while taking back."""
_INTERNAL_S = 30.0


class Carrier(Books):
    """Carries single bindings on. Nothing here waits."""

    def __init__(self, journal: Journal, node: Node, boot: str) -> None:
        super().__init__(journal, node)
        self.boot = boot
        self.inventory: InstanceMap | None = None
        """By which bindings of an earlier boot are planned anew; None while it is not known."""

    @property
    def recovering(self) -> str:
        """Why nothing may be prepared or released before `settle`; '' if the node knows what it holds."""
        return self.journal.standing.recovering

    def carry(self, entry: Entry) -> None:
        """As far as one binding gets now. Its faults are its own."""
        entry.served, before = self.node.clock(), list(entry.works)
        try:
            if entry.void and self.inventory is not None and not entry.wants_words:
                entry = self._replan(entry, self.inventory)
            if entry.phase is Phase.PREPARING:
                self._prepare(entry)
            if entry.leaving and not self.recovering:
                self._take_back(entry)
        except NotRecorded as error:
            self._hold(entry, Wait(AGAIN_S, str(error)))
        except Exception as error:  # noqa: BLE001 - one binding's fault must not reach another
            words = f"internal error: {type(error).__name__}: {error}"
            self._hold(entry, Wait(_INTERNAL_S, words, blocker=True))
        if entry.id in self.entries:
            self._report(entry)
        for number, (old, new) in enumerate(zip(before, entry.works, strict=False)):
            if old is not new:
                self._wake_sharers(entry, number)

    def _replan(self, entry: Entry, instances: InstanceMap) -> Entry:
        """The machine was started anew: the same binding with the steps of today, or on its way to fail."""
        order = entry.order
        stood = order.stood or entry.phase is Phase.READY
        try:
            planned = plan(order.binding, order.claim, instances, self.node.settings, entry.words)
            self.admit(planned, entry.id, void=False)
        except PlanRefused as error:
            self._move(entry, Event.VOID, boot=self.boot, stood=stood)
            self._move(entry, Event.FAILED, reason=str(error))
            entry.void = False
            return entry
        outlasting = [work for work in entry.works if handler(work.step).outlasts_boot]
        works = [
            next((work for work in outlasting if work.step == step), None)
            or Work(step=step, state=StepState.BEGUN)
            for step in planned
        ]
        works = [msgspec.structs.replace(work, state=StepState.BEGUN) for work in works]
        following = PHASES.step(entry.phase, Event.VOID)
        renewed = msgspec.structs.replace(
            order, phase=following, boot=self.boot, steps=len(works), stood=stood
        )
        self.journal.begin(renewed, works, epoch=0)
        self._forget(entry)
        return self._add(Entry(renewed, works, entry.words, served=entry.served))

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
        self._move(entry, Event.VERIFIED, synced=False)  # after a failure of the machine it is void anyway

    def _look(self, entry: Entry) -> bool:
        """What every step will make is written down in one stroke, before anything is made."""
        try:
            waiting = self._note(entry)
        except StepFailed as error:
            self._fail(entry, str(error))
            return False
        if waiting is not None:
            self._hold(entry, waiting)
            return False
        if entry.unwritten:
            self._write(entry, {}, "order.noted")
        entry.looked = True
        return True

    def _note(self, entry: Entry) -> Wait | None:
        """Ask every step what it will make; None if all have said it. Raises `StepFailed`."""
        for number, work in enumerate(entry.works):
            try:
                while outcome := handler(work.step).look(
                    work.step, entry.works[number].evidence, self._at(entry, number)
                ):
                    if isinstance(outcome, Wait):
                        return self._again(entry, number, outcome)
                    noted = msgspec.structs.replace(entry.works[number], evidence=outcome.evidence)
                    entry.works[number] = entry.unwritten[number] = noted
            except (OSError, StepFailed) as error:
                raise StepFailed(self._reason(work.step, error)) from error
        return None

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
                if died := self.node.errands.died(f"{entry.id}/{number}"):
                    outcome = outcome._replace(evidence=outcome.evidence | {"tried again": died})
                self.node.errands.forget(f"{entry.id}/{number}")  # it may have found it there
                return outcome
            if isinstance(outcome, Wait):
                self._hold(entry, self._again(entry, number, outcome))
                return None
            noted = msgspec.structs.replace(entry.works[number], evidence=outcome.evidence)
            self._write(entry, {number: noted}, f"{_kind(step)}.note", synced=outcome.synced)

    def _take_back(self, entry: Entry) -> None:
        if entry.undo_since is None:
            entry.undo_since = self.node.clock()
        entry.copies.look_anew()
        begun = [n for n, work in enumerate(entry.works) if work.state != StepState.UNDONE]
        if not entry.quiesced:
            for number in begun:
                if not self._back(entry, number, quiesce=True):
                    return
            entry.quiesced = True
        for number in reversed(begun):
            while not (outcome := self._back(entry, number, quiesce=False)):
                if entry.wake > self.node.clock():
                    self._keep_undone(entry)
                    return
            work = msgspec.structs.replace(entry.works[number], state=StepState.UNDONE)
            if outcome.words:
                entry.remarks.append(outcome.words)
            if outcome.kept is not None:
                self._write(entry, {number: work}, f"{_kind(work.step)}.kept", kept=outcome.kept)
            else:  # after a crash it is undone again, which finds nothing
                entry.works[number] = entry.unwritten[number] = work
        self._end(entry)

    def _keep_undone(self, entry: Entry) -> None:
        """Somebody holds it up, maybe for long: what others may get meanwhile is not undone twice."""
        if entry.unwritten and entry.waiting is not None and entry.waiting.blocker:
            self._write(entry, {}, "order.undone")

    def _back(self, entry: Entry, number: int, *, quiesce: bool) -> Done | None:
        step, evidence = entry.works[number].step, entry.works[number].evidence
        act = handler(step).quiesce if quiesce else handler(step).undo
        word = f"{_kind(step)}.{{}}-{'quiesce' if quiesce else 'undo'}"
        self.node.mark(word.format("before"))
        try:
            outcome: Outcome = act(step, evidence, self._at(entry, number))
        except (OSError, StepFailed) as error:
            outcome = Wait(AGAIN_S, f"{steps.describe(step)}: {_words(error)}", blocker=True)
        self.node.mark(word.format("after"))
        if isinstance(outcome, Done):
            return outcome
        assert isinstance(outcome, Wait), "only doing has something to note"
        self._hold(entry, self._again(entry, number, outcome))
        return None

    def _again(self, entry: Entry, number: int, wait: Wait) -> Wait:
        """What is waited for, with what has become of the first try."""
        died = self.node.errands.died(f"{entry.id}/{number}")
        return wait._replace(reason=f"{wait.reason} again: {died}") if died else wait

    def _end(self, entry: Entry) -> None:
        state = STATES[PHASES.step(entry.phase, Event.CLEARED)]
        order = entry.order
        reason = "; ".join(filter(None, [order.reason, *entry.remarks]))
        stone = Tombstone(
            state=state, epoch=order.epoch, op_id=order.release_op or order.op_id, reason=reason
        )
        self.node.mark("order.before-end")
        self.journal.end(entry.id, stone)
        self.node.mark("order.after-end")
        self._forget(entry)
        self._tell(ended(entry.id, stone))

    # ----------------------------------------------------------------------------------------------- drift

    def check_one(self, entry: Entry) -> None:
        """Compare a binding with the kernel if it is READY."""
        if self.entries.get(entry.id) is entry and entry.phase is Phase.READY and not entry.void:
            entry.drift = self._check(entry)
            entry.waiting = self._tend(entry)
            self._report(entry)

    def _check(self, entry: Entry) -> str:
        """What is wrong with a binding after trying to mend it; '' if nothing is."""
        problems, mended = [], False
        for number in range(len(entry.works)):
            before = entry.works[number]
            problem = self._observe(entry, number)
            if problem or (mended and not handler(before.step).outlasts_boot):
                problem = self._repair(entry, number, problem)
            mended |= entry.works[number].evidence != before.evidence  # what follows may rest on it
            problems.append(problem)
        return "; ".join(filter(None, problems))

    def _tend(self, entry: Entry) -> Wait | None:
        """What goes on with a binding that is ready, for its note."""
        waiting = None
        for number, work in enumerate(entry.works):
            try:
                outcome = handler(work.step).tend(work.step, work.evidence, self._at(entry, number))
                if isinstance(outcome, Note):
                    noted = msgspec.structs.replace(work, evidence=outcome.evidence)
                    self._write(entry, {number: noted}, f"{_kind(work.step)}.tended")
                else:
                    waiting = waiting or outcome
            except (OSError, StepFailed, NotRecorded) as error:
                waiting = waiting or Wait(AGAIN_S, f"{steps.describe(work.step)}: {_words(error)}")
        return waiting

    def _repair(self, entry: Entry, number: int, problem: str) -> str:
        work = entry.works[number]
        try:
            outcome = handler(work.step).do(work.step, work.evidence, self._at(entry, number))
        except (OSError, StepFailed) as error:
            return f"{problem}; it cannot be repaired: {_words(error)}"
        if not isinstance(outcome, Done):
            return f"{problem}; it is being repaired"
        try:
            if outcome.evidence != work.evidence:
                self._write(
                    entry, {number: msgspec.structs.replace(work, evidence=outcome.evidence)}, "repair"
                )
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
