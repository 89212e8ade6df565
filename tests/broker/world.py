"""A broker core without sockets: peers are names, the store is a list, the clock is a number.

Every call runs the core's invariants, so that each test of behaviour tests them too.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from xce.broker.core.effect import Audit, CutOff, Effect, Note, Persist, Send, SendBytes
from xce.broker.core.ledger import Answered, Ledger
from xce.broker.core.machine import Broker
from xce.broker.core.peer import Peer
from xce.broker.mirror import Mirror
from xce.model import message as m
from xce.model.builtin_types import BUILTIN_TYPES
from xce.model.configuration import BrokerFile
from xce.model.fact import Fact, KeyAdded
from xce.model.resource import Kind, ResourceType, Scope
from xce.model.site import Site
from xce.model.supply import PoolAmount
from xce.model.value import Reading
from xce.wire import codec

M = TypeVar("M", bound=msgspec.Struct)

TYPES = {
    "fan": ResourceType(name="fan", kind=Kind.NUMERIC, minimum=0, maximum=9000),
    "lab": ResourceType(name="lab", kind=Kind.STRING),
    "tags": ResourceType(name="tags", kind=Kind.STRING_SET),
    "ok": ResourceType(name="ok", kind=Kind.BOOLEAN),
    "rack": ResourceType(name="rack", kind=Kind.STRING, reporter="static"),
}
LICENCES = {
    "lic": ResourceType(name="lic", kind=Kind.NUMERIC, scope=Scope.POOL, reporter="lic1", minimum=0),
    "slots": ResourceType(name="slots", kind=Kind.NUMERIC, scope=Scope.POOL),
}


def site(**changes: Any) -> Site:
    """Files that declare three hosts and the types above."""
    plain: dict[str, Any] = {
        "types": {**BUILTIN_TYPES, **TYPES},
        "groups_of": {"node1": [], "node2": [], "node3": []},
        "members": {},
        "values": {},
        "pools": {},
    }
    return Site(**{**plain, **changes})


def pools_site(**changes: Any) -> Site:
    """The same with a pool of licences."""
    plain: dict[str, Any] = {
        "types": {**BUILTIN_TYPES, **TYPES, **LICENCES},
        "pools": {"matlab": {"lic": PoolAmount(base=12)}},
    }
    return site(**{**plain, **changes})


def key_of(name: str) -> str:
    """A public key that cannot be mistaken for another's."""
    return (name + "0" * 40)[:40]


