"""A restart of the broker: nothing is lost or invented (G13), all agents come back (G16), the start (G19)."""

import json
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from bench import product
from bench.children import Child, ChildFailed, python, started
from bench.figures import Cell, Result, figure
from bench.fleet import Fleet
from bench.job import reports
from bench.job.run import stage
from bench.job.shared import Job
from bench.suite import Lines, Options, without_verdict
from xce.broker.client import Broker, Client, Watch
from xce.broker.store import Batch
from xce.broker.store.sqlite import SqliteStore
from xce.model.fact import Change, Fact, HoldAdded, HoldReleased
from xce.model.message import BrokerStatus, StatusRequest
from xce.model.supply import Hold

GOALS = ("G13", "G16", "G19")
_LATE_S = 90.0


def run(options: Options) -> Lines:
    """One after the other."""
    for goal, measure in (("G13", _consistency), ("G16", _return), ("G19", _start)):
        try:
            yield from measure(options)
        except ChildFailed as error:
            yield from without_verdict((goal,), str(error))


@contextmanager
def _site(hosts: int, *, curve: bool, settings: dict[str, object] | None = None) -> Iterator[product.Broker]:
    """The files of a broker that expects `hosts` hosts."""
    with TemporaryDirectory(prefix="xce-bench-") as directory:
        yield product.new_broker(
            Path(directory),
            hosts=[f"node[00000-{hosts - 1:05d}]"],
            types=reports.types(),
            curve=curve,
            settings=settings,
        )


@contextmanager
def _fleet(broker: product.Broker, agents: int, processes: int, changing_s: float = 0) -> Iterator[None]:
    """Agents that are synced."""
    endpoint = f"tcp://127.0.0.1:{broker.port}" if broker.port else f"ipc://{broker.local}"
    with ExitStack() as stack:
        children: list[Child] = []
        for number in range(processes):
            share = agents // processes
            fleet = Fleet(
                endpoint=endpoint,
                keys=str(broker.keys) if broker.port else "",
                first=number * share,
                agents=share,
                changing_s=changing_s,
            )
            argv = python("bench.fleet", msgspec.json.encode(fleet).decode())
            children.append(
                stack.enter_context(started(argv, broker.directory / f"fleet{number}.log", answers=True))
            )
        for child in children:
            child.answer(_LATE_S)
        yield


def _status(client: Client) -> BrokerStatus:
    return client.ask(StatusRequest(id=""))


def _return(options: Options) -> Lines:
    """Time from the exec of the new broker until every host is available and confirmed."""
    agents = options.pick(8000, 500)
    times: list[float] = []
    with _site(agents, curve=True) as broker, ExitStack() as stack:
        with product.running(broker):
            stack.enter_context(_fleet(broker, agents, processes=2))
        for _ in range(options.repetitions):
            start = time.monotonic()
            with product.running(broker), Client(Broker(f"ipc://{broker.local}")) as client:
                while not _all_back(_status(client), agents):
                    if time.monotonic() - start > _LATE_S:
                        raise ChildFailed(
                            f"not all agents are back after {_LATE_S:g} s: {_status(client).quality}"
                        )
                    time.sleep(0.05)
                times.append(time.monotonic() - start)
            yield Cell(suite="restart", side="return", values={"s": times[-1]})
    found = figure(times)
    yield Result(goal="G16", judged=found, measured=found, unit="s")


def _all_back(status: BrokerStatus, agents: int) -> bool:
    return status.quality.hosts.get("available") == agents and not status.quality.rejoining


def _consistency(options: Options) -> Lines:
    """A fast and a slow watcher, a broker that is killed and one that is stopped, then the comparison."""
    agents, changing_s = 200, options.pick(20.0, 6.0)
    differences: list[float] = []
    with _site(agents, curve=False, settings={"keep_deltas": 64}) as broker, ExitStack() as stack:
        with product.running(broker) as child:
            stack.enter_context(_fleet(broker, agents, processes=1, changing_s=changing_s))
            fast = stack.enter_context(Client(Broker(f"ipc://{broker.local}"))).watch()
            slow = stack.enter_context(Client(Broker(f"ipc://{broker.local}"))).watch(credit=1)
            start = time.monotonic()
            _follow(fast, slow, changing_s / 3)
            child.stop(signal.SIGKILL)
        with product.running(broker):
            _follow(fast, slow, changing_s / 3)
        with product.running(broker), Client(Broker(f"ipc://{broker.local}")) as client:
            _follow(fast, slow, start + changing_s + 10 - time.monotonic())
            truth = client.snapshot().locations
            for name, watch in (("fast", fast), ("slow", slow)):
                held = watch.mirror.locations if watch.mirror else {}
                wrong = [key for key in truth.keys() | held.keys() if truth.get(key) != held.get(key)]
                differences.append(len(wrong))
                yield Cell(
                    suite="restart", side=name, values={"differences": len(wrong), "example": _example(wrong)}
                )
    found = figure([sum(differences)])
    yield Result(goal="G13", judged=found, measured=found, note=f"{agents} hosts")


def _follow(fast: Watch, slow: Watch, seconds: float) -> None:
    """Take every event of one, and one event now and then of the other; all at the end."""
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        fast.next(0.05)
        if int(now * 4) != int(time.monotonic() * 4) or now > end - 3:
            slow.next(0.0)


def _example(wrong: list[str]) -> str:
    return json.dumps(wrong[:3])


def _start(options: Options) -> Lines:
    """Exec of the broker until it answers, with many facts and the last state of many hosts on its disk."""
    hosts, facts = options.pick((10_000, 100_000), (1000, 10_000))
    job = Job(hub="xce-broker", hosts=hosts, variants=1)
    times: list[float] = []
    with stage(job, publishers=2, consumer=False) as staged:
        broker = product.existing_broker(staged.work / "hub")
        staged.hub.stop()
        staged.leave()
        _add_facts(broker.state, facts)
        for _ in range(options.repetitions):
            start = time.monotonic()
            with product.running(broker), Client(Broker(f"ipc://{broker.local}")) as client:
                status = _status(client)
                times.append(time.monotonic() - start)
            values = {"s": times[-1], "revision": status.revision, "rejoining": status.quality.rejoining}
            yield Cell(suite="restart", side="start", values={**values})
    found = figure(times)
    trouble = (
        "" if status.revision >= facts and status.quality.rejoining == hosts else f"started with {values}"
    )
    yield Result(goal="G19", judged=found, measured=found, unit="s", trouble=trouble)


def _add_facts(directory: Path, wanted: int) -> None:
    """Holds that come and go, until there are `wanted` facts."""
    store = SqliteStore(directory)
    revision = store.load().revision
    while revision < wanted:
        facts = []
        for number in range(revision + 1, revision + 1001):
            place, owner = f"host:{reports.host_name(number // 2 % 1000)}", "admin:bench"
            change: Change = HoldReleased(location=place, owner=owner)
            if number % 2 == 0:
                change = HoldAdded(location=place, hold=Hold(owner=owner, reason="bench"))
            facts.append(Fact(revision=number, change=change, by="bench", op_id=f"{number:016x}"))
        store.submit(Batch(facts), token=revision)
        revision += 1000
    store.close(_LATE_S)
