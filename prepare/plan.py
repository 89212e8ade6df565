"""From a binding and its claim to steps. Pure: the same arguments give the same plan, and nothing is touched.

What cannot be is refused here, before anything is written down: an instance that is not there or not well, a
volume that the profile does not have, a name that no directory can have.
"""

import fnmatch
import posixpath
from collections.abc import Mapping, Sequence

from xce.model.claim import TEXT, AccessMode, Binding, Claim, MountAsk, PortsAsk, SharedAsk
from xce.model.instance import Health, Instance
from xce.model.profile import CSI_TEXT, Claims, CsiVolume, Profile, ScratchRoot, Volume, profile_of
from xce.prepare import names
from xce.prepare.csi import paths, usage, words
from xce.prepare.step import (
    Bind,
    Block,
    Csi,
    Device,
    Environment,
    Filter,
    Group,
    InstanceMap,
    Ports,
    Scratch,
    Shared,
    Stage,
    Step,
)


class PlanRefused(Exception):
    """A binding that cannot be prepared on this node, in words."""


def plan(
    binding: Binding,
    claim: Claim,
    instances: InstanceMap,
    settings: Claims,
    provided: Mapping[str, str] | None = None,
) -> list[Step]:
    """The steps in the order in which they are done; they are undone from the last to the first.

    `provided`: what the claim's provider says.
    """
    profile = profile_of(settings, claim.ask.profile)
    if profile is None:
        raise PlanRefused(f"this node has no profile '{claim.ask.profile}' (agent.yaml: claims.profiles)")
    try:
        return _Planner(binding, claim, instances, settings, profile, provided or {}).steps()
    except (names.NameRefused, paths.PathRefused) as error:
        raise PlanRefused(str(error)) from error


