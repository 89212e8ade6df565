"""The messages have the protocol's numbers, whatever compiled them, and secrets are found in all of them."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc

from tests.project import tree
from xce.csi_node_helper import messages
from xce.csi_node_helper.messages import TYPES
from xce.model import csi

ROOM = tree.ROOT / "csi_node_helper"

# Written down by hand from the protocol's own text: number and name of every field that is used here.
NUMBERS = """
GetPluginInfoResponse: 1 name, 2 vendor_version
GetPluginCapabilitiesResponse: 1 capabilities
PluginCapability: 1 service, 2 volume_expansion
PluginCapability.Service: 1 type
PluginCapability.VolumeExpansion: 1 type
ProbeResponse: 1 ready
VolumeCapability: 1 block, 2 mount, 3 access_mode
VolumeCapability.BlockVolume:
VolumeCapability.MountVolume: 1 fs_type, 2 mount_flags, 3 volume_mount_group
VolumeCapability.AccessMode: 1 mode
CapacityRange: 1 required_bytes
Topology: 1 segments
NodeStageVolumeRequest: 1 volume_id, 2 publish_context, 3 staging_target_path, 4 volume_capability, 5 secrets, 6 volume_context
NodeUnstageVolumeRequest: 1 volume_id, 2 staging_target_path
NodePublishVolumeRequest: 1 volume_id, 2 publish_context, 3 staging_target_path, 4 target_path, 5 volume_capability, 6 readonly, 7 secrets, 8 volume_context
NodeUnpublishVolumeRequest: 1 volume_id, 2 target_path
NodeGetVolumeStatsRequest: 1 volume_id, 2 volume_path, 3 staging_target_path
VolumeUsage: 1 available, 2 total, 3 used, 4 unit
VolumeCondition: 1 abnormal, 2 message
NodeGetVolumeStatsResponse: 1 usage, 2 volume_condition
NodeExpandVolumeRequest: 1 volume_id, 2 volume_path, 3 capacity_range, 4 staging_target_path, 5 volume_capability, 6 secrets
NodeExpandVolumeResponse: 1 capacity_bytes
NodeServiceCapability: 1 rpc
NodeServiceCapability.RPC: 1 type
NodeGetCapabilitiesResponse: 1 capabilities
NodeGetInfoResponse: 1 node_id, 2 max_volumes_per_node, 3 accessible_topology
TopologyRequirement: 1 requisite, 2 preferred
CreateVolumeRequest: 1 name, 2 capacity_range, 3 volume_capabilities, 4 parameters, 5 secrets, 7 accessibility_requirements
Volume: 1 capacity_bytes, 2 volume_id, 3 volume_context
CreateVolumeResponse: 1 volume
DeleteVolumeRequest: 1 volume_id, 2 secrets
ControllerServiceCapability: 1 rpc
ControllerServiceCapability.RPC: 1 type
ControllerGetCapabilitiesResponse: 1 capabilities
Empty:
"""  # noqa: E501 - one message, one line


def numbers(descriptor: Any, prefix: str = "") -> dict[str, dict[int, str]]:
    name = prefix + descriptor.name
    found = {name: {field.number: field.name for field in descriptor.fields}}
    for below in descriptor.nested_types:
        if not below.GetOptions().map_entry:
            found |= numbers(below, f"{name}.")
    return found


def test_every_field_has_the_number_that_the_protocol_gives_it() -> None:
    ours: dict[str, dict[int, str]] = {}
    for name, kind in TYPES.items():
        if name.startswith("csi.v1."):
            ours |= numbers(kind.DESCRIPTOR)
    assert ours == {name: fields for name, fields in _wanted().items() if name != "Entry"}


def test_the_bytes_of_a_call_are_those_that_the_numbers_make() -> None:
    """Encoded by hand from the table of the wire format, without any library."""

    def field(number: int, body: bytes) -> bytes:
        return bytes([number << 3 | 2, len(body)]) + body

    capability = csi.Capability(mode=7, fs_type="ext4", flags=["noatime"], group="42")
    call = csi.Publish(
        volume="v", staging="/s", target="/t", capability=capability, read_only=True, context={"a": "b"}
    )
    mount = field(1, b"ext4") + field(2, b"noatime") + field(3, b"42")
    wanted = (
        field(1, b"v")
        + field(3, b"/s")
        + field(4, b"/t")
        + field(5, field(2, mount) + field(3, b"\x08\x07"))
        + b"\x30\x01"
        + field(7, field(1, b"k") + field(2, b"secret"))
        + field(8, field(1, b"a") + field(2, b"b"))
    )
    assert messages.request(call, {"k": "secret"}).SerializeToString(deterministic=True) == wanted


def decoded(data: bytes, message: str) -> dict[str, Any]:
    """A message by the wire format's own text and the numbers above: no library, no descriptors of ours."""
    found: dict[str, Any] = {}
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte, at, shift = data[at], at + 1, shift + 7
            value |= (byte & 0x7F) << (shift - 7)
            if byte < 0x80:
                return value

    while at < len(data):
        tag = varint()
        name = _wanted()[message][tag >> 3]
        if tag & 7 == 0:
            found[name] = varint()
            continue
        assert tag & 7 == 2, "nothing of ours is fixed in size"
        length = varint()
        body, at = data[at : at + length], at + length
        if name in MAPS:
            key, value = (decoded(body, "Entry")[part] for part in ("key", "value"))
            found.setdefault(name, {})[key] = value
        elif name in MESSAGES:
            inner = decoded(body, MESSAGES[name])
            found[name] = [*found.get(name, []), inner] if name in REPEATED else inner
        else:
            text = body.decode()
            found[name] = [*found.get(name, []), text] if name in REPEATED else text
    return found


