"""Secrets by reference: a file that only root can read, looked at anew for each call, kept nowhere."""

import os
import stat

import msgspec

_BYTES = 1 << 16


class CredentialsRefused(Exception):
    """A file that no secret is taken from, in words that hold none of it."""


def read(path: str) -> dict[str, str]:
    """The JSON object of texts in a file; {} for ''."""
    if not path:
        return {}
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise CredentialsRefused(f"cannot read secrets from {path}: {error.strerror}") from error
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode) or about.st_uid not in (0, os.geteuid()) or about.st_mode & 0o077:
            raise CredentialsRefused(f"cannot use {path}: it must be a file of root with mode 0600 or 0400")
        text = os.read(fd, _BYTES + 1)
    finally:
        os.close(fd)
    if len(text) > _BYTES:
        raise CredentialsRefused(f"cannot use {path}: it has more than {_BYTES} bytes")
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except (msgspec.MsgspecError, ValueError):
        raise CredentialsRefused(f"cannot use {path}: it is not one JSON object of texts") from None
