"""What a disk, or somebody with an editor, does to a file."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "emptied": lambda data: b"",
    "torn": lambda data: data[: len(data) // 2],
    "scribbled on": lambda data: bytes(len(data) // 2) + data[len(data) // 2 :],
    "gone": lambda data: None,
}


class Damage(NamedTuple):
    """To one file."""

    path: str
    kind: str

    def to(self, root: Path) -> None:
        """Do it; to a file that is not there nothing can be done."""
        path = root / self.path
        if path.exists():
            data = DAMAGES[self.kind](path.read_bytes())
            path.unlink() if data is None else path.write_bytes(data)


def to_each(files: Sequence[str]) -> list[Damage]:
    """Each file damaged in one way, in turn; with `XCE_TEST_FULL=1` in all ways."""
    kinds = list(DAMAGES)
    if "XCE_TEST_FULL" in os.environ:
        return [Damage(path, kind) for path in files for kind in kinds]
    return [Damage(path, kinds[number % len(kinds)]) for number, path in enumerate(files)]
