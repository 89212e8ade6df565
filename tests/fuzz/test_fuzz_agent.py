"""Whatever a broker says to an agent, and whatever a node's reporters print: in the end both hold the same.

The agent's core and the broker's core are joined here by their real messages, without a socket between them.
"""

import msgspec

from tests.broker.world import TYPES, World, site
from tests.fuzz.chance import Chance, run
from tests.fuzz.test_fuzz_broker import POOLS
from tests.fuzz.test_fuzz_reporters import GOOD, GOOD_ELIMS
from xce.agent.core import Core, Identity
from xce.agent.effect import Close, Deliver, Effect, Judge, Learn, Open, Send
from xce.agent.intake import Intake
from xce.agent.node import Node
from xce.agent.types import Types
from xce.broker.core.location import Host
from xce.broker.core.peer import Peer
from xce.model import message as m
from xce.model.configuration import Mode, ReporterSettings
from xce.model.link import Phase
from xce.model.message import DOCUMENT_BYTES, TICK_BYTES, ReporterState
from xce.model.resource import Kind, ResourceType
from xce.model.value import Absent
from xce.reporters.directory import Candidate
from xce.reporters.frame import Lines
from xce.reporters.result import RunResult
from xce.wire import codec

SAID = m.FromBroker.__args__
DECLARED = [
    ResourceType(name="num", kind=Kind.NUMERIC),
    ResourceType(name="word", kind=Kind.STRING),
    ResourceType(name="tags", kind=Kind.STRING_SET, ttl=20),
]
CANDIDATES = {
    name: Candidate(
        name=name, path=f"/d/{name}", settings=ReporterSettings(mode=mode, types=types, reports=promised)
    )
    for name, mode, types, promised in (
        ("probe", Mode.ONE_SHOT, DECLARED, ["num"]),
        ("stream", Mode.PERSISTENT, [], []),
        ("old", Mode.ELIM, [ResourceType(name="num", kind=Kind.STRING)], []),
    )
}


class Pair:
    """A node, its agent's core, and a broker that it talks to over the real codec."""

    def __init__(self, chance: Chance) -> None:
        self.chance = chance
        chance.pools = POOLS
        self.world = World(files=site(), now=1000.0)
        self.node = Node(Types())
        identity = Identity(role="agent", name="node1", nonce="n1", machine_id="m", address="node1 pid 7")
        self.core = Core(identity, self.node, now=self.world.now, random=chance.uniform)
        self.intake = Intake(
            self.node,
            now=lambda: self.world.now,
            rerun=lambda _name: None,
            assign=lambda _name, _interval, _names: None,
            keep_generations=lambda: None,
        )
        self.runs = 0
        self.peer: Peer | None = None
        self.open = False
        self.intake.update(CANDIDATES)
        for name in CANDIDATES:
            self.intake.state(name, ReporterState(state="waiting", ttl_ms=40_000, interval_ms=30_000))

    # ------------------------------------------------------------------------------------- the agent

    def step(self) -> list[msgspec.Struct]:
        """Let the core act; what it sends. It must come to rest."""
        sent: list[msgspec.Struct] = []
        for _ in range(200):
            effects = self.core.step(self.world.now)
            if not effects:
                break
            for effect in effects:
                self._carry_out(effect, sent)
        else:
            raise AssertionError("the core does not come to rest")
        assert self.core.due(self.world.now) > self.world.now, "it wants to be called and does nothing"
        return sent

    def _carry_out(self, effect: Effect, sent: list[msgspec.Struct]) -> None:
        match effect:
            case Open():
                self.open = True
            case Close():
                self.open = False
                self._hang_up()
            case Learn(types):
                self.node.types.learn(types)
                self.intake.apply_types()
            case Judge(types):
                self.node.types.judge(types)
                self.intake.apply_types()
            case Deliver(answer):
                assert answer.id is not None
            case Send(message):
                data = codec.encode(message)
                limit = TICK_BYTES if isinstance(message, m.Report | m.Heartbeat) else DOCUMENT_BYTES
                assert len(data) <= limit
                decoded = codec.decode_for_broker(data)
                assert isinstance(decoded, type(message))
                if isinstance(message, m.Report):  # it may come back as the codec's own kind of it
                    assert codec.encode(decoded) == data
                else:
                    assert decoded == message
                sent.append(message)

    def hear(self, data: bytes) -> None:
        """As the link does it."""
        try:
            message = codec.decode_from_broker(data)
        except codec.CodecError:
            return
        self.core.receive(message, self.world.now)

    def settle(self) -> None:
        """As the daemon does it before the link speaks."""
        self.node.table.settle(self.world.now)

    # ------------------------------------------------------------------------------------ the broker

    def link_up(self) -> None:
        """A connection of its own at the broker."""
        self._hang_up()
        self.world.peer("node1")
        self.peer = self.world.peers["node1"]
        self.core.link_up(self.world.now)

    def _hang_up(self) -> None:
        if self.peer is not None:
            self.peer = None
            self.world.gone("node1")

    def exchange(self) -> None:
        """Carry messages both ways until nobody has anything to say."""
        for _ in range(50):
            sent = self.step()
            if self.peer is None or self.peer.cut or not sent:
                return
            before = len(self.world.inbox(self.peer))
            for message in sent:
                self.world.say(self.peer, message)
            for answer in self.world.inbox(self.peer)[before:] if self.peer else ():
                self.hear(codec.encode(answer))
        raise AssertionError("broker and agent do not come to rest")

    def wait(self, seconds: float) -> None:
        """Time passes at both ends, with the link served."""
        end = self.world.now + seconds
        while self.world.now < end:
            self.world.wait(min(1.0, end - self.world.now))
            self.settle()
            self.exchange()

    def converged(self) -> None:
        """A good broker, some time, and both hold the same, field by field."""
        self.core.reopen(self.world.now)
        self.step()
        self.link_up()
        self.exchange()
        self.wait(2.0)
        assert self.core.phase is Phase.SYNCED, self.core.trouble
        host = self.world.broker.state.supply.hosts["node1"]
        assert isinstance(host, Host)
        assert self.world.broker.state.intake.digest(host) == self.node.digest()
        told = self.node.table.readings()
        for name, reading in host.values.items():
            if isinstance(reading, Absent):
                here = told[name]
                assert isinstance(here, Absent), (name, here, reading)
                assert (here.presence, here.cause) == (reading.presence, reading.cause)
            else:
                assert reading == told[name]
        assert {name: ref.digest for name, ref in host.view.inventories.items()} == {
            name: ref.digest for name, ref in self.node.references().items()
        }
        assert host.view.reporters.keys() == self.node.all_states().keys()
        before = self.core.resyncs
        self.wait(8 * 10.0)
        assert self.core.resyncs == before, "the digests differ for ever"

    # ---------------------------------------------------------------------------------- the reporters

    def printed(self, name: str) -> None:
        """A reporter prints something, more or less sound."""
        chance = self.chance
        data = chance.damaged(chance.choice(GOOD_ELIMS if name == "old" else GOOD), rounds=2)
        data = data.replace(b"free_a", b"fan").replace(b"d01", b"lab")
        lines = Lines()
        taken = lines.feed(data) + lines.end()
        self.runs += 1
        if CANDIDATES[name].settings.mode is Mode.ONE_SHOT:
            result = RunResult(
                run=self.runs,
                lines=taken,
                fault=chance.choice(("", "", "", "exit status 3: no answer")),
                not_applicable=chance.random() < 0.05,
                started_at=self.world.now - chance.choice((0, 0.5, 5)),
            )
            self.intake.run_finished(name, result)
            return
        for number, line in enumerate(taken, 1):
            self.intake.frame(name, line, number, self.world.now)
        if chance.random() < 0.2:
            self.intake.run_finished(name, RunResult(run=self.runs, lines=[], fault="ended with status 1"))


