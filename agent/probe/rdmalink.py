"""Which interface belongs to which RDMA port, as the kernel's RDMA netlink says it.

Where sysfs does not: a port without GIDs, a device in software that is on no PCI function. Two kinds of dump
(`RDMA_NLDEV_CMD_GET`, `RDMA_NLDEV_CMD_PORT_GET` of <rdma/rdma_netlink.h>) on a socket that waits a second at
most. Raises OSError, also where the kernel has no RDMA.
"""

import errno
import os
import socket
import struct
import sys
from collections.abc import Iterator

NETLINK_RDMA = 20
RDMA_NL_NLDEV = 5
CMD_GET, CMD_PORT_GET = 1, 5
DEV_INDEX, DEV_NAME, PORT_INDEX, NDEV_NAME = 1, 2, 3, 51
NLM_F_REQUEST, NLM_F_DUMP = 0x1, 0x300
NLMSG_ERROR, NLMSG_DONE = 2, 3
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_WAIT_S = 1.0
_BYTES = 1 << 16


def interfaces() -> dict[tuple[str, int], str]:
    """The interface of each port, by RDMA device and port number."""
    found = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_RDMA) as netlink:
        netlink.settimeout(_WAIT_S)
        devices = [(told.get(DEV_INDEX), _text(told, DEV_NAME)) for told in _dump(netlink, CMD_GET, b"")]
        for index, name in devices:
            if index is None:
                continue
            request = _ATTRIBUTE.pack(_ATTRIBUTE.size + len(index), DEV_INDEX) + index
            for told in _dump(netlink, CMD_PORT_GET, request):
                interface = _text(told, NDEV_NAME)
                if interface and PORT_INDEX in told:
                    found[name, int.from_bytes(told[PORT_INDEX][:4], sys.byteorder)] = interface
    return found


def _text(told: dict[int, bytes], attribute: int) -> str:
    return told.get(attribute, b"").rstrip(b"\0").decode("utf-8", "replace")


def _dump(netlink: socket.socket, command: int, attributes: bytes) -> Iterator[dict[int, bytes]]:
    """The attributes of every message of one dump."""
    kind = (RDMA_NL_NLDEV << 10) + command
    length = _HEADER.size + len(attributes)
    netlink.send(_HEADER.pack(length, kind, NLM_F_REQUEST | NLM_F_DUMP, command, 0) + attributes)
    while True:
        for of_kind, body in messages(netlink.recv(_BYTES)):
            if of_kind == NLMSG_DONE:
                return
            if of_kind == NLMSG_ERROR:
                code = -int.from_bytes(body[:4], sys.byteorder, signed=True)
                raise OSError(code or errno.EPROTO, os.strerror(code or errno.EPROTO), "RDMA netlink")
            yield dict(parts(body))


def messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and body of the messages of one datagram; what is cut off ends it."""
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, *_ = _HEADER.unpack_from(data, at)
        if length < _HEADER.size or at + length > len(data):
            return
        yield kind, data[at + _HEADER.size : at + length]
        at += length + 3 & ~3


def parts(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and value of the attributes of one message."""
    at = 0
    while at + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, at)
        if length < _ATTRIBUTE.size or at + length > len(body):
            return
        yield kind & 0x3FFF, body[at + _ATTRIBUTE.size : at + length]
        at += length + 3 & ~3
