"""Every process that has a device mapped, in one read: a BPF iterator over processes and their mappings.

A mapping keeps a device when its descriptor is closed. The lock of a process's mappings is only tried, never
waited for: who has it may hang, in a file system that does not answer, and is named. The kernel has what that
takes since 6.7 (`bpf_iter_task_vma_new`); where it has not, `Mappings` cannot be made. The kernel is told
which devices are wanted, and says one thing of a process: a program that says much of a single one, which can
have thousands of mappings, is refused the whole walk.
"""

import errno
import mmap
import os
import stat
import struct
from collections.abc import Collection
from typing import NamedTuple

from xce.linux import bpf, btf
from xce.linux import bpfcode as op
from xce.linux.bpfcode import Jump, instruction
from xce.linux.openfiles import ENTRY, SEQ_WRITE, DeviceNumber, as_listed

_WALK = "bpf_iter_task"
_FUNCTIONS = [_WALK, "bpf_iter_task_vma_new", "bpf_iter_task_vma_next", "bpf_iter_task_vma_destroy"]
_MEMBERS = {
    "file": ["f_inode"],
    "inode": ["i_mode", "i_rdev"],
    "task_struct": ["group_leader", "mm", "tgid"],
    "vm_area_struct": ["vm_file"],
}
_META, _TASK = 0, 8
"""bpf_iter__task"""
_LOOK_UP = 1
"""BPF_FUNC_map_lookup_elem: linux/bpf.h."""
_KEY = struct.Struct("=II")
"""Of a wanted device: its number as the kernel has it, and its kind."""
_KINDS = {"c": stat.S_IFCHR, "b": stat.S_IFBLK}
_SCARCE = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR}
ROOM = 4096
"""Devices that can be wanted at once."""


class Seen(NamedTuple):
    """Of one look."""

    mapped: dict[int, DeviceNumber]
    """By pid, one of the devices."""
    busy: list[int]
    """Pids whose mappings were being changed at this moment."""


class Mappings:
    """Looks at all of them as often as one likes. Raises OSError, `BtfRefused` if this kernel cannot."""

    def __init__(self) -> None:
        layout = btf.read(_FUNCTIONS, _MEMBERS)
        self._wanted: set[bytes] = set()
        self._table, self._link = bpf.new_set(_KEY.size, ROOM), -1
        try:
            program = bpf.load(
                _program(layout, self._table), "xce_mapped", bpf.Use.files(layout.functions[_WALK])
            )
            try:
                self._link = bpf.link_iterator(program)
            finally:
                os.close(program)
            self._try()
        except BaseException:
            self.close()
            raise

    def __call__(self, devices: Collection[DeviceNumber]) -> Seen:
        """Who has one of these devices mapped."""
        wanted = {as_listed(device): device for device in devices}
        seen = Seen({}, [])
        if not wanted:
            return seen
        self._want({_KEY.pack(number, _KINDS[kind]) for kind, number in wanted})
        for number, pid, failed, mode in ENTRY.iter_unpack(bpf.read_iterator(self._link)):
            if failed:
                seen.busy.append(pid)
            elif device := wanted.get(("b" if stat.S_ISBLK(mode) else "c", number)):
                seen.mapped[pid] = device
        return seen

    def _want(self, keys: set[bytes]) -> None:
        for key in self._wanted - keys:
            bpf.drop(self._table, key)
            self._wanted.discard(key)
        for key in keys - self._wanted:
            bpf.put(self._table, key)
            self._wanted.add(key)

    def close(self) -> None:
        """Let go of it; may be called twice."""
        for made in (self._link, self._table):
            if made >= 0:
                os.close(made)
        self._link = self._table = -1

    def _try(self) -> None:
        """What we have mapped ourselves must be in it."""
        with open("/dev/zero", "rb") as zero:
            number = DeviceNumber("c", os.fstat(zero.fileno()).st_rdev)
            with mmap.mmap(zero.fileno(), mmap.PAGESIZE, mmap.MAP_PRIVATE, mmap.PROT_READ):
                seen = self([number])
        if os.getpid() not in {*seen.mapped, *seen.busy}:
            raise btf.BtfRefused("the kernel's list of mappings does not have our own")


