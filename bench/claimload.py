"""A child that makes durable claim transitions as fast as it is answered, by one of the ways in `claimsides`.

    python -m bench.claimload WAY WHERE CLIENTS SECONDS

WHERE is a port on loopback, or a directory. All orders are encoded before the first one is given. It says one
line.
"""

import os
import sys
import time
from collections.abc import Callable

from bench import claimsides
from bench.children import say
from bench.claimsides import Side

_WARM = 2
"""Answers of each client that are not counted."""
_MOST = 30_000
"""Orders a second, of all clients together, that are made beforehand."""
WAYS: dict[str, Callable[[str, int], Side]] = {
    way.__name__: way
    for way in (
        claimsides.BrokerPlain,
        claimsides.BrokerLibrary,
        claimsides.BrokerLibraryApart,
        claimsides.BrokerLibraryAlone,
        claimsides.EtcdPlain,
        claimsides.EtcdLibrary,
        claimsides.EtcdLibraryAlone,
        claimsides.Disk,
    )
}


class Times:
    """How long each transition took, in ms; the first ones of each client are left out."""

    def __init__(self, clients: int) -> None:
        self._skip, self._found = _WARM * clients, list[float]()
        self._count, self._begin = 0, time.perf_counter()

    def add(self, since: float) -> None:
        """One was answered."""
        self._count += 1
        if self._count <= self._skip:
            self._begin = time.perf_counter()
            return
        self._found.append((time.perf_counter() - since) * 1000)

    def over(self, seconds: float) -> bool:
        """Whether it has been measured for so long."""
        return bool(self._found) and time.perf_counter() - self._begin >= seconds

    def tell(self) -> None:
        """The one line."""
        wall, ordered = time.perf_counter() - self._begin, sorted(self._found)
        say(
            ops_s=len(ordered) / wall,
            p50_ms=ordered[len(ordered) // 2],
            p99_ms=ordered[int(len(ordered) * 0.99)],
            count=self._count,
        )


def load(side: Side, clients: int, seconds: float) -> Times:
    """Each client has one order out."""
    steps = range(int(seconds * _MOST / clients))
    orders = [iter([side.order(client, step) for step in steps]) for client in range(clients)]
    times, since, answers = Times(clients), [0.0] * clients, list[bytes]()

    def give(client: int) -> None:
        order = next(orders[client])
        since[client] = time.perf_counter()
        side.give(client, order)

    for client in range(clients):
        give(client)
    while not times.over(seconds):
        for client, answer in side.answered():
            times.add(since[client])
            answers.append(answer)
            give(client)
    if refused := [answer for answer in answers if not side.carried_out(answer)]:
        raise SystemExit(f"{len(refused)} orders were refused, the first one by {refused[0]!r}")
    return times


def main(arguments: list[str]) -> None:
    """See above."""
    way, where, clients, seconds = arguments
    load(WAYS[way](where, int(clients)), int(clients), float(seconds)).tell()
    sys.stdout.flush()
    os._exit(0)  # gRPC's and ZeroMQ's threads would take their time


if __name__ == "__main__":
    main(sys.argv[1:])
