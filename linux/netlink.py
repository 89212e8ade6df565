"""Bare netlink sockets: they say that something happened to links or devices, and not what.

For whoever looks for himself. Nothing is parsed, so nothing that the kernel may send can hurt; a burst that
overflows the socket is one more reason to look. Link events are of the network namespace that the process is
in; device events (uevents) reach the initial namespaces, and those that the kernel was told to.
"""

import errno
import socket

RTMGRP_LINK = 1
"""linux/rtnetlink.h."""
NETLINK_KOBJECT_UEVENT = 15
"""linux/netlink.h; the kernel's own messages come on group 1, udev's on 2."""
_AT_ONCE = 1000
"""Messages taken in one turn; what is left is there in the next."""


class Netlink:
    """One socket; `fileno()` is readable when something came. Raises OSError."""

    def __init__(self, protocol: int, groups: int) -> None:
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        self._socket = socket.socket(socket.AF_NETLINK, kind, protocol)
        try:
            self._socket.bind((0, groups))
        except OSError:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._socket.fileno()

    def drain(self) -> bool:
        """Throw away what has come; whether anything had."""
        came = False
        for _ in range(_AT_ONCE):
            try:
                self._socket.recv(1, socket.MSG_TRUNC)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
            came = True
        return came

    def close(self) -> None:
        """Let go of the descriptor; may be called twice."""
        self._socket.close()


def links() -> Netlink:
    """Of links: added, removed, up, down."""
    return Netlink(socket.NETLINK_ROUTE, RTMGRP_LINK)


def devices() -> Netlink:
    """Of devices: added, removed, changed, bound to a driver, modules loaded."""
    return Netlink(NETLINK_KOBJECT_UEVENT, 1)


def both() -> list[Netlink]:
    """Those that can be had: a container may be refused one of them."""
    found = []
    for make in (links, devices):
        try:
            found.append(make())
        except OSError:
            continue
    return found
