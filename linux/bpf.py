"""Device filters of control groups: programs of type BPF_PROG_TYPE_CGROUP_DEVICE, by bpf(2) alone.

Programs are attached with BPF_F_ALLOW_MULTI and changed with BPF_F_REPLACE, which swaps one for another at
once and fails with ENOENT if the other is not attached any more. All programs on the way from the root to a
group must allow an access. An attached program outlives whoever loaded it and goes with its group. A
descriptor that was open before is never taken back. Constants keep the kernel's names (linux/bpf.h).

What fails raises OSError: EPERM without CAP_BPF and CAP_NET_ADMIN (or CAP_SYS_ADMIN), or where a program
above or beside does not let others in.
"""

import ctypes
import errno
import functools
import os
import platform
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from xce.linux import bpfcode as op
from xce.linux import syscalls
from xce.linux.bpfcode import instruction

_BPF = {"x86_64": 321, "aarch64": 280}.get(platform.machine(), -1)

BPF_MAP_CREATE, BPF_MAP_UPDATE_ELEM, BPF_MAP_DELETE_ELEM, BPF_MAP_TYPE_HASH = 0, 2, 3, 1
BPF_PROG_LOAD, BPF_PROG_ATTACH, BPF_PROG_DETACH = 5, 8, 9
BPF_PROG_GET_FD_BY_ID, BPF_OBJ_GET_INFO_BY_FD, BPF_PROG_QUERY = 13, 15, 16
BPF_LINK_CREATE, BPF_ITER_CREATE = 28, 33
BPF_PROG_TYPE_CGROUP_DEVICE, BPF_CGROUP_DEVICE = 15, 6
BPF_PROG_TYPE_TRACING, BPF_TRACE_ITER = 26, 28
BPF_F_ALLOW_OVERRIDE, BPF_F_ALLOW_MULTI, BPF_F_REPLACE = 1, 2, 4
BPF_F_QUERY_EFFECTIVE = 1
BPF_DEVCG_DEV_BLOCK, BPF_DEVCG_DEV_CHAR = 1, 2
BPF_DEVCG_ACC_MKNOD, BPF_DEVCG_ACC_READ, BPF_DEVCG_ACC_WRITE = 1, 2, 4
PROGRAMS = 64
"""BPF_CGROUP_MAX_PROGS: of one type on one group."""
NAME_BYTES = 15

_ALL = BPF_DEVCG_ACC_MKNOD | BPF_DEVCG_ACC_READ | BPF_DEVCG_ACC_WRITE


class Rule(NamedTuple):
    """What is allowed: `access` bits on a device; None stands for any number."""

    kind: int
    """BPF_DEVCG_DEV_BLOCK or BPF_DEVCG_DEV_CHAR."""
    major: int | None
    minor: int | None
    access: int


class Program(NamedTuple):
    """A program as the kernel knows it. `tag` is a hash of its instructions: same rules, same tag."""

    id: int
    tag: str
    name: str
    kind: int


class Attached(NamedTuple):
    """What hangs on one group: the mode in which the first was attached, and program ids in order."""

    flags: int
    ids: tuple[int, ...]


def compile_rules(rules: Iterable[Rule]) -> bytes:
    """Instructions that allow an access if one rule covers all of it, and deny everything else."""
    return _compiled(tuple(rules))


@functools.lru_cache(maxsize=1024)
def _compiled(rules: tuple[Rule, ...]) -> bytes:
    code = [
        instruction(op.LDX_W, 2, 1, offset=0),  # r2 = bpf_cgroup_dev_ctx.access_type
        instruction(op.MOV32, 3, 2),
        instruction(op.RSH32_IMM, 3, value=16),  # r3 = access bits
        instruction(op.AND32_IMM, 2, value=0xFFFF),  # r2 = kind
        instruction(op.LDX_W, 4, 1, offset=4),  # r4 = major
        instruction(op.LDX_W, 5, 1, offset=8),  # r5 = minor
    ]
    for rule in rules:
        code += _one_rule(rule)
    code += [instruction(op.MOV_IMM, 0, value=0), instruction(op.EXIT)]
    return b"".join(code)


