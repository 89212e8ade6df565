"""From what reporters print to what the node knows: the supervisor's `Sink`.

Pure but for what it is told by. Each line is parsed and checked by the contract, good values go into the
table, the rest is kept with its text until the next run, for `status` and `explain`. A reporter whose values
were refused only because the broker had not let in their type yet is asked for again when it has.
"""

from collections.abc import Callable, Iterator, Mapping

import msgspec

from xce.agent.node import Node
from xce.agent.types import Types
from xce.linux.reaper import Exit
from xce.model.configuration import Mode
from xce.model.message import ReportedCondition, ReporterState
from xce.model.reporter import ReporterState as State
from xce.model.resource import ResourceType
from xce.model.value import Reading
from xce.reporters import cage, contract, elim
from xce.reporters.contract import Context, Outcome, Verdict
from xce.reporters.directory import SETTINGS, Candidate
from xce.reporters.frame import LIMITS, Frame, Refusal, TooLong, parse_line
from xce.reporters.result import RunResult

KEPT = LIMITS.refusals
_TO_COME = frozenset({State.WAITING, State.RUNNING, State.STOPPING})
"""States of a reporter that may still be heard for the first time."""
SHOWN_S = 60.0
"""How long a line of a persistent reporter that could not be read is shown, at least."""


class Account:
    """What is known of one reporter's output beside its values."""

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate
        self.state: ReporterState | None = None
        """As the supervisor told it."""
        self.ttl = 0.0
        """Seconds that its values live, unless a type says otherwise."""
        self.frames = 0
        """Of the newest run."""
        self.refusals: list[Refusal] = []
        self.refused = 0
        """How many there were; the first `KEPT` of a run are kept, the newest of a persistent one."""
        self.notes: list[str] = []
        self.conditions: list[ReportedCondition] = []
        self.exit: Exit | None = None
        self.elim: elim.Stream | None = None
        self.heard = False
        """It has given something, or ended, since the agent's start."""
        self.values: Mapping[str, Reading] | None = None
        """Of the newest run, if all of it was taken and nothing else is to be said of it."""
        self.told: tuple[object, ...] = ()
        """What the node was told of its state last, and from what."""
        self._refused_at: dict[int, float] = {}

    @property
    def streaming(self) -> bool:
        """Whether its frames count at once."""
        return self.candidate.settings.mode is not Mode.ONE_SHOT

    @property
    def trouble(self) -> str:
        """What was refused, in one line; '' when nothing was."""
        return contract.in_one_line(self.refusals, self.refused)

    def take_run(self, outcome: Outcome, rivals: list[Refusal], notes: list[str]) -> None:
        """A one-shot run replaces all that was known of the one before."""
        self.frames = outcome.frames
        self.refusals = [*outcome.refusals, *rivals][:KEPT]
        self.refused = outcome.refused + len(rivals)
        self.notes = [*outcome.notes, *notes][:KEPT]

    def take_frame(self, outcome: Outcome, rivals: list[Refusal], *, at: float, patience: float) -> None:
        """One more frame. What was refused is shown until its name is given well again; a line that could
        not be read at all, for `patience` seconds.
        """
        self.frames += outcome.frames
        standing = [
            refusal
            for refusal in self.refusals
            if (refusal.name not in outcome.values if refusal.name else self._since(refusal, at) <= patience)
        ]
        news = [*outcome.refusals, *rivals]
        renamed = {refusal.name for refusal in news if refusal.name}
        self.refusals = [*(one for one in standing if one.name not in renamed), *news][-KEPT:]
        self.refused = len(self.refusals)
        self._refused_at = {
            refusal.line: self._refused_at.get(refusal.line, at)
            for refusal in self.refusals
            if not refusal.name
        }
        self.note(outcome.notes)

    def begin_stream(self) -> None:
        """A persistent run begins."""
        self.frames = self.refused = 0
        self.refusals, self.notes, self._refused_at = [], [], {}
        self.elim = elim.Stream() if self.candidate.settings.mode is Mode.ELIM else None

    def note(self, notes: list[str]) -> None:
        """Keep what is new among notes."""
        self.notes = [*self.notes, *(note for note in notes if note not in self.notes)][-KEPT:]

    def _since(self, refusal: Refusal, at: float) -> float:
        return at - self._refused_at.get(refusal.line, at)


