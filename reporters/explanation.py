"""What the table of readings knows of one name, as `xce-agent explain` shows it: values alone. Pure."""

import msgspec

from xce.model.value import Reading


class Change(msgspec.Struct, frozen=True):
    """A reading that a name had, and for how long it has been that way or been over."""

    ago_s: float
    reading: Reading


class Rival(msgspec.Struct, frozen=True):
    """A reporter that gives a name which another one owns."""

    reporter: str
    ago_s: float
    text: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """All that the node knows of one name."""

    name: str
    reading: Reading
    since_s: float
    """How long the reading has been this one."""
    reporter: str
    run: int
    age_s: float | None
    """Of the feed's newest good frame; None before the first."""
    ttl_s: float
    fault: str
    """What is wrong with the reporter's newer runs."""
    rivals: list[Rival]
    history: list[Change]
    """Newest first, the present reading included."""