def _one_rule(rule: Rule) -> list[bytes]:
    """Falls through to what follows if the rule does not fit."""
    masked = rule.access != _ALL
    tests = [(2, rule.kind), (4, rule.major), (5, rule.minor)]
    compared = [(register, value) for register, value in tests if value is not None]
    length = (3 if masked else 0) + len(compared) + 2
    code: list[bytes] = []
    if masked:
        code += [instruction(op.MOV32, 1, 3), instruction(op.AND32_IMM, 1, value=rule.access)]
        code.append(instruction(op.JNE32, 1, 3, offset=length - 3))
    for register, value in compared:
        code.append(instruction(op.JNE_IMM, register, offset=length - len(code) - 1, value=value))
    return [*code, instruction(op.MOV_IMM, 0, value=1), instruction(op.EXIT)]


class Use(NamedTuple):
    """What a program is for."""

    kind: int
    attach: int
    function: int = 0
    """BTF id of what it is attached to."""

    @classmethod
    def files(cls, function: int) -> "Use":
        """To be called for every open file of every process."""
        return cls(BPF_PROG_TYPE_TRACING, BPF_TRACE_ITER, function)


_DEVICES = Use(BPF_PROG_TYPE_CGROUP_DEVICE, BPF_CGROUP_DEVICE)


def load(code: bytes, name: str, use: Use = _DEVICES) -> int:
    """A descriptor of a new program. A refusal of the verifier has its words as text."""
    try:
        return _load(code, name, use, log=None)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EACCES):
            raise
        log = ctypes.create_string_buffer(1 << 16)
        try:
            return _load(code, name, use, log=log)
        except OSError as again:
            words = log.value.decode(errors="replace").strip() or again.strerror
            raise OSError(again.errno, f"cannot load program {name}: {words}") from again


def _load(code: bytes, name: str, use: Use, *, log: "ctypes.Array[ctypes.c_char] | None") -> int:
    licence = ctypes.create_string_buffer(b"GPL")
    instructions = ctypes.create_string_buffer(code, len(code))
    attribute = struct.pack(
        "<IIQQIIQII16sII",
        use.kind,
        len(code) // 8,
        ctypes.addressof(instructions),
        ctypes.addressof(licence),
        1 if log is not None else 0,
        len(log) if log is not None else 0,
        ctypes.addressof(log) if log is not None else 0,
        0,
        0,
        name.encode("ascii")[:NAME_BYTES],
        0,
        use.attach,
    )
    if use.function:
        attribute += struct.pack("<IIQIIQII", 0, 0, 0, 0, 0, 0, 0, use.function)
    return _bpf(BPF_PROG_LOAD, attribute)


def new_set(key_bytes: int, room: int) -> int:
    """A descriptor of a set of keys, in which programs can look."""
    return _bpf(BPF_MAP_CREATE, struct.pack("<IIIII", BPF_MAP_TYPE_HASH, key_bytes, 1, room, 0))


def put(table: int, key: bytes) -> None:
    """Add a key; E2BIG if there is no room."""
    held, value = ctypes.create_string_buffer(key, len(key)), ctypes.create_string_buffer(1)
    of = (ctypes.addressof(held), ctypes.addressof(value))
    _bpf(BPF_MAP_UPDATE_ELEM, struct.pack("<IIQQQ", table, 0, *of, 0))


def drop(table: int, key: bytes) -> None:
    """Take a key out that is in it."""
    held = ctypes.create_string_buffer(key, len(key))
    _bpf(BPF_MAP_DELETE_ELEM, struct.pack("<IIQ", table, 0, ctypes.addressof(held)))


def link_iterator(program: int) -> int:
    """A descriptor that keeps an iterator's program."""
    return _bpf(BPF_LINK_CREATE, struct.pack("<IIIIQI", program, 0, BPF_TRACE_ITER, 0, 0, 0))