class _Planner:
    """One plan in the making."""

    def __init__(
        self,
        binding: Binding,
        claim: Claim,
        instances: InstanceMap,
        settings: Claims,
        profile: Profile,
        provided: Mapping[str, str],
    ) -> None:
        self.binding, self.claim, self.instances = binding, claim, instances
        self.settings, self.profile, self.provided = settings, profile, provided
        self.home = f"{settings.directory}/{names.encode(binding.id)}"

    def steps(self) -> list[Step]:
        ask = self.claim.ask
        group = names.encode(self.binding.consumer.name)
        mounts: list[Step] = []
        for mount in ask.mounts:
            mounts += [step for step in self._mount(mount) if not self._is_there(step, mounts)]
        first = [step for step in mounts if isinstance(step, Csi) and step.block]
        steps: list[Step] = [
            Group(name=group, grace_s=self.profile.grace_s),
            *first,  # only then their devices' numbers are known
            Filter(
                group=group,
                base=list(self.profile.devices),
                devices=[self._device(chosen.id) for chosen in self.binding.instances],
                extras=list(self.profile.device_extras) if self.binding.instances else [],
                volumes=[step for step in mounts if isinstance(step, Block)],
                daemons=list(self.profile.daemons),
            ),
        ]
        steps += [step for step in mounts if step not in first]
        if ask.scratch_bytes:
            steps.append(self._scratch())
        steps += [self._shared(shared) for shared in ask.shared]
        steps += [self._ports(ports) for ports in ask.ports]
        steps.append(
            Environment(
                directory=self.home,
                binding=self.binding.id,
                claim=self.claim.id,
                variables={**ask.environment, **self.profile.environment},
                cdi=self.settings.cdi_directory,
            )
        )
        return steps

    def _device(self, number: str) -> Device:
        found = self.instances.get(number)
        if found is None:
            raise PlanRefused(f"instance {number} is not on this node now")
        if found.health is not Health.AVAILABLE:
            raise PlanRefused(f"instance {number} is {found.health}: {found.reason or 'no reason given'}")
        return device_of(found, self.instances, self.profile)

    def _mount(self, mount: MountAsk) -> list[Step]:
        volume = self.profile.volumes.get(mount.source)
        if volume is None:
            raise PlanRefused(f"mount {mount.name}: the profile has no volume '{mount.source}'")
        if volume.csi is not None:
            published = self._csi(mount, volume, volume.csi)
            if published.block:
                return [published, self._block(mount, published)]
            stage: list[Step] = [published]
            source = published.target
        else:
            staged = self._stage(mount.source, volume)
            stage, source = [*staged], staged[0].point if staged else volume.path
        bind = Bind(
            name=mount.name,
            source=source,
            path=mount.subdirectory,
            point=f"{self.home}/{names.encode(mount.name)}",
            read_only=mount.read_only or volume.forbids_writing or self._all_read_only(),
        )
        return [*stage, bind]

    def _block(self, mount: MountAsk, volume: Csi) -> Block:
        if mount.subdirectory:
            raise PlanRefused(f"mount {mount.name}: volume '{mount.source}' is a device, without directories")
        return Block(
            name=mount.name,
            target=volume.target,
            point=f"{self.home}/{names.encode(mount.name)}",
            read_only=mount.read_only or volume.read_only or self._all_read_only(),
            user=self._user(),
        )

    @staticmethod
    def _is_there(step: Step, steps: Sequence[Step]) -> bool:
        """Whether another mount of the same claim has brought it."""
        for other in steps:
            if isinstance(step, Csi) and isinstance(other, Csi) and step.staging == other.staging:
                if not usage.alike(step, other):
                    raise PlanRefused(
                        f"mounts {other.mount} and {step.mount} are the same volume {step.volume}, "
                        "in two ways"
                    )
                return True
        return step in steps

    def _all_read_only(self) -> bool:
        return self.binding.read_only or self.claim.access is AccessMode.ROX

    def _stage(self, name: str, volume: Volume) -> list[Stage]:
        if volume.path:
            return []
        point = f"{self.settings.directory}/.staged/{names.encode(name)}"
        return [
            Stage(
                volume=name,
                point=point,
                type=volume.type,
                source=volume.source,
                options=list(volume.options),
            )
        ]

    def _csi(self, mount: MountAsk, volume: Volume, of: CsiVolume) -> Csi:
        """The same for all who use it on this node, but for `alone` and where it is said."""
        csi = self.settings.csi
        if of.plugin not in csi.plugins and not csi.registration:
            raise PlanRefused(f"this node has no CSI plugin '{of.plugin}' (agent.yaml: claims.csi.plugins)")
        only = sum(self._is_csi(one.source) for one in self.claim.ask.mounts) == 1
        told = words.of(self.provided, mount=mount.name, host=self.binding.host, only=only)
        number = self._volume_id(mount, of, told.id)
        directory = self.settings.directory
        return Csi(
            plugin=of.plugin,
            volume=number,
            staging=paths.staging(directory, of.plugin, number),
            target=paths.target(directory, of.plugin, number),
            access=of.access,
            alone=AccessMode.RWOP in {of.access, self.claim.access},
            block=of.block,
            type=volume.type,
            group=of.group,
            read_only=volume.forbids_writing or of.access is AccessMode.ROX,
            secrets=of.secrets,
            profile=self.claim.ask.profile,
            source=mount.source,
            mount=mount.name,
            only=only,
            provided=bool(self.claim.provider),
            said=words.said(volume, told).digest(),
            bytes=of.size_bytes,
        )

    def _is_csi(self, source: str) -> bool:
        volume = self.profile.volumes.get(source)
        return volume is not None and volume.csi is not None

    def _volume_id(self, mount: MountAsk, of: CsiVolume, provided: str) -> str:
        """The admin's word, or the provider's where that leaves it open; nobody overrules the admin."""
        if of.id and provided and provided != of.id:
            raise PlanRefused(
                f"mount {mount.name}: its provider says volume {provided[:TEXT]!r}, "
                f"and the profile's volume '{mount.source}' is another one"
            )
        number = of.id or provided
        if not (0 < len(number.encode()) <= CSI_TEXT and number.isprintable()):
            raise PlanRefused(
                f"mount {mount.name}: the profile leaves the id of volume '{mount.source}' to the claim's "
                f"provider, which must say a volume_id of at most {CSI_TEXT} printable bytes"
            )
        return number

    def _user(self) -> str:
        name = self.binding.consumer.user or self.claim.owner
        if not name:
            raise PlanRefused("nobody is named whom its directories could be given to")
        return name

    def _retention(self, default: float) -> float:
        return default if self.claim.retention_s is None else self.claim.retention_s

    def _scratch(self) -> Scratch:
        roots, ask = self.profile.scratch, self.claim.ask
        name = ask.scratch or next(iter(roots), "")
        root = roots.get(name, None if ask.scratch else ScratchRoot())
        if root is None:
            raise PlanRefused(f"the profile has no scratch root '{ask.scratch}'")
        return Scratch(
            root=root.path,
            name=names.encode(self.binding.id),
            point=f"{self.home}/scratch",
            bytes=ask.scratch_bytes,
            user=self._user(),
            limit=root.limit.value,
        )

    def _shared(self, shared: SharedAsk) -> Shared:
        volume = self.profile.shared.get(shared.volume)
        if volume is None:
            raise PlanRefused(f"the profile has no shared volume '{shared.volume}'")
        consumer, user = self.binding.consumer, self._user()
        elements = [user, consumer.job or consumer.name, consumer.index]
        return Shared(
            volume=shared.volume,
            root=volume.path,
            elements=[names.encode(element) for element in elements if element],
            parts=[names.encode(part) for part in shared.parts],
            user=user,
            again=volume.again.value,
            retention_s=self._retention(volume.retention_s),
            size_bytes=volume.size_bytes,
        )

    def _ports(self, ports: PortsAsk) -> Ports:
        allowed = self.profile.ports
        low, high = (ports.low or allowed.low, ports.high or allowed.high)
        wanted = ports.exact or [low, high]
        if min(wanted) < allowed.low or max(wanted) > allowed.high:
            raise PlanRefused(
                f"ports {ports.name}: {min(wanted)} to {max(wanted)} are not within "
                f"{allowed.low} to {allowed.high}"
            )
        return Ports(name=ports.name, count=ports.count, low=low, high=high, exact=list(ports.exact))


