"""Instructions of BPF programs (linux/bpf.h, struct bpf_insn); nothing is loaded here.

An opcode is named by what it does, its width in bits where that is not 64, and IMM where it takes a number
and not a register.
"""

import struct
from collections.abc import Iterable
from typing import NamedTuple

LDX_W, LDX_H, LDX_DW, STX_W = 0x61, 0x69, 0x79, 0x63
"""Read or write 4, 2 or 8 bytes."""
MOV, MOV_IMM, ADD_IMM, AND_IMM = 0xBF, 0xB7, 0x07, 0x57
MOV32, AND32_IMM, RSH32_IMM = 0xBC, 0x54, 0x74
JEQ, JEQ_IMM, JNE_IMM, JNE32, JNE32_IMM, JA = 0x1D, 0x15, 0x55, 0x5E, 0x56, 0x05
CALL, EXIT = 0x85, 0x95
OF_KERNEL = 2
"""Source of a call that goes to a function of the kernel by its BTF id (BPF_PSEUDO_KFUNC_CALL)."""


def instruction(code: int, to: int = 0, source: int = 0, *, offset: int = 0, value: int = 0) -> bytes:
    """One instruction."""
    number = value if value < 1 << 31 else value - (1 << 32)
    return struct.pack("<BBhi", code, source << 4 | to, offset, number)


def table(to: int, descriptor: int) -> list[bytes]:
    """A register gets the address of a table (BPF_LD_IMM64, BPF_PSEUDO_MAP_FD)."""
    return [instruction(0x18, to, 1, value=descriptor), instruction(0)]


class Jump(NamedTuple):
    """To a label; `to` and `source` are registers."""

    code: int
    label: str
    to: int = 0
    source: int = 0
    value: int = 0


def assemble(code: Iterable[bytes | Jump | str]) -> bytes:
    """Instructions, jumps and labels (text) in their order, as one program."""
    parts: list[bytes | Jump] = []
    labels: dict[str, int] = {}
    for one in code:
        if isinstance(one, str):
            labels[one] = len(parts)
        else:
            parts.append(one)
    return b"".join(
        instruction(one.code, one.to, one.source, offset=labels[one.label] - at - 1, value=one.value)
        if isinstance(one, Jump)
        else one
        for at, one in enumerate(parts)
    )
