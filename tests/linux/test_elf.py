"""Whatever the kernel would not execute is found out before it is asked: it is asked here, to compare."""

import os
import struct
from pathlib import Path

import pytest

from xce.linux import elf

TRUE = Path(os.path.realpath("/bin/true")).read_bytes()
WIDE = TRUE[4] == 2

pytestmark = pytest.mark.skipif(not WIDE, reason="the offsets here are those of 64-bit programs")


def patched(at: int, form: str, value: int) -> bytes:
    data = bytearray(TRUE)
    struct.pack_into(form, data, at, value)
    return bytes(data)


def loader_entry() -> int:
    """Where the program header of the dynamic loader is."""
    at, count = struct.unpack_from("<Q", TRUE, 32)[0], struct.unpack_from("<H", TRUE, 56)[0]
    entries = (at + number * 56 for number in range(count))
    return int(next(entry for entry in entries if struct.unpack_from("<I", TRUE, entry)[0] == 3))


def problem_of(path: Path) -> str:
    fd = os.open(path, os.O_RDONLY)
    try:
        return elf.problem(fd)
    finally:
        os.close(fd)


def kernel_takes(path: Path) -> bool:
    try:
        pid = os.posix_spawn(str(path), ["x"], {})
    except OSError:
        return False
    os.waitpid(pid, 0)
    return True


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (TRUE[:4] + b"\n# not at all\necho oops\n", "its ELF header makes no sense"),
        (TRUE[:10], "its ELF header makes no sense"),
        (TRUE[:40], "it ends within its ELF header"),
        (TRUE[:64], "its program headers are not there"),
        (patched(16, "<H", 1), "an object file or a core dump"),
        (patched(16, "<H", 4), "an object file or a core dump"),
        (patched(18, "<H", 0x1234), "for another machine (ELF machine 4660"),
        (patched(32, "<Q", 1 << 40), "its program headers are not there"),
        (patched(54, "<H", 55), "its program headers are not there"),
        (patched(56, "<H", 0), "its program headers are not there"),
        (patched(56, "<H", 2000), "its program headers are not there"),
        (patched(loader_entry() + 32, "<Q", 1), "the path of its loader is not there"),
        (patched(loader_entry() + 32, "<Q", 5000), "the path of its loader is not there"),
        (patched(loader_entry() + 32, "<Q", 5), "the path of its loader has no end"),
        (patched(loader_entry() + 8, "<Q", 1 << 40), "the path of its loader is not there"),
    ],
)
def test_what_the_kernel_refuses_has_words(tmp_path: Path, data: bytes, problem: str) -> None:
    path = tmp_path / "program"
    path.write_bytes(data)
    path.chmod(0o755)
    assert problem in problem_of(path)
    assert not kernel_takes(path)


def test_a_header_that_the_kernel_does_not_look_at_and_ld_so_refuses_is_refused(tmp_path: Path) -> None:
    for number, data in enumerate((patched(4, "B", 7), patched(5, "B", 9))):
        path = tmp_path / f"program{number}"
        path.write_bytes(data)
        assert "its ELF header makes no sense" in problem_of(path)


def test_programs_of_this_machine_have_no_problem(tmp_path: Path) -> None:
    for name in ("true", "sh", "sleep", "cat"):
        assert problem_of(Path("/bin") / name) == ""
    copy = tmp_path / "program"
    copy.write_bytes(TRUE)
    copy.chmod(0o755)
    assert kernel_takes(copy)
