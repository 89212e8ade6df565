"""What a consumer is told, from one record: variables, a JSON document, a CDI file. Pure.

Libraries choose devices by variables; the device filter is what keeps the rest away. Both come from the same
list, so they cannot disagree. Order numbers are used only where a library knows nothing else, and count what
the filter lets it see.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from xce.prepare.devices import Resolved

CDI_KIND = "xce.dev/claim"
BINDING = "XCE_BINDING"
"""The variable that says whose a process is."""
INSIDE = "/xce"
"""Where mounts and devices of volumes are in a container."""
_CDI_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?")


def device_variables(devices: Sequence[Resolved]) -> dict[str, str]:
    """Variables by which libraries find their devices."""
    variables: dict[str, str] = {}
    gpus = [one for one in devices if one.vendor == "nvidia" and one.kind in {"gpu", "mig"}]
    if gpus:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(one.id for one in gpus)
        variables["NVIDIA_VISIBLE_DEVICES"] = ",".join(one.id for one in gpus)
    amd = [
        one for one in devices if one.vendor == "amd" and one.kind in {"gpu", "gpu-partition", "accelerator"}
    ]
    if amd:
        known = [one.id if one.id.startswith("GPU-") and one.kind == "gpu" else "" for one in amd]
        numbers = _count(amd)
        variables["ROCR_VISIBLE_DEVICES"] = ",".join(known) if all(known) else numbers
        variables["HIP_VISIBLE_DEVICES"] = numbers  # counts what ROCR_VISIBLE_DEVICES has left
        variables["GPU_DEVICE_ORDINAL"] = numbers
    intel = [one for one in devices if one.vendor == "intel" and one.kind in {"gpu", "accelerator"}]
    if intel:
        variables["ZE_AFFINITY_MASK"] = _count(intel)
    return variables | _network_variables(devices)


def _network_variables(devices: Sequence[Resolved]) -> dict[str, str]:
    rdma = [name for one in devices for name in one.rdma]
    nets = [name for one in devices for name in one.nets]
    variables = {}
    if rdma:
        variables["NCCL_IB_HCA"] = "=" + ",".join(rdma)  # without '=' mlx5_1 would also mean mlx5_10
    if nets:
        variables["NCCL_SOCKET_IFNAME"] = "=" + ",".join(nets)
    if rdma or nets:
        variables["UCX_NET_DEVICES"] = ",".join([*rdma, *nets])
    return variables


def _count(devices: Sequence[Resolved]) -> str:
    return ",".join(str(number) for number in range(len(devices)))


def env_file(variables: Mapping[str, str]) -> str:
    """NAME=VALUE lines; systemd's EnvironmentFile and podman's --env-file read them."""
    return "".join(f"{name}={value}\n" for name, value in sorted(variables.items()))


def cdi_name(binding: str) -> str:
    """A binding's device in the CDI file."""
    return binding if _CDI_NAME.fullmatch(binding) else "x" + binding.encode().hex()


def cdi(
    binding: str,
    variables: Mapping[str, str],
    devices: Sequence[Resolved],
    mounts: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """A CDI specification with one device, the binding: `podman run --device xce.dev/claim=b1042`.

    Its version is the lowest that has all that is in it: an engine refuses what is newer than itself, and a
    file of 1.x has nothing that one of 0.5 lacks here.
    """
    files = {file.path: file for one in devices for file in one.files}
    edits: dict[str, Any] = {"env": [f"{name}={value}" for name, value in sorted(variables.items())]}
    if files:
        edits["deviceNodes"] = [
            {
                "path": file.inside or file.path,
                **({"hostPath": file.path} if file.inside else {}),
                "type": file.kind,
                "major": file.major,
                "minor": file.minor,
                "permissions": file.access,
            }
            for _, file in sorted(files.items())
        ]
    if mounts:
        edits["mounts"] = [
            {
                "hostPath": mount["point"],
                "containerPath": mount["inside"],
                "options": ["bind", "nosuid", "nodev", "ro" if mount["read_only"] else "rw"],
            }
            for mount in mounts
        ]
    name = cdi_name(binding)
    newer = name[0].isdecimal() or any(file.inside for file in files.values())
    return {
        "cdiVersion": "0.5.0" if newer else "0.3.0",
        "kind": CDI_KIND,
        "devices": [{"name": name, "containerEdits": edits}],
    }
