"""Users of this machine, from passwd(5) alone.

Directory services are not asked: their answer can take for ever, and nothing here may block. A reporter's
user is a local system user.
"""

from typing import NamedTuple

from xce.linux import proc


class User(NamedTuple):
    """A local user."""

    name: str
    uid: int
    gid: int


def find(name: str, file: str = "/etc/passwd") -> User | None:
    """The user of that name; None if the file has none. Raises OSError if it cannot be read."""
    for line in proc.content(file).decode(errors="replace").splitlines():
        fields = line.split(":")
        if fields[0] == name and len(fields) >= 4 and _is_id(fields[2]) and _is_id(fields[3]):
            return User(name, int(fields[2]), int(fields[3]))
    return None


def _is_id(text: str) -> bool:
    """Whether it is one for the kernel: the last of 32 bits means "as it is", larger ones wrap."""
    return text.isdecimal() and int(text) < 0xFFFF_FFFF
