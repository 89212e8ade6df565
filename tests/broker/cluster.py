"""A broker with nodes that take claims, and a controller that orders: for tests of claims over the core."""

from typing import Any

from tests.broker.nodes import Node, claimed, place
from tests.broker.world import World
from xce.model import message as m
from xce.model.claim import (
    AccessMode,
    Ask,
    BindingState,
    Claim,
    ClaimForm,
    InstanceAsk,
)
from xce.model.configuration import BrokerFile
from xce.model.instance import Instance, Inventory

ONE_GPU = Ask(instances=[InstanceAsk(kind="gpu")])
READY, RELEASED, FAILED = BindingState.READY, BindingState.RELEASED, BindingState.FAILED


class Cluster:
    """A broker with nodes that have three GPUs each, and a controller that follows."""

    def __init__(self, *hosts: str, config: BrokerFile | None = None) -> None:
        self.world = World(config=config)
        self.nodes = {name: Node(self.world, name) for name in hosts or ("node1",)}
        for node in self.nodes.values():
            node.arrive()
        self.count = 0

    @property
    def node(self) -> Node:
        return next(iter(self.nodes.values()))

    def order(self, kind: Any, *, role: str = "controller", **fields: Any) -> Any:
        self.count += 1
        name = {"controller": "sched", "admin": "alice", "provider": "store"}[role]
        return self.world.ask(self.world.peer(name, role), kind(id=f"op{self.count}", **fields))

    def claim(self, name: str = "job1", **fields: Any) -> str:
        self.count += 1
        plain: dict[str, Any] = {"id": name, "ask": ONE_GPU}
        return claimed(self.world, Claim(**{**plain, **fields}), op=f"op{self.count}")

    def bind(self, *places: m.Place, **fields: Any) -> list[str]:
        done = self.order(m.ClaimBind, places=list(places), **fields)
        assert isinstance(done, m.Done), done
        return done.made

    def refused(self, *places: m.Place) -> str:
        answer = self.order(m.ClaimBind, places=list(places))
        assert isinstance(answer, m.Failed), answer
        return answer.message

    def see(self) -> Any:
        return self.world.snapshot()

    def states(self) -> dict[str, str]:
        return {name: one.binding.state.value for name, one in self.see().bindings.items()}

    def restart(self) -> None:
        """A new broker on the same facts; the nodes come back to it."""
        self.world = self.world.restart()
        for node in self.nodes.values():
            node.world, node.read = self.world, 0
            node.arrive()


def mig() -> Inventory:
    """One GPU with seven slices of compute and eight of memory, and profiles that overlap."""
    gpu = Instance(id="GPU-m", kind="gpu", capacity={"slices": 7, "memory": 8})
    profiles = {"1g": 1, "3g": 4, "4g": 4}
    slices = [
        Instance(
            id=f"MIG-{name}-{number}",
            kind="mig",
            parent="GPU-m",
            consumes={"slices": int(name[0]), "memory": memory},
        )
        for name, memory in profiles.items()
        for number in range(2)
    ]
    return Inventory(reporter="nvidia", generation=1, complete=True, instances=[gpu, *slices])


def volume(cluster: Cluster, access: AccessMode) -> str:
    return cluster.claim(f"v-{access.value}", form=ClaimForm.STANDALONE, access=access, ask=Ask())


def gang(cluster: Cluster, **fields: Any) -> list[str]:
    claim = cluster.claim("train")
    places = [place(claim, host, "GPU-a", consumer="j1") for host in cluster.nodes]
    made = cluster.bind(*places, **fields)
    for node in cluster.nodes.values():
        node.listen()
    return made
