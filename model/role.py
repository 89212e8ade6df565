"""Roles of peers. Which role may send what is a table in `broker/core/access.py`."""

from enum import StrEnum


class Role(StrEnum):
    """What a key is for."""

    AGENT = "agent"
    REPORTER = "reporter"
    PROVIDER = "provider"
    CONTROLLER = "controller"
    ADMIN = "admin"
    JOINER = "joiner"
    """A token: its bearer may have one key accepted, once."""