def read_iterator(link: int) -> bytes:
    """What the iterator's program writes in one walk."""
    reading = _bpf(BPF_ITER_CREATE, struct.pack("<II", link, 0))
    try:
        data = b""
        while more := os.read(reading, 1 << 16):
            data += more
        return data
    finally:
        os.close(reading)


def attach(group: int, program: int, *, replacing: int | None = None) -> None:
    """Hang `program` on the group of descriptor `group`, beside others or in the place of `replacing`."""
    flags = BPF_F_ALLOW_MULTI | (BPF_F_REPLACE if replacing is not None else 0)
    _bpf(BPF_PROG_ATTACH, struct.pack("<IIIII", group, program, BPF_CGROUP_DEVICE, flags, replacing or 0))


def detach(group: int, program: int) -> None:
    """Take `program` off the group; ENOENT if it is not on it."""
    _bpf(BPF_PROG_DETACH, struct.pack("<IIII", group, program, BPF_CGROUP_DEVICE, 0))


def query(group: int, *, effective: bool = False) -> Attached:
    """What hangs on this very group; `effective`: what is asked for it, those above included."""
    ids = (ctypes.c_uint32 * PROGRAMS)()
    how = BPF_F_QUERY_EFFECTIVE if effective else 0
    attribute = bytearray(
        struct.pack("<IIIIQII", group, BPF_CGROUP_DEVICE, how, 0, ctypes.addressof(ids), PROGRAMS, 0)
    )
    _bpf(BPF_PROG_QUERY, attribute)
    flags, count = struct.unpack_from("<12xI8xI", attribute)
    return Attached(flags, tuple(ids[:count]))


def open_program(number: int) -> int:
    """A descriptor of the program with that id; ENOENT if it is gone."""
    return _bpf(BPF_PROG_GET_FD_BY_ID, struct.pack("<III", number, 0, 0))


def describe(program: int) -> Program:
    """What the kernel says of a program's descriptor."""
    info = ctypes.create_string_buffer(256)
    _bpf(BPF_OBJ_GET_INFO_BY_FD, struct.pack("<IIQ", program, len(info), ctypes.addressof(info)))
    kind, number, tag = struct.unpack_from("<II8s", info.raw)
    name = info.raw[64:80].split(b"\0")[0].decode(errors="replace")  # bpf_prog_info.name
    return Program(number, tag.hex(), name, kind)


def programs(group: int) -> list[Program]:
    """`query` with what each program is; one that goes meanwhile is left out."""
    return described(query(group).ids)


def described(numbers: Iterable[int]) -> list[Program]:
    """What the programs of these ids are; one that goes meanwhile is left out."""
    found = []
    for number in numbers:
        try:
            program = open_program(number)
        except FileNotFoundError:
            continue
        try:
            found.append(describe(program))
        finally:
            os.close(program)
    return found


def words(rules: Sequence[Rule]) -> list[str]:
    """The rules as the old controller writes them: `c 195:0 rw`."""
    return [
        f"{'b' if rule.kind == BPF_DEVCG_DEV_BLOCK else 'c'} {_number(rule.major)}:{_number(rule.minor)} "
        + "".join(letter for bit, letter in _LETTERS if rule.access & bit)
        for rule in rules
    ]


_LETTERS = ((BPF_DEVCG_ACC_READ, "r"), (BPF_DEVCG_ACC_WRITE, "w"), (BPF_DEVCG_ACC_MKNOD, "m"))


def _number(number: int | None) -> str:
    return "*" if number is None else str(number)


def _bpf(command: int, attribute: bytes | bytearray) -> int:
    buffer = (ctypes.c_char * len(attribute)).from_buffer_copy(attribute)
    try:
        result = syscalls.call(
            _BPF, ctypes.c_int(command), ctypes.byref(buffer), ctypes.c_uint(len(attribute))
        )
    finally:
        if isinstance(attribute, bytearray):
            attribute[:] = buffer.raw
    return result
