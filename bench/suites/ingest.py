"""The job of `bench.job` on the broker, the floor and the peers, in turn: G1 to G5, G7 to G10, G6.20."""

from collections.abc import Callable, Iterator

import msgspec

from bench.children import ChildFailed
from bench.figures import Cell, Figure, Result, figure, ratio
from bench.job.hubs import HUBS
from bench.job.run import Outcome, Phase
from bench.job.run import run as run_job
from bench.job.shared import Job
from bench.suite import Lines, Options

_INGEST = ("G1", "G2", "G3.nats", "G3.etcd", "G4", "G5", "G6.20")
_RATES = ("G7", "G7.redis", "G8.1000", "G8.5000")
GOALS = (*_INGEST, *_RATES, "G10.mget", "G10.hgetall")
PRODUCT, FLOOR = "xce-broker", "bare ROUTER"
PEERS = ("redis SET", "redis HSET", "NATS KV", "mosquitto", "etcd")
RATES = (1000.0, 5000.0)
_VALUES = 20

Measure = Callable[[Outcome], float]


class Sides:
    """The outcomes of all hubs, repetition by repetition."""

    def __init__(self) -> None:
        self.outcomes: dict[str, list[Outcome]] = {}
        self.trouble: dict[str, str] = {}

    def take(self, hub: str, job: Job) -> Cell | None:
        """Run the job once on a hub, unless it has failed before."""
        if hub in self.trouble:
            return None
        if missing := HUBS[hub].missing():
            self.trouble[hub] = missing
            return None
        try:
            outcome = run_job(job)
        except (ChildFailed, ConnectionError, ValueError) as error:
            self.trouble[hub] = str(error)
            return Cell(suite="ingest", side=hub, values={"failed": str(error)})
        if outcome.fault:
            self.trouble[hub] = outcome.fault
        self.outcomes.setdefault(hub, []).append(outcome)
        return Cell(suite="ingest", side=hub, values=dict(_flat(outcome)))

    def of(self, hub: str, measure: Measure) -> list[float]:
        """A measure of every repetition; [] when the hub has none that counts."""
        return [] if hub in self.trouble else [measure(outcome) for outcome in self.outcomes.get(hub, [])]

    def result(self, goal: str, measure: Measure, *, unit: str, peer: str = "", own: bool = False) -> Result:
        """A goal that judges our figure (`own`) or its ratio to the peer's."""
        ours, theirs, bare = self.of(PRODUCT, measure), self.of(peer, measure), self.of(FLOOR, measure)
        trouble = self.trouble.get(PRODUCT) or (self.trouble.get(peer, "") if peer else "")
        judged: Figure | None = None
        if ours and own:
            judged = figure(ours)
        elif ours and theirs:
            judged = ratio(ours, theirs)
        return Result(
            goal=goal,
            judged=judged,
            measured=_figure(ours),
            floor=_figure(bare),
            peer=_figure(theirs),
            unit=unit,
            trouble=trouble or ("" if judged else "peer not measured"),
        )


def run(options: Options) -> Lines:
    """All hubs in turn, then what they mean."""
    sides = Sides()
    hubs = [PRODUCT, FLOOR, *(PEERS if options.peers else ())]
    for _ in range(options.repetitions):
        for hub in hubs:
            rounds = options.pick(60, 20) // (8 if hub == "etcd" else 1)
            job = Job(hub=hub, rounds=rounds, rates=RATES, seconds=options.pick(5.0, 1.0))
            if cell := sides.take(hub, job):
                yield cell
    yield from results(sides)


def results(sides: Sides) -> Iterator[Result]:
    """Every goal of this suite."""
    set_, hset = "redis SET", "redis HSET"
    yield sides.result("G1", _rate, unit="/s", peer=set_)
    yield sides.result("G2", _rate, unit="/s", peer=hset)
    yield sides.result("G3.nats", _rate, unit="/s", peer="NATS KV")
    yield sides.result("G3.etcd", _rate, unit="/s", peer="etcd")
    yield sides.result("G4", lambda outcome: outcome.phases[0].hub_us / _VALUES / 10, unit="s", peer=set_)
    yield sides.result("G5", lambda outcome: outcome.phases[0].hub_us, unit="µs", own=True)
    yield sides.result("G6.20", lambda outcome: _VALUES * 1e6 / outcome.phases[0].hub_us, unit="", own=True)
    yield sides.result("G7", lambda outcome: outcome.phases[1].p99_ms, unit="ms", own=True)
    yield sides.result("G7.redis", lambda outcome: outcome.phases[1].p99_ms, unit="ms", peer=set_)
    for phase, goal in ((1, "G8.1000"), (2, "G8.5000")):
        yield sides.result(goal, _share_of(phase), unit="% of a core", peer=set_)
    yield sides.result("G10.mget", _snapshot, unit="ms", peer=set_)
    yield sides.result("G10.hgetall", _snapshot, unit="ms", peer=hset)


def _rate(outcome: Outcome) -> float:
    return outcome.phases[0].reports_s


def _share_of(phase: int) -> Measure:
    return lambda outcome: outcome.phases[phase].hub_share * 100


def _snapshot(outcome: Outcome) -> float:
    return outcome.snapshot_ms or 0.0


def _figure(values: list[float]) -> Figure | None:
    return figure(values) if values else None


def _flat(outcome: Outcome) -> Iterator[tuple[str, float | str | bool | None]]:
    """An outcome as one line of numbers."""
    yield from (
        ("fault", outcome.fault),
        ("snapshot_ms", outcome.snapshot_ms),
        ("memory_kb", outcome.memory_kb),
    )
    for number, phase in enumerate(outcome.phases):
        for name, value in msgspec.to_builtins(phase).items():
            yield f"{'flat' if number == 0 else f'rate{number}'}.{name}", value
        yield from _derived(number, phase)


def _derived(number: int, phase: Phase) -> Iterator[tuple[str, float]]:
    name = "flat" if number == 0 else f"rate{number}"
    yield from ((f"{name}.hub_us", phase.hub_us), (f"{name}.reports_s", phase.reports_s))
