"""Every open descriptor of a device on this machine, in one read: a BPF iterator over all files.

The kernel walks its own tables, in a fraction of a millisecond where /proc takes many: a busy host has ten
thousands of descriptors. It sees what /proc does not show, tables of single threads. Where the kernel does
not let us, or where it was not understood, `OpenFiles` cannot be made, and /proc is read instead.
"""

import contextlib
import os
import stat
import struct
from collections.abc import Collection, Iterator
from typing import NamedTuple

from xce.linux import bpf, btf
from xce.linux import bpfcode as op
from xce.linux.bpfcode import Jump, instruction

_FUNCTION = "bpf_iter_task_file"
_MEMBERS = {"file": ["f_inode"], "inode": ["i_mode", "i_rdev"], "task_struct": ["tgid"]}
_META, _TASK, _FD, _FILE = 0, 8, 16, 24
"""bpf_iter__task_file"""
SEQ_WRITE = 127
"""BPF_FUNC_seq_write: linux/bpf.h."""
BOTH, DEVICE = 0o130000, 0o020000
"""Bits of a mode that character and block devices have in common, and no other kind of file."""
ENTRY = struct.Struct("=IIII")
"""Number, process, descriptor, mode."""


class DeviceNumber(NamedTuple):
    """Which device: character and block devices are numbered apart."""

    kind: str
    """`c` or `b`."""
    number: int
    """`os.makedev`."""

    def __str__(self) -> str:
        return f"{'block ' if self.kind == 'b' else ''}{os.major(self.number)}:{os.minor(self.number)}"


class OpenFile(NamedTuple):
    """A descriptor of a device."""

    pid: int
    fd: int
    device: DeviceNumber


class OpenFiles:
    """Looks at all of them as often as one likes. Raises OSError, `BtfRefused` if this kernel cannot."""

    def __init__(self) -> None:
        layout = btf.read([_FUNCTION], _MEMBERS)
        function = layout.functions[_FUNCTION]
        program = bpf.load(_program(layout.offsets), "xce_open", bpf.Use.files(function))
        try:
            self._link = bpf.link_iterator(program)
        finally:
            os.close(program)
        try:
            self._try()
        except BaseException:
            self.close()
            raise

    def __call__(self, devices: Collection[DeviceNumber] | None = None) -> Iterator[OpenFile]:
        """All that are open now, of these devices if they are given."""
        wanted = None if devices is None else {as_listed(device): device for device in devices}
        for number, pid, fd, mode in ENTRY.iter_unpack(bpf.read_iterator(self._link)):
            kind = "b" if stat.S_ISBLK(mode) else "c"
            if wanted is None:
                yield OpenFile(pid, fd, DeviceNumber(kind, os.makedev(number >> 20, number & 0xFFFFF)))
            elif (device := wanted.get((kind, number))) is not None:
                yield OpenFile(pid, fd, device)

    def close(self) -> None:
        """Let go of it; may be called twice."""
        if self._link >= 0:
            os.close(self._link)
            self._link = -1

    def _try(self) -> None:
        """What we have open ourselves must be in it: otherwise it tells of something else."""
        with open("/dev/null", "rb") as trial:
            number = DeviceNumber("c", os.fstat(trial.fileno()).st_rdev)
            ours = OpenFile(os.getpid(), trial.fileno(), number)
            if ours not in set(self()):
                raise btf.BtfRefused("the kernel's list of open files does not have our own")


def as_listed(device: DeviceNumber) -> tuple[str, int]:
    """Its kind, and its number as the kernel has it."""
    return device.kind, os.major(device.number) << 20 | os.minor(device.number)


def _program(offsets: dict[str, int]) -> bytes:
    """Writes number, process, descriptor and mode of each device."""
    r0, r1, r2, r3, context, file, inode, task, frame = 0, 1, 2, 3, 6, 7, 8, 9, 10
    code: list[bytes | Jump | str] = [
        instruction(op.MOV, context, 1),
        instruction(op.LDX_DW, file, context, offset=_FILE),
        Jump(op.JEQ_IMM, "end", file),  # the walk is over
        instruction(op.LDX_DW, task, context, offset=_TASK),
        Jump(op.JEQ_IMM, "end", task),
        instruction(op.LDX_DW, inode, file, offset=offsets["file.f_inode"]),
        instruction(op.LDX_H, r1, inode, offset=offsets["inode.i_mode"]),
        instruction(op.STX_W, frame, r1, offset=-4),
        instruction(op.AND_IMM, r1, value=BOTH),
        Jump(op.JNE_IMM, "end", r1, value=DEVICE),
        instruction(op.LDX_W, r1, inode, offset=offsets["inode.i_rdev"]),
        instruction(op.STX_W, frame, r1, offset=-16),
        instruction(op.LDX_W, r1, task, offset=offsets["task_struct.tgid"]),
        instruction(op.STX_W, frame, r1, offset=-12),
        instruction(op.LDX_W, r1, context, offset=_FD),
        instruction(op.STX_W, frame, r1, offset=-8),
        instruction(op.LDX_DW, r1, context, offset=_META),
        instruction(op.LDX_DW, r1, r1, offset=0),
        instruction(op.MOV, r2, frame),
        instruction(op.ADD_IMM, r2, value=-16),
        instruction(op.MOV_IMM, r3, value=ENTRY.size),
        instruction(op.CALL, value=SEQ_WRITE),
        "end",
        instruction(op.MOV_IMM, r0, value=0),
        instruction(op.EXIT),
    ]
    return op.assemble(code)


def find() -> OpenFiles | None:
    """It, or None where this kernel cannot."""
    with contextlib.suppress(OSError, btf.BtfRefused):
        return OpenFiles()
    return None
