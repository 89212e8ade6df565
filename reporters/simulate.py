"""A simulated reporter: values that move by a written rule, printed as frames like any reporter's.

The rules stand in a YAML file (`Simulation`); the same file and seed give the same values on every machine.
Pure but for `main`, which prints and sleeps. A file that does not fit is refused with line and key.
"""

import math
import random
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec

from xce.model.resource import Seconds
from xce.model.value import Value

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """How one value moves; exactly one of the keys."""

    constant: bool | int | float | str | list[str] | None = None
    walk: "Walk | None" = None
    wave: "Wave | None" = None
    choice: list[bool | int | float | str | list[str]] = []
    """One of these, each frame anew."""
    missing: Share = 0
    """Share of frames in which the value is null."""

    def __post_init__(self) -> None:
        ways = (self.constant is not None, self.walk is not None, self.wave is not None, bool(self.choice))
        if sum(ways) != 1:
            raise ValueError("a value has one of: constant, walk, wave, choice")


class Walk(msgspec.Struct, frozen=True, kw_only=True):
    """A random walk between two bounds."""

    low: float
    high: float
    step: float

    def __post_init__(self) -> None:
        if not self.low < self.high or self.step <= 0:
            raise ValueError("a walk needs low below high, and a step above 0")


class Wave(msgspec.Struct, frozen=True, kw_only=True):
    """A sine between two bounds."""

    low: float
    high: float
    period: Seconds


class Units(msgspec.Struct, frozen=True, kw_only=True):
    """Identified instances: `KIND-0` to `KIND-(count-1)`."""

    kind: str
    count: Annotated[int, msgspec.Meta(ge=1, le=4096)]
    attributes: dict[str, bool | int | float | str | list[str]] = {}


class Simulation(msgspec.Struct, frozen=True, kw_only=True):
    """A file of `xce-reporter simulate`."""

    interval: Seconds = 10
    seed: int = 1
    values: dict[str, Rule] = {}
    instances: list[Units] = []
    fails: Share = 0
    """Share of frames before which the reporter ends with status 1."""


def frames(simulation: Simulation) -> Iterator[bytes | None]:
    """The frames in order, without end; None where the reporter fails."""
    chance = random.Random(simulation.seed)  # noqa: S311 - repeatable on purpose
    state = {
        name: chance.uniform(rule.walk.low, rule.walk.high)
        for name, rule in simulation.values.items()
        if rule.walk
    }
    instances = [
        {"id": f"{units.kind}-{number}", "kind": units.kind, "attributes": units.attributes}
        for units in simulation.instances
        for number in range(units.count)
    ]
    count = 0
    while True:
        if chance.random() < simulation.fails:
            yield None
            continue
        at = count * simulation.interval
        values = {name: _next(name, rule, state, at, chance) for name, rule in simulation.values.items()}
        frame: dict[str, object] = {"xce": 1, "values": values}
        if instances:
            frame["instances"] = instances
        yield msgspec.json.encode(frame)
        count += 1


def _next(name: str, rule: Rule, state: dict[str, float], at: float, chance: random.Random) -> Value | None:
    value: Value | None = rule.constant
    if rule.walk:
        walked = state[name] + chance.uniform(-rule.walk.step, rule.walk.step)
        state[name] = min(rule.walk.high, max(rule.walk.low, walked))
        value = round(state[name], 3)
    elif rule.wave:
        middle, half = (rule.wave.low + rule.wave.high) / 2, (rule.wave.high - rule.wave.low) / 2
        value = round(middle + half * math.sin(2 * math.pi * at / rule.wave.period), 3)
    elif rule.choice:
        value = chance.choice(rule.choice)
    return None if chance.random() < rule.missing else value


def main(argv: Sequence[str]) -> int:
    """`xce-reporter simulate FILE [--once]`: to be run as a persistent (or one-shot) reporter."""
    import argparse  # noqa: PLC0415 - only this program needs them
    import sys  # noqa: PLC0415
    import time  # noqa: PLC0415
    from pathlib import Path  # noqa: PLC0415

    from xce.model import document  # noqa: PLC0415

    parser = argparse.ArgumentParser(
        prog="xce-reporter simulate",
        description="Print values that move by a written rule, as a persistent reporter.",
        epilog="example file:\n  interval: 5\n  values: {load: {wave: {low: 0, high: 8, period: 600}}}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", help="the rules, in YAML")
    parser.add_argument("--once", action="store_true", help="print one frame and end, as a one-shot reporter")
    options = parser.parse_args(argv)
    try:
        simulation = document.given(Path(options.file).read_bytes, options.file, Simulation, ValueError)
    except ValueError as error:
        print(f"xce-reporter simulate: {error}", file=sys.stderr)
        return 2
    for frame in frames(simulation):
        if frame is None:
            print("simulated failure", file=sys.stderr)
            return 1
        print(frame.decode(), flush=True)
        if options.once:
            return 0
        time.sleep(simulation.interval)
    raise AssertionError("internal error: frames() has no end")
