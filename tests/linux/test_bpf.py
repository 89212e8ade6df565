"""Device filters: what a process in the group may open, and what the kernel says hangs there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from xce.linux import bpf
from xce.linux.bpf import Rule
from xce.linux.cgroup import Cgroup

CHAR = bpf.BPF_DEVCG_DEV_CHAR
READ, WRITE = bpf.BPF_DEVCG_ACC_READ, bpf.BPF_DEVCG_ACC_WRITE
pytestmark = pytest.mark.root

_TRY = """
import os, sys
try:
    os.close(os.open(sys.argv[1], int(sys.argv[2])))
    print("ok")
except OSError as error:
    print(error.errno)
"""
EPERM = "1"


def opened(group: Cgroup, path: str, flags: int = os.O_RDONLY) -> str:
    """What a process of the group gets when it opens `path`."""
    enter = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
    command = ["sh", "-c", enter, group.path, sys.executable, "-I", "-S", "-c", _TRY, path, str(flags)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def put(group: Cgroup, rules: list[Rule], name: str = "xce_t", replacing: int | None = None) -> int:
    """Load and attach; the program's descriptor."""
    program = bpf.load(bpf.compile_rules(rules), name)
    fd = os.open(group.path, os.O_RDONLY | os.O_DIRECTORY)
    bpf.attach(fd, program, replacing=replacing)
    os.close(fd)
    return program


def test_only_what_a_rule_covers_can_be_opened(group: Cgroup) -> None:
    os.close(put(group, [Rule(CHAR, 1, 3, READ | WRITE), Rule(CHAR, 1, 5, READ)]))
    assert opened(group, "/dev/null", os.O_RDWR) == "ok"
    assert opened(group, "/dev/zero") == "ok"
    assert opened(group, "/dev/zero", os.O_RDWR) == EPERM
    assert opened(group, "/dev/full") == EPERM


def test_a_wildcard_covers_any_minor_and_no_rules_cover_nothing(group: Cgroup) -> None:
    first = put(group, [Rule(CHAR, 1, None, 7)])
    assert opened(group, "/dev/full") == "ok"
    os.close(put(group, [], replacing=first))
    os.close(first)
    assert opened(group, "/dev/null") == EPERM


def test_replacing_leaves_one_program_and_fails_if_the_old_one_is_not_there(group: Cgroup) -> None:
    first = put(group, [Rule(CHAR, 1, 3, 7)])
    second = put(group, [Rule(CHAR, 1, 5, 7)], replacing=first)
    fd = os.open(group.path, os.O_RDONLY)
    assert [program.id for program in bpf.programs(fd)] == [bpf.describe(second).id]
    assert bpf.query(fd).flags & bpf.BPF_F_ALLOW_MULTI
    with pytest.raises(FileNotFoundError):
        bpf.attach(fd, first, replacing=first)
    bpf.detach(fd, second)
    assert bpf.query(fd).ids == ()
    for each in (fd, first, second):
        os.close(each)


def test_a_program_is_known_again_by_name_and_by_the_tag_of_its_rules(group: Cgroup) -> None:
    rules = [Rule(CHAR, 195, number, 6) for number in range(16)]
    os.close(put(group, rules, name="xce_0123456789a"))
    same, other = bpf.load(bpf.compile_rules(rules), "x"), bpf.load(bpf.compile_rules(rules[1:]), "x")
    fd = os.open(group.path, os.O_RDONLY)
    [program] = bpf.programs(fd)
    assert (program.name, program.kind) == ("xce_0123456789a", bpf.BPF_PROG_TYPE_CGROUP_DEVICE)
    assert bpf.describe(same).tag == program.tag != bpf.describe(other).tag
    for each in (fd, same, other):
        os.close(each)


def test_what_the_verifier_refuses_is_said_in_its_words() -> None:
    with pytest.raises(OSError, match=r"(?s)cannot load program xce_bad: .*R0 !read_ok"):
        bpf.load(bpf.compile_rules([])[-8:], "xce_bad")  # returns a register that was never set


def test_rules_are_written_as_the_old_controller_wants_them() -> None:
    rules = [Rule(CHAR, 195, 0, READ | WRITE), Rule(bpf.BPF_DEVCG_DEV_BLOCK, 8, None, 7)]
    assert bpf.words(rules) == ["c 195:0 rw", "b 8:* rwm"]


def test_a_group_that_is_removed_takes_its_program_with_it(group: Cgroup, tmp_path: Path) -> None:
    child = group.child("inner")
    child.create()
    program = put(child, [Rule(CHAR, 1, 3, 7)])
    number = bpf.describe(program).id
    os.close(program)
    assert child.remove()
    for _ in range(200):
        try:
            os.close(bpf.open_program(number))
        except FileNotFoundError:
            return
        os.sched_yield()
        subprocess.run(["sleep", "0.01"], check=True)
    pytest.fail("the program is still there")