class World:
    """Drives one core; commits by itself unless told otherwise."""

    def __init__(
        self,
        *,
        config: BrokerFile | None = None,
        files: Site | None = None,
        facts: list[Fact] | None = None,
        answers: list[Answered] | None = None,
        now: float = 1000.0,
        incarnation: str = "i1",
        mark: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`mark` is called before and after each commit, and when all is said that follows from it."""
        self.now, self.mark = now, mark
        self.facts: list[Fact] = list(facts or [])
        self.answers: list[Answered] = list(answers or [])
        self.commits = self.turns = True
        """Whether the store writes at once, and each message is a turn of its own."""
        self.waiting: list[Persist] = []
        self.sent: dict[str, list[msgspec.Struct]] = {}
        self.effects: list[Effect] = []
        ledger = Ledger()
        for fact in self.facts:
            ledger.apply(fact)
        self.config = config or BrokerFile()
        self.broker = Broker(
            self.config,
            ledger,
            files or site(),
            incarnation=incarnation,
            wall=lambda: "2026-01-01T00:00:00Z",
            now=now,
            answers=self.answers,
            own_key=key_of("broker"),
            software="test",
            pid=1,
        )
        self.peers: dict[str, Peer] = {}
        self._take(self.broker.start(now))

    # ------------------------------------------------------------------------------------------ doing

    def peer(self, name: str, role: str = "agent", *, hosts: list[str] | None = None) -> Peer:
        """A connected peer with a key of its own that is known; the same again while it is connected."""
        if name not in self.peers:
            public = key_of(f"{role}-{name}")
            if public not in self.broker.state.journal.ledger.keys:
                key = KeyAdded(name=name, role=role, public=public, hosts=hosts or [])
                self._take(self.broker.add_keys([key]))
            self.connect(name, public)
        return self.peers[name]

    def connect(self, name: str, public: str = "", uid: int = -1) -> Peer:
        peer = Peer(name.encode(), key=public, address=f"{name}.example:1", uid=uid, now=self.now)
        self.peers[name] = peer
        self._take(self.broker.connected(peer))
        return peer

    def say(self, peer: Peer | str, message: msgspec.Struct) -> None:
        """A message over the real codec, and mostly the end of the turn."""
        peer = self.peers[peer] if isinstance(peer, str) else peer
        encoded = codec.encode_json(message) if peer.json else codec.encode(message)
        self._take(self.broker.handle(peer, codec.decode_for_broker(encoded), self.now))
        if self.turns:
            self.turn()

    def ask(self, peer: Peer | str, message: msgspec.Struct) -> Any:
        """Say something and take the last that comes back."""
        peer = self.peers[peer] if isinstance(peer, str) else peer
        before = len(self.inbox(peer))
        self.say(peer, message)
        got = self.inbox(peer)[before:]
        assert got, f"no answer to {message}"
        return got[-1]

    def turn(self) -> None:
        self._take(self.broker.turn(self.now))
        while self.broker.busy():
            self._take(self.broker.turn(self.now))
        self.broker.state.supply.check()

    def wait(self, seconds: float, *, step: float = 1.0) -> None:
        """Time passes, with the loop running."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + step)
            self._take(self.broker.second(self.now))
            self.turn()

    def gone(self, name: str) -> None:
        self._take(self.broker.gone(self.peers.pop(name)))
        self.turn()

    def commit(self, ticket: int | None = None) -> None:
        """The store has written what it was given (up to a ticket)."""
        for persist in [one for one in self.waiting if ticket is None or one.ticket <= ticket]:
            self.waiting.remove(persist)
            self._write(persist)
        self.turn()

    def fail(self, reason: str = "no space left on device") -> None:
        """The store cannot write."""
        self.waiting.clear()
        self._take(self.broker.not_durable([], [], self.now))
        self._take(self.broker.fault(reason))
        self.turn()

    def restart(self, *, after_s: float = 5, files: Site | None = None) -> "World":
        """A new broker on the same facts."""
        return World(
            config=self.config,
            files=files or self.broker.state.site,
            facts=self.facts,
            answers=self.answers,
            now=self.now + after_s,
            incarnation="i2",
            mark=self.mark,
        )

    # ------------------------------------------------------------------------------------------- seen

    def inbox(self, peer: Peer | str) -> list[msgspec.Struct]:
        """All that was sent to a peer, through the real codec."""
        return self.sent.setdefault(peer if isinstance(peer, str) else peer.routing_id.decode(), [])

    def got(self, peer: Peer | str, kind: type[M]) -> list[M]:
        return [one for one in self.inbox(peer) if isinstance(one, kind)]

    def notes(self) -> list[str]:
        return [effect.text for effect in self.effects if isinstance(effect, Note)]

    def audit(self) -> list[Audit]:
        """Lines of those who have asked for something."""
        return [line for line in self.lines() if line.who]

    def lines(self) -> list[Audit]:
        """All lines of the audit."""
        return [effect for effect in self.effects if isinstance(effect, Audit)]

    def snapshot(self, *, json: bool = False, detail: bool = False, name: str = "reader") -> Mirror:
        """The map as a controller gets it."""
        reader = self.peer(name, "controller")
        reader.json = json
        before = len(self.inbox(reader))
        self.say(reader, m.SnapshotRequest(id="s", detail=detail))
        begin, *parts, end = [one for one in self.inbox(reader)[before:] if not isinstance(one, m.Delta)]
        assert isinstance(begin, m.SnapshotBegin), begin
        mirror = Mirror(begin)
        for part in parts:
            assert isinstance(part, m.SnapshotPart), part
            mirror.part(part)
        assert isinstance(end, m.SnapshotEnd), end
        mirror.end(end)
        return mirror

    def see(self, key: str) -> m.LocationView:
        """One location as a controller sees it."""
        return self.snapshot().locations[key]

    def _take(self, effects: list[Effect]) -> None:
        for effect in effects:
            self.effects.append(effect)
            match effect:
                case Send(peer, document):
                    data = codec.encode_json(document) if peer.json else codec.encode(document)
                    self._deliver(peer, data)
                case SendBytes(peer, data):
                    self._deliver(peer, data)
                case Persist():
                    self.waiting.append(effect)
                    if self.commits:
                        self.waiting.remove(effect)
                        self._write(effect)
                case CutOff(peer):
                    assert peer.cut

    def _deliver(self, peer: Peer, data: bytes) -> None:
        assert peer.json == (data[:1] == b"{")
        self.sent.setdefault(peer.routing_id.decode(), []).append(codec.decode_from_broker(data))

    def _write(self, persist: Persist) -> None:
        self.mark("before the commit")
        self.facts += persist.facts
        if persist.answer is not None:
            self.answers.append(persist.answer)
        self.mark("after the commit")
        self._take(self.broker.committed(persist.ticket, self.now))
        self.mark("after the answer")


class Agent:
    """An agent's half of the link, as the protocol wants it."""

    def __init__(self, world: World, name: str, *, peer: str = "", nonce: str = "n1", key: str = "") -> None:
        self.world, self.name, self.nonce = world, name, nonce
        self.peer = peer or name
        self.key_name = key or name
        self.sequence = 0
        self.table: dict[str, dict[str, Reading]] = {}

    def hello(self, **changes: Any) -> Any:
        self.sequence = 0
        if self.peer not in self.world.peers:
            self.world.peer(self.key_name)
            if self.key_name != self.peer:
                self.world.connect(self.peer, key_of(f"agent-{self.key_name}"))
        plain: dict[str, Any] = {
            "protocol": m.PROTOCOL,
            "role": "agent",
            "name": self.name,
            "nonce": self.nonce,
            "machine_id": f"machine-of-{self.name}",
            "address": f"{self.name} pid 7",
        }
        return self.world.ask(self.peer, m.Hello(**{**plain, **changes}))

    def join(self, **values: Any) -> None:
        """Hello, and everything that is asked for after it."""
        welcome = self.hello()
        assert isinstance(welcome, m.Welcome), welcome
        self.report(full=True, **values)

    def report(
        self,
        reporter: str = "probe",
        *,
        full: bool = False,
        age_ms: int = 0,
        run: int = 1,
        **values: Reading | None,
    ) -> None:
        self.sequence += 1
        table = self.table.setdefault(reporter, {})
        for name, value in values.items():
            if value is None:
                table.pop(name, None)
            else:
                table[name] = value
        feeds = [m.FeedTick(reporter, run, age_ms, dict(values))]
        self.world.say(self.peer, m.Report(self.sequence, feeds, full))

    def heartbeat(self, *, digest: str = "", **ages_ms: int) -> list[msgspec.Struct]:
        self.sequence += 1
        before = len(self.world.inbox(self.peer))
        self.world.say(self.peer, m.Heartbeat(self.sequence, ages_ms, digest))
        return self.world.inbox(self.peer)[before:]

    def state(self, reporter: str = "probe", **fields: Any) -> None:
        plain = {"state": "waiting", "ttl_ms": 40_000}
        state = m.ReporterState(**{**plain, **fields})
        self.world.say(self.peer, m.ReporterNews(reporters={reporter: state}))


def joined(**values: Any) -> tuple[World, Agent]:
    """A core with one host that has reported this."""
    world = World()
    agent = Agent(world, "node1")
    agent.join(**values)
    return world, agent


def follow(world: World, name: str = "watcher") -> str:
    """A controller that follows everything from now on."""
    peer = world.peer(name, "controller")
    world.turn()
    since = world.broker.state.changes.position()
    world.ask(peer, m.WatchRequest(id="w", since=since, credit=1000))
    return name


def caught_up(world: World, watcher: str, mirror: Mirror, start: int) -> Mirror:
    """The mirror with every delta that its watcher got since `start`."""
    for delta in world.inbox(watcher)[start:]:
        if isinstance(delta, m.Delta):
            mirror.apply(delta)
    return mirror


def same(mirror: Mirror, snapshot: Mirror) -> None:
    """What one holds is what the other holds, field by field."""
    assert mirror.locations == snapshot.locations
    assert (mirror.claims, mirror.bindings) == (snapshot.claims, snapshot.bindings)
    assert (mirror.position, mirror.revision, mirror.types) == (
        snapshot.position,
        snapshot.revision,
        snapshot.types,
    )
