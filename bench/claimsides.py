"""Whom durable claim transitions are asked of, and how: broker, etcd, disk; by libraries or plain sockets.

Each side takes an order that is encoded already and gives the answer's bytes; what they say is looked at when
nobody measures any more. So the clocks of all sides run from before an order is handed over until its answer
is there. Of etcd the same promise is asked: a compare on the caller's key, the record and the key, in one
transaction. Both get one connection with all clients on it: several serve etcd worse, and of ours the one
process that measures would have 64 sockets to look at (`BrokerLibraryApart` shows what that costs).
"""

import os
import queue
import select
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import msgspec
import zmq

from bench.job import etcd, http2, zmtp
from bench.job.floor import dealer
from xce.model.claim import Ask, Claim, ClaimForm, InstanceAsk, MountAsk
from xce.model.message import ClaimCreate, ClaimDelete, Done
from xce.wire import codec

_PATIENCE_S = 10.0


def claim_of(name: str) -> Claim:
    """A claim such as jobs make."""
    ask = Ask(
        instances=[InstanceAsk(kind="gpu", count=8), InstanceAsk(kind="nic", count=8)],
        mounts=[MountAsk(name="data", source="datasets", read_only=True)],
        scratch_bytes=1 << 40,
        environment={"NCCL_DEBUG": "WARN"},
    )
    return Claim(id=name, form=ClaimForm.STANDALONE, owner="alice", project="llm", ask=ask)


class _Named(msgspec.Struct):
    """What an order and its answer have in common."""

    id: str


_named = msgspec.msgpack.Decoder(_Named).decode


class Side(ABC):
    """Somebody who carries out orders of several clients, each of which has one out."""

    def __init__(self, clients: int) -> None:
        self.run = f"{type(self).__name__.lower()}-{clients}"
        """In names, which no other load on the same server uses."""

    @abstractmethod
    def order(self, client: int, step: int) -> bytes:
        """What a client says in one step, encoded."""

    @abstractmethod
    def give(self, client: int, order: bytes) -> None:
        """Hand an order over."""

    @abstractmethod
    def answered(self) -> Iterable[tuple[int, bytes]]:
        """Clients whose answers are there, with the answers; waits until there is one."""

    @abstractmethod
    def carried_out(self, answer: bytes) -> bool:
        """Whether an answer says so."""


class _Broker(Side):
    """A claim is created, then deleted, then the next one."""

    def order(self, client: int, step: int) -> bytes:
        name = f"bench-{self.run}-{client}-{step // 2}"
        if step % 2:
            return codec.encode(ClaimDelete(id=f"{name}-d", claim=name))
        return codec.encode(ClaimCreate(id=f"{name}-c", claim=claim_of(name)))

    def carried_out(self, answer: bytes) -> bool:
        return isinstance(codec.decode_from_broker(answer), Done)


class BrokerPlain(_Broker):
    """A plain socket for each client."""

    def __init__(self, port: str, clients: int) -> None:
        super().__init__(clients)
        self._links = [zmtp.Link(port) for _ in range(clients)]
        self._client = {link.fileno(): client for client, link in enumerate(self._links)}
        self._poll = _poll(*self._client)

    def order(self, client: int, step: int) -> bytes:
        return zmtp.framed(super().order(client, step))

    def give(self, client: int, order: bytes) -> None:
        self._links[client].send(order)

    def answered(self) -> Iterable[tuple[int, bytes]]:
        for descriptor, _ in self._poll.poll(_PATIENCE_S):
            client = self._client[descriptor]
            for answer in self._links[client].read():
                yield client, answer


class BrokerLibrary(_Broker):
    """A ZeroMQ socket with all clients on it, as etcd has them."""

    def __init__(self, port: str, clients: int) -> None:
        super().__init__(clients)
        self._socket = dealer(port)
        self._socket.rcvtimeo = int(_PATIENCE_S * 1000)
        self._client: dict[str, int] = {}

    def give(self, client: int, order: bytes) -> None:
        self._client[_named(order).id] = client
        self._socket.send(order)

    def answered(self) -> Iterable[tuple[int, bytes]]:
        answer = self._socket.recv()
        yield self._client.pop(_named(answer).id), answer


