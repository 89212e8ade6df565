"""`xce-agent reporter test FILE|NAME`: run it as the agent would, and say line by line what is taken."""

from collections import Counter
from collections.abc import Sequence

from xce.agent.cli import GOOD, TROUBLE, USAGE, client, output
from xce.agent.cli.options import Options, UsageError
from xce.agent.cli.settings import read
from xce.agent.intake import settings_file
from xce.agent.trial import NoSuchReporter, Trial, Verdict, find
from xce.model import human
from xce.model.builtin_types import ATTRIBUTES, BUILTIN, LOAD_INDICES
from xce.model.configuration import AgentFile, ExternalFile
from xce.model.value import Absent, Reading
from xce.reporters import cage
from xce.reporters.contract import NO_TYPE
from xce.reporters.frame import TooLong, escape, shown
from xce.reporters.result import RunResult

SUMMARY = "run a reporter as the agent would, and say line by line what would be taken"
PROGRAM = "xce-agent reporter test"
USAGE_TEXT = f"""\
usage: {PROGRAM} [--config FILE] [--runs N] [--for SECONDS] [--external NAME] FILE|NAME

  --runs N         so many runs (persistent, elim: frames; default 1, and 3)
  --for SECONDS    no longer than this
  --external NAME  as `xce-reporter run` with this identity would

Needs neither a running agent nor a broker; a running agent is asked who gives which name. The state directory
is a scratch one.
exit status: 0 everything would be taken, 1 something would be refused"""


def run(argv: Sequence[str]) -> int:
    """Try it; 1 if anything would be refused."""
    if "--help" in argv:
        print(USAGE_TEXT)
        return GOOD
    try:
        options = Options(argv, values=["--config", "--runs", "--for", "--external"])
        if len(options.arguments) != 1:
            raise UsageError("expected one FILE or NAME of a reporter")
        identity = options.get("--external")
        settings = read(options.get("--config"), ExternalFile if identity else AgentFile)
        candidate = find(options.arguments[0], settings)
        runs = int(options.number("--runs", 1 if candidate.settings.mode == "one-shot" else 3))
        seconds = options.number("--for", 0.001) if options.has("--for") else None
    except (UsageError, NoSuchReporter) as error:
        output.fail(PROGRAM, str(error))
        return USAGE
    report = Report()
    trial = Trial(
        candidate,
        settings,
        identity=identity,
        owners=owners(settings),
        on_line=report.line,
        on_end=report.end,
    )
    for problem in trial.types.problems.get(settings_file(candidate), ()):
        report.complain(problem)
    if candidate.settings.mode != "one-shot" and seconds is None:
        own = candidate.settings
        seconds = (own.interval or settings.reporters.interval) + (own.timeout or settings.reporters.timeout)
    trial.run(runs=runs, at_most_s=seconds)
    if report.unknown and not trial.types.learned:
        words = f"none were heard from a broker: {settings.state_directory} has no file of them"
        print(f"note: no types but the built-in ones are known here ({words})")
    if trial.refused:
        report.complain(f"not started: {trial.refused}")
    elif report.heard and (missing := set(cage.expected(candidate.settings)) - report.heard):
        print(f"note: promised in {candidate.name}.yaml and not given: {', '.join(sorted(missing))}")
    elif not report.lines and candidate.settings.mode != "one-shot":
        report.complain(f"printed no line within {human.span(seconds)} (does it flush after each line?)")
    return TROUBLE if report.bad else GOOD


def owners(settings: AgentFile | ExternalFile) -> dict[str, str]:
    """Who gives which name here: the built-in source, and whom the running agent has, if there is one."""
    own = [*LOAD_INDICES, *ATTRIBUTES] if isinstance(settings, AgentFile) else []
    try:
        answer = client.ask(f"{settings.run_directory}/agent.sock", op="owners")
    except (client.NotRunning, client.AgentError):
        return dict.fromkeys([kind.name for kind in own if settings.reporters.load_indices], BUILTIN)
    return dict(answer["owners"])


class Report:
    """Prints as it goes."""

    def __init__(self) -> None:
        self.bad = False
        self.unknown = False
        """A name that no type is known for."""
        self.lines = 0
        self.heard: set[str] = set()
        """Names that were given, taken or not."""

    def line(self, line: bytes | TooLong, verdicts: list[Verdict]) -> None:
        """What becomes of one line."""
        self.lines += 1
        if not verdicts:
            blank = isinstance(line, bytes) and not line.strip()
            print(f"line {self.lines}: {'blank' if blank else 'part of a report that is not complete yet'}")
        for verdict in verdicts:
            self._verdict(verdict)

    def end(self, result: RunResult) -> None:
        """How the run ended; of one that could not begin, its trial says why."""
        if result.exit is None and result.fault and not result.run:
            return
        how = str(result.exit or "not ended")
        print(f"run {result.run}: {how} after {human.span(result.duration)}")
        for note in result.notes:
            print(f"  note: {human.printable(note)}")
        for line in result.stderr.splitlines()[:20]:
            print(f"  stderr: {escape(line)}")
        if result.not_applicable:
            print("  not applicable here: all its names are shown as such")
        elif result.fault:
            self.complain(f"nothing of this run is taken: {result.fault}")
        self.lines = 0

    def complain(self, text: str) -> None:
        """Something would not be taken."""
        self.bad = True
        print("\n".join(map(human.printable, text.splitlines() or [""])))

    def _verdict(self, verdict: Verdict) -> None:
        outcome = verdict.outcome
        self.heard |= {
            name.partition("@")[0] for name in (*verdict.values, *(one.name for one in verdict.refusals))
        }
        for name, reading in verdict.values.items():
            print(f"line {verdict.line}: taken    {name} = {_reading(reading)}")
        if outcome.instances is not None:
            whole = "complete" if outcome.instances.complete else "incomplete"
            kinds = Counter(one.kind for one in outcome.instances.instances)
            counts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
            words = f"{kinds.total()} instances ({counts}), {whole}" if counts else f"no instances, {whole}"
            print(human.printable(f"line {verdict.line}: taken    {words}"))
        for condition in outcome.conditions or ():
            holds = ", holds the host" if condition.hold else ""
            words = human.condition(condition.name, condition.reason)
            print(human.printable(f"line {verdict.line}: reports  {words}{holds}"))
        for refusal in verdict.refusals:
            name = f"{refusal.name}: " if refusal.name else ""
            text = f": {refusal.text}" if refusal.text else ""
            self.complain(f"line {verdict.line}: refused  {name}{refusal.reason}{text}")
            self.unknown = self.unknown or refusal.reason.startswith(NO_TYPE)
        for note in verdict.notes:
            print(human.printable(f"  note: {note}"))
        if not (verdict.values or verdict.refusals or outcome.instances or outcome.conditions):
            print(f"line {verdict.line}: taken    (says nothing)")


def _reading(reading: Reading) -> str:
    if isinstance(reading, Absent):
        return f"unknown ({reading.cause})"
    return shown(reading)
