"""`xce-agent reporter record FILE|NAME OUT`: its runs into a file that `xce-reporter replay` plays again."""

from collections.abc import Sequence
from pathlib import Path

from xce.agent import trial
from xce.agent.cli import GOOD, TROUBLE, USAGE, output
from xce.agent.cli.options import Options, UsageError
from xce.agent.cli.settings import read
from xce.agent.trial import NoSuchReporter, Trial, Verdict
from xce.model.configuration import AgentFile
from xce.reporters.frame import TooLong
from xce.reporters.replay import Recorder
from xce.reporters.result import RunResult

SUMMARY = "record a reporter's runs, to be played again with xce-reporter replay"
PROGRAM = "xce-agent reporter record"
USAGE_TEXT = f"""\
usage: {PROGRAM} [--config FILE] [--runs N] [--for SECONDS] FILE|NAME OUT

  --runs N       so many runs (persistent, elim: lines); default 1
  --for SECONDS  no longer than this

OUT must not exist. exit status: 0 recorded, 1 it could not be started"""


def run(argv: Sequence[str]) -> int:
    """Record it."""
    if "--help" in argv:
        print(USAGE_TEXT)
        return GOOD
    try:
        options = Options(argv, values=["--config", "--runs", "--for"])
        if len(options.arguments) != 2:
            raise UsageError("expected a FILE or NAME of a reporter, and a file to write")
        settings = read(options.get("--config"), AgentFile)
        candidate = trial.find(options.arguments[0], settings)
        seconds = options.number("--for", 1) if options.has("--for") else None
        runs = int(options.number("--runs", 1))
        Path(options.arguments[1]).touch(exist_ok=False)
    except OSError as error:
        output.fail(PROGRAM, f"cannot write {error.filename}: {error.strerror}")
        return USAGE
    except (UsageError, NoSuchReporter) as error:
        output.fail(PROGRAM, str(error))
        return USAGE
    with Path(options.arguments[1]).open("wb") as file:
        recorder = Recorder(file.write, trial.now)

        def line(text: bytes | TooLong, _verdicts: list[Verdict]) -> None:
            recorder.line(text if isinstance(text, bytes) else text.head)

        def end(result: RunResult) -> None:
            if result.stderr:
                recorder.stderr(result.stderr.encode(errors="replace"))
            if result.exit is not None:
                recorder.exited(-result.exit.signal if result.exit.signal else result.exit.status)

        one = Trial(candidate, settings, on_line=line, on_end=end)
        one.run(runs=runs, at_most_s=seconds)
    if one.refused:
        output.fail(PROGRAM, f"not started: {one.refused}")
        return TROUBLE
    print(f"{one.runs} runs or lines of {candidate.name} in {options.arguments[1]}")
    return GOOD
