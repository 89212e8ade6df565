"""What lies in the reporters' directory: which files are reporters, whether they may run, and their settings.

`scan` looks once; nothing is started here and nothing is written. A reporter is an executable regular file;
its name is the file's whole name, and `NAME.yaml` beside it holds its settings. Not shown at all: what nobody
meant to run (`IGNORED`, plain files that do not begin with `#!`, directories, sockets). Shown with the reason
why it does not run (`Candidate.problem`): a script without the executable bit, a link, a name that cannot be
used, a file or path that others may change, a file the kernel cannot execute, settings that do not fit,
settings of no script, or under a name that is not looked at.

Settings that are edited into something that does not fit leave the earlier good ones in force (`warning`).
"""

import hashlib
import os
import re
import stat
from collections.abc import Callable, Collection, Mapping
from fnmatch import translate
from typing import TypeAlias

import msgspec

from xce.linux import elf, paths
from xce.model.builtin_types import OWN
from xce.model.configuration import ReporterSettings
from xce.model.refusal import ConfigRefused
from xce.model.supply import name_problem
from xce.reporters.frame import escape
from xce.reporters.settings import problems

IGNORED = (
    "*~",
    ".*",
    "*.bak",
    "*.rpmsave",
    "*.rpmnew",
    "*.rpmorig",
    "*.dpkg-*",
    "*.swp",
    "#*#",
    "*.orig",
    "*.rej",
)
"""Editors' and packages' leftovers: never run, never shown."""
_ignored = re.compile("|".join(translate(pattern) for pattern in IGNORED)).match
SETTINGS = ".yaml"
SETTINGS_BYTES = 256 << 10
SETTINGS_NODES = 50_000
"""Values in one NAME.yaml, aliases counted each time: reading so many takes the agent a tenth of a second."""
ERRORS = 5
"""Of one NAME.yaml that are told."""
SCRIPT_BYTES = 256 << 20
ENTRIES = 4096
"""Of a directory that are looked at."""
NAME_CHARACTERS = 64
HEAD = 256
"""How much of a file the kernel looks at to find its interpreter (BINPRM_BUF_SIZE)."""

Parse: TypeAlias = Callable[[str, str], ReporterSettings]
"""Text and path of NAME.yaml to settings; raises `ConfigRefused`."""
Signature: TypeAlias = tuple[int, ...]
"""Equal signatures mean an unchanged file: device, inode, size, change times, mode and owner."""


COPY_BYTES = 1 << 20
"""Of a script on a file system that may hang."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One reporter as its files say."""

    name: str
    path: str
    problem: str = ""
    """Why it may not run; '' if it may."""
    warning: str = ""
    """What is wrong although it may run."""
    digest: str = ""
    """SHA-256 of the script, in hex."""
    signature: Signature = ()
    mode: int = 0
    """File mode and owner, for what its user may do with it."""
    uid: int = 0
    gid: int = 0
    interpreter: str = ""
    """Named after the `#!`; '' for a program that the kernel loads itself."""
    settings: ReporterSettings = ReporterSettings()
    settings_signature: Signature = ()
    """Of the NAME.yaml that `settings` were read from; () when there is none, or it does not fit."""
    copy: bytes = b""
    """The script itself, if it lies where opening it could hang: then this is what runs."""
    misfit: str = ""
    """What is wrong with a NAME.yaml that does not fit."""
    misfit_signature: Signature = ()
    """Of that file."""

    def same_as(self, other: "Candidate") -> bool:
        """Whether nothing that matters differs (a mere `touch` does not)."""
        mine, its = (
            msgspec.structs.replace(one, signature=(), settings_signature=(), misfit_signature=(), copy=b"")
            for one in (self, other)
        )
        return mine == its


def parse_settings(text: str, path: str) -> ReporterSettings:
    """NAME.yaml as settings; raises `ConfigRefused`."""
    from xce.model import document  # noqa: PLC0415 - PyYAML is heavy, and most reporters have no settings

    return document.load(text, path, ReporterSettings, nodes=SETTINGS_NODES, check=problems)


def signature_of(found: os.stat_result) -> Signature:
    """What tells whether a file is still the one that was looked at; the change time cannot be forged."""
    return (
        found.st_dev,
        found.st_ino,
        found.st_size,
        found.st_mtime_ns,
        found.st_ctime_ns,
        found.st_mode,
        found.st_uid,
        found.st_gid,
    )


