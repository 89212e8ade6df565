"""`claims:` of agent.yaml: what claims may use on a node, and how. Users name things, and never a place.

A *profile* is a set of such rules; a claim names one, '' the default. What a profile does not have, claims
cannot have.
"""

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

import msgspec

from xce.model.claim import AccessMode
from xce.model.resource import Seconds
from xce.model.value import Count

Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Wait = Annotated[float, msgspec.Meta(ge=0, le=31 * 86400, title="seconds")]
Retention = Annotated[float, msgspec.Meta(ge=0, le=3650 * 86400, title="seconds")]
"""As long as a claim may say."""

BASE_DEVICES = [
    "c *:* m",
    "b *:* m",
    "c 1:3 rwm",
    "c 1:5 rwm",
    "c 1:7 rwm",
    "c 1:8 rwm",
    "c 1:9 rwm",
    "c 5:0 rwm",
    "c 5:1 rwm",
    "c 5:2 rwm",
    "c 136:* rwm",
    "c 10:200 rwm",
]
DAEMONS = ["nvidia-persiste", "nv-hostengine", "nv-fabricmanage", "dcgm-exporter"]


class _Section(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all configuration structs."""


class CsiVolume(_Section, frozen=True, kw_only=True):
    """A volume that a CSI plugin mounts."""

    plugin: str
    """Name of the plugin: one of `claims.csi.plugins`, or the one that it has registered with."""
    id: str = ""
    """The volume's id, as the plugin knows it; '' if the claim's provider says it."""
    access: AccessMode = AccessMode.RWX
    """How it may be used at a time. Of `RWOP` this node has one consumer, whatever the plugin allows."""
    block: bool = False
    """Consumers get a device, not a file system."""
    size_bytes: Count = 0
    """How large it is to be at least: the plugin is asked to let its file system grow so far. 0: as it is."""
    group: str = ""
    """Number of the group that its files get, if the plugin can do that."""
    context: dict[str, str] = {}
    """What the plugin's controller said when the volume was made."""
    publish_context: dict[str, str] = {}
    """What the plugin's controller said when the volume was attached to this node."""
    secrets: str = ""
    """A file of root with mode 0600: a JSON object of texts, read for each call. Or a program that root alone
    may change, which is run for each call with the plugin, the call and the volume, and prints one."""


class Volume(_Section, frozen=True, kw_only=True):
    """Something that claims can mount."""

    path: str = ""
    """A directory of this host. '' for a file system that is mounted while claims use it."""
    type: str = ""
    """Of that file system: `ext4`, `nfs4`, `tmpfs`."""
    source: str = ""
    """Its device or server."""
    options: list[str] = []
    """Its mount options: `vers=4.2`, `size=4g`."""
    read_only: bool = False
    """Nobody may write to it; `ro` among the options says the same."""
    csi: CsiVolume | None = None
    """A volume of a CSI plugin; then `type` and `options` are given to the plugin, and may be empty."""

    @property
    def forbids_writing(self) -> bool:
        """Whether nobody may write, in whichever way that is said."""
        return self.read_only or any("ro" in option.split(",") for option in self.options)


class Reuse(StrEnum):
    """What a job that runs again finds on a shared volume."""

    REUSE = "reuse"
    """The directories of its first run."""
    ATTEMPT = "attempt"
    """New ones: `JOB/attempt-2`."""


class SharedVolume(_Section, frozen=True, kw_only=True):
    """A volume with a directory for each user and job."""

    path: str
    """Its directory on this host."""
    retention_s: Retention = 7 * 86400.0
    """How long directories of a job are kept after release, where the claim does not say; 0: not at all."""
    again: Reuse = Reuse.REUSE
    """What a job that runs again finds."""
    size_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """What the directories of one job may hold together, by a project quota; 0: as much as they like."""


class Limit(StrEnum):
    """What keeps a scratch directory from becoming larger than asked."""

    AUTO = "auto"
    """The first of the following that the file system of the scratch root offers."""
    PROJECT = "project"
    """A project quota: XFS, ext4 and f2fs that are mounted with `prjquota`."""
    QGROUP = "qgroup"
    """A subvolume with a quota group: btrfs on which quotas are enabled."""
    FILE = "file"
    """An ext4 file system in a file of that size, on any file system."""


class ScratchRoot(_Section, frozen=True, kw_only=True):
    """Where scratch directories are made. Each is gone when its claim is released."""

    path: str = ""
    """A directory of this host that only root may write to; '' for memory."""
    limit: Limit = Limit.AUTO
    """What keeps each from becoming larger than asked; in memory it is a tmpfs of that size."""


class ClaimPorts(_Section, frozen=True, kw_only=True):
    """Ports that claims may have; best none that the kernel gives to outgoing connections."""

    low: Port = 20000
    """The first."""
    high: Port = 29999
    """The last."""


class Profile(_Section, frozen=True, kw_only=True):
    """What claims may use."""

    devices: list[str] = msgspec.field(default_factory=lambda: list(BASE_DEVICES))
    """Devices that every consumer may use, as the kernel's devices controller writes them: `c 1:3 rwm`."""
    device_paths: list[str] = []
    """Shell-style patterns of device files that reporters may name in an instance's `device_files`."""
    device_extras: list[str] = []
    """Device files that consumers with instances get besides, where they are there: patterns such as
    `/dev/gdrdrv`, `/dev/nvidia-fs*` or `/dev/nvidia-caps-imex-channels/channel0`."""
    daemons: list[str] = msgspec.field(default_factory=lambda: list(DAEMONS))
    """Processes that may keep devices open all the time, or wait on ports for jobs: names of at most 15
    characters, as in `ps`. Only those that root or a system account has started: users can give theirs any
    name."""
    volumes: dict[str, Volume] = {}
    """What claims can mount."""
    shared: dict[str, SharedVolume] = {}
    """Volumes with directories of users and jobs."""
    scratch: dict[str, ScratchRoot] = {}
    """Where scratch directories are made; the first is the default."""
    ports: ClaimPorts = ClaimPorts()
    """Ports that claims may have."""
    environment: dict[str, str] = {}
    """Variables for every consumer."""
    grace_s: Wait = 10
    """Between TERM and KILL when a claim is released."""
    dirty_after_s: Wait = 30
    """A device that is still in use so long after the release began is quarantined."""


class Orphans(StrEnum):
    """What is done with control groups, mounts and files of ours that no claim owns."""

    REPORT = "report"
    """They are shown."""
    CLEAN = "clean"
    """They are shown, their processes ended, and they are removed."""


class Csi(_Section, frozen=True, kw_only=True):
    """Node plugins of the Container Storage Interface."""

    plugins: dict[str, str] = {}
    """Their sockets, by the name that volumes use."""
    registration: str = ""
    """Folder where plugins' registrars put their sockets; '' for none."""
    helper: str = "/usr/bin/xce-csi-node-helper"
    """The program that speaks to them, of the package xce-csi-node-helper."""


class Claims(_Section, frozen=True, kw_only=True):
    """`claims:` of agent.yaml."""

    enabled: bool = False
    """Whether claims are made true on this host. Those that there are stay until they are released."""
    directory: str = "/run/xce-claims"
    """Mount points and environment files of claims."""
    cgroup: str = ""
    """Where consumers' cgroups are made; '' means in xce-jobs.service, else beside the agent's own."""
    cdi_directory: str = "/run/cdi"
    """Where CDI files are written for container runtimes; '' for none."""
    namespace: str = "1"
    """Whose mounts count: those of process 1, or `self` where jobs live in the agent's own namespace."""
    check_s: Seconds = 1
    """Between two looks at whether everything of the claims is still there."""
    remote_s: Seconds = 20
    """For one operation on a file system that can hang: network, FUSE."""
    probe_s: Seconds = 30
    """Between two looks at whether such a file system still answers."""
    orphans: Orphans = Orphans.REPORT
    """What is done with things of ours that no claim owns."""
    csi: Csi = Csi()
    """Plugins that mount volumes."""
    profiles: dict[str, Profile] = {}
    """By name; `default` is for claims that name none."""


def profiles(claims: Claims) -> dict[str, Profile]:
    """All profiles by name; the default one needs no section."""
    return {"default": Profile()} | claims.profiles


def profile_of(claims: Claims, name: str) -> Profile | None:
    """The profile that a claim names."""
    return profiles(claims).get(name or "default")


CSI_TEXT, _CSI_MAP = 128, 4096
"""Bytes that every plugin must take: of an id, of a map or of all mount flags together."""


def _csi_problems(volume: Volume, of: CsiVolume) -> Iterator[tuple[str, str]]:
    if volume.path or volume.source:
        yield "csi", "takes the place of a path and of a source"
    if len(of.id.encode()) > CSI_TEXT:
        yield "csi.id", f"must have at most {CSI_TEXT} bytes"
    if not of.id.isprintable():
        yield "csi.id", "must be printable"
    if of.block and (volume.type or volume.options or of.group):
        yield "csi.block", "is a device: type, options and group are of file systems"
    if of.secrets and not of.secrets.startswith("/"):
        yield "csi.secrets", "must be an absolute path"
    for key, texts in (
        ("csi.context", [*of.context, *of.context.values()]),
        ("csi.publish_context", [*of.publish_context, *of.publish_context.values()]),
        ("options", volume.options),
    ):
        if sum(len(text.encode()) for text in texts) > _CSI_MAP:
            yield key, f"has more than the {_CSI_MAP} bytes that plugins take"


_RULE = re.compile(r"[cb] (\d{1,7}|\*):(\d{1,7}|\*) [rwm]{1,3}")


def problems(claims: Claims) -> dict[str, str]:
    """What is wrong with the settings beyond their shape, by key."""
    found = {
        key: "must be an absolute path"
        for key in ("directory", "cgroup", "cdi_directory")
        if (path := getattr(claims, key)) and not path.startswith("/")
    }
    if claims.namespace not in {"1", "self"}:
        found["namespace"] = "must be '1' or self"
    if not claims.directory:
        found["directory"] = "must be an absolute path"
    sockets = {f"csi.plugins.{name}": path for name, path in claims.csi.plugins.items()}
    folders = {"csi.registration": claims.csi.registration or "/", "csi.helper": claims.csi.helper}
    for key, path in {**sockets, **folders}.items():
        if not path.startswith("/"):
            found[key] = "must be an absolute path"
    for name, profile in claims.profiles.items():
        for volume, kind in profile.volumes.items():
            known = claims.csi.registration or kind.csi is None or kind.csi.plugin in claims.csi.plugins
            if not known:
                key = f"profiles.{name}.volumes.{volume}.csi.plugin"
                plugin = kind.csi.plugin if kind.csi else ""
                found[key] = f"'{plugin}' is none of csi.plugins, and there is no csi.registration folder"
        found |= {f"profiles.{name}.{key}": problem for key, problem in _profile_problems(profile)}
    return found


def _profile_problems(profile: Profile) -> Iterator[tuple[str, str]]:
    for rule in profile.devices:
        if not _RULE.fullmatch(rule):
            yield "devices", f"{rule!r} is no device rule such as 'c 1:3 rwm'"
    for pattern in profile.device_extras:
        if not pattern.startswith("/dev/") or ".." in pattern.split("/"):
            yield "device_extras", f"{pattern!r} is not below /dev"
    yield from _place_problems(profile)
    if profile.ports.low > profile.ports.high:
        yield "ports", "the lower port must come first"


def _place_problems(profile: Profile) -> Iterator[tuple[str, str]]:
    for name, volume in profile.volumes.items():
        if volume.csi is not None:
            yield from ((f"volumes.{name}.{key}", words) for key, words in _csi_problems(volume, volume.csi))
        elif bool(volume.path) == bool(volume.type):
            yield f"volumes.{name}", "needs a path or a type, and not both"
        if volume.path and not volume.path.startswith("/"):
            yield f"volumes.{name}.path", "must be an absolute path"
    roots = {f"shared.{name}.path": volume.path for name, volume in profile.shared.items()}
    roots |= {f"scratch.{name}.path": root.path or "/" for name, root in profile.scratch.items()}
    for key, path in roots.items():
        if not path.startswith("/"):
            yield key, "must be an absolute path"
