"""Which local ports sockets have, by the kernel's own tables: sock_diag(7) of our network namespace.

Sockets of TCP that listen, or were bound and are not connected, and all of UDP; connections are not asked
for, of which there may be very many. Nothing here waits. Constants keep the kernel's names
(linux/sock_diag.h, linux/inet_diag.h, netinet/tcp.h).
"""

import errno
import functools
import os
import socket
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY = 4, 20
NLM_F_REQUEST, NLM_F_DUMP = 1, 0x300
NLMSG_ERROR, NLMSG_DONE = 2, 3
TCP_LISTEN, TCP_BOUND_INACTIVE = 10, 13
INET_DIAG_CGROUP_ID = 21
_ANY_STATE = 0xFFF
_HEAD = struct.Struct("=IHHII")
"""struct nlmsghdr: length, type, flags, sequence, port."""
_ASKED = struct.Struct("=BBBBI48x")
"""struct inet_diag_req_v2: family, protocol, extensions, states."""
_SOCKET = struct.Struct("=4x2s42x4x12xII")
"""struct inet_diag_msg: of the socket its port; then user and inode."""
_ATTRIBUTE = struct.Struct("=HH")


class Socket(NamedTuple):
    """A socket that has a port."""

    port: int
    inode: int
    """As in `/proc/PID/fd`: `socket:[INODE]`."""
    group: int | None
    """Id of the control group (version 2) in which it was made; None before Linux 5.8."""


def sockets() -> Iterator[Socket]:
    """All of IPv4 and IPv6. Raises OSError."""
    kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
    with socket.socket(socket.AF_NETLINK, kind, NETLINK_SOCK_DIAG) as kernel:
        states = 1 << TCP_LISTEN | lists_bound() << TCP_BOUND_INACTIVE
        for family in (socket.AF_INET, socket.AF_INET6):
            yield from _dump(kernel, family, socket.IPPROTO_TCP, states)
            yield from _dump(kernel, family, socket.IPPROTO_UDP, _ANY_STATE)


@functools.cache
def lists_bound() -> bool:
    """Whether this kernel lists sockets that were bound and do not listen: tried. Linux 6.8 does.

    An older one would look through all connections for them.
    """
    kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
    with (
        socket.socket(socket.AF_NETLINK, kind, NETLINK_SOCK_DIAG) as kernel,
        socket.socket(socket.AF_INET, socket.SOCK_STREAM) as bound,
    ):
        bound.bind(("", 0))
        inode = os.fstat(bound.fileno()).st_ino
        listed = _dump(kernel, socket.AF_INET, socket.IPPROTO_TCP, 1 << TCP_BOUND_INACTIVE)
        return inode in [one.inode for one in listed]


def _dump(kernel: socket.socket, family: int, protocol: int, states: int) -> Iterator[Socket]:
    asked = _ASKED.pack(family, protocol, 0, 0, states)
    length = _HEAD.size + len(asked)
    kernel.send(_HEAD.pack(length, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP, 1, 0) + asked)
    while True:
        data = kernel.recv(1 << 16, socket.MSG_DONTWAIT)  # it has been put there when it was asked for
        at = 0
        while at + _HEAD.size <= len(data):
            length, kind, *_ = _HEAD.unpack_from(data, at)
            if kind == NLMSG_DONE:
                return
            if kind == NLMSG_ERROR:
                code = -struct.unpack_from("=i", data, at + _HEAD.size)[0]
                raise OSError(code, os.strerror(code))
            if length < _HEAD.size:
                raise OSError(errno.EBADMSG, "the kernel's list of sockets is not understood")
            yield _one(data[at + _HEAD.size : at + length])
            at += (length + 3) & ~3


def _one(message: bytes) -> Socket:
    port, _user, inode = _SOCKET.unpack_from(message)
    group, at = None, _SOCKET.size
    while at + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, at)
        if kind == INET_DIAG_CGROUP_ID:
            group = struct.unpack_from("=Q", message, at + _ATTRIBUTE.size)[0]
        at += max(_ATTRIBUTE.size, (length + 3) & ~3)
    return Socket(int.from_bytes(port, "big"), inode, group)


class Listening:
    """The same by port, read anew after `fresh_s`: many ask in one turn."""

    def __init__(self, clock: Callable[[], float], fresh_s: float = 0.25) -> None:
        self._clock, self._fresh_s = clock, fresh_s
        self._until = 0.0
        self._by_port: dict[int, list[Socket]] = {}
        self.problem = ""
        """Why nothing is known."""

    def at(self, port: int) -> list[Socket]:
        """Who has a port, as of a moment ago."""
        now = self._clock()
        if now >= self._until:
            self._until, self._by_port, self.problem = now + self._fresh_s, {}, ""
            try:
                for one in sockets():
                    self._by_port.setdefault(one.port, []).append(one)
            except OSError as error:
                self._by_port, self.problem = {}, f"the kernel does not list sockets: {error.strerror}"
        return self._by_port.get(port, [])
