"""What consumers are told comes from one record."""

from typing import Any

import jsonschema
import msgspec
import pytest

from xce.prepare import render
from xce.prepare.devices import File, Resolved

GPU = File(path="/dev/nvidia2", kind="c", major=195, minor=2)


def test_nvidia_devices_are_named_by_uuid() -> None:
    devices = [
        Resolved(id="GPU-1", kind="gpu", vendor="nvidia"),
        Resolved(id="MIG-2", kind="mig", vendor="nvidia"),
    ]
    assert render.device_variables(devices) == {
        "CUDA_VISIBLE_DEVICES": "GPU-1,MIG-2",
        "NVIDIA_VISIBLE_DEVICES": "GPU-1,MIG-2",
    }


def test_adapters_are_named_exactly() -> None:
    devices = [Resolved(id="n", kind="nic", rdma=["mlx5_0:1", "mlx5_1:1"], nets=["ib0"])]
    assert render.device_variables(devices) == {
        "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1",
        "NCCL_SOCKET_IFNAME": "=ib0",
        "UCX_NET_DEVICES": "mlx5_0:1,mlx5_1:1,ib0",
    }


def test_libraries_that_know_numbers_alone_count_what_the_filter_leaves() -> None:
    amd = [Resolved(id=f"GPU-{number}", kind="gpu", vendor="amd") for number in ("aa", "bb")]
    intel = [Resolved(id="pci:1", kind="gpu", vendor="intel")]
    variables = render.device_variables([*amd, *intel])
    assert variables["ROCR_VISIBLE_DEVICES"] == "GPU-aa,GPU-bb"
    assert (variables["HIP_VISIBLE_DEVICES"], variables["ZE_AFFINITY_MASK"]) == ("0,1", "0")
    unknown = render.device_variables([*amd, Resolved(id="pci:2", kind="gpu", vendor="amd")])
    assert unknown["ROCR_VISIBLE_DEVICES"] == "0,1,2"
    parts = [Resolved(id=f"GPU-aa/{number}", kind="gpu-partition", vendor="amd") for number in (1, 2)]
    assert render.device_variables(parts)["ROCR_VISIBLE_DEVICES"] == "0,1", (
        "ROCm has one name for all of them"
    )


def test_no_devices_mean_no_variables() -> None:
    assert render.device_variables([]) == {}


def test_a_binding_is_one_cdi_device() -> None:
    mounts = [{"point": "/run/x/in", "inside": "/xce/in", "read_only": True}]
    found = render.cdi("b7", {"A": "1"}, [Resolved(id="GPU-1", kind="gpu", files=[GPU])], mounts)
    jsonschema.validate(found, CDI_SCHEMA)
    assert (found["cdiVersion"], found["kind"]) == ("0.3.0", "xce.dev/claim")
    [device] = found["devices"]
    assert device["name"] == "b7"
    assert device["containerEdits"]["deviceNodes"][0]["path"] == "/dev/nvidia2"
    assert device["containerEdits"]["mounts"][0]["options"] == ["bind", "nosuid", "nodev", "ro"]


VOLUME = msgspec.structs.replace(GPU, kind="b", inside="/xce/disk", access="r")
MOUNT = {"point": "/run/x/in", "inside": "/xce/in", "read_only": False}
SHAPES: dict[str, tuple[str, list[File], list[dict[str, Any]], str]] = {
    "variables alone": ("b7", [], [], "0.3.0"),
    "a device": ("b7", [GPU], [], "0.3.0"),
    "a directory": ("b7", [], [MOUNT], "0.3.0"),
    "a device and directories": ("b7", [GPU], [MOUNT, MOUNT | {"read_only": True}], "0.3.0"),
    "a path on the host that is another one": ("b7", [VOLUME], [], "0.5.0"),
    "all of it": ("b7", [GPU, VOLUME], [MOUNT], "0.5.0"),
    "a name that begins with a digit": ("7", [GPU], [MOUNT], "0.5.0"),
    "a name that is none": ("b[7]", [GPU], [MOUNT], "0.3.0"),
}


@pytest.mark.parametrize(("name", "files", "mounts", "version"), SHAPES.values(), ids=SHAPES)
def test_a_cdi_file_is_of_the_lowest_version_that_has_all_that_is_in_it(
    name: str, files: list[File], mounts: list[dict[str, Any]], version: str
) -> None:
    """What is newer than an engine is no file for it at all; podman 4.2, of EL 8, knows 0.4."""
    found = render.cdi(name, {"A": "1", "B": ""}, [Resolved(id="1", kind="gpu", files=files)], mounts)
    jsonschema.validate(found, CDI_SCHEMA)
    assert found["cdiVersion"] == version == least(found)


def least(document: dict[str, Any]) -> str:
    """What the specification's table of versions asks for: the version of the newest field that is there."""
    (device,) = document["devices"]
    edits = device["containerEdits"]
    of_devices, of_mounts = (
        {key for one in edits.get(part, []) for key in one} for part in ("deviceNodes", "mounts")
    )
    (newest, *_) = [
        version
        for version, needed in (
            ("1.1.0", "netDevices" in edits),
            ("0.7.0", {"intelRdt", "additionalGids"} & edits.keys()),
            ("0.6.0", "annotations" in document | device or "." in document["kind"].rpartition("/")[2]),
            ("0.5.0", "hostPath" in of_devices),
            ("0.5.0", device["name"][0].isdecimal()),
            ("0.4.0", "type" in of_mounts),
            ("0.3.0", True),
        )
        if needed
    ]
    return newest


def test_a_binding_whose_name_is_no_cdi_name_gets_one() -> None:
    assert render.cdi_name("b7") == "b7"
    assert render.cdi_name("b[7]") == "x" + b"b[7]".hex()


_TEXT = {"type": "string"}
_NAME = {"type": "string", "pattern": "^[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?$"}
_NUMBER = {"type": "integer", "minimum": -(1 << 63), "maximum": (1 << 63) - 1}
_PATH = {"type": "string", "pattern": "^/."}
_EDITS = {
    "type": "object",
    "additionalProperties": False,
    "minProperties": 1,
    "properties": {
        "env": {"type": "array", "items": {"type": "string", "pattern": "^[^=]+="}},
        "deviceNodes": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["path"],
                "additionalProperties": False,
                "properties": {
                    "path": _PATH,
                    "hostPath": _PATH,
                    "type": {"enum": ["b", "c", "u", "p"]},
                    "major": _NUMBER,
                    "minor": _NUMBER,
                    "permissions": {"type": "string", "pattern": "^[rwm]*$"},
                },
            },
        },
        "mounts": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["hostPath", "containerPath"],
                "additionalProperties": False,
                "properties": {
                    "hostPath": _PATH,
                    "containerPath": _PATH,
                    "options": {"type": "array", "items": _TEXT},
                },
            },
        },
    },
}
CDI_SCHEMA = {
    "type": "object",
    "required": ["cdiVersion", "kind", "devices"],
    "additionalProperties": False,
    "properties": {
        "cdiVersion": {"enum": ["0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"]},
        "kind": {
            "type": "string",
            "pattern": "^[A-Za-z]([A-Za-z0-9._-]*[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9._-]*[A-Za-z0-9])?$",
        },
        "devices": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["name", "containerEdits"],
                "additionalProperties": False,
                "properties": {"name": _NAME, "containerEdits": _EDITS},
            },
        },
    },
}
"""What we write of CDI 1.1, as its schema and its reader have it (tags.cncf.io/container-device-interface).

Stricter than the schema, as the reader is: it refuses fields that it does not know, names and kinds of other
characters, and an edit that changes nothing.
"""
