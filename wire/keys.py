"""CURVE keys and their files. A secret is read only from a file that nobody else can read or replace.

The files have ZeroMQ's certificate format (ZPL, RFC 4), so that other ZeroMQ programs can read them; name,
role and hosts stand in its `metadata` section. `NAME.key` holds both keys, `NAME.pub` the public one. Every
refusal is a `KeyFileError` that names the file and what to do. Secrets are never shown: `KeyPair` leaves them
out of its repr.
"""

import os
import re
import secrets
import stat
from pathlib import Path

import msgspec
import zmq

from xce.model.role import Role

_LINE = re.compile(r'\s*([A-Za-z][A-Za-z0-9-]*)\s*=\s*"([^"\\]*)"\s*')
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}")
_Z85 = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_FILE_BYTES = 16384


class KeyFileError(Exception):
    """A key file cannot be used; the message names it, the cause and the way out."""


class KeyPair(msgspec.Struct, frozen=True):
    """A peer's keys and what they are for. `secret` is empty where only the public key is known."""

    name: str
    role: str
    public: bytes
    """Z85, 40 characters."""
    secret: bytes = b""
    hosts: tuple[str, ...] = ()
    """Shell-style patterns of host names that an agent's key may speak for."""

    def __repr__(self) -> str:
        """Without the secret."""
        return (
            f"KeyPair(name={self.name!r}, role={self.role!r}, public={self.public!r}, hosts={self.hosts!r})"
        )


def new(name: str, role: str, hosts: tuple[str, ...] = ()) -> KeyPair:
    """A new key pair; raises ValueError for a name or role that cannot be one."""
    if problem := naming_problem(name, role, hosts):
        raise ValueError(f"cannot make a key: {problem}")
    public, secret = zmq.curve_keypair()
    return KeyPair(name=name, role=role, public=public, secret=secret, hosts=hosts)


def naming_problem(name: str, role: str, hosts: tuple[str, ...] = ()) -> str:
    """'' if a key may be called so, otherwise what is wrong. The broker's own key has the role `broker`."""
    if not _NAME.fullmatch(name):
        return f"name {name!r}: letters, digits, '_', '.' and '-' only"
    if role not in {*Role, "broker"}:
        return f"role {role!r}: must be one of {', '.join(Role)}"
    for pattern in hosts:
        if not pattern or not pattern.isprintable() or any(char in ' ",\\' for char in pattern):
            return (
                f"host pattern {pattern!r}: must be a shell-style pattern without blanks, quotes and commas"
            )
    return ""


def is_public(text: str) -> bool:
    """Whether `text` can be a public key in Z85."""
    return _Z85.fullmatch(text) is not None


def save(key: KeyPair, path: Path) -> None:
    """Write a new key file, whole or not at all, mode 0600 with a secret, else 0644; never replaces one.

    Raises `KeyFileError`. The file is on disk when this returns.
    """
    if problem := naming_problem(key.name, key.role, key.hosts):
        raise KeyFileError(f"cannot write {path}: {problem}")
    mode = 0o600 if key.secret else 0o644
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(file.fileno(), mode)  # the umask of an admin's shell must not close a public key
                file.write(_text(key).encode())
                file.flush()
                os.fsync(file.fileno())
            os.link(fresh, path)
        finally:
            os.unlink(fresh)
        _sync(path.parent)
    except FileExistsError:
        raise KeyFileError(
            f"cannot write {path}: it exists already; move it away to make a new key"
        ) from None
    except OSError as error:
        raise KeyFileError(f"cannot write {path}: {error.strerror}") from error


def replace(fresh: Path, path: Path) -> None:
    """Put a key file in the place of another; on disk when this returns. Raises OSError."""
    fresh.replace(path)
    _sync(path.parent)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def load(path: Path, *, secret: bool) -> KeyPair:
    """Read a key file; with `secret` it must hold one and be closed to others. Raises `KeyFileError`."""
    text = _read(path, secret=secret)
    found: dict[str, dict[str, str]] = {"metadata": {}, "curve": {}}
    section: dict[str, str] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if line.strip() in found:
            section = found[line.strip()]
        elif section is not None and (match := _LINE.fullmatch(line)):
            section[match[1]] = match[2]
        else:
            raise KeyFileError(
                f"cannot read {path}, line {number}: expected 'metadata', 'curve' or NAME = \"VALUE\""
            )
    about, curve = found["metadata"], found["curve"]
    for which in ("public-key", "secret-key") if secret else ("public-key",):
        if not is_public(curve.get(which, "")):
            raise KeyFileError(f"cannot read {path}: its {which} is missing or not 40 characters of Z85")
    name, role = about.get("name", path.stem), about.get("role", "")
    hosts = tuple(about["hosts"].split(",")) if about.get("hosts") else ()
    if problem := naming_problem(name, role or Role.AGENT, hosts):
        raise KeyFileError(f"cannot read {path}: {problem}")
    private = curve["secret-key"].encode() if secret else b""
    if secret and zmq.curve_public(private) != curve["public-key"].encode():
        raise KeyFileError(f"cannot use {path}: its public and secret key do not belong together")
    return KeyPair(name=name, role=role, public=curve["public-key"].encode(), secret=private, hosts=hosts)


def load_directory(path: Path) -> tuple[list[KeyPair], list[str]]:
    """All `*.pub` files of a directory in the order of their names, and what is wrong with the others."""
    good: list[KeyPair] = []
    problems: list[str] = []
    try:
        files = sorted(entry for entry in path.iterdir() if entry.suffix == ".pub")
    except FileNotFoundError:
        return [], []
    except OSError as error:
        return [], [f"cannot read {path}: {error.strerror}"]
    for file in files:
        try:
            key = load(file, secret=False)
            if not key.role:
                raise KeyFileError(f'cannot accept {file}: it lacks role = "..." in its metadata')
            good.append(key)
        except KeyFileError as error:
            problems.append(str(error))
    return good, problems


def _text(key: KeyPair) -> str:
    warning = (
        "This file holds a secret: give nobody a copy.\n" if key.secret else "This file holds no secret.\n"
    )
    lines = [f"#   XCE key of {key.role} {key.name}. {warning}", "metadata"]
    lines += [f'    name = "{key.name}"', f'    role = "{key.role}"']
    if key.hosts:
        lines.append(f'    hosts = "{",".join(key.hosts)}"')
    lines += ["curve", f'    public-key = "{key.public.decode()}"']
    if key.secret:
        lines.append(f'    secret-key = "{key.secret.decode()}"')
    return "\n".join(lines) + "\n"


def _read(path: Path, *, secret: bool) -> str:
    """The text of a regular file of root's or our own that others cannot write (or read, if secret)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise KeyFileError(f"cannot read {path}: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise KeyFileError(f"cannot read {path}: it is not a regular file")
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if status.st_uid not in {0, os.geteuid()}:
            raise KeyFileError(
                f"cannot trust {path}: it belongs to user {status.st_uid}, not to root or to us"
            )
        closed = 0o077 if secret else 0o022
        if status.st_mode & closed:
            wanted = "600" if secret else "644"
            raise KeyFileError(
                f"cannot trust {path}: mode {status.st_mode & 0o777:03o} is too open; chmod {wanted} {path}"
            )
        try:
            data = file.read(_FILE_BYTES + 1)
        except OSError as error:
            raise KeyFileError(f"cannot read {path}: {error.strerror}") from error
    if len(data) > _FILE_BYTES:
        raise KeyFileError(f"cannot read {path}: longer than {_FILE_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise KeyFileError(f"cannot read {path}: it is not text") from error
