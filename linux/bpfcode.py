"""Instructions of BPF programs (linux/bpf.h, struct bpf_insn); nothing is loaded here.

An opcode is named by what it does, its width in bits where that is not 64, and IMM where it takes a number
and not a register.
"""

import struct

LDX_W, LDX_H, LDX_DW, STX_W = 0x61, 0x69, 0x79, 0x63
"""Read or write 4, 2 or 8 bytes."""
MOV, MOV_IMM, ADD_IMM, AND_IMM = 0xBF, 0xB7, 0x07, 0x57
MOV32, AND32_IMM, RSH32_IMM = 0xBC, 0x54, 0x74
JEQ_IMM, JNE_IMM, JNE32 = 0x15, 0x55, 0x5E
CALL, EXIT = 0x85, 0x95


def instruction(code: int, to: int = 0, source: int = 0, *, offset: int = 0, value: int = 0) -> bytes:
    """One instruction."""
    number = value if value < 1 << 31 else value - (1 << 32)
    return struct.pack("<BBhi", code, source << 4 | to, offset, number)
