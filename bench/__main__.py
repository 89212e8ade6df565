"""The way in: `./dev bench [NAME ...]`, or `python -m bench` in the project's root.

A NAME is a suite (`ingest`) or a goal (`G7`, `G7.redis`). Every figure is a median with its least and
greatest value; the sides of a comparison ran in turn. The table says for each goal what it must reach, what
it should, what the product and the floor or peer gave in this run, and the verdict.
"""

import argparse
import importlib
import pkgutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import IO

import msgspec

from bench import machine, suites
from bench.figures import MISSED, Cell, Machine, Result, cells, markdown, verdict
from bench.goals import GOALS
from bench.suite import Options

_WAIT_FOR_QUIET_S = 60


def main(arguments: list[str]) -> int:
    """Run what is asked for; exit code 1 when a must is missed."""
    known = {name: importlib.import_module(f"bench.suites.{name}") for name in _suite_names()}
    options, wanted, out = _parse(arguments, known)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results: list[Result] = []
    with ExitStack() as stack:
        file = stack.enter_context(out.open("a")) if out else None
        _write(file, Machine(at=_now(), about=machine.description(), repetitions=options.repetitions))
        for name, goals in wanted.items():
            share = machine.wait_until_quiet(0 if options.quick else _WAIT_FOR_QUIET_S)
            _tell(f"{name}: {', '.join(goals)}" + _busy(share))
            start = time.monotonic()
            for line in known[name].run(options):
                if isinstance(line, Cell):
                    _tell(f"  {line.side} {line.values.get('failed', '')}")
                elif line.goal in goals:
                    results.append(line)
                    _tell(f"  {line.goal}: {verdict(GOALS[line.goal], line)}")
                _write(file, line)
            _tell(f"{name}: {time.monotonic() - start:.0f} s")
    print(markdown(cells(GOALS[result.goal], result) for result in sorted(results, key=_place)))
    return int(any(verdict(GOALS[result.goal], result) == MISSED for result in results))


def _parse(
    arguments: list[str], known: dict[str, ModuleType]
) -> tuple[Options, dict[str, list[str]], Path | None]:
    parser = argparse.ArgumentParser(
        prog="./dev bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="suites: " + "; ".join(f"{name}: {' '.join(module.GOALS)}" for name, module in known.items()),
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="suite or goal; default: all")
    parser.add_argument("--quick", action="store_true", help="one short repetition: does everything work?")
    parser.add_argument(
        "--peers",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="measure the peers installed here",
    )
    parser.add_argument("--repetitions", type=int, metavar="N", help="default: 5")
    parser.add_argument("--out", type=Path, metavar="FILE", help="append everything measured, as JSON lines")
    given = parser.parse_args(arguments)
    repetitions = given.repetitions or (1 if given.quick else 5)
    wanted: dict[str, list[str]] = {}
    for name in given.names or known:
        found = {
            suite: [goal for goal in module.GOALS if name in {suite, goal, goal.split(".")[0]}]
            for suite, module in known.items()
        }
        if not any(found.values()):
            parser.error(f"no suite or goal named {name!r}")
        for suite, goals in found.items():
            if goals:
                wanted.setdefault(suite, []).extend(goals)
    return Options(repetitions=repetitions, quick=given.quick, peers=given.peers), wanted, given.out


def _suite_names() -> Iterator[str]:
    return (info.name for info in pkgutil.iter_modules(suites.__path__))


def _place(result: Result) -> int:
    return list(GOALS).index(result.goal)


def _busy(share: float) -> str:
    return f" (beside other work: {share:.0%} of the CPUs are busy)" if share > 0.12 else ""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _write(file: IO[str] | None, line: msgspec.Struct) -> None:
    if file:
        file.write(msgspec.json.encode(line).decode() + "\n")
        file.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
