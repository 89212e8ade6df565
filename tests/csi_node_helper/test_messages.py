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
CapacityRange: 1 required_bytes, 2 limit_bytes
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
    wanted = {}
    for line in NUMBERS.strip().splitlines():
        name, _, fields = line.partition(":")
        wanted[name] = {int(number): field for number, field in re.findall(r"(\d+) (\w+)", fields)}
    assert ours == wanted


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
