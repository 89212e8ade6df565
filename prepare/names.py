"""Names from outside as one element of a path, reversibly: no two names ever get the same element.

Everything but letters, digits and a few signs is written as `%XX` of its UTF-8 bytes, and so is what would
mean something at its beginning: `.`, `-` and `~`. No sign of a shell, pattern or path is left in it.
"""

import re

MOST_BYTES = 255
"""NAME_MAX of every file system that we know."""

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-+@,=")
_LEADING = frozenset(b".-")
_ASIS = re.compile(rf"[A-Za-z0-9_+@,=][A-Za-z0-9._\-+@,=]{{0,{MOST_BYTES - 1}}}")
"""Names that stand for themselves."""
_ELEMENT = re.compile(r"(?:[A-Za-z0-9._\-+@,=]|%[0-9A-F]{2})+")


class NameRefused(ValueError):
    """A name that cannot be an element of a path; nothing was done with it."""


def encode(name: str) -> str:
    """The element of a path that stands for `name`. Raises `NameRefused`."""
    if _ASIS.fullmatch(name):
        return name
    if not name:
        raise NameRefused("an empty name cannot be a directory")
    if "\0" in name:
        raise NameRefused(f"name {name[:60]!r}: a zero byte cannot be in a path")
    try:
        data = name.encode()
    except UnicodeEncodeError:
        raise NameRefused(f"name {name[:60]!r}: not valid text") from None
    element = "".join(
        chr(byte) if byte in _PLAIN and not (place == 0 and byte in _LEADING) else f"%{byte:02X}"
        for place, byte in enumerate(data)
    )
    if len(element) > MOST_BYTES:
        raise NameRefused(f"name {name[:60]!r}...: {len(element)} bytes as a directory, at most {MOST_BYTES}")
    return element


def decode(element: str) -> str:
    """The name that an element stands for. Raises `NameRefused` for one that `encode` never gives."""
    if not _ELEMENT.fullmatch(element):
        raise NameRefused(f"{element[:60]!r} is not a name of ours")
    data = re.sub(rb"%([0-9A-F]{2})", lambda match: bytes.fromhex(match[1].decode()), element.encode())
    try:
        name = data.decode()
    except UnicodeDecodeError:
        raise NameRefused(f"{element[:60]!r} is not a name of ours") from None
    if encode(name) != element:
        raise NameRefused(f"{element[:60]!r} is not a name of ours")
    return name
