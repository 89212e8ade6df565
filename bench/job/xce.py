"""Our broker: hosts say hello as agents do and send ticks; the consumer is the client library's watcher.

Over a unix socket, or over loopback TCP: with CURVE, or without beside peers that have no keys. The
hosts' ticks were encoded beforehand; their sequence, number and time are written in before each send.
Without keys they are written to a plain socket, as those of the peers are (`zmtp`); CURVE is left to ZeroMQ.
"""

import functools
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import zmq

from bench import product
from bench.job import reports, zmtp
from bench.job.floor import CONTEXT, endpoint
from bench.job.hub import Follower, Hub, Mirror, Send, Server
from bench.job.reports import HEADS, RUN, SEQUENCE_MARK, Frame, host_name
from bench.job.shared import Job
from xce.broker.client import Broker, Changed, Client, Fresh
from xce.model.message import (
    PROTOCOL,
    FeedTick,
    Hello,
    InventoryNews,
    Refused,
    Report,
    ReporterNews,
    Resync,
    StatusRequest,
    Welcome,
)
from xce.wire import codec, keys

_PATIENCE_S = 60
_AT_ONCE = 500
"""Hellos that are out at one time."""


class _Link(Protocol):
    """The connection of a host."""

    send: Send
    """Of one message, as `Xce.wrap` makes it."""

    def messages(self, timeout_s: float) -> list[bytes]:
        """What has come; if that is nothing, what comes within the time."""


