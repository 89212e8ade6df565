#!/usr/bin/env python3
"""One job from its claim to its end: choose a host, bind, wait until it is ready, release.

    place.py ipc:///run/xce-broker/broker.sock JOB KIND=COUNT

JOB is a name that no job had before: the ids of its orders are made of it, and an order that is given twice
is carried out once. It takes the first host that is available, takes claims, is held by nobody, and has so
many available instances that no other claim has. A real controller keeps a mirror (`follow.py`) and many
jobs; the orders are the same.
"""

import re
import sys

from xce.broker.client import Broker, BrokerError, Client
from xce.model.claim import Ask, BindingState, Claim, Consumer, InstanceAsk
from xce.model.instance import Health
from xce.model.message import ClaimBind, ClaimCreate, ClaimRelease, ClaimsRequest, Pick, Place


def main(arguments: list[str]) -> int:
    """The program."""
    if len(arguments) != 3 or not re.fullmatch(r"[^=]+=[0-9]+", arguments[2]):
        print("usage: place.py ENDPOINT JOB KIND=COUNT (JOB: a name that no job had before)", file=sys.stderr)
        return 2
    endpoint, job, wanted = arguments
    kind, _, count = wanted.partition("=")
    try:
        with Client(Broker(endpoint)) as client:
            ask = Ask(instances=[InstanceAsk(kind=kind, count=int(count))])
            client.ask(ClaimCreate(id=f"{job}-claim", claim=Claim(id=job, ask=ask)))
            place = choose(client, job, kind, int(count))
            if place is None:
                client.ask(ClaimRelease(id=f"{job}-end", claim=job, reason="no host has them"))
                print(f"no host has {wanted} free", file=sys.stderr)
                return 1
            made = client.ask(ClaimBind(id=f"{job}-bind", places=[place])).made
            views = client.wait_bindings(made, timeout=60)
            for name, view in views.items():
                binding = view.binding
                print(f"{name} on {binding.host} is {binding.state}: {binding.reason or 'start it there'}")
            client.ask(ClaimRelease(id=f"{job}-end", claim=job, reason="the example is over"))
            return 0 if all(view.binding.state is BindingState.READY for view in views.values()) else 1
    except (BrokerError, ValueError) as error:
        print(f"place: {error}", file=sys.stderr)
        return 1


def choose(client: Client, job: str, kind: str, count: int) -> Place | None:
    """The first host that can take it, with the instances and the generation that they were seen in."""
    mirror = client.snapshot(detail=True)
    hosts = [
        key
        for key, view in mirror.locations.items()
        if view.state == "available" and not view.holds and view.about.get("claims") == "yes"
    ]
    taken = {
        (view.binding.host, chosen.id)
        for view in client.ask(ClaimsRequest(id="")).bindings.values()
        for chosen in view.binding.instances
    }
    for key in sorted(hosts):
        host = key.removeprefix("host:")
        refs = mirror.locations[key].inventories
        bodies = client.inventories({key: list(refs)}).get(key, {})
        free = [
            Pick(id=one.id, reporter=reporter, generation=refs[reporter].generation)
            for reporter, inventory in bodies.items()
            for one in inventory.instances
            if one.kind == kind and one.health is Health.AVAILABLE and (host, one.id) not in taken
        ]
        if len(free) >= count:
            return Place(claim=job, host=host, consumer=Consumer(name=job), instances=free[:count])
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
