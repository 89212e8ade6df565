"""Machines that are not there: a file or a folder that stands in for what a probe would read.

A file holds a `facts.Machine` as JSON or YAML. A folder holds a recorded machine: `sys/` (and `proc/`), or
both packed in `tree.tar.xz`, and what the vendor's library answered in `nvml.json`; beside them may lie
`admin-topology.json`. What does not fit is refused whole with file, line and key (`ConfigRefused`); so is a
file that cannot be read. This machine's own facts become such a file with `encode`.
"""

import os
import tarfile
import tempfile
from pathlib import Path
from typing import TypeVar

import msgspec

from xce.agent.probe import recorded, sysfs
from xce.agent.probe.facts import Machine, Nvidia
from xce.agent.probe.topology import AdminTopology
from xce.model.refusal import ConfigError, ConfigRefused

T = TypeVar("T")

FILE_BYTES = 32 << 20
TREE_BYTES = 256 << 20
TREE_FILES = 200_000
"""Of an unpacked tree; a large server's has some 5000."""
MEMORY = "/dev/shm"  # noqa: S108 - a folder of our own is made in it
TREE, LIBRARY, ADMIN = "tree.tar.xz", "nvml.json", "admin-topology.json"


def load(path: str | Path) -> Machine:
    """The machine that a file or a folder describes. Raises `ConfigRefused`."""
    given = Path(path)
    if not given.is_dir():
        return parse(_text(given), str(given), Machine)
    packed, tree, answers = given / TREE, given / "sys", given / LIBRARY
    if not (packed.exists() or tree.is_dir() or answers.exists()):
        raise _refused(given, f"holds no machine: neither sys/ nor {TREE} nor {LIBRARY}")
    machine = Machine()
    if tree.is_dir():
        machine = sysfs.read(given)
    elif packed.exists():
        machine = _unpacked(packed)
    return msgspec.structs.replace(machine, nvidia=_answers(answers)) if answers.exists() else machine


def load_admin(path: str | Path) -> AdminTopology | None:
    """What an admin says of a recorded machine's topology: a folder's `admin-topology.json`, or a file."""
    given = Path(path)
    file = given / ADMIN if given.is_dir() else given
    if given.is_dir() and not file.exists():
        return None
    return parse(_text(file), str(file), AdminTopology)


def parse(text: str, path: str, kind: type[T]) -> T:
    """A struct from JSON or YAML. JSON is read fast, and once more as YAML for the place of an error."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        from xce.model import document  # noqa: PLC0415 - YAML is slow to import

        value = document.load(text, path, kind)
        if text.lstrip().startswith("{"):  # it fits as YAML, and is not the JSON that it looks like
            raise _refused(Path(path), f"cannot be read as JSON: {error}") from error
        return value


def encode(machine: Machine, *, anonymous: bool = False) -> bytes:
    """The file that `load` reads. `anonymous` leaves serials, hardware addresses and GUIDs out."""
    return msgspec.json.format(msgspec.json.encode(_anonymous(machine) if anonymous else machine)) + b"\n"


def _anonymous(machine: Machine) -> Machine:
    replace = msgspec.structs.replace
    library = machine.nvidia
    if library is not None:
        gpus = [replace(gpu, serial=None, board_id=None, platform={}) for gpu in library.gpus]
        library = replace(library, gpus=tuple(gpus))
    nets = [replace(net, mac=None) for net in machine.net]
    rdma = [replace(one, node_guid=None, sys_image_guid=None) for one in machine.rdma]
    return replace(machine, nvidia=library, net=tuple(nets), rdma=tuple(rdma))


def _answers(path: Path) -> Nvidia:
    try:
        return recorded.nvidia(_text(path).encode())
    except ValueError as error:
        raise _refused(path, f"is not what a recorded library answers: {error}") from error


def _unpacked(path: Path) -> Machine:
    """What a packed tree says; it is unpacked into a folder of its own, which goes away again."""
    memory = MEMORY if os.access(MEMORY, os.W_OK) else None  # thousands of small files: no disk needs them
    with tempfile.TemporaryDirectory(prefix="xce-machine-", dir=memory) as folder:
        try:
            with tarfile.open(path, "r:*") as archive:
                _unpack(archive, folder, path)
        except (OSError, EOFError, tarfile.TarError) as error:
            raise _refused(path, f"cannot be unpacked: {error}") from error
        return sysfs.read(Path(folder))


def _unpack(archive: tarfile.TarFile, folder: str, path: Path) -> None:
    """Directories, files, and then links: nothing is ever written through a link. All stays in `folder`.

    A link that leads out of the tree keeps its last name, which may mean something, and ends in nothing.
    """
    members = archive.getmembers()
    if len(members) > TREE_FILES or sum(one.size for one in members) > TREE_BYTES:
        raise _refused(path, f"holds more than {TREE_FILES} files or {TREE_BYTES} bytes")
    for member in sorted(members, key=tarfile.TarInfo.issym):
        if not (member.isdir() or member.isfile() or member.issym()) or _leaves(member.name):
            raise _refused(path, f"{member.name!r} is no file, folder or link within the tree")
        place = os.path.join(folder, member.name)
        os.makedirs(place if member.isdir() else os.path.dirname(place), exist_ok=True)
        if member.issym():
            out = _leaves(os.path.join(os.path.dirname(member.name), member.linkname))
            os.symlink(f"outside/{os.path.basename(member.linkname)}" if out else member.linkname, place)
        elif content := archive.extractfile(member):
            Path(place).write_bytes(content.read())


def _leaves(name: str) -> bool:
    """Whether a path leads out of the folder that it is relative to."""
    return name.startswith("/") or os.path.normpath(name).split("/")[0] == ".."


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES + 1)
        if len(content) > FILE_BYTES:
            raise _refused(path, f"larger than {FILE_BYTES} bytes")
        return content.decode()
    except UnicodeDecodeError as error:
        raise _refused(path, "is not UTF-8 text") from error
    except OSError as error:
        raise _refused(path, f"cannot be read: {error.strerror}") from error


def _refused(path: Path, problem: str) -> ConfigRefused:
    return ConfigRefused([ConfigError(str(path), 0, "", problem)])
