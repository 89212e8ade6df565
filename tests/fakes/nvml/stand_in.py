"""A stand-in for NVIDIA's management library, built by gcc, for the real pynvml.

`build` makes `libnvidia-ml.so.1` once in a run for each set of missing functions. A `StandIn` is a folder of
files that the library reads anew whenever they change:

- `answers`: one `KEY=VALUE` a line. `driver`, `cuda`, `count`, `excluded.N` are the library's; `N.uuid`,
  `N.pci`, `N.mig.current`, `N.mig.M.gi`, `N.gi.M.start`, `N.profile.P.id`, `N.link.L.active` are those of GPU
  N. What is not there is "not supported".
- `control`: the same, looked at first, and orders: `code.FUNCTION.N=15` answers that code, `sleep` and `once`
  (the first time only) take milliseconds, `leak` bytes; `hang` and `crash` do what they say. FUNCTION and N
  may be `*`; calls that are about no GPU have N -1.
- `events`: XIDs, one a line, told to every event set that was there before.
"""

import functools
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ABI = HERE.parents[1] / "hardware" / "tables" / "nvml-abi.json"
MIB = 1 << 20
CODES = {"NVML_ERROR_LIB_RM_VERSION_MISMATCH": 18, "NVML_ERROR_GPU_IS_LOST": 15}

OLD_DRIVER = (
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetGpuInstanceProfileInfoV",
    "nvmlDeviceGetModuleId",
    "nvmlDeviceGetAddressingMode",
    "nvmlDeviceGetPlatformInfo",
    "nvmlDeviceGetC2cModeInfoV",
    "nvmlDeviceGetRemappedRows",
)
"""Functions that drivers of some years ago did not have."""


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []  # removed when the run ends


@functools.cache
def build(absent: tuple[str, ...] = ()) -> Path:
    """The library, without the functions named. One compilation for each set in a run."""
    _FOLDERS.append(tempfile.TemporaryDirectory(prefix="xce-nvml-"))
    folder = Path(_FOLDERS[-1].name)
    library, script = folder / "libnvidia-ml.so.1", folder / "symbols"
    hidden = " ".join(f"{name};" for name in absent)
    script.write_text(f"{{ global: nvml*; local: {hidden} *; }};\n")
    sizes = json.loads(ABI.read_text())["structs"]
    subprocess.run(
        [
            *("gcc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"),
            *(f"-DABI_{name}={about['size']}" for name, about in sizes.items()),
            *(f"-Wl,--version-script={script}", "-Wl,-soname,libnvidia-ml.so.1"),
            *("-o", str(library), str(HERE / "nvml.c")),
        ],
        check=True,
    )
    return library


class StandIn:
    """One folder of answers."""

    def __init__(self, folder: Path, answers: Mapping[str, object], *, absent: tuple[str, ...] = ()) -> None:
        self.folder, self.library = folder, build(absent)
        folder.mkdir(parents=True, exist_ok=True)
        self.answer(answers)

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to find this instead of the vendor's library."""
        return {"XCE_TEST_NVML": str(self.folder), "LD_LIBRARY_PATH": str(self.library.parent)}

    def answer(self, answers: Mapping[str, object]) -> None:
        """Replace all answers."""
        self._write("answers", answers)

    def control(self, orders: Mapping[str, object] | None = None) -> None:
        """Replace all orders; none: the library does nothing special."""
        self._write("control", orders or {})

    def xid(self, gpu: int, number: int, gi: int = -1, ci: int = -1) -> None:
        """Tell an XID."""
        with (self.folder / "events").open("a") as file:
            file.write(f"{gpu} {number} {gi} {ci}\n")

    def _write(self, name: str, lines: Mapping[str, object]) -> None:
        new = self.folder / f"{name}.new"
        new.write_text("".join(f"{key}={_text(value)}\n" for key, value in lines.items()))
        os.replace(new, self.folder / name)


