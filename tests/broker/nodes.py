"""A node's half of claims, as the protocol of the agents' link wants it: over the core of `world.py`.

It keeps what it has in a dict, takes orders out of its inbox, and says what changed until it was heard.
"""

from typing import Any

from tests.broker.world import Agent, World
from xce.agent.holdings import Holdings
from xce.model import message as m
from xce.model.claim import ENDED, BindingState, Chosen, Claim, Consumer
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
    """An agent that prepares and releases: the agent's own `Holdings` on the link, no kernel behind it."""

    def __init__(self, world: World, name: str, **rest: Any) -> None:
        super().__init__(world, name, **rest)
        self.instances: dict[str, list[Chosen]] = {}
        self.tombstones: dict[str, m.BindingReport] = {}
        self.prepares: list[str] = []
        """Bindings that were begun; each one once, if all is well."""
        self.read = 0
        self.forget()

    def forget(self) -> None:
        """Its journal is empty, but for the tombstones."""
        self.holdings = Holdings()
        self.holdings.serving = True

    @property
    def holds(self) -> dict[str, m.BindingReport]:
        """What it has, and what has ended and the broker does not know yet."""
        return self.holdings.reports

    @property
    def standing(self) -> dict[str, str]:
        """What the broker has durably of it."""
        return self.holdings.standing

    def arrive(self, inventory: Inventory | None = None, **changes: Any) -> m.Welcome:
        """Hello and everything that is asked for after it."""
        self.read = len(self.world.inbox(self.peer))
        self.hello(bindings=self.holdings.digest(), **changes)
        (welcome,) = [one for one in self.world.inbox(self.peer)[self.read :] if isinstance(one, m.Welcome)]
        self.holdings.welcomed(full=welcome.bindings)
        self.report(full=True)
        self.world.say(self.peer, m.InventoryNews(inventory=inventory or gpus()))
        self.tell()
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
                    self.holdings.heard(one)
        return orders

    def begin(self, order: m.BindingPrepare) -> None:
        name = order.binding.id
        if name in self.holds or name in self.tombstones:
            self.holdings.report(name, self.holds.get(name) or self.tombstones[name])
            return
        self.prepares.append(name)
        self.instances[name] = order.binding.instances
        self.move(name, BindingState.PREPARING)

    def end(self, name: str) -> None:
        if name in self.tombstones:
            self.holdings.report(name, self.tombstones[name])
        elif name not in self.holds:
            self.move(name, BindingState.RELEASED)
        else:
            self.move(name, BindingState.RELEASING)

    def move(self, name: str, state: BindingState, **fields: Any) -> None:
        report = m.BindingReport(state=state, instances=self.instances.get(name, []), **fields)
        self.holdings.report(name, report)
        if state in ENDED:
            self.tombstones[name] = report

    def tell(self) -> None:
        """Say what is new, and again what was not heard."""
        self.holdings.again()
        if (news := self.holdings.take()) is not None:
            self.world.say(self.peer, news)

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
