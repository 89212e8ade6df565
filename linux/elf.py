"""Whether the kernel would execute an ELF file, by those checks of its loader that need no running.

What the kernel refuses with ENOEXEC (fs/binfmt_elf.c), libc's `execvp` tries again as a shell script. For a
damaged program, or one for another machine, that means that /bin/sh runs garbage: better told before.
"""

import functools
import os
import struct

MAGIC = b"\x7fELF"
_CLASSES = {1: ("HHIIIIIHHHHHH", 32), 2: ("HHIQQQIHHHHHH", 56)}
"""By EI_CLASS: the header after e_ident (elf(5)), and the size of a program header."""
_ORDERS = {1: "<", 2: ">"}
_EXECUTABLE, _SHARED, _INTERPRETER = 2, 3, 3
_HEADERS_BYTES, _PATH_BYTES = 65536, 4096
_ALSO_RUNS = {62: {3}, 183: {40}, 21: {20}, 22: {22}}
"""By e_machine of a 64-bit kernel: its 32-bit one."""


def problem(fd: int, machine: int | None = None) -> str:
    """Why the ELF file at `fd` cannot be executed, '' if it can; `machine` is our own e_machine."""
    own = _own_machine() if machine is None else machine
    size = os.fstat(fd).st_size
    ident = os.pread(fd, 16, 0)
    layout = _CLASSES.get(ident[4]) if len(ident) == 16 else None
    if not ident.startswith(MAGIC) or layout is None or ident[5] not in _ORDERS:
        return "is a damaged program: its ELF header makes no sense"
    order, (form, entry_bytes) = _ORDERS[ident[5]], layout
    header = struct.Struct(order + form)
    head = os.pread(fd, header.size, 16)
    if len(head) < header.size:
        return "is a damaged program: it ends within its ELF header"
    kind, its, _, _, at, _, _, _, each, count, *_ = header.unpack(head)
    if own and its != own and its not in _ALSO_RUNS.get(own, ()):
        return f"is a program for another machine (ELF machine {its}; this one is {own})"
    if kind not in {_EXECUTABLE, _SHARED}:
        return "is no program, but an object file or a core dump"
    if each != entry_bytes or not 0 < count * each <= _HEADERS_BYTES or at + count * each > size:
        return "is a damaged program: its program headers are not there"
    table = os.pread(fd, count * each, at)
    for entry in (table[number : number + each] for number in range(0, len(table), each)):
        if struct.unpack_from(f"{order}I", entry)[0] == _INTERPRETER:  # the first one counts
            return _loader_problem(fd, *_place(entry, order), size)
    return ""


def _place(entry: bytes, order: str) -> tuple[int, int]:
    """Offset and size in the file of what a program header is about."""
    if len(entry) == _CLASSES[2][1]:
        start, length = (struct.unpack_from(f"{order}Q", entry, where)[0] for where in (8, 32))
    else:
        start, length = (struct.unpack_from(f"{order}I", entry, where)[0] for where in (4, 16))
    return start, length


def _loader_problem(fd: int, start: int, length: int, size: int) -> str:
    """What is wrong with the path of the dynamic loader that the file names."""
    if not 2 <= length <= _PATH_BYTES or start + length > size:
        return "is a damaged program: the path of its loader is not there"
    if not os.pread(fd, length, start).endswith(b"\0"):
        return "is a damaged program: the path of its loader has no end"
    return ""


@functools.cache
def _own_machine() -> int:
    """e_machine of this very program; 0 if it cannot be read, and then none is wrong."""
    try:
        fd = os.open("/proc/self/exe", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        head = os.pread(fd, 20, 0)
        return int(struct.unpack(_ORDERS[head[5]] + "H", head[18:20])[0])
    except (IndexError, KeyError, struct.error):
        return 0
    finally:
        os.close(fd)