def _text(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


# ---------------------------------------------------------------------------------------- recorded machines

_SWITCH = {"Enabled": 1, "Disabled": 0, "Yes": 1, "No": 0}
_WORDS: dict[str, dict[str, int]] = {
    "brand": {"NVIDIA": 14, "Tesla": 2},
    "architecture": {"Turing": 6, "Ampere": 7, "Hopper": 9, "Blackwell": 10},
    "compute_mode": {"Default": 0, "Prohibited": 2, "Exclusive_Process": 3},
    "addressing_mode": {"None": 0, "HMM": 1, "ATS": 2},
    "virtualization_mode": {"None": 0, "Pass-Through": 1, "VGPU": 2, "Host VGPU": 3, "Host VSGA": 4},
    "fabric_state": {"Not Supported": 0, "Not Started": 1, "In Progress": 2, "Completed": 3},
    "fabric_health": {"Healthy": 1, "Unhealthy": 2, "Limited Capacity": 3},
    "recovery_action": {"None": 0, "Reset": 1, "Reboot": 2, "Drain P2P": 3, "Drain and Reset": 4},
    "peer_type": {"Direct Connected": 0, "Switch Connected": 1},
}


def recorded(machine: Mapping[str, Any]) -> dict[str, object]:
    """The answers of a recorded machine (`nvml.json`), as the library gives them: numbers, not words."""
    system = machine["system"]
    lines: dict[str, object] = {}
    _put(lines, "driver", system.get("driver_version"))
    _put(lines, "count", system.get("attached_gpus"))
    if system.get("cuda_version"):
        major, minor = system["cuda_version"].split(".")
        lines["cuda"] = int(major) * 1000 + int(minor) * 10
    for device in machine["devices"]:
        for name, value in _device(device).items():
            _put(lines, f"{device['index']}.{name}", value)
    return lines


def _put(lines: dict[str, object], name: str, value: object) -> None:
    if value is not None:
        lines[name] = value


def _word(device: Mapping[str, Any], name: str) -> int | None:
    word = device.get(name)
    return None if word is None else _WORDS[name][word]


def _device(device: Mapping[str, Any]) -> dict[str, object]:
    memory, rows = device.get("memory_mib") or {}, device.get("remapped_rows")
    found: dict[str, object] = {
        **{name: device.get(name) for name in ("index", "uuid", "name", "minor", "serial", "vbios")},
        "pci": device.get("busId"),
        "board_id": device.get("board_id"),
        "board_part": device.get("board_part_number"),
        "multi_board": device.get("multigpu_board"),
        "module": device.get("module_id"),
        "persistence": _SWITCH.get(device.get("persistence") or ""),
        "compute_mode": _word(device, "compute_mode"),
        "addressing": _word(device, "addressing_mode"),
        "brand": _word(device, "brand"),
        "architecture": _word(device, "architecture"),
        "virtualization": _word(device, "virtualization_mode"),
        "field.230": _word(device, "recovery_action"),
        "c2c": _SWITCH.get(device.get("c2c") or ""),
        "memory": memory["total"] * MIB if memory else None,
        "reserved": memory["reserved"] * MIB if memory else None,
        "bar1": device["bar1_total_mib"] * MIB if device.get("bar1_total_mib") else None,
        "ecc": _SWITCH.get(device.get("ecc_current") or ""),
        "ecc_pending": _SWITCH.get(device.get("ecc_pending") or ""),
        "retired_pending": _SWITCH.get(device.get("retired_pages_pending") or ""),
        "retired_single": device.get("retired_pages_single"),
        "pcie_gen_max": device.get("pcie_gen_max"),
        "pcie_width_max": (device.get("pcie_width_max") or "").rstrip("x") or None,
        "events": 8,
        **_fabric(device.get("fabric") or {}),
        **_mig(device),
    }
    if rows:
        found["remapped"] = (
            f"{rows['corr']} {rows['unc']} {_SWITCH[rows['pending']]} {_SWITCH[rows['failure']]}"
        )
    platform = device.get("platform") or {}
    if platform.get("host_id") is not None:
        found["platform"] = " ".join(
            str(value)
            for value in (
                platform["gpu_fabric_guid"],
                platform["slot_number"] or 0,
                platform["tray_index"] or 0,
                platform["host_id"],
                _word(platform, "peer_type"),
                platform["chassis_serial_number"] or "",
            )
        )
    return found


def _fabric(fabric: Mapping[str, Any]) -> dict[str, object]:
    if fabric.get("state") is None:
        return {}
    return {
        "fabric.state": _WORDS["fabric_state"][fabric["state"]],
        "fabric.status": {"Success": 0}[fabric["status"]],
        "fabric.clique": fabric["clique_id"],
        "fabric.cluster": fabric["cluster_uuid"],
        "fabric.summary": _WORDS["fabric_health"].get(fabric.get("health") or "", 0),
    }


PROFILE_IDS = {"1g.5gb": 19, "2g.10gb": 14, "3g.20gb": 9, "4g.20gb": 5, "7g.40gb": 0}
"""Of A100-40GB, as the driver numbers them."""


def _mig(device: Mapping[str, Any]) -> dict[str, object]:
    if device.get("mig_current") is None:
        return {}
    current = _SWITCH[device["mig_current"]]
    slices = [
        {**each, "name": f"{device['name']} MIG {each['profile']}", "memory": each["memory_mib"]}
        for each in device.get("mig_devices", ())
    ]
    pending = device.get("mig_pending")
    return {**mig(slices), "mig.current": current, "mig.pending": _SWITCH[pending] if pending else current}


def mig(slices: list[dict[str, Any]], layout: int = 1) -> dict[str, object]:
    """MIG devices (with gaps, if `mig_index` has some) and the GPU instances that they are in."""
    lines: dict[str, object] = {"mig.max": 7, "mig.layout": layout}
    instances: dict[int, dict[str, object]] = {}
    for each in slices:
        at = each["mig_index"]
        for name in ("uuid", "name", "gi", "ci", "sm", "ce", "dec", "memory"):
            _put(lines, f"mig.{at}.{name}", each.get(name))
        start, size = each["placement"]
        instances[each["gi"]] = {
            "id": each["gi"],
            "profile": PROFILE_IDS[each["profile"]],
            "start": start,
            "size": size,
        }
    for number, instance in enumerate(instances.values()):
        lines |= {f"gi.{number}.{name}": value for name, value in instance.items()}
    return lines


def profiles(rows: list[tuple[int, str, int, str, int]]) -> dict[str, object]:
    """GPU instance profiles: (number, name, id, placements as `0:4 4:4`, memory in MiB)."""
    lines: dict[str, object] = {}
    for number, name, identity, placements, memory in rows:
        lines |= {
            f"profile.{number}.id": identity,
            f"profile.{number}.name": f"MIG {name}",
            f"profile.{number}.placements": placements,
            f"profile.{number}.instances": len(placements.split()),
            f"profile.{number}.slices": int(name[0]),
            f"profile.{number}.memory": memory,
            f"profile.{number}.remaining": 0,
        }
    return lines


def of_gpu(number: int, lines: Mapping[str, object]) -> dict[str, object]:
    """The same lines as those of one GPU."""
    return {f"{number}.{name}": value for name, value in lines.items()}


# ----------------------------------------------------------------------------- the small format of the cases


def steps(case: Mapping[str, Any]) -> list[tuple[float, dict[str, object], dict[str, object]]]:
    """(second, answers, orders) of a case's file; one without steps is one step at 0."""
    found: list[tuple[float, dict[str, object], dict[str, object]]] = []
    answers: dict[str, object] = {}
    for step in case.get("steps") or [{"at_s": 0, **case}]:
        orders: dict[str, object] = {}
        if "devices" in step:
            answers = _case_answers(step["devices"])
        for index, error in (step.get("index_errors") or {}).items():
            orders[f"code.*.{index}"] = CODES[error]
        if step.get("init_error"):
            orders["code.*.-1"] = CODES[step["init_error"]]
        driver = step.get("driver") or case.get("driver")
        answers = {**answers, **({"driver": driver} if driver else {})}
        found.append((float(step["at_s"]), answers, orders))
    return found


def _case_answers(devices: list[dict[str, Any]]) -> dict[str, object]:
    lines: dict[str, object] = {}
    for device in devices:
        mine: dict[str, object] = {
            "index": device["index"],
            "uuid": device["uuid"],
            "minor": device["minor"],
            "pci": device["bus_id"],
            "name": "NVIDIA A100-SXM4-40GB",
            "events": 8,
        }
        if "mig" in device:
            mine |= {"mig.max": 7, "mig.layout": 1}
            mine |= {"mig.current": device["mig"]["current"], "mig.pending": device["mig"]["pending"]}
        lines |= of_gpu(device["index"], mine)
    return lines
