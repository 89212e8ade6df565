"""The protocol's messages, loaded from the descriptors in csi.pb; nothing else here knows of protobuf.

Which fields are secret is a table of ours by field number, `SECRET`: the redactor hides whatever is in them.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

from xce.model import csi

SECRET: dict[str, frozenset[int]] = {
    "csi.v1.NodeStageVolumeRequest": frozenset({5}),
    "csi.v1.NodePublishVolumeRequest": frozenset({7}),
    "csi.v1.NodeExpandVolumeRequest": frozenset({6}),
    "csi.v1.CreateVolumeRequest": frozenset({5}),
    "csi.v1.DeleteVolumeRequest": frozenset({2}),
    "csi.v1.VolumeCapability.MountVolume": frozenset({2}),
}
"""Field numbers by message. Mount flags carry passwords with some plugins."""
CONTEXTS: dict[str, frozenset[int]] = {
    "csi.v1.NodeStageVolumeRequest": frozenset({2, 6}),
    "csi.v1.NodePublishVolumeRequest": frozenset({2, 8}),
}
"""What a controller or an admin says of a volume: not secret by the protocol, but nobody knows what it is."""
_CONTEXT_CHARACTERS = 6
"""Shorter words of a context are no secrets, and would hide whole messages."""
_DESCRIPTORS = Path(__file__).with_name("csi.pb")
_UNITS = {1: "bytes", 2: "inodes"}


def load(path: Path = _DESCRIPTORS) -> dict[str, type[Message]]:
    """Message classes by full name."""
    files = descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file) if hasattr(pool, "Add") else pool.AddSerializedFile(file.SerializeToString())
    names = [f"{file.package}.{message.name}" for file in files.file for message in file.message_type]
    return {name: _class(pool.FindMessageTypeByName(name)) for name in names}


def _class(descriptor: Any) -> type[Message]:
    """Old releases of protobuf made classes with a factory."""
    if hasattr(message_factory, "GetMessageClass"):
        made: type[Message] = message_factory.GetMessageClass(descriptor)
    else:
        made = message_factory.MessageFactory().GetPrototype(descriptor)
    return made


TYPES = load()


class Method(NamedTuple):
    """One method of a service."""

    path: str
    request: type[Message]
    answer: type[Message]


def _method(service: str, name: str, *, asks: bool = False, answers: bool = False) -> Method:
    empty = TYPES["csi.v1.Empty"]
    request = TYPES[f"csi.v1.{name}Request"] if asks else empty
    return Method(f"/csi.v1.{service}/{name}", request, TYPES[f"csi.v1.{name}Response"] if answers else empty)


GET_PLUGIN_INFO = _method("Identity", "GetPluginInfo", answers=True)
GET_PLUGIN_CAPABILITIES = _method("Identity", "GetPluginCapabilities", answers=True)
PROBE = _method("Identity", "Probe", answers=True)
NODE_GET_INFO = _method("Node", "NodeGetInfo", answers=True)
NODE_GET_CAPABILITIES = _method("Node", "NodeGetCapabilities", answers=True)
CONTROLLER_GET_CAPABILITIES = _method("Controller", "ControllerGetCapabilities", answers=True)
METHODS: dict[type[Any], Method] = {
    csi.Stage: _method("Node", "NodeStageVolume", asks=True),
    csi.Unstage: _method("Node", "NodeUnstageVolume", asks=True),
    csi.Publish: _method("Node", "NodePublishVolume", asks=True),
    csi.Unpublish: _method("Node", "NodeUnpublishVolume", asks=True),
    csi.Statistics: _method("Node", "NodeGetVolumeStats", asks=True, answers=True),
    csi.Expand: _method("Node", "NodeExpandVolume", asks=True, answers=True),
    csi.Create: _method("Controller", "CreateVolume", asks=True, answers=True),
    csi.Delete: _method("Controller", "DeleteVolume", asks=True),
}
REGISTRATION_INFO = Method(
    "/pluginregistration.Registration/GetInfo",
    TYPES["pluginregistration.InfoRequest"],
    TYPES["pluginregistration.PluginInfo"],
)
REGISTRATION_NOTIFY = Method(
    "/pluginregistration.Registration/NotifyRegistrationStatus",
    TYPES["pluginregistration.RegistrationStatus"],
    TYPES["pluginregistration.RegistrationStatusResponse"],
)


def request(call: csi.Call, secrets: dict[str, str]) -> Message:
    """The message of a call for a volume."""
    return METHODS[type(call)].request(**_fields(call, secrets))


def _fields(call: csi.Call, secrets: dict[str, str]) -> dict[str, Any]:
    match call:
        case csi.Stage():
            return {
                "volume_id": call.volume,
                "staging_target_path": call.staging,
                "volume_capability": _capability(call.capability),
                "volume_context": call.context,
                "publish_context": call.publish_context,
                "secrets": secrets,
            }
        case csi.Unstage():
            return {"volume_id": call.volume, "staging_target_path": call.staging}
        case csi.Publish():
            return {
                "volume_id": call.volume,
                "staging_target_path": call.staging,
                "target_path": call.target,
                "volume_capability": _capability(call.capability),
                "readonly": call.read_only,
                "volume_context": call.context,
                "publish_context": call.publish_context,
                "secrets": secrets,
            }
        case csi.Unpublish():
            return {"volume_id": call.volume, "target_path": call.target}
        case csi.Statistics():
            return {
                "volume_id": call.volume,
                "volume_path": call.path,
                "staging_target_path": call.staging,
            }
        case csi.Expand():
            return {
                "volume_id": call.volume,
                "volume_path": call.path,
                "staging_target_path": call.staging,
                "capacity_range": {"required_bytes": call.required_bytes},
                "volume_capability": _capability(call.capability),
                "secrets": secrets,
            }
        case csi.Create():
            return {
                "name": call.name,
                "capacity_range": {"required_bytes": call.required_bytes},
                "volume_capabilities": [_capability(call.capability)],
                "parameters": call.parameters,
                "secrets": secrets,
                "accessibility_requirements": _near(call.topology),
            }
        case csi.Delete():
            return {"volume_id": call.volume, "secrets": secrets}
        case csi.Look():
            raise ValueError("internal error: a look is several calls")


def _capability(capability: csi.Capability) -> dict[str, Any]:
    mount = {
        "fs_type": capability.fs_type,
        "mount_flags": capability.flags,
        "volume_mount_group": capability.group,
    }
    kind: dict[str, Any] = {"block": {}} if capability.block else {"mount": mount}
    return {**kind, "access_mode": {"mode": capability.mode}}


def _near(topology: dict[str, str]) -> dict[str, Any] | None:
    """From which node a volume must be reachable; None where plugins do not ask."""
    here = [{"segments": topology}]
    return {"requisite": here, "preferred": here} if topology else None


def told(number: str, answer: Any) -> csi.Told:
    """The answer to a call that went well. Repeated, unknown and missing fields are as they come."""
    names = {field.name for field in answer.DESCRIPTOR.fields}
    usage, abnormal, condition = [], None, ""
    if "volume" in names:
        made = answer.volume
        return csi.Told(
            id=number,
            outcome=csi.Outcome.OK,
            volume=made.volume_id,
            context=dict(made.volume_context),
            capacity_bytes=made.capacity_bytes,
        )
    if "usage" in names:
        usage = [
            csi.Usage(
                unit=_UNITS.get(one.unit, str(one.unit)),
                available=one.available,
                total=one.total,
                used=one.used,
            )
            for one in answer.usage
        ]
        if answer.HasField("volume_condition"):
            abnormal, condition = answer.volume_condition.abnormal, answer.volume_condition.message
    return csi.Told(
        id=number,
        outcome=csi.Outcome.OK,
        message=condition,
        usage=usage,
        abnormal=abnormal,
        capacity_bytes=answer.capacity_bytes if "capacity_bytes" in names else 0,
    )


def abilities(answer: Any) -> list[int]:
    """What a service of a plugin can do: each number once, known here or not; 0 means nothing."""
    return sorted({one.rpc.type for one in answer.capabilities} - {0})


def services(answer: Any) -> list[int]:
    """What a plugin is beside a node plugin."""
    return sorted({one.service.type for one in answer.capabilities if one.HasField("service")} - {0})


def is_ready(answer: Any) -> bool:
    """A plugin that says nothing about it is ready."""
    return bool(answer.ready.value) if answer.HasField("ready") else True


def secret_values(message: Any) -> Iterator[str]:
    """Every text in a secret field of a message, or of one in it, and what may be secret in contexts."""
    name = message.DESCRIPTOR.full_name
    secret, contexts = SECRET.get(name, frozenset()), CONTEXTS.get(name, frozenset())
    for field, value in message.ListFields():
        if field.number in secret:
            yield from _texts(value)
        elif field.number in contexts:
            yield from (text for text in _texts(value) if len(text) >= _CONTEXT_CHARACTERS)
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            several = isinstance(value, Iterable) and not isinstance(value, Message)
            for below in value if several else [value]:
                yield from secret_values(below)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    else:  # a map's values, or a list; each has its own way to be gone through
        for one in value.values() if hasattr(value, "values") else value:
            yield from _texts(one)