def scan(
    directory: str,
    trusted: Collection[int],
    *,
    before: Mapping[str, Candidate] | None = None,
    parse: Parse = parse_settings,
    copies: bool = False,
) -> dict[str, Candidate]:
    """All candidates of a directory by name. `before`: the last answer; unchanged files are not read again.

    `trusted` are the uids that may own the files and every directory above. With `copies` each candidate
    holds its script. Raises OSError if the directory itself cannot be read: that says nothing about the
    reporters in it.
    """
    before = before or {}
    there = set(os.listdir(directory))
    names = sorted(name for name in there if not _ignored(name))
    found: dict[str, Candidate] = {}
    if len(names) > ENTRIES:
        name = names[ENTRIES]
        problem = f"of the {len(names)} files here the first {ENTRIES} are looked at: this one is not"
        found[_shown(name)] = _refused(os.path.join(directory, name), problem)
    with paths.Walk(trusted) as walk:
        for name in names[:ENTRIES]:
            path = os.path.join(directory, name)
            candidate = None
            if not name.endswith(SETTINGS):
                candidate = _look(path, walk, before.get(_shown(name)), parse, copies=copies)
            elif name.removesuffix(SETTINGS) not in there:
                script = escape(name.removesuffix(SETTINGS))
                candidate = _refused(path, f"settings of no reporter: there is no '{script}' beside it")
            if candidate is not None:
                found[candidate.name] = candidate
    return found


def look_at(path: str, trusted: Collection[int]) -> Candidate | None:
    """One file as a candidate; None if it is nothing that could be meant as a reporter."""
    with paths.Walk(trusted) as walk:
        return _look(path, walk, None, parse_settings, copies=False)


def _look(
    path: str, walk: paths.Walk, before: Candidate | None, parse: Parse, *, copies: bool
) -> Candidate | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None  # went away between listing and looking
    if stat.S_ISLNK(found.st_mode):
        return _refused(path, "is a symbolic link: put the file itself here")
    if not stat.S_ISREG(found.st_mode):
        return None
    if path.endswith(".yml") and os.path.lexists(stem := path.removesuffix(".yml")):
        name = escape(os.path.basename(stem))
        return _refused(path, f"settings are read from '{name}{SETTINGS}': rename it")
    if not found.st_mode & 0o111:
        script = _head(path).startswith(b"#!")
        return _refused(path, f"is not executable: chmod 755 {escape(path)}") if script else None
    if problem := _name_problem(os.path.basename(path)):
        return _refused(path, f"cannot be used as a name: {problem}")
    return _inspect(path, walk, before, parse, copies=copies)


def _inspect(
    path: str, walk: paths.Walk, before: Candidate | None, parse: Parse, *, copies: bool
) -> Candidate:
    read = _settings(path + SETTINGS, walk, before, parse)
    problem = read.problem
    try:
        fd = walk.open(path)
    except OSError as error:
        return msgspec.structs.replace(_refused(path, _why(error)), settings=read.settings)
    copy, most = b"", COPY_BYTES if copies else SCRIPT_BYTES
    try:
        found = os.fstat(fd)
        signature = signature_of(found)
        if before is not None and before.path == path and not copies and _unchanged(before, signature, read):
            return before
        head = os.pread(fd, HEAD, 0)
        wrong = head_problem(head) or (elf.problem(fd) if head.startswith(elf.MAGIC) else "")
        if before is not None and before.signature == signature and before.digest:
            digest, copy = before.digest, before.copy
        elif found.st_size > most:
            digest, problem = (
                "",
                f"is larger than {most >> 20} MiB{' on a remote file system' if copies else ''}",
            )
        elif copies:
            with open(fd, "rb", closefd=False) as file:
                copy = file.read(most)
            digest = hashlib.sha256(copy).hexdigest()
        else:
            digest = _digest(fd)
    finally:
        os.close(fd)
    return Candidate(
        name=os.path.basename(path),
        path=path,
        problem=problem or wrong,
        warning=read.warning,
        digest=digest,
        signature=signature,
        mode=stat.S_IMODE(found.st_mode),
        uid=found.st_uid,
        gid=found.st_gid,
        interpreter=escape(_interpreter(head).decode(errors="replace")),
        settings=read.settings,
        settings_signature=read.signature,
        copy=copy,
        misfit=read.misfit,
        misfit_signature=read.misfit_signature,
    )


def _unchanged(before: Candidate, signature: Signature, read: "_Read") -> bool:
    """Whether neither a good script nor its settings differ from what was seen of them last."""
    if before.signature != signature or not before.digest or before.problem or before.warning:
        return False
    return before.settings_signature == read.signature and not read.problem and not read.warning


def _name_problem(name: str) -> str:
    if len(name) > NAME_CHARACTERS:
        return f"longer than {NAME_CHARACTERS} characters"
    if name in OWN:
        return "a source of the agent's own is called so"
    return name_problem(name)