MAPS = {"secrets", "volume_context", "publish_context", "parameters", "segments"}
REPEATED = {"mount_flags", "volume_capabilities", "requisite", "preferred"}
MESSAGES = {
    "volume_capability": "VolumeCapability",
    "volume_capabilities": "VolumeCapability",
    "block": "VolumeCapability.BlockVolume",
    "mount": "VolumeCapability.MountVolume",
    "access_mode": "VolumeCapability.AccessMode",
    "capacity_range": "CapacityRange",
    "accessibility_requirements": "TopologyRequirement",
    "requisite": "Topology",
    "preferred": "Topology",
}


def _wanted() -> dict[str, dict[int, str]]:
    found = {"Entry": {1: "key", 2: "value"}}
    for line in NUMBERS.strip().splitlines():
        name, _, fields = line.partition(":")
        found[name] = {int(number): field for number, field in re.findall(r"(\d+) (\w+)", fields)}
    return found


MOUNTED = csi.Capability(mode=5, fs_type="xfs", flags=["noatime", "a=b"], group="7")
SAID = {
    "mount": {"fs_type": "xfs", "mount_flags": ["noatime", "a=b"], "volume_mount_group": "7"},
    "access_mode": {"mode": 5},
}
DEVICE = csi.Capability(mode=300, block=True)
BOTH: dict[str, Any] = {"context": {"c": "1", "d": ""}, "publish_context": {"lun": "3"}}
CALLS: list[tuple[csi.Call, str, dict[str, Any]]] = [
    (
        csi.Stage(volume="v", staging="/s", capability=MOUNTED, **BOTH),
        "NodeStageVolumeRequest",
        {
            "volume_id": "v",
            "staging_target_path": "/s",
            "volume_capability": SAID,
            "volume_context": {"c": "1", "d": ""},
            "publish_context": {"lun": "3"},
            "secrets": {"k": "word"},
        },
    ),
    (
        csi.Publish(volume="v", staging="/s", target="/t", capability=DEVICE, read_only=True, **BOTH),
        "NodePublishVolumeRequest",
        {
            "volume_id": "v",
            "staging_target_path": "/s",
            "target_path": "/t",
            "volume_capability": {"block": {}, "access_mode": {"mode": 300}},
            "readonly": 1,
            "volume_context": {"c": "1", "d": ""},
            "publish_context": {"lun": "3"},
            "secrets": {"k": "word"},
        },
    ),
    (
        csi.Unstage(volume="v", staging="/s"),
        "NodeUnstageVolumeRequest",
        {"volume_id": "v", "staging_target_path": "/s"},
    ),
    (
        csi.Unpublish(volume="v", target="/t"),
        "NodeUnpublishVolumeRequest",
        {"volume_id": "v", "target_path": "/t"},
    ),
    (
        csi.Statistics(volume="v", path="/p", staging="/s"),
        "NodeGetVolumeStatsRequest",
        {"volume_id": "v", "volume_path": "/p", "staging_target_path": "/s"},
    ),
    (
        csi.Expand(
            volume="v",
            path="/p",
            staging="/s",
            capability=MOUNTED,
            required_bytes=1 << 40,
        ),
        "NodeExpandVolumeRequest",
        {
            "volume_id": "v",
            "volume_path": "/p",
            "staging_target_path": "/s",
            "capacity_range": {"required_bytes": 1 << 40},
            "volume_capability": SAID,
            "secrets": {"k": "word"},
        },
    ),
    (
        csi.Create(
            name="n", capability=MOUNTED, required_bytes=5, parameters={"pool": "a"}, topology={"zone": "z"}
        ),
        "CreateVolumeRequest",
        {
            "name": "n",
            "capacity_range": {"required_bytes": 5},
            "volume_capabilities": [SAID],
            "parameters": {"pool": "a"},
            "secrets": {"k": "word"},
            "accessibility_requirements": {
                "requisite": [{"segments": {"zone": "z"}}],
                "preferred": [{"segments": {"zone": "z"}}],
            },
        },
    ),
    (csi.Delete(volume="v"), "DeleteVolumeRequest", {"volume_id": "v", "secrets": {"k": "word"}}),
]