def test_whatever_reporters_print_the_broker_holds_what_the_node_holds() -> None:
    run(_printing)


def test_whatever_a_broker_says_the_agent_goes_on_and_a_good_broker_gets_everything() -> None:
    run(_listening)


def _printing(chance: Chance) -> None:
    pair = Pair(chance)
    pair.step()
    pair.link_up()
    pair.exchange()
    for _ in range(chance.randrange(1, 30)):
        match chance.randrange(9):
            case 0:
                pair.wait(chance.choice((0.05, 0.2, 3, 45, 120)))
            case 1:
                pair.core.link_down("disconnected", pair.world.now)
                pair.link_up()
            case 2 if chance.random() < 0.3:
                name = chance.choice(list(CANDIDATES))
                pair.intake.gone(name)
                pair.intake.update(CANDIDATES)
                pair.intake.state(name, ReporterState(state="waiting", ttl_ms=chance.choice((500, 40_000))))
            case _:
                pair.printed(chance.choice(list(CANDIDATES)))
                pair.settle()
                if chance.random() < 0.7:
                    pair.exchange()
    pair.converged()


def _listening(chance: Chance) -> None:
    pair = Pair(chance)
    for _ in range(chance.randrange(1, 40)):
        now = pair.world.now
        match chance.randrange(10):
            case 0:
                pair.world.now += chance.choice((0.01, 0.1, 1, 12, 4000))
                pair.settle()
            case 1 | 2 if pair.open:
                _something_of_the_socket(pair, chance)
            case 4:
                pair.printed(chance.choice(list(CANDIDATES)))
            case 5:
                for message in pair.step():
                    if chance.random() < 0.5:
                        pair.core.unsent(message, now)
            case 6:
                pair.hear(codec.encode(_welcome(chance)))
            case _:
                pair.hear(_anything(chance))
        pair.step()
    pair.world.now += 1
    pair.converged()


def _something_of_the_socket(pair: Pair, chance: Chance) -> None:
    match chance.randrange(3):
        case 0:
            pair.core.link_up(pair.world.now)
        case 1:
            pair.core.link_down("disconnected", pair.world.now)
        case _:
            pair.core.link_failed("rejected by broker", pair.world.now)


def _anything(chance: Chance) -> bytes:
    """A message of a broker, or what is left of one."""
    try:
        data = codec.encode(chance.struct(chance.choice(SAID)))
    except codec.CodecError:
        return b""
    return chance.damaged(data, rounds=2) if chance.random() < 0.3 else data


def _welcome(chance: Chance) -> m.Welcome:
    """A welcome that may be as it should be, so that the link gets on."""
    return m.Welcome(
        epoch=1,
        incarnation="x",
        heartbeat_ms=chance.choice((0, 1, 1000, 10_000, 2**40)),
        silent_after_ms=chance.choice((0, 3000, 30_000)),
        resync=chance.random() < 0.5,
        types=chance.choice((None, list(TYPES.values()))),
        inventories=chance.choice(([], ["probe", "nobody"])),
    )