class BrokerLibraryApart(_Broker):
    """A ZeroMQ socket for each client."""

    def __init__(self, port: str, clients: int) -> None:
        super().__init__(clients)
        self._sockets = [dealer(port) for _ in range(clients)]
        self._client = {socket: client for client, socket in enumerate(self._sockets)}
        self._poll = zmq.Poller()
        for socket in self._sockets:
            self._poll.register(socket, zmq.POLLIN)

    def give(self, client: int, order: bytes) -> None:
        self._sockets[client].send(order)

    def answered(self) -> Iterable[tuple[int, bytes]]:
        for socket, _ in self._poll.poll(int(_PATIENCE_S * 1000)):
            yield self._client[socket], socket.recv()


class BrokerLibraryAlone(_Broker):
    """ZeroMQ as its one client uses it best: the caller's thread waits for the answer itself."""

    def __init__(self, port: str, clients: int) -> None:
        super().__init__(clients)
        self._socket, self._answer = dealer(port), b""
        self._socket.rcvtimeo = int(_PATIENCE_S * 1000)

    def give(self, _client: int, order: bytes) -> None:
        self._socket.send(order)
        self._answer = self._socket.recv()

    def answered(self) -> Iterable[tuple[int, bytes]]:
        yield 0, self._answer


class _Etcd(Side):
    def order(self, client: int, step: int) -> bytes:
        name = f"bench-{self.run}-{client}-{step}"
        record = codec.encode(ClaimCreate(id=f"{name}-c", claim=claim_of(name)))
        once, claim = f"op/{name}".encode(), f"claim/{name}".encode()
        return etcd.transaction(once, [(claim, record), (once, b"1")])

    def carried_out(self, answer: bytes) -> bool:
        return etcd.carried_out(answer)


class EtcdPlain(_Etcd):
    """A plain socket."""

    def __init__(self, port: str, clients: int) -> None:
        super().__init__(clients)
        self._link = http2.Link(port, etcd.TRANSACTION)
        self._client: dict[int, int] = {}
        self._poll = _poll(self._link.fileno())

    def give(self, client: int, order: bytes) -> None:
        self._client[self._link.call(order)] = client

    def answered(self) -> Iterable[tuple[int, bytes]]:
        for _ in self._poll.poll(_PATIENCE_S):
            for call, answer in self._link.answers():
                yield self._client.pop(call), answer


class EtcdLibrary(_Etcd):
    """gRPC's C core."""

    def __init__(self, port: str, clients: int) -> None:
        super().__init__(clients)
        self._call = etcd.transactions(port)
        self._done: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()

    def give(self, client: int, order: bytes) -> None:
        self._call.future(order).add_done_callback(lambda future: self._done.put((client, future)))

    def answered(self) -> Iterable[tuple[int, bytes]]:
        client, future = self._done.get(timeout=_PATIENCE_S)
        yield client, future.result()


class EtcdLibraryAlone(_Etcd):
    """gRPC's C core, used in the same way."""

    def __init__(self, port: str, clients: int) -> None:
        super().__init__(clients)
        self._call, self._answer = etcd.transactions(port), b""

    def give(self, _client: int, order: bytes) -> None:
        self._answer = self._call(order)

    def answered(self) -> Iterable[tuple[int, bytes]]:
        yield 0, self._answer


class Disk(Side):
    """A record as large as ours is appended and synced, nothing else."""

    def __init__(self, directory: str, clients: int) -> None:
        super().__init__(clients)
        self._file = os.open(f"{directory}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def order(self, _client: int, step: int) -> bytes:
        return codec.encode(ClaimCreate(id=f"{step}", claim=claim_of("bench-0-0")))

    def give(self, _client: int, order: bytes) -> None:
        os.write(self._file, order)
        os.fdatasync(self._file)

    def answered(self) -> Iterable[tuple[int, bytes]]:
        yield 0, b""

    def carried_out(self, answer: bytes) -> bool:
        return not answer


def _poll(*descriptors: int) -> select.epoll:
    poll = select.epoll()
    for descriptor in descriptors:
        poll.register(descriptor, select.EPOLLIN)
    return poll
