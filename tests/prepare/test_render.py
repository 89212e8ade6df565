"""What consumers are told comes from one record."""

import jsonschema
import msgspec

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


def test_a_cdi_file_is_of_the_lowest_version_that_has_all_that_is_in_it() -> None:
    """What is newer than an engine is no file for it at all; podman 4.2, of EL 8, knows 0.4."""
    volume = msgspec.structs.replace(GPU, inside="/xce/disk")
    renamed = render.cdi("b7", {}, [Resolved(id="volume disk", kind="volume", files=[volume])], [])
    jsonschema.validate(renamed, CDI_SCHEMA)
    assert renamed["cdiVersion"] == "0.5.0", "a path on the host that is another one"
    assert render.cdi("7", {"A": "1"}, [], [])["cdiVersion"] == "0.5.0", "a name that begins with a digit"


def test_a_binding_whose_name_is_no_cdi_name_gets_one() -> None:
    assert render.cdi_name("b7") == "b7"
    assert render.cdi_name("b[7]") == "x" + b"b[7]".hex()


_TEXT = {"type": "string"}
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
                    "path": _TEXT,
                    "hostPath": _TEXT,
                    "type": {"enum": ["b", "c", "u", "p"]},
                    "major": {"type": "integer"},
                    "minor": {"type": "integer"},
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
                    "hostPath": _TEXT,
                    "containerPath": _TEXT,
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
        "cdiVersion": _TEXT,
        "kind": {"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9._-]*/[A-Za-z][A-Za-z0-9._-]*$"},
        "devices": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["name", "containerEdits"],
                "additionalProperties": False,
                "properties": {"name": _TEXT, "containerEdits": _EDITS},
            },
        },
    },
}
"""The part of the CDI specification that we write (tags.cncf.io/container-device-interface)."""
