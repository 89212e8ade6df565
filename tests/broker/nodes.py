"""A node's half of claims, as the protocol of the agents' link wants it: over the core of `world.py`.

It keeps what it has in a dict, takes orders out of its inbox, and says what changed until it was heard.
"""

from typing import Any

from tests.broker.world import Agent, World
from xce.model import message as m
from xce.model.claim import ENDED, BindingState, Chosen, Claim, Consumer, holdings_digest
from xce.model.instance import Instance, Inventory

GPUS = ["GPU-a", "GPU-b", "GPU-c"]


def gpus(*names: str, generation: int = 1, complete: bool = True, **changes: Any) -> Inventory:
    """An inventory of whole GPUs; `changes` are for the first."""
    found = [Instance(id=name, kind="gpu") for name in names or GPUS]
    if changes:
        found[0] = Instance(id=found[0].id, kind="gpu", **changes)
    return Inventory(reporter="nvidia", generation=generation, complete=complete, instances=found)


def pick(*names: str, generation: int = 1) -> list[m.Pick]:
    return [m.Pick(id=name, reporter="nvidia", generation=generation) for name in names]


def place(claim: str, host: str, *names: str, consumer: str = "j1", generation: int = 1) -> m.Place:
    return m.Place(
        claim=claim,
        host=host,
        consumer=Consumer(name=consumer),
        instances=pick(*names, generation=generation),
    )


class Node(Agent):
    """An agent that prepares and releases. `holds` is what its journal has."""

    def __init__(self, world: World, name: str, **rest: Any) -> None:
        super().__init__(world, name, **rest)
        self.holds: dict[str, m.BindingReport] = {}
        self.instances: dict[str, list[Chosen]] = {}
        self.tombstones: set[str] = set()
        self.unheard: set[str] = set()
        """Bindings of which the broker has not been told, or has not said that it heard."""
        self.prepares: list[str] = []
        """Bindings that were begun; each one once, if all is well."""
        self.standing: dict[str, str] = {}
        self.read = 0

    def arrive(self, inventory: Inventory | None = None, **changes: Any) -> m.Welcome:
        """Hello and everything that is asked for after it."""
        self.unheard = set(self.holds)
        self.read = len(self.world.inbox(self.peer))
        live = [(name, one.state) for name, one in self.holds.items() if one.state not in ENDED]
        self.hello(bindings=holdings_digest(live), **changes)
        (welcome,) = [one for one in self.world.inbox(self.peer)[self.read :] if isinstance(one, m.Welcome)]
        self.report(full=True)
        self.world.say(self.peer, m.InventoryNews(inventory=inventory or gpus()))
        if welcome.bindings:
            self.tell(full=True)
        self.listen()
        return welcome

    def listen(self) -> list[Any]:
        """Take what the broker has said: orders are begun, what was heard is not said again."""
        news = self.world.inbox(self.peer)[self.read :]
        self.read += len(news)
        orders: list[Any] = []
        for one in news:
            match one:
                case m.BindingPrepare():
                    orders.append(one)
                    self.begin(one)
                case m.BindingRelease():
                    orders.append(one)
                    self.end(one.binding)
                case m.BindingStanding():
                    self.heard(one)
        return orders

    def begin(self, order: m.BindingPrepare) -> None:
        name = order.binding.id
        if name in self.tombstones or name in self.holds:
            self.unheard.add(name)
            return
        self.prepares.append(name)
        self.instances[name] = order.binding.instances
        self.move(name, BindingState.PREPARING)

    def end(self, name: str) -> None:
        if name not in self.holds:
            self.tombstones.add(name)
            self.move(name, BindingState.RELEASED)
        elif self.holds[name].state not in ENDED:
            self.move(name, BindingState.RELEASING)
        else:
            self.unheard.add(name)

    def heard(self, standing: m.BindingStanding) -> None:
        self.standing.update(standing.bindings)
        for name, state in standing.bindings.items():
            ended = state in {one.value for one in ENDED}
            if ended and name in self.holds and self.holds[name].state not in ENDED:
                continue  # the broker has given it up, and is told that it is still here
            self.unheard.discard(name)
            if (ended or state == "unknown") and name in self.holds and self.holds[name].state in ENDED:
                self.tombstones.add(name)
                del self.holds[name]

    def move(self, name: str, state: BindingState, **fields: Any) -> None:
        self.holds[name] = m.BindingReport(state=state, instances=self.instances.get(name, []), **fields)
        self.unheard.add(name)
        if state in ENDED:
            self.tombstones.add(name)

    def tell(self, *, full: bool = False) -> None:
        """Say what is new."""
        names = self.holds if full else self.unheard & self.holds.keys()
        reports = {name: self.holds[name] for name in sorted(names)}
        if reports or full:
            self.world.say(self.peer, m.BindingNews(reports=reports, full=full))

    def to(self, state: BindingState, *names: str, **fields: Any) -> None:
        """Bring bindings (all of them) into a state, say so, and listen."""
        self.listen()
        for name in names or tuple(self.holds):
            self.move(name, state, **fields)
        self.tell()
        self.listen()


def claimed(world: World, claim: Claim, *, op: str = "create") -> str:
    """Create a claim; its id."""
    done = world.ask(world.peer("sched", "controller"), m.ClaimCreate(id=op, claim=claim))
    assert isinstance(done, m.Done), done
    return done.made[0]
