"""A child that makes durable claim transitions as fast as it is answered: on the broker, etcd or a bare disk.

    python -m bench.claimload xce PATH CLIENTS SECONDS
    python -m bench.claimload etcd PORT CLIENTS SECONDS
    python -m bench.claimload disk DIRECTORY 1 SECONDS

Each client has one transition out: a claim is created, then deleted, then the next one. Of etcd it asks the
same promise: a compare on the caller's key, the record and the key, in one transaction. It says one line.
"""

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import zmq

from bench.children import say
from bench.job import etcd
from bench.job.floor import CONTEXT, dealer
from xce.model.claim import Ask, Claim, ClaimForm, InstanceAsk, MountAsk
from xce.model.message import ClaimCreate, ClaimDelete, Done
from xce.wire import codec

_WARM = 2
"""Answers of each client that are not counted."""


def claim_of(name: str) -> Claim:
    """A claim such as jobs make."""
    ask = Ask(
        instances=[InstanceAsk(kind="gpu", count=8), InstanceAsk(kind="nic", count=8)],
        mounts=[MountAsk(name="data", source="datasets", read_only=True)],
        scratch_bytes=1 << 40,
        environment={"NCCL_DEBUG": "WARN"},
    )
    return Claim(id=name, form=ClaimForm.STANDALONE, owner="alice", project="llm", ask=ask)


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


def on_xce(path: str, clients: int, seconds: float) -> Times:
    """Orders, each client on a connection of its own."""
    poller, times = zmq.Poller(), Times(clients)
    since: dict[zmq.Socket[bytes], float] = {}
    turn: dict[zmq.Socket[bytes], int] = {}

    def give(socket: "zmq.Socket[bytes]", number: int) -> None:
        step = turn[socket]
        name = f"bench-{clients}-{number}-{step // 2}"  # no other run on this broker has asked for it
        order = (
            ClaimCreate(id=f"{name}-c", claim=claim_of(name))
            if step % 2 == 0
            else ClaimDelete(id=f"{name}-d", claim=name)
        )
        since[socket], turn[socket] = time.perf_counter(), step + 1
        socket.send(codec.encode(order))

    sockets = [dealer(path) for _ in range(clients)]
    number_of = {socket: number for number, socket in enumerate(sockets)}
    for number, socket in enumerate(sockets):
        poller.register(socket, zmq.POLLIN)
        turn[socket] = 0
        give(socket, number)
    while not times.over(seconds):
        for socket, _ in poller.poll(100):
            answer = codec.decode_from_broker(socket.recv())
            if not isinstance(answer, Done):
                raise SystemExit(f"refused: {answer}")
            times.add(since[socket])
            give(socket, number_of[socket])
    CONTEXT.destroy(linger=0)
    return times


def on_etcd(port: str, clients: int, seconds: float) -> Times:
    """Transactions, so many at a time over a few connections, as its clients do."""
    calls, times = etcd.transactions(port), Times(clients)
    out: dict[Any, float] = {}

    def give(number: int) -> None:
        key = f"op/{number}".encode()
        record = codec.encode(ClaimCreate(id=f"{number}", claim=claim_of(f"bench-{number % 20_000}")))
        pairs = [(f"claim/{number % 20_000}".encode(), record), (key, b"1")]
        future = calls[number % len(calls)].future(etcd.transaction(key, pairs))
        out[future] = time.perf_counter()

    count = 0
    for count in range(clients):
        give(count)
    while not times.over(seconds):
        finished = [future for future in out if future.done()]
        if not finished:
            next(iter(out)).result()
            continue
        for future in finished:
            future.result()
            times.add(out.pop(future))
            count += 1
            give(count)
    return times


def on_disk(directory: str, _clients: int, seconds: float) -> Times:
    """Append a record as large as ours and sync it, nothing else."""
    times = Times(1)
    record = codec.encode(ClaimCreate(id="bench-0-0-c", claim=claim_of("bench-0-0")))
    descriptor = os.open(f"{directory}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    while not times.over(seconds):
        since = time.perf_counter()
        os.write(descriptor, record)
        os.fdatasync(descriptor)
        times.add(since)
    os.close(descriptor)
    return times


SIDES: dict[str, Callable[[str, int, float], Times]] = {"xce": on_xce, "etcd": on_etcd, "disk": on_disk}


def main(arguments: list[str]) -> None:
    """See above."""
    side, where, clients, seconds = arguments
    SIDES[side](where, int(clients), float(seconds)).tell()
    sys.stdout.flush()
    os._exit(0)  # gRPC's threads would take their time


if __name__ == "__main__":
    main(sys.argv[1:])
