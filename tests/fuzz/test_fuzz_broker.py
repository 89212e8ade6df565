"""Whatever peers say to a broker, in whatever bytes: it goes on, what it shows is true, and what it answered
stays answered, also after a restart.
"""

import msgspec

from tests.broker.world import Agent, World, key_of, site
from tests.fuzz.chance import Chance, run
from xce.broker.core import access
from xce.broker.core.ledger import Ledger
from xce.broker.core.peer import Peer
from xce.broker.mirror import Mirror
from xce.model import message as m
from xce.model.configuration import BrokerFile, Discovered, NewTypes
from xce.model.resource import Kind, ResourceType, Scope
from xce.model.supply import PoolAmount
from xce.wire import codec

TYPES = {
    "seats": ResourceType(name="seats", kind=Kind.NUMERIC, scope=Scope.POOL, reporter="lic"),
    "cooling": ResourceType(name="cooling", kind=Kind.STRING, scope=Scope.HOST_GROUP, reporter="lic"),
}
NAMES = ["fan", "lab", "tags", "ok", "rack", "r1m", "mem", "fresh", "seats", "seats@pool:cfd", "cooling"]
HOSTS = ["node1", "node2", "node3", "node4"]
POOLS = {
    "host": HOSTS,
    "name": [*HOSTS, "lic", "root", "new", "fan", "fresh"],
    "location": ["host:node1", "host:node4", "pool:cfd", "group:east", "storage:s"],
    "wanted": ["host:node1", "host:node2", "pool:cfd"],
    "only": ["host:node1", "pool:cfd"],
    "pool": ["cfd", "other"],
    "resource": ["seats", "fan"],
    "reporter": ["probe", "builtin", "gpus"],
    "reporters": ["probe", "builtin", "gpus"],
    "inventories": ["probe", "gpus"],
    "ages_ms": ["probe", "builtin"],
    "values": NAMES,
    "owner": ["admin:root", "controller:c", "provider:p", "reporter:probe"],
    "role": ["agent", "reporter", "admin", "controller", "provider"],
    "public": [key_of("agent-node1"), key_of("controller-c"), key_of("extra")],
    "hosts": ["node*", "node1"],
    "reason": ["fan 3", "moved"],
    "label": ["", "nightly"],
    "groups": ["east", "west"],
    **{field: ["x7"] for field in ("software", "machine_id", "boot_id", "address", "instance", "template")},
    "id": ["1", "2", "3", "w", *(f"op{number}" for number in range(20))],
    "nonce": ["n1", "n2"],
    "parent": [""],
    "incarnation": ["i1"],
}
SAID = [*m.Tick.__args__, *m.ToBroker.__args__]
ROLES = {
    "node1": "agent",
    "node2": "agent",
    "lic": "reporter",
    "root": "admin",
    "c": "controller",
    "p": "provider",
}


def test_whatever_is_said_the_broker_goes_on_and_what_it_shows_is_true() -> None:
    run(_case)


