"""Where the running kernel's structures have their fields: BTF, from /sys/kernel/btf/vmlinux (linux/btf.h).

A name that is there twice, or not at all, is refused: nothing is guessed about a kernel. Reading takes a
tenth of a second; nothing is kept but what was asked for.
"""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

VMLINUX = "/sys/kernel/btf/vmlinux"
_MAGIC = 0xEB9F
_STRUCT, _FUNCTION = 4, 12
_MEMBERS = {4: 12, 5: 12, 6: 8, 13: 8, 15: 12, 19: 12}
"""Bytes for each member of a kind: struct, union, enum, prototype, section, enum64."""
_TAIL = {1: 4, 3: 12, 14: 4, 17: 4}
"""Bytes after a kind's head: integer, array, variable, declaration tag."""


class BtfRefused(Exception):
    """This kernel does not say it, or says it in a way that we do not know."""


class Layout(NamedTuple):
    """What was asked for."""

    functions: dict[str, int]
    """Type ids, as a program is attached by them."""
    offsets: dict[str, int]
    """Bytes from the beginning of the structure: `inode.i_rdev`."""


def read(functions: Sequence[str], members: Mapping[str, Sequence[str]], path: str = VMLINUX) -> Layout:
    """Ids of functions, and offsets of members of structures. Raises OSError, `BtfRefused`."""
    data = Path(path).read_bytes()
    try:
        types, names = _sections(data)
        wanted = [(_FUNCTION, name) for name in functions] + [(_STRUCT, name) for name in members]
        found = _find(types, names, wanted)
        offsets = {
            f"{name}.{member}": _offset(types, names, found[(_STRUCT, name)][1], member)
            for name, wanted_members in members.items()
            for member in wanted_members
        }
    except (struct.error, IndexError) as error:
        raise BtfRefused(f"{path} is not understood: {error}") from error
    return Layout({name: found[(_FUNCTION, name)][0] for name in functions}, offsets)


def _sections(data: bytes) -> tuple[bytes, bytes]:
    magic, version, _flags, head, at, length, names_at, names = struct.unpack_from("=HBBIIIII", data)
    if magic != _MAGIC or version != 1:
        raise BtfRefused(f"type information of version {version} is not known")
    return data[head + at : head + at + length], data[head + names_at : head + names_at + names]


def _find(
    types: bytes, names: bytes, wanted: Sequence[tuple[int, str]]
) -> dict[tuple[int, str], tuple[int, int]]:
    """Number and place of each wanted type."""
    places = {}
    for _, name in wanted:
        place = -1
        while (place := names.find(f"\0{name}\0".encode(), place + 1)) >= 0:
            places[place + 1] = name
    looked, found = set(wanted), dict[tuple[int, str], tuple[int, int]]()
    head = struct.Struct("=II").unpack_from
    at, number, end = 0, 1, len(types)
    while at < end:
        name_at, info = head(types, at)
        kind = info >> 24 & 31
        key = (kind, places.get(name_at, ""))
        if key in looked:
            if key in found:
                raise BtfRefused(f"this kernel has {key[1]} twice")
            found[key] = (number, at)
        at += 12 + _MEMBERS.get(kind, 0) * (info & 0xFFFF) + _TAIL.get(kind, 0)
        number += 1
    if missing := looked - found.keys():
        raise BtfRefused(f"this kernel has no {', '.join(sorted(name for _, name in missing))}")
    return found


def _offset(types: bytes, names: bytes, at: int, member: str) -> int:
    info = struct.unpack_from("=I", types, at + 4)[0]
    for number in range(info & 0xFFFF):
        name_at, _type, bits = struct.unpack_from("=III", types, at + 12 + 12 * number)
        if names[name_at : names.index(b"\0", name_at)].decode() == member:
            bits = bits & 0xFFFFFF if info >> 31 else bits  # above are bit fields' sizes
            return int(bits) // 8
    raise BtfRefused(f"this kernel's structure has no member {member}")