class Intake:
    """See the module. `identity`: of an external reporter, which its types name; '' on a node.

    `rerun(name)` starts a reporter again soon; `keep_generations()` is called when an inventory is new.
    """

    def __init__(
        self,
        node: Node,
        *,
        now: Callable[[], float],
        rerun: Callable[[str], object],
        assign: Callable[[str, float | None, list[str]], object],
        keep_generations: Callable[[], object],
        identity: str = "",
    ) -> None:
        self.node, self.types = node, node.types
        self.accounts: dict[str, Account] = {}
        self._now, self._rerun, self._assign = now, rerun, assign
        self._keep_generations, self._identity = keep_generations, identity
        self._cold = True

    # --------------------------------------------------------------------------------- from elsewhere

    def update(self, candidates: Mapping[str, Candidate]) -> None:
        """The reporters' directory as it is now; before the supervisor is told of it."""
        for name, candidate in candidates.items():
            account = self.accounts.setdefault(name, Account(candidate))
            account.candidate = candidate
            self.types.declare(settings_file(candidate), candidate.settings.types)
        self.apply_types()
        for name in candidates:
            self._expect_of(name)
            self._show(name)
        self._maybe_warm()

    def apply_types(self) -> None:
        """The types may have changed: what was refused for want of one is asked for again."""
        if not self.node.apply_types(self._now()):
            return
        for name, account in self.accounts.items():
            self._expect_of(name)
            self._show(name)
            if any(refusal.name.partition("@")[0] in self.types.in_force for refusal in account.refusals):
                self._rerun(name)

    # ------------------------------------------------------------------------------ from the supervisor

    def run_finished(self, name: str, result: RunResult) -> str:
        """A run is over; see `reporters.result.Sink`."""
        account = self.accounts[name]
        account.exit = result.exit
        account.heard = True
        if account.streaming and not result.not_applicable:
            self._stream_ended(name, account, result)
            return ""
        outcome = self._outcome(name, account, result)
        rivals = self._publish(name, account, outcome, run=result.run, at=result.started_at)
        account.take_run(outcome, rivals, result.notes)
        self._show(name)
        self._maybe_warm()
        return account.trouble if outcome.refused and not outcome.frames else ""

    def again(self, name: str, run: int, at: float) -> bool:
        """See `reporters.result.Sink`: what was read then is not read again."""
        account = self.accounts[name]
        if account.values is None:
            return False
        return self.node.table.again(name, account.values, run=run, at=at, ttl=account.ttl)

    def _outcome(self, name: str, account: Account, result: RunResult) -> Outcome:
        """What a one-shot run gives."""
        outcome = contract.finish_run(
            result.lines,
            self._context(name),
            fault=result.fault,
            not_applicable=_declined(result),
            names=self.node.table.names(name),
            promised=cage.expected(account.candidate.settings, self._assigned(name)),
        )
        bad = result.fault or result.not_applicable or result.notes
        more = outcome.silent or outcome.refusals or outcome.notes or outcome.conditions or outcome.instances
        account.values = None if bad or more else outcome.values
        return outcome

    def frame(self, name: str, line: bytes | TooLong, number: int, at: float) -> None:
        """A line of a persistent or elim reporter; see `reporters.result.Sink`."""
        account = self.accounts[name]
        if number == 1:
            account.begin_stream()
        frames = account.elim.feed(line) if account.elim else [parse_line(line, number)]
        for frame in frames:
            if frame is not None:
                self._take_frame(name, account, frame, at)
                account.heard = True
        self._show(name)
        self._maybe_warm()

    def _take_frame(self, name: str, account: Account, frame: Frame | Refusal, at: float) -> None:
        outcome = contract.take_frame(frame, self._context(name))
        rivals: list[Refusal] = []
        state = account.state or ReporterState(state="")
        if isinstance(frame, Frame):
            rivals = self._publish(name, account, outcome, run=state.runs, at=at)
        account.take_frame(outcome, rivals, at=at, patience=max(SHOWN_S, state.interval_ms / 1000))

    def state(self, name: str, state: ReporterState) -> None:
        """A reporter's state is new."""
        account = self.accounts.get(name)
        if account is not None:
            account.state, account.ttl = state, state.ttl_ms / 1000
            self._show(name)
            self._maybe_warm()

    def gone(self, name: str) -> None:
        """A reporter was removed."""
        account = self.accounts.pop(name, None)
        self.node.remove(name)
        if account is not None:
            self.types.declare(settings_file(account.candidate), [])
            self.apply_types()

    # ------------------------------------------------------------------------------------------ inside

    def _context(self, name: str) -> Context:
        return Context(
            reporter=self._identity or name,
            types=self.types.in_force,
            waiting=self.types.waiting,
            previous=self.node.table.previous(name),
            external=bool(self._identity),
        )

    def _publish(
        self, name: str, account: Account, outcome: Outcome, *, run: int, at: float
    ) -> list[Refusal]:
        """Take what a run or frame gives; returns the names that belong to another reporter."""
        if outcome.verdict is Verdict.FAILED:
            self.node.table.fault(name, outcome.cause)
            return []
        before = self.node.table.moves
        rivals = self.node.table.publish(
            name,
            outcome.values,
            run=run,
            at=at,
            ttl=account.ttl,
            now=self._now(),
            silent=outcome.silent,
        )
        if self.node.table.moves != before:
            self._assign_to(name)
        if outcome.conditions is not None:
            account.conditions = outcome.conditions
        if outcome.instances is not None and self.node.stock(name, outcome.instances):
            self._keep_generations()
        return rivals

    def _stream_ended(self, name: str, account: Account, result: RunResult) -> None:
        """A persistent reporter ended, which it should not; what it has given lives on until it is stale."""
        if account.elim is not None:
            dropped = account.elim.drop("the elim ended")
            outcome = Outcome(refusals=list(dropped), refused=len(dropped))
            account.take_frame(outcome, [], at=self._now(), patience=SHOWN_S)
        account.note(result.notes)
        self.node.table.fault(name, result.fault)
        self._show(name)
        self._maybe_warm()

    def _maybe_warm(self) -> None:
        """The cold start, in which the alphabet decides who owns a name, is over once all were heard."""
        if self._cold:
            waited_for = (one for one in self.accounts.values() if not one.heard)
            self._cold = any(one.state is None or one.state.state in _TO_COME for one in waited_for)
            if not self._cold:
                self.node.warm_up()

    def _show(self, name: str) -> None:
        """Tell the state as the supervisor sees it, with what only we know."""
        account = self.accounts[name]
        if account.state is None:
            return
        problems = self.types.problems.get(settings_file(account.candidate), ())
        declared = "; ".join([*problems, *self._empty_promises(account.candidate)])
        told = (account.state, account.trouble, declared, account.refused, account.conditions)
        if told == account.told:
            return
        account.told = told
        self.node.set_state(
            name,
            msgspec.structs.replace(
                account.state,
                cause="\n".join(filter(None, (account.state.cause or account.trouble, declared))),
                refused=account.refused,
                conditions=account.conditions,
            ),
        )

    def _empty_promises(self, candidate: Candidate) -> Iterator[str]:
        """What NAME.yaml says that it reports, and nobody has said what it is."""
        hint = "(declare it in resources.yaml, or under 'types:')"
        if self.types.learned:
            for name in candidate.settings.reports:
                if name not in self.types.in_force and name not in self.types.waiting:
                    yield f"reports: {contract.NO_TYPE} '{name}' {hint}"

    def _assigned(self, name: str) -> list[str]:
        """Names that the cluster's types give to this reporter."""
        who = self._identity or name
        return [kind.name for kind in self.types.in_force.values() if kind.reporter == who]

    def _expect_of(self, name: str) -> None:
        """What a reporter should give, by its settings and by the types in force, which may be new."""
        self._assign_to(name)
        settings = self.accounts[name].candidate.settings
        expected = [one for one in cage.expected(settings) if one in self.types.in_force]
        self.node.table.expect(name, expected, self._now())

    def _assign_to(self, name: str) -> None:
        assigned = self._assigned(name)
        given = {one.partition("@")[0] for one in self.node.table.names(name)}
        of_types = [
            interval
            for one in sorted(given.union(assigned))
            if (interval := _interval(self.types, one)) is not None
        ]
        self._assign(name, min(of_types, default=None), assigned)


def settings_file(candidate: Candidate) -> str:
    """Path of NAME.yaml."""
    return candidate.path + SETTINGS


def _declined(result: RunResult) -> int:
    """The status by which a run said that its names have no meaning here; 0 if it did not."""
    if not result.not_applicable:
        return 0
    return result.exit.status if result.exit else contract.NOT_APPLICABLE


def _interval(types: Types, name: str) -> float | None:
    kind: ResourceType | None = types.in_force.get(name)
    return kind.interval if kind is not None else None
