"""One history in which every kind of order about claims is given, for brokers that are killed in it.

Whoever plays it says how an order is given and how nodes work; what is there in the end is told without names
that hang on revisions.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeAlias

from tests.broker.nodes import place
from xce.model import message as m
from xce.model.claim import Ask, Binding, BindingState, Claim, ClaimForm, InstanceAsk, Quarantine

HOSTS = ["node1", "node2", "node3"]
READY, RELEASED = BindingState.READY, BindingState.RELEASED
GPU = Ask(instances=[InstanceAsk(kind="gpu")])
DISK = Claim(id="disk", provider="root", form=ClaimForm.STANDALONE, ask=GPU)
Ending: TypeAlias = tuple[list[tuple[str, str, str, str]], list[str], dict[str, dict[str, str]]]


class Site(Protocol):
    """A broker, the nodes `HOSTS` with the GPUs of `nodes.py`, and somebody who gives orders."""

    def come_back(self) -> None:
        """All nodes are there."""

    def work(self) -> None:
        """Nodes bring all that they have to its end."""

    def give(self, order: Any) -> None:
        """Until it is answered."""

    def made(self, op_id: str) -> list[str]:
        """What an order has made."""


def bind(op_id: str, claim: str, *hosts: str, consumer: str = "") -> m.ClaimBind:
    places = [
        place(claim, host, "GPU-a" if claim != "wide" else "GPU-b", consumer=consumer or claim)
        for host in hosts
    ]
    return m.ClaimBind(id=op_id, places=places)


def history(site: Site) -> list[Callable[[], object]]:
    """Every kind of order, and what nodes make of it; orders name what others made when they are given."""
    give = site.give

    def order(make: Callable[[], Any]) -> Callable[[], object]:
        return lambda: give(make())

    return [
        site.come_back,
        order(lambda: m.ClaimCreate(id="create-one", claim=Claim(id="one", ask=GPU))),
        order(lambda: bind("bind-one", "one", "node1")),
        site.work,
        order(lambda: m.ClaimCreate(id="create-disk", claim=DISK)),
        order(lambda: m.ClaimProvide(id="provide", claim="disk", state=READY, volume={"volume_id": "v"})),
        order(lambda: bind("bind-disk", "disk", "node2")),
        site.work,
        order(lambda: m.ClaimCreate(id="create-wide", claim=Claim(id="wide", ask=GPU))),
        order(lambda: bind("bind-wide", "wide", *HOSTS)),
        site.work,
        order(
            lambda: m.BindingForce(id="force", binding=site.made("bind-wide")[1], reason="tired of waiting")
        ),
        site.work,
        order(lambda: m.QuarantineClear(id="clear", host="node2", instance="GPU-b", reason="tested")),
        order(lambda: m.QuarantineSet(id="set", host="node3", instance="GPU-c", reason="smells")),
        order(lambda: m.ClaimRelease(id="release-one", claim="one")),
        site.work,
        order(lambda: m.ClaimRelease(id="release-of-disk", bindings=site.made("bind-disk"))),
        site.work,
        order(lambda: m.ClaimProvide(id="provided-no-more", claim="disk", state=RELEASED)),
        order(lambda: m.ClaimDelete(id="delete", claim="disk")),
    ]


def ending(
    bindings: Iterable[Binding], claims: Iterable[str], kept: Mapping[str, Mapping[str, Quarantine]]
) -> Ending:
    """What is there in the end."""
    there = sorted((one.claim, one.host, one.consumer.name, one.state.value) for one in bindings)
    reasons = {host: {name: one.reason for name, one in those.items()} for host, those in kept.items()}
    return there, sorted(claims), {host: those for host, those in reasons.items() if those}