class Following:
    """A controller that follows from the begin."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.mirror = world.snapshot(name="follower")
        world.say("follower", m.WatchRequest(id="w", since=self.mirror.position, credit=1 << 20))
        world.inbox("follower").clear()

    def catch_up(self) -> Mirror:
        for delta in self.world.got("follower", m.Delta):
            self.mirror.apply(delta)
        assert not self.world.got("follower", m.Lost)
        self.world.inbox("follower").clear()
        return self.mirror


def _case(chance: Chance) -> None:
    chance.pools = POOLS
    config = BrokerFile(
        discovered=chance.choice(list(Discovered)),
        new_types=chance.choice(list(NewTypes)),
        keep_deltas=chance.choice((3, 4096)),
        max_peers=chance.choice((8, 20_000)),
    )
    files = site(pools={"cfd": {"seats": PoolAmount(base=12)}}, members={"east": ["node1"]})
    files = msgspec.structs.replace(files, types={**files.types, **TYPES})
    world = World(config=msgspec.structs.replace(config, keep_deltas=4096, max_peers=20_000), files=files)
    following = Following(world)
    world.broker.state.config = config
    given: dict[tuple[str, bytes], int] = {}
    for _ in range(chance.randrange(1, 40)):
        _step(world, chance, given)
    world.broker.fault("")
    world.commits = True
    world.commit()
    seen = world.snapshot(name="follower")
    mirror = following.catch_up()
    assert (mirror.position, mirror.locations, mirror.types) == (seen.position, seen.locations, seen.types)
    assert isinstance(world.ask("follower", m.StatusRequest(id="s")), m.BrokerStatus)
    _replayed(world)
    _asked_again(world, given)
    after = world.restart(after_s=chance.choice((0.0, 5.0, 500.0)))
    assert after.broker.state.journal.ledger.hosts == world.broker.state.journal.ledger.hosts
    for key, view in after.snapshot().locations.items():
        before = seen.locations.get(key)
        durable = [hold for hold in view.holds if not hold.owner.startswith(("reporter:", "broker:"))]
        if before is not None:
            assert durable == [
                hold for hold in before.holds if not hold.owner.startswith(("reporter:", "broker:"))
            ]
            assert view.amounts == before.amounts
    _asked_again(after, given)


def _step(world: World, chance: Chance, given: dict[tuple[str, bytes], int]) -> None:
    match chance.randrange(12):
        case 0:
            world.wait(chance.choice((0.5, 3, 40, 200)), step=chance.choice((1, 10)))
        case 1:
            name = chance.choice(list(ROLES))
            if name in world.peers:
                world.gone(name)
        case 2:
            _well_behaved(world, chance)
        case 3:
            world.commits = not world.commits
            world.commit()
        case 4 if not world.commits:
            world.fail()
            world.broker.fault(chance.choice(("", "disk full")))
        case 5:
            files = world.broker.state.site
            groups = {host: ["east"] if chance.random() < 0.5 else [] for host in chance.sample(HOSTS, 2)}
            files = msgspec.structs.replace(files, groups_of=groups)
            world._take(world.broker.reload(files, world.now))
            world.turn()
        case _:
            _say_something(world, chance, given)


def _well_behaved(world: World, chance: Chance) -> None:
    """An agent as it should be."""
    agent = Agent(world, chance.choice(("node1", "node2")), nonce=chance.choice(("n1", "n2")))
    peer = _connected(world, agent.peer)
    peer.json = False
    if not peer.cut and isinstance(agent.hello(), m.Welcome):
        agent.report(full=True, fan=chance.randrange(9000), lab="b12", tags=["a", "b"], ok=True)
        agent.state(ttl_ms=chance.choice((1000, 40_000)), cause=chance.choice(("", "exit status 3")))
        agent.report(fan=chance.randrange(9000))
        agent.heartbeat(probe=chance.randrange(60_000), digest=chance.choice(("", "00")))


def _say_something(world: World, chance: Chance, given: dict[tuple[str, bytes], int]) -> None:
    kind = chance.choice(SAID if chance.random() < 0.6 else m.Order.__args__)
    good = [name for name, role in ROLES.items() if role in access.ROLES[kind]]
    name = chance.choice(good if good and chance.random() < 0.8 else list(ROLES))
    peer = _connected(world, name) if chance.random() < 0.9 else _local(world)
    if kind in m.Tick.__args__ and chance.random() < 0.5:
        peer.sequence = 0  # so that some ticks follow
    message = chance.struct(kind)
    if isinstance(message, m.Hello) and chance.random() < 0.8:
        message = msgspec.structs.replace(message, protocol=1, role=ROLES[name], name=name)
    try:
        json = kind not in m.Tick.__args__ and chance.random() < 0.3
        data = codec.encode_json(message) if json else codec.encode(message)
    except codec.CodecError:
        return
    if chance.random() < 0.3:
        data = chance.damaged(data, rounds=2)
    _hear(world, peer, data, given)


def _connected(world: World, name: str) -> Peer:
    """A connection of this name; a new one if the last was cut off."""
    if name in world.peers and world.peers[name].cut:
        world.gone(name)
    return world.peer(name, ROLES[name])


def _local(world: World) -> Peer:
    return world.peers.get("local") or world.connect("local", uid=0)


def _hear(world: World, peer: Peer, data: bytes, given: dict[tuple[str, bytes], int]) -> None:
    """As the server does it."""
    before = len(world.inbox(peer))
    try:
        message = codec.decode_for_broker(data)
        peer.json = data[:1] == b"{"
        effects = world.broker.handle(peer, message, world.now)
    except codec.CodecError as error:
        peer.json = codec.is_json(data)
        effects = world.broker.rubbish(peer, error.reason, codec.request_id(data), world.now)
        message = None
    world._take(effects)
    world.turn()
    if isinstance(message, m.Order):
        for answer in world.inbox(peer)[before:]:
            if isinstance(answer, m.Done) and answer.id == message.id:
                revision = given.setdefault((peer.title, data), answer.revision)
                assert revision == answer.revision, "one order, two answers"


def _replayed(world: World) -> None:
    """The facts alone give the ledger again."""
    ledger = Ledger()
    for fact in world.facts:
        ledger.apply(fact)
    journal = world.broker.state.journal
    assert ledger == journal.ledger
    assert ledger == journal.draft


def _asked_again(world: World, given: dict[tuple[str, bytes], int]) -> None:
    """The same order gets the same answer, and changes nothing."""
    world.broker.state.config = BrokerFile()
    for (title, data), revision in given.items():
        _, _, name = title.partition(":")
        if name in world.peers:
            world.gone(name)
        peer = world.peer(name, ROLES[name]) if name in ROLES else world.connect(name, uid=0)
        if peer.cut or peer.title != title:
            continue  # its key was revoked, or is for something else now
        facts = len(world.facts)
        _hear(world, peer, data, {})
        answer = world.inbox(peer)[-1]
        assert isinstance(answer, m.Done), answer
        assert answer.revision == revision
        assert len(world.facts) == facts