class Xce(Hub):
    """The broker on its unix socket."""

    name, transport = "xce-broker", "unix socket"
    curve = False

    def __init__(self) -> None:
        self._links: list[_Link] = []

    @contextmanager
    def serve(self, work: Path, job: Job) -> Iterator[Server]:
        """As its files say; all hosts are expected."""
        broker = product.new_broker(
            work, hosts=[hosts_range(job)], types=reports.types(job.values), curve=self.curve
        )
        with product.running(broker) as child:
            if self.curve:
                yield Server(child, str(broker.port), keys=str(broker.keys))
            else:
                yield Server(child, broker.local)

    def wrap(self, host: int, report: bytes) -> bytes:
        """A message on its way, whatever is in it."""
        return zmtp.framed(report)

    def frame(self, job: Job, host: int, variant: int) -> Frame:
        """A tick with the new values of two reporters."""
        return Frame(self.wrap(host, tick(host, variant, job.values)), heads=HEADS)

    def connect(self, job: Job) -> list[Send]:
        """Connect and say hello; welcomed hosts have still to report everything."""
        for host in range(job.first, job.first + job.hosts):
            link = self._link(job)
            link.send(self.wrap(host, hello(host)))
            self._links.append(link)
            if not len(self._links) % _AT_ONCE:
                self._welcomed(self._links[-_AT_ONCE:])
        self._welcomed(self._links[len(self._links) // _AT_ONCE * _AT_ONCE :])
        return [link.send for link in self._links]

    def _link(self, job: Job) -> _Link:
        return zmtp.Link(job.address)

    def seed(self, job: Job, sends: list[Send]) -> None:
        """The whole table of each host."""
        for host, send in enumerate(sends, job.first):
            whole = Frame(self.wrap(host, tick(host, 0, job.values, full=True)), heads=HEADS)
            send(whole.stamp(time.monotonic_ns(), 1))
            send(self.wrap(host, reporters_news()))
            if job.instances:
                found = reports.inventory(host, job.instances)
                send(self.wrap(host, codec.encode(InventoryNews(inventory=found))))

    def await_all(self, job: Job) -> None:
        """Ask the broker."""
        deadline = time.monotonic() + _PATIENCE_S
        with Client(_broker(job)) as client:
            while time.monotonic() < deadline:
                status = client.ask(StatusRequest(id=""))
                if status.quality.hosts.get("available") == job.hosts and self._stocked(client, job):
                    return
                time.sleep(0.3)
        raise ConnectionError(f"the broker has not taken all hosts: {status.quality}")

    def _stocked(self, client: Client, job: Job) -> bool:
        """Whether the broker has the inventories of all hosts."""
        return not job.instances or all(view.inventories for view in client.snapshot().locations.values())

    def finish(self) -> str:
        """A broker that asks for anything again has missed something."""
        time.sleep(0.2)
        said: Counter[str] = Counter()
        for link in self._links:
            for answer in map(codec.decode_from_broker, link.messages(0)):
                if isinstance(answer, Resync | Refused):
                    said[repr(answer)] += 1
        return "; ".join(f"{count} times {answer}" for answer, count in said.most_common(3))

    def follow(self, job: Job, mirror: Mirror) -> Follower:
        """The client library."""
        return _Follower(job, mirror)

    def _welcomed(self, links: list[_Link]) -> None:
        for link in links:
            answers = link.messages(_PATIENCE_S)
            if not answers:
                raise ConnectionError("the broker does not answer a hello")
            answer = codec.decode_from_broker(answers[0])
            if not isinstance(answer, Welcome):
                raise ConnectionError(f"the broker does not welcome a host: {answer}")


class XceTcp(Xce):
    """The broker over TCP without keys: as the peers are."""

    name, transport = "xce-broker TCP", "tcp"

    @contextmanager
    def serve(self, work: Path, job: Job) -> Iterator[Server]:
        """As its files say, by a way in of the bench."""
        broker = product.new_broker(
            work, hosts=[hosts_range(job)], types=reports.types(job.values), curve=True
        )
        with product.running(broker, module="bench.job.unlocked") as child:
            yield Server(child, str(broker.port))


class _ByZeroMq(Xce):
    """Its hosts are sockets of ZeroMQ, as real agents' are."""

    def wrap(self, host: int, report: bytes) -> bytes:
        """ZeroMQ puts its own head on it."""
        return report

    def _link(self, job: Job) -> _Link:
        CONTEXT.max_sockets = job.hosts + 64
        return _Dealer(job, keys=self.curve)


class XceCurve(_ByZeroMq):
    """The broker over TCP with keys."""

    name, transport = "xce-broker CURVE", "tcp, CURVE"
    curve = True


class XceOpen(_ByZeroMq, XceTcp):
    """What keys are compared with: the same hosts without."""

    name = "xce-broker TCP, ZeroMQ hosts"


class _Dealer:
    """ZeroMQ's own connection; `keys`: with the key of all agents."""

    def __init__(self, job: Job, *, keys: bool) -> None:
        self._socket = CONTEXT.socket(zmq.DEALER)
        self._socket.linger = 0
        if keys:
            own, broker = _key_files(job, product.AGENT_KEY)
            self._socket.curve_serverkey = broker
            self._socket.curve_publickey, self._socket.curve_secretkey = own.public, own.secret
        self._socket.connect(endpoint(job.address))
        self.send: Send = self._socket.send

    def messages(self, timeout_s: float) -> list[bytes]:
        found: list[bytes] = []
        while self._socket.poll(0 if found else int(timeout_s * 1000)):
            found.append(self._socket.recv())
        return found


class _Follower(Follower):
    def __init__(self, job: Job, mirror: Mirror) -> None:
        self.mirror = mirror
        self._client = Client(_broker(job))
        self._questions = Client(_broker(job))
        self._watch = self._client.watch()
        while not isinstance(self._watch.next(), Fresh):
            pass

    def pump(self) -> None:
        event = self._watch.next(0.2)
        if event is None:
            return
        if not isinstance(event, Changed):
            raise ConnectionError(f"the stream of changes is broken: {event}")
        note = self.mirror.note
        for key, values in event.delta.values.items():
            note(key, values)
        for key, change in event.delta.locations.items():
            note(key, change.values)

    def snapshot(self) -> object:
        return self._questions.snapshot().locations

    def mirrored(self) -> object:
        """All that is known of each location, not only its values."""
        assert self._watch.mirror is not None
        return self._watch.mirror.locations


def hosts_range(job: Job) -> str:
    """All hosts of a job, as hosts.yaml names them."""
    return f"node[{job.first:05d}-{job.first + job.hosts - 1:05d}]"


def tick(host: int, variant: int, count: int, *, full: bool = False) -> bytes:
    """A report whose marks have still to be written."""
    indices, site = reports.values(host, variant, count)
    feeds = [
        FeedTick(reports.BUILTIN, RUN, 0, dict(indices)),
        FeedTick(reports.SITE_REPORTER, RUN, 0, dict(site)),
    ]
    feeds = [feed for feed in feeds if feed.values]
    return codec.encode(Report(SEQUENCE_MARK, feeds, full))


def hello(host: int) -> bytes:
    """What an agent says first."""
    name = host_name(host)
    return codec.encode(
        Hello(
            protocol=PROTOCOL,
            role="agent",
            name=name,
            software="bench",
            machine_id=f"{host:032x}",
            boot_id=f"{host:032x}",
            nonce=f"{host:016x}",
            address=f"{name} pid 1",
        )
    )


def reporters_news() -> bytes:
    """Both reporters are well."""
    return codec.encode(ReporterNews(reporters=dict(reports.STATES), full=True))


def _broker(job: Job) -> Broker:
    if not job.keys:
        return Broker(endpoint(job.address))
    own, broker = _key_files(job, product.CONTROLLER_KEY)
    return Broker(f"tcp://127.0.0.1:{job.address}", own, broker)


@functools.cache
def _key_files(job: Job, name: str) -> tuple[keys.KeyPair, bytes]:
    directory = Path(job.keys)
    broker = keys.load(directory / f"{product.BROKER_KEY}.pub", secret=False)
    return keys.load(directory / f"{name}.key", secret=True), broker.public
