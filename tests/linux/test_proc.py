"""What /proc says, from trees and texts."""

from pathlib import Path

import pytest

from xce.linux import proc

MACHINE = """MemTotal:        4096000 kB
SwapTotal:          2048 kB
Active(anon):       1024 kB
HugePages_Total:       7
DirectMap1G:           0 kB
"""
NODE = """Node 3 MemTotal:       1024 kB
Node 3 HugePages_Total:     7
"""


def test_sizes_of_memory_are_bytes_by_name_and_what_is_no_size_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(MACHINE)
    found = proc.memory(str(tmp_path))
    assert found == {
        "MemTotal": 4096000 << 10,
        "SwapTotal": 2 << 20,
        "Active(anon)": 1 << 20,
        "DirectMap1G": 0,
    }
    assert proc.sizes(NODE) == {"MemTotal": 1 << 20}, "each line of a node's begins with the node"
    assert proc.memory()["MemTotal"] > 0


def test_memory_that_cannot_be_read_is_no_memory_of_size_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="meminfo"):
        proc.memory(str(tmp_path))
    assert proc.sizes("") == {}