def head_problem(head: bytes) -> str:
    """Why the kernel cannot execute a file that begins like this; '' if it may. A shell might all the same.

    Whether the interpreter exists is not looked at: its path may lie on a file system that hangs. The start
    says.
    """
    if not head:
        return "is empty"
    if head.startswith(elf.MAGIC):
        return ""
    if head.startswith(b"\xef\xbb\xbf#!"):
        return "a byte-order mark stands before the #! on the first line: save it without one"
    if not head.startswith(b"#!"):
        return "no #! on the first line (begin it with #!/bin/sh, or the like)"
    line = head.split(b"\n")[0]
    if line.endswith(b"\r"):
        return "the first line ends with a carriage return: save it with Unix line ends"
    if len(line) == HEAD:
        return f"the first line is longer than {HEAD - 1} bytes, and the kernel would cut it"
    interpreter = _interpreter(head)
    if not interpreter:
        return "no interpreter after the #! on the first line"
    if not interpreter.startswith(b"/"):
        name = escape(interpreter.decode(errors="replace"))
        return f"the interpreter on the first line must be an absolute path, not '{name}'"
    return ""


def _interpreter(head: bytes) -> bytes:
    words = head.split(b"\n")[0].removeprefix(b"#!").split(maxsplit=1)
    return words[0] if words and head.startswith(b"#!") else b""


class _Read(msgspec.Struct, kw_only=True):
    """What came of NAME.yaml."""

    settings: ReporterSettings = ReporterSettings()
    signature: Signature = ()
    problem: str = ""
    warning: str = ""
    misfit: str = ""
    misfit_signature: Signature = ()


def _settings(path: str, walk: paths.Walk, before: Candidate | None, parse: Parse) -> _Read:
    """The settings beside a script; those of a file that others could change are a reason not to run."""
    try:
        kind = os.lstat(path).st_mode
        if not stat.S_ISREG(kind) and not stat.S_ISLNK(kind):
            return _misfit(f"cannot use {escape(path)}: it is not a regular file", (), before)
        fd = walk.open(path)
    except FileNotFoundError:
        return _Read()
    except OSError as error:
        return _Read(problem=_why(error))
    try:
        signature = signature_of(os.fstat(fd))
        if before is not None and before.settings_signature == signature:
            return _Read(settings=before.settings, signature=signature)
        if before is not None and before.misfit_signature == signature:
            return _misfit(before.misfit, signature, before)
        text = _text(fd, path)
        if before is not None and before.settings != ReporterSettings() and not text.strip():
            empty = f"{escape(path)} is empty; write {{}} if the defaults are meant"
            return _misfit(empty, signature, before)
        return _Read(settings=parse(text, path), signature=signature)
    except OSError as error:
        return _misfit(f"cannot read {escape(path)}: {error.strerror}", (), before)
    except (ValueError, ConfigRefused) as error:
        return _misfit(_first_errors(error), signature, before)
    finally:
        os.close(fd)


def _misfit(words: str, signature: Signature, before: Candidate | None) -> _Read:
    """A NAME.yaml that does not fit; what was good before it stays in force."""
    if before is not None and before.digest and not before.problem:
        return _Read(
            settings=before.settings,
            warning=f"{words}; the settings before it stay in force",
            misfit=words,
            misfit_signature=signature,
        )
    return _Read(problem=words, misfit=words, misfit_signature=signature)


def _first_errors(error: ValueError | ConfigRefused) -> str:
    """Some of what is wrong with a file, for a line in a table: there may be thousands."""
    if not isinstance(error, ConfigRefused):
        return str(error)
    told = [str(one) for one in error.errors[:ERRORS]]
    more = f"\n(and {len(error.errors) - ERRORS} more)" if len(error.errors) > ERRORS else ""
    return "\n".join(told) + more


def _text(fd: int, path: str) -> str:
    text = os.read(fd, SETTINGS_BYTES + 1)
    if len(text) > SETTINGS_BYTES:
        raise ValueError(f"cannot use {escape(path)}: larger than {SETTINGS_BYTES >> 10} KiB")
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"cannot use {escape(path)}: not UTF-8 at byte {error.start + 1}") from None


def _refused(path: str, problem: str) -> Candidate:
    name = _shown(os.path.basename(path))
    # What is said of it, and of its end, must not be said of the agent's own source.
    return Candidate(name=f"{name} (file)" if name in OWN else name, path=path, problem=problem)


def _shown(name: str) -> str:
    """A file name as a reporter's name: itself if it can be one, otherwise escaped."""
    return escape(os.fsencode(name).decode(errors="backslashreplace"), NAME_CHARACTERS)


def _why(error: OSError) -> str:
    if isinstance(error, paths.NotTrustedError):
        return escape(str(error))
    return escape(f"cannot open {error.filename}: {error.strerror}")


def _head(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.pread(fd, HEAD, 0)
    except OSError:
        return b""
    finally:
        os.close(fd)


def _digest(fd: int) -> str:
    with open(fd, "rb", closefd=False) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
