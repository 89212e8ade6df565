"""Secrets by reference: a file that only root can read, or a program of root's whose answer they are.

Both are looked at anew for each call, and nothing of them is kept. A program gets the plugin's name, the call
and the volume as arguments, has a deadline, and prints what the file would hold; so a site asks its vault.
What it prints beside the answer goes nowhere, since it may be secret.
"""

import asyncio
import contextlib
import os
import signal
import stat
from collections.abc import Sequence

import msgspec

from xce.linux import spawn

ANSWER_S = 10.0
_BYTES = 1 << 16
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}


class CredentialsRefused(Exception):
    """A file that no secret is taken from, in words that hold none of it."""


async def fetch(path: str, arguments: Sequence[str], seconds: float) -> dict[str, str]:
    """The object of texts in a file, or that a program prints; {} for ''. Raises `CredentialsRefused`."""
    if not path:
        return {}
    fd = _opened(path)
    try:
        if not os.fstat(fd).st_mode & stat.S_IXUSR:
            return _parsed(path, _contents(fd, path))
        _check(fd, path, forbidden=stat.S_IWGRP | stat.S_IWOTH, rule="a program that root alone may change")
    finally:
        os.close(fd)
    return _parsed(path, await _answer(path, arguments, min(seconds, ANSWER_S)))


def _opened(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise CredentialsRefused(f"cannot read secrets from {path}: {error.strerror}") from error


def _check(fd: int, path: str, *, forbidden: int, rule: str) -> None:
    about = os.fstat(fd)
    if not stat.S_ISREG(about.st_mode) or about.st_uid not in (0, os.geteuid()) or about.st_mode & forbidden:
        raise CredentialsRefused(f"cannot use {path}: it must be {rule}")


def _contents(fd: int, path: str) -> bytes:
    _check(fd, path, forbidden=0o077, rule="a file of root with mode 0600 or 0400")
    return os.read(fd, _BYTES + 1)


def _parsed(path: str, text: bytes) -> dict[str, str]:
    if len(text) > _BYTES:
        raise CredentialsRefused(f"cannot use {path}: it has more than {_BYTES} bytes")
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except (msgspec.MsgspecError, ValueError):
        raise CredentialsRefused(f"cannot use {path}: it is not one JSON object of texts") from None


# ------------------------------------------------------------------------------------------------- programs


async def _answer(path: str, arguments: Sequence[str], seconds: float) -> bytes:
    """What a program prints, if it ends well and in time."""
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    try:
        child = spawn.spawn([path, *arguments], _ENVIRONMENT, fds={1: theirs})
    except (OSError, ValueError) as error:  # the latter: a NUL in an argument
        os.close(ours)
        raise CredentialsRefused(f"cannot run {path}: {getattr(error, 'strerror', error)}") from error
    finally:
        os.close(theirs)
    handle = spawn.handle(child)
    try:
        async with asyncio.timeout(seconds):
            text = await _read(ours)
            status = "" if len(text) > _BYTES else await _end(handle)
    except TimeoutError:
        raise CredentialsRefused(f"cannot use {path}: no answer within {seconds:g} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)  # with whatever it has started and left
        with contextlib.suppress(OSError):
            os.waitid(os.P_PIDFD, handle, os.WEXITED)
        os.close(handle)
    if status:
        raise CredentialsRefused(f"cannot use {path}: it ended with {status}")
    return text


async def _read(fd: int) -> bytes:
    """Until the end, or more than there may be. Takes the descriptor."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb", buffering=0)
    )
    text = b""
    try:
        while len(text) <= _BYTES and (more := await reader.read(_BYTES)):
            text += more
    finally:
        transport.close()
    return text


async def _end(handle: int) -> str:
    """How it ended: '' if well. It is not reaped: its number stays that of the processes that it has left."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(handle, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(handle)
    ended = os.waitid(os.P_PIDFD, handle, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None or not ended.si_status:
        return ""
    return f"status {ended.si_status}" if ended.si_code == os.CLD_EXITED else f"signal {ended.si_status}"