def device_of(found: Instance, instances: InstanceMap, profile: Profile) -> Device:
    """What finds an instance's device files again at the moment when they are needed."""
    parent = instances.get(found.parent) if found.parent else None
    attributes = {**(parent.attributes if parent else {}), **found.attributes}
    port = found.id.rpartition("/")[2] if parent is not None else ""
    return Device(
        id=found.id,
        kind=found.kind,
        vendor=_text(attributes.get("vendor")),
        pci=_text(attributes.get("pci")),
        port=int(port) if port.isdecimal() else 0,
        parent=found.parent,
        gi=_number(found.attributes.get("gi")),
        ci=_number(found.attributes.get("ci")),
        minor=_number(attributes.get("minor")),
        unique=_text(attributes.get("unique_id")),
        files=_files(found, profile),
        fileless=found.attributes.get("device_files") == [],
    )


def _files(found: Instance, profile: Profile) -> list[str]:
    """What a reporter calls a device file must be one that the admin allows."""
    named = found.attributes.get("device_files", [])
    files = named if isinstance(named, list) else [str(named)]
    for path in files:
        allowed = any(fnmatch.fnmatchcase(path, pattern) for pattern in profile.device_paths)
        if not allowed or posixpath.normpath(path) != path or not path.startswith("/"):
            raise PlanRefused(
                f"instance {found.id} names the device file {path[:200]!r}, which the profile's device_paths "
                "do not allow"
            )
    return files


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