def test_every_call_is_read_back_by_a_decoder_that_knows_nothing_of_ours() -> None:
    assert {type(call) for call, _, _ in CALLS} == set(messages.METHODS)
    for call, name, fields in CALLS:
        data = messages.request(call, {"k": "word"}).SerializeToString()
        assert decoded(data, name) == fields, name
        assert messages.METHODS[type(call)].request.DESCRIPTOR.full_name == f"csi.v1.{name}"


def test_the_descriptors_are_those_of_the_texts(tmp_path: Path) -> None:
    out = tmp_path / "csi.pb"
    command = ["protoc", f"-I{ROOM}", f"-I{Path(protoc.__file__).parent}/_proto", "--include_imports"]
    assert protoc.main([*command, f"--descriptor_set_out={out}", "csi.proto", "registration.proto"]) == 0
    made, kept = (
        descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes()) for path in (out, ROOM / "csi.pb")
    )
    assert made == kept


def test_grpc_tools_are_not_needed_at_run_time() -> None:
    assert all("grpc_tools" not in path.read_text() for path in ROOM.glob("*.py"))
    assert "grpc_tools" in sys.modules  # or the test above has tested nothing


def test_what_a_newer_plugin_says_is_taken_as_far_as_it_is_known() -> None:
    unknown = b"\x9a\x06\x03abc"  # field 99
    answer = TYPES["csi.v1.NodeGetCapabilitiesResponse"].FromString(
        b"\x0a\x04\x0a\x02\x08\x01" * 2 + b"\x0a\x04\x0a\x02\x08\x63" + b"\x0a\x00" + unknown
    )
    assert messages.abilities(answer) == [1, 99]


@pytest.mark.parametrize(
    ("bytes_", "ready"), [(b"", True), (b"\x0a\x02\x08\x01", True), (b"\x0a\x00", False)]
)
def test_a_plugin_that_says_nothing_is_ready(bytes_: bytes, *, ready: bool) -> None:
    assert messages.is_ready(TYPES["csi.v1.ProbeResponse"].FromString(bytes_)) is ready


CAPABILITY = csi.Capability(mode=1, fs_type="cifs", flags=["password=flag-word", "vers=3"])


@pytest.mark.parametrize(
    "call",
    [
        csi.Stage(volume="v", staging="/s", capability=CAPABILITY, secrets="/f"),
        csi.Publish(volume="v", staging="/s", target="/t", capability=CAPABILITY, secrets="/f"),
        csi.Expand(volume="v", path="/p", capability=CAPABILITY, secrets="/f"),
        csi.Create(name="v", capability=CAPABILITY, secrets="/f"),
    ],
    ids=lambda call: type(call).__name__,
)
def test_secrets_and_mount_flags_are_found_in_every_message_that_has_them(call: csi.Call) -> None:
    found = set(messages.secret_values(messages.request(call, {"user": "joe", "key": "word"})))
    assert found == {"joe", "word", "password=flag-word", "vers=3"}


def test_what_is_secret_is_a_field_that_exists() -> None:
    ours: dict[str, dict[int, str]] = {}
    for kind in TYPES.values():
        ours |= numbers(kind.DESCRIPTOR, kind.DESCRIPTOR.file.package + ".")
    for message, secret in messages.SECRET.items():
        assert {ours[message][number] for number in secret} <= {"secrets", "mount_flags"}
    named = {m for m, fields in ours.items() if {"secrets", "mount_flags"} & set(fields.values())}
    assert named == set(messages.SECRET)
