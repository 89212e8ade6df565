"""The job of `bench.job` on the broker, the floor and the peers, in turn: goals for which 500 hosts do."""

from collections.abc import Callable, Iterator, Mapping

import msgspec

from bench.children import ChildFailed
from bench.figures import Cell, Figure, Result, figure, ratio
from bench.job.hubs import HUBS
from bench.job.run import Outcome
from bench.job.run import run as run_job
from bench.job.shared import FLAT_OUT, Job
from bench.suite import Lines, Options

_INGEST = ("G1", "G2", "G3.nats", "G3.rabbit", "G3.etcd", "G4", "G5", "G6.200", "G6.20")
_RATES = ("G7", "G7.redis", "G8.1000", "G8.5000")
GOALS = (*_INGEST, *_RATES, "G9", "G10.mget", "G10.hgetall")

PRODUCT, WIDE, FLOOR = "xce-broker TCP", "xce-broker, 200 values", "bare ROUTER"
CURVE, OPEN = "xce-broker CURVE", "xce-broker TCP, ZeroMQ hosts"
PEERS = ("redis SET", "redis HSET", "NATS KV", "mosquitto", "RabbitMQ", "etcd")
_SLOW = frozenset({"RabbitMQ", "etcd"})
PHASES = (FLAT_OUT, 1000.0, 5000.0)
_FLAT, _AT_1000, _AT_5000 = range(3)

Measure = Callable[[Outcome], float]


class Sides:
    """The outcomes of all sides, repetition by repetition."""

    def __init__(self) -> None:
        self.outcomes: dict[str, list[Outcome]] = {}
        self.trouble: dict[str, str] = {}

    def take(self, side: str, job: Job) -> Cell | None:
        """Run the job once, unless this side has failed before."""
        if side in self.trouble:
            return None
        if missing := HUBS[job.hub].missing():
            self.trouble[side] = missing
            return None
        try:
            outcome = run_job(job)
        except (ChildFailed, ConnectionError) as error:
            self.trouble[side] = str(error)
            return Cell(suite="ingest", side=side, values={"failed": str(error)})
        if outcome.fault:
            self.trouble[side] = outcome.fault
        self.outcomes.setdefault(side, []).append(outcome)
        return Cell(suite="ingest", side=side, values=_flattened(outcome))

    def of(self, side: str, measure: Measure) -> list[float]:
        """A measure of every repetition; [] when the side has none that counts."""
        return [] if side in self.trouble else [measure(outcome) for outcome in self.outcomes.get(side, [])]

    def result(
        self, goal: str, measure: Measure, *, unit: str, against: str = "", side: str = PRODUCT
    ) -> Result:
        """A goal that judges the figure of a side, or its ratio to the one that it stands against."""
        ours, theirs, bare = self.of(side, measure), self.of(against, measure), self.of(FLOOR, measure)
        judged: Figure | None = None
        if ours and not against:
            judged = figure(ours)
        elif ours and theirs:
            judged = ratio(ours, theirs)
        return Result(
            goal=goal,
            judged=judged,
            measured=_figure(ours),
            floor=_figure(bare) if side == PRODUCT else None,
            peer=_figure(theirs),
            unit=unit,
            trouble=self.trouble.get(side)
            or self.trouble.get(against)
            or ("" if judged else "peer not measured"),
        )


def run(options: Options) -> Lines:
    """All sides in turn, then what they mean."""
    sides = Sides()
    jobs = dict(_jobs(options))
    for _ in range(options.repetitions):
        for side, job in jobs.items():
            if cell := sides.take(side, job):
                yield cell
    yield from _results(sides)


def _jobs(options: Options) -> Iterator[tuple[str, Job]]:
    job = Job(hub=PRODUCT, rounds=options.pick(60, 20), phases=PHASES, seconds=options.pick(5.0, 1.0))
    yield PRODUCT, job
    for peer in (FLOOR, *(PEERS if options.peers else ())):
        rounds = job.rounds // 8 if peer in _SLOW else job.rounds
        yield peer, msgspec.structs.replace(job, hub=peer, rounds=rounds)
    for side in (OPEN, CURVE):
        yield side, msgspec.structs.replace(job, hub=side, phases=(FLAT_OUT,))
    yield WIDE, msgspec.structs.replace(job, values=200, rounds=job.rounds // 3, phases=(FLAT_OUT,))


def _results(sides: Sides) -> Iterator[Result]:
    """Every goal of this suite."""
    redis_set, redis_hset = "redis SET", "redis HSET"
    yield sides.result("G1", _rate, unit="/s", against=redis_set)
    yield sides.result("G2", _rate, unit="/s", against=redis_hset)
    yield sides.result("G3.nats", _rate, unit="/s", against="NATS KV")
    yield sides.result("G3.rabbit", _rate, unit="/s", against="RabbitMQ")
    yield sides.result("G3.etcd", _rate, unit="/s", against="etcd")
    yield sides.result("G4", lambda outcome: _cost(outcome) / 20 / 10, unit="s", against=redis_set)
    yield sides.result("G5", _cost, unit="µs")
    yield sides.result("G6.200", lambda outcome: 200 * 1e6 / _cost(outcome), unit="", side=WIDE)
    yield sides.result("G6.20", lambda outcome: 20 * 1e6 / _cost(outcome), unit="")
    yield sides.result("G7", _latency, unit="ms")
    yield sides.result("G7.redis", _latency, unit="ms", against=redis_set)
    for phase, goal in ((_AT_1000, "G8.1000"), (_AT_5000, "G8.5000")):
        yield sides.result(goal, _share_of(phase), unit="% of a core", against=redis_set)
    yield sides.result("G9", _cost, unit="µs", side=CURVE, against=OPEN)
    yield sides.result("G10.mget", _snapshot, unit="ms", against=redis_set)
    yield sides.result("G10.hgetall", _snapshot, unit="ms", against=redis_hset)


def _rate(outcome: Outcome) -> float:
    return outcome.phases[_FLAT].reports_s


def _cost(outcome: Outcome) -> float:
    return outcome.phases[_FLAT].hub_us


def _latency(outcome: Outcome) -> float:
    return outcome.phases[_AT_1000].p99_ms


def _share_of(phase: int) -> Measure:
    return lambda outcome: outcome.phases[phase].hub_share * 100


def _snapshot(outcome: Outcome) -> float:
    return outcome.snapshot_ms or 0.0


def _figure(values: list[float]) -> Figure | None:
    return figure(values) if values else None


def _flattened(outcome: Outcome) -> dict[str, float | str | bool | None]:
    """An outcome as one line of numbers."""
    found: dict[str, float | str | bool | None] = {
        "fault": outcome.fault,
        "snapshot_ms": outcome.snapshot_ms,
        "memory_kb": outcome.memory_kb,
    }
    for name, phase in zip(("flat", "at1000", "at5000"), outcome.phases, strict=False):
        fields: Mapping[str, float | bool] = msgspec.to_builtins(phase)
        found |= {f"{name}.{field}": value for field, value in fields.items()}
        found |= {f"{name}.hub_us": phase.hub_us, f"{name}.reports_s": phase.reports_s}
    return found