def _program(layout: btf.Layout, table: int) -> bytes:
    """Writes number, process and mode of the first of them that it has mapped, or that nobody can tell."""
    r0, r1, r2, r3, context, task, failed, pid, frame = 0, 1, 2, 3, 6, 7, 8, 9, 10
    entry, key, walk, offsets = -32, -16, -8, layout.offsets

    def walking(function: str) -> list[bytes]:
        call = instruction(op.CALL, 0, op.OF_KERNEL, value=layout.functions[f"bpf_iter_task_vma_{function}"])
        return [instruction(op.MOV, r1, frame), instruction(op.ADD_IMM, r1, value=walk), call]

    write = [
        instruction(op.LDX_DW, r1, context, offset=_META),
        instruction(op.LDX_DW, r1, r1, offset=0),
        instruction(op.MOV, r2, frame),
        instruction(op.ADD_IMM, r2, value=entry),
        instruction(op.MOV_IMM, r3, value=ENTRY.size),
        instruction(op.CALL, value=SEQ_WRITE),
    ]
    return op.assemble(
        [
            instruction(op.MOV, context, r1),
            instruction(op.LDX_DW, task, context, offset=_TASK),
            Jump(op.JEQ_IMM, "end", task),
            instruction(op.LDX_W, pid, task, offset=offsets["task_struct.tgid"]),
            instruction(op.LDX_DW, r1, task, offset=offsets["task_struct.group_leader"]),
            Jump(op.JEQ, "walk", r1, task),
            instruction(op.LDX_DW, r1, r1, offset=offsets["task_struct.mm"]),
            instruction(op.LDX_DW, r2, task, offset=offsets["task_struct.mm"]),
            Jump(op.JEQ, "end", r1, r2),  # those of the first thread, unless that has ended
            "walk",
            instruction(op.STX_W, frame, pid, offset=entry + 4),
            instruction(op.MOV, r2, task),
            instruction(op.MOV_IMM, r3, value=0),
            *walking("new"),
            instruction(op.MOV, failed, r0),
            "next",
            *walking("next"),
            Jump(op.JEQ_IMM, "over", r0),
            instruction(op.LDX_DW, r1, r0, offset=offsets["vm_area_struct.vm_file"]),
            Jump(op.JEQ_IMM, "next", r1),
            instruction(op.LDX_DW, r1, r1, offset=offsets["file.f_inode"]),
            instruction(op.LDX_H, r2, r1, offset=offsets["inode.i_mode"]),
            instruction(op.STX_W, frame, r2, offset=entry + 12),
            instruction(op.AND_IMM, r2, value=stat.S_IFMT(0xFFFF)),
            instruction(op.STX_W, frame, r2, offset=key + 4),
            instruction(op.LDX_W, r1, r1, offset=offsets["inode.i_rdev"]),
            instruction(op.STX_W, frame, r1, offset=entry),
            instruction(op.STX_W, frame, r1, offset=key),
            *op.table(r1, table),
            instruction(op.MOV, r2, frame),
            instruction(op.ADD_IMM, r2, value=key),
            instruction(op.CALL, value=_LOOK_UP),
            Jump(op.JEQ_IMM, "next", r0),
            instruction(op.MOV_IMM, r1, value=0),
            instruction(op.STX_W, frame, r1, offset=entry + 8),
            *write,
            "over",
            *walking("destroy"),
            Jump(op.JNE32_IMM, "end", failed, value=-errno.EBUSY),
            instruction(op.MOV_IMM, r1, value=1),
            instruction(op.STX_W, frame, r1, offset=entry + 8),
            instruction(op.MOV_IMM, r1, value=0),
            instruction(op.STX_W, frame, r1, offset=entry),
            instruction(op.STX_W, frame, r1, offset=entry + 12),
            *write,
            "end",
            instruction(op.MOV_IMM, r0, value=0),
            instruction(op.EXIT),
        ]
    )


def find() -> Mappings | None:
    """It, or None where this kernel cannot. Raises OSError if it may at another time."""
    try:
        return Mappings()
    except btf.BtfRefused:
        return None
    except OSError as error:
        if error.errno in _SCARCE:
            raise  # that says nothing of the kernel
        return None
