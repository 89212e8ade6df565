"""Device files of instances, found at the moment when they are needed.

Numbers are read now, from /proc/devices, /proc/driver/nvidia and /sys, since drivers change them at will;
where the device file is there, its own number wins. Whatever leads from an instance to a file is a UUID or a
PCI address, never an index. What cannot be found for certain is `StepFailed`.
"""

import os
import stat
from collections.abc import Iterable
from pathlib import Path

import msgspec

from xce.linux import classes
from xce.prepare.handler import StepFailed
from xce.prepare.step import Device

_DRM = 226
"""The kernel's number for all device files of DRM (Documentation/admin-guide/devices.txt)."""


class File(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A device file. `exclusive`: it belongs to the instance alone; others are the driver's, for all."""

    path: str
    kind: str
    """`c` or `b`."""
    major: int
    minor: int
    exclusive: bool = True
    access: str = "rw"
    inside: str = ""
    """Its path in a container, if it is another one."""

    def rule(self) -> str:
        """As the devices controller writes it. Making nodes is the base list's matter."""
        return f"{self.kind} {self.major}:{self.minor} {self.access}"


class Resolved(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An instance and its files, and the names by which libraries choose it."""

    id: str
    kind: str
    vendor: str = ""
    unique: str = ""
    files: list[File] = []
    rdma: list[str] = []
    """`mlx5_0:1`."""
    nets: list[str] = []
    """Network interfaces."""


class Finder:
    """Finds the files of instances below the given roots."""

    def __init__(self, proc: str = "/proc", sys: str = "/sys", dev: str = "/dev") -> None:
        self.proc, self.sys, self.dev = Path(proc), Path(sys), Path(dev)
        self._dev = dev
        self._majors: dict[str, int] | None = None

    def find(self, device: Device) -> Resolved:
        """The files of one instance. Raises `StepFailed`."""
        files = [self._named(path, device) for path in device.files]
        rdma: list[str] = []
        nets: list[str] = []
        if device.gi is not None:
            files += self._nvidia_slice(device)
        elif device.vendor == "nvidia" and device.kind == "gpu":
            files += self._nvidia(device)
        elif device.vendor in {"amd", "intel"} and device.kind == "gpu":
            files += self._drm(device)
        elif device.kind == "gpu-partition" and not files:
            files += self._partition(device)
        elif device.kind == "accelerator" and device.pci and not files:
            files += self._accelerator(device)
        elif device.kind == "bond" and device.id.startswith("net:"):
            nets = [self._bond(device)]
        elif device.kind in {"nic", "nic-port"} or device.id.startswith("rdma:"):
            rdma, nets, found = self._nic(device)
            files += found
        elif not files and not device.fileless:
            raise StepFailed(
                f"cannot find device files of {device.id}: nothing is known about kind '{device.kind}' of "
                f"'{device.vendor or 'no vendor'}', and its reporter names none (attribute device_files; "
                "[] if it has none)"
            )
        return Resolved(
            id=device.id,
            kind=device.kind,
            vendor=device.vendor,
            unique=device.unique,
            files=files,
            rdma=rdma,
            nets=nets,
        )

    def extras(self, patterns: Iterable[str]) -> list[File]:
        """Device files that go with any instance, as far as they are there; nobody's alone."""
        places = {place for pattern in patterns for place in self.dev.glob(pattern.removeprefix("/dev/"))}
        files = []
        for place in sorted(places):
            found = os.stat(place, follow_symlinks=False)
            if stat.S_ISCHR(found.st_mode):
                path = f"/dev/{place.relative_to(self.dev)}"
                major, minor = os.major(found.st_rdev), os.minor(found.st_rdev)
                files.append(File(path=path, kind="c", major=major, minor=minor, exclusive=False))
        return files

    # ---------------------------------------------------------------------------------------- NVIDIA

    def _nvidia(self, device: Device) -> list[File]:
        minor = self._nvidia_minor(device, device.id)
        major = self._nvidia_major()
        return [self._file(f"nvidia{minor}", major, minor), *self._nvidia_common(major)]

    def _nvidia_common(self, major: int) -> list[File]:
        """What every CUDA process needs. Unified memory's module may not be loaded yet."""
        files = [self._file("nvidiactl", major, 255, exclusive=False)]
        uvm = self._major("nvidia-uvm")
        for name, number, minor in (
            ("nvidia-uvm", uvm, 0),
            ("nvidia-uvm-tools", uvm, 1),
            ("nvidia-modeset", None, 254),
        ):
            if number is not None or (self.dev / name).exists():
                files.append(self._file(name, number, minor, exclusive=False))
        return files

    def _nvidia_slice(self, device: Device) -> list[File]:
        minor = self._nvidia_minor(device, device.parent)
        major = self._nvidia_major()
        place = self.proc / f"driver/nvidia/capabilities/gpu{minor}/mig/gi{device.gi}"
        caps = [_field(place / "access", "DeviceFileMinor")]
        if device.ci is not None:
            caps.append(_field(place / f"ci{device.ci}/access", "DeviceFileMinor"))
        files = [self._file(f"nvidia{minor}", major, minor, exclusive=False)]
        for cap in caps:
            if cap is None or not cap.isdecimal():
                raise StepFailed(
                    f"MIG slice {device.id} is gone: the driver has no GPU instance {device.gi} with compute "
                    f"instance {device.ci} on its GPU any more"
                )
            number = self._major("nvidia-caps")
            files.append(self._file(f"nvidia-caps/nvidia-cap{cap}", number, int(cap)))
        return [*files, *self._nvidia_common(major)]

    def _nvidia_major(self) -> int:
        for name in ("nvidia", "nvidia-frontend"):
            if (number := self._major(name)) is not None:
                return number
        raise StepFailed(f"the NVIDIA driver is not loaded: {self.proc}/devices does not list it")

    def _nvidia_minor(self, device: Device, uuid: str) -> int:
        """The driver's word, if it gives one; it must be of the same GPU."""
        told = self.proc / "driver/nvidia/gpus" / device.pci / "information"
        here = _field(told, "GPU UUID")
        if here and "?" not in here and uuid.startswith("GPU-") and here != uuid:
            raise StepFailed(f"the GPU at {device.pci} is {here} now, not {uuid}")
        minor = _field(told, "Device Minor")
        if minor is not None and minor.isdecimal():
            return int(minor)
        if device.minor is None:
            raise StepFailed(f"cannot find the device number of {device.id}: {told} does not say it")
        return device.minor

    # ---------------------------------------------------------------------------------- AMD and Intel

    def _drm(self, device: Device) -> list[File]:
        drm = self.sys / "bus/pci/devices" / device.pci / "drm"
        names = sorted(path.name for path in _entries(drm))
        files = [
            self._file(f"dri/{name}", *_numbers(drm / name / "dev"))
            for name in names
            if name.startswith(("card", "renderD"))
        ]
        if not any("renderD" in file.path for file in files):
            raise StepFailed(f"cannot find a render node of {device.id}: {drm} has none")
        if device.vendor == "amd":
            files.append(self._kfd())
        return files

    def _kfd(self) -> File:
        return self._file("kfd", *_numbers(self.sys / "class/kfd/kfd/dev"), exclusive=False)

    def _partition(self, device: Device) -> list[File]:
        """By KFD's own id of it, which ends its id; what number its node and its file have is told beside."""
        wanted, nodes = device.id.rpartition("/")[2], self.sys / "class/kfd/kfd/topology/nodes"
        for node in _entries(nodes):
            told = _read(node / "gpu_id").strip()
            minor = _field(node / "properties", "drm_render_minor") or ""
            if told.isdecimal() and f"{int(told):x}" == wanted and minor.isdecimal():
                return [self._file(f"dri/renderD{minor}", _DRM, int(minor)), self._kfd()]
        raise StepFailed(f"cannot find a render node of {device.id}: {nodes} has none of that id")

    # ------------------------------------------------------------------------------ accelerators of others

    def _accelerator(self, device: Device) -> list[File]:
        """What its driver has made on its PCI function, in the classes that accelerators have."""
        function = self.sys / "bus/pci/devices" / device.pci
        cards = [card for name in ("drm", *classes.ACCELERATORS) for card in _entries(function / name)]
        files = [
            self._file(_field(card / "uevent", "DEVNAME=") or card.name, *_numbers(card / "dev"))
            for card in cards
            if (card / "dev").exists()
        ]
        if not files:
            raise StepFailed(f"cannot find device files of {device.id}: no driver has made one at {function}")
        return files

    # ------------------------------------------------------------------------------------------- NICs

    def _nic(self, device: Device) -> tuple[list[str], list[str], list[File]]:
        place = self.sys / "bus/pci/devices" / device.pci
        names = [path.name for path in _entries(place / "infiniband")] if device.pci else []
        if device.id.startswith("rdma:"):
            names = [device.id.removeprefix("rdma:")]
        nets = [
            path.name
            for path in _interfaces(place)
            if device.pci and (not device.port or _port_of(path) in {None, device.port})
        ]
        rdma = [
            f"{name}:{port}"
            for name in sorted(names)
            for port in self._ports(name)
            if not device.port or port == device.port
        ]
        files = [file for name in sorted(names) for file in self._uverbs(name, exclusive=not device.port)]
        if files:
            numbers = _numbers(self.sys / "class/misc/rdma_cm/dev")
            if numbers[0] is not None or (self.dev / "infiniband/rdma_cm").exists():
                files.append(self._file("infiniband/rdma_cm", *numbers, exclusive=False))
        if not rdma and not nets:
            raise StepFailed(f"cannot find the interface of {device.id}: nothing at {place}")
        return rdma, sorted(nets), files

    def _bond(self, device: Device) -> str:
        name = device.id.removeprefix("net:")
        if not (self.sys / "class/net" / name).exists():
            raise StepFailed(f"cannot find the interface of {device.id}: there is no {name}")
        return name

    def _ports(self, name: str) -> list[int]:
        ports = _entries(self.sys / "class/infiniband" / name / "ports")
        return sorted(int(path.name) for path in ports if path.name.isdecimal())

    def _uverbs(self, name: str, *, exclusive: bool) -> list[File]:
        """The number of a uverbs file is not that of its adapter."""
        return [
            self._file(f"infiniband/{path.name}", *_numbers(path / "dev"), exclusive=exclusive)
            for path in _entries(self.sys / "class/infiniband_verbs")
            if _read(path / "ibdev").strip() == name
        ]

    # ------------------------------------------------------------------------------------------ numbers

    def _named(self, path: str, device: Device) -> File:
        """A file that the profile lets a reporter name."""
        try:
            found = os.stat(place_of(path, self._dev), follow_symlinks=False)
        except OSError as error:
            raise StepFailed(f"device file {path} of {device.id}: {error.strerror}") from error
        if not (stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode)):
            raise StepFailed(f"device file {path} of {device.id} is no device")
        kind = "c" if stat.S_ISCHR(found.st_mode) else "b"
        return File(path=path, kind=kind, major=os.major(found.st_rdev), minor=os.minor(found.st_rdev))

    def _file(self, name: str, major: int | None, minor: int | None, *, exclusive: bool = True) -> File:
        try:
            found = os.stat(f"{self._dev}/{name}", follow_symlinks=False)
            if stat.S_ISCHR(found.st_mode):
                major, minor = os.major(found.st_rdev), os.minor(found.st_rdev)
        except OSError:
            pass  # not made yet: the job may do that, its number is enough
        if major is None or minor is None:
            raise StepFailed(f"cannot find the device number of /dev/{name}: no such file and no such driver")
        return File(path=f"/dev/{name}", kind="c", major=major, minor=minor, exclusive=exclusive)

    def _major(self, driver: str) -> int | None:
        if self._majors is None:
            characters = _read(self.proc / "devices").partition("Block devices:")[0]
            pairs = [line.split() for line in characters.splitlines()]
            self._majors = {pair[1]: int(pair[0]) for pair in pairs if len(pair) == 2 and pair[0].isdecimal()}
        return self._majors.get(driver)


def place_of(path: str, dev: str) -> str:
    """Where a device file is found: `dev` stands for /dev."""
    return dev + path.removeprefix("/dev") if path.startswith("/dev/") else path


def _field(path: Path, name: str) -> str | None:
    """`NAME: value` of a file, or `NAME value`; None if it is not there."""
    for line in _read(path).splitlines():
        if line.startswith(name):
            return line.removeprefix(name).lstrip(" \t:").strip()
    return None


def _numbers(path: Path) -> tuple[int | None, int | None]:
    """MAJOR:MINOR of a `dev` file of sysfs."""
    major, colon, minor = _read(path).strip().partition(":")
    return (int(major), int(minor)) if colon and major.isdecimal() and minor.isdecimal() else (None, None)


def _interfaces(function: Path) -> list[Path]:
    """Of a PCI function: its own, or those of the virtio device that it is."""
    return [net for place in (function, *sorted(function.glob("virtio*"))) for net in _entries(place / "net")]


def _port_of(net: Path) -> int | None:
    """Which port of its function an interface is on, from 1; None if it does not say."""
    text = _read(net / "dev_port").strip()
    return int(text) + 1 if text.isdecimal() else None


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
