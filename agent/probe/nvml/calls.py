"""What is asked of a GPU, and what each question costs.

Every function takes a handle and returns fields of `facts.NvidiaGpu` by name (`mig.` before a field of its
`facts.Mig`). It may raise `pynvml.NVMLError`; `library.py` says what that means.
"""

import ctypes
import uuid
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pynvml

from xce.agent.probe import facts
from xce.agent.probe.governor import Cost

Handle = Any
Fields = Mapping[str, object]

UNKNOWN_CODES = frozenset(
    {
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_NO_DATA,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_DEPRECATED,
        pynvml.NVML_ERROR_NOT_READY,
    }
)
"""Answers that only mean that there is nothing to know: this driver or this board does not have it."""

BRANDS = {
    1: "quadro", 2: "tesla", 3: "nvs", 4: "grid", 5: "geforce", 6: "titan", 7: "vapps", 8: "vpc", 9: "vcs",
    10: "vws", 11: "cloud-gaming", 12: "quadro-rtx", 13: "nvidia-rtx", 14: "nvidia", 15: "geforce-rtx",
    16: "titan-rtx",
}  # fmt: skip
ARCHITECTURES = {
    2: "kepler", 3: "maxwell", 4: "pascal", 5: "volta", 6: "turing", 7: "ampere", 8: "ada", 9: "hopper",
    10: "blackwell", 13: "rubin",
}  # fmt: skip
COMPUTE_MODES = {0: "default", 1: "exclusive-thread", 2: "prohibited", 3: "exclusive-process"}
ADDRESSING = {0: "none", 1: "hmm", 2: "ats"}
VIRTUALIZATION = {0: "none", 1: "pass-through", 2: "vgpu", 3: "host-vgpu", 4: "host-vsga"}
PEERS = {0: "Direct Connected", 1: "Switch Connected"}
RECOVERY = {
    0: "none", 1: "reset", 2: "reboot", 3: "drain-p2p", 4: "drain-and-reset", 5: "recover-imex",
    6: "bus-reset", 7: "system-reboot",
}  # fmt: skip
UNCORRECTED, VOLATILE = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC


def known(ask: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """The answer, or None if there is nothing to know."""
    try:
        return ask(*arguments, **keywords)
    except pynvml.NVMLError as error:
        if error.value not in UNKNOWN_CODES:
            raise
        return None


def address(pci: Any) -> str:
    """The address of an nvmlPciInfo_t, of its numbers: the old text cuts the domain. A GPU is function 0."""
    return f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"


def _name(handle: Handle) -> Fields:
    return {"name": pynvml.nvmlDeviceGetName(handle)}


def _minor(handle: Handle) -> Fields:
    return {"minor": pynvml.nvmlDeviceGetMinorNumber(handle)}


def _serial(handle: Handle) -> Fields:
    return {"serial": pynvml.nvmlDeviceGetSerial(handle)}


def _board(handle: Handle) -> Fields:
    multi = known(pynvml.nvmlDeviceGetMultiGpuBoard, handle)
    return {
        "board_id": known(pynvml.nvmlDeviceGetBoardId, handle),
        "board_part": known(pynvml.nvmlDeviceGetBoardPartNumber, handle),
        "multi_board": None if multi is None else bool(multi),
    }


def _module(handle: Handle) -> Fields:
    """Given a reference, the wrapper returns the code; its default one is shared by all calls."""
    module = ctypes.c_uint()
    code = pynvml.nvmlDeviceGetModuleId(handle, ctypes.byref(module))
    if code != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(code)
    return {"module": module.value}


def _kind(handle: Handle) -> Fields:
    brand = known(pynvml.nvmlDeviceGetBrand, handle)
    architecture = known(pynvml.nvmlDeviceGetArchitecture, handle)
    capability = known(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    return {
        "brand": BRANDS.get(brand),
        "architecture": ARCHITECTURES.get(architecture),
        "compute_capability": None if capability is None else f"{capability[0]}.{capability[1]}",
        "cores": known(pynvml.nvmlDeviceGetNumGpuCores, handle),
    }


def _firmware(handle: Handle) -> Fields:
    gsp = known(pynvml.nvmlDeviceGetGspFirmwareVersion, handle)
    return {
        "vbios": known(pynvml.nvmlDeviceGetVbiosVersion, handle),
        "gsp": gsp.decode("ascii", "replace") if isinstance(gsp, bytes) else gsp,
    }


def _memory(handle: Handle) -> Fields:
    memory = known(pynvml.nvmlDeviceGetMemoryInfo, handle, version=pynvml.nvmlMemory_v2)
    if memory is not None:
        return {"memory": memory.total, "reserved": memory.reserved}
    return {"memory": pynvml.nvmlDeviceGetMemoryInfo(handle).total}


def _bar1(handle: Handle) -> Fields:
    return {"bar1": pynvml.nvmlDeviceGetBAR1MemoryInfo(handle).bar1Total}


def _addressing(handle: Handle) -> Fields:
    node = known(pynvml.nvmlDeviceGetNumaNodeId, handle)
    c2c = known(pynvml.nvmlDeviceGetC2cModeInfoV, handle)
    return {
        "addressing": ADDRESSING.get(known(pynvml.nvmlDeviceGetAddressingMode, handle)),
        "c2c": None if c2c is None else bool(c2c.isC2cEnabled),
        "numa_memory": node if node is not None and node >= 0 else None,
    }


def _pcie_most(handle: Handle) -> Fields:
    return {
        "pcie_gen_max": known(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
        "pcie_width_max": known(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
    }


def _pcie_now(handle: Handle) -> Fields:
    return {
        "pcie_gen": known(pynvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
        "pcie_width": known(pynvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
    }


def _virtualization(handle: Handle) -> Fields:
    return {"virtualization": VIRTUALIZATION.get(pynvml.nvmlDeviceGetVirtualizationMode(handle))}


def _platform(handle: Handle) -> Fields:
    info = pynvml.c_nvmlPlatformInfo_v2_t()
    pynvml.nvmlDeviceGetPlatformInfo(handle, ctypes.byref(info))
    raw = bytes(info)  # the wrapper's character fields end at the first zero byte
    guid, chassis = raw[4:20], raw[20:36].split(b"\0")[0].decode("ascii", "replace")
    slot, tray, host, peer = raw[36:40]
    found = {
        "chassis_serial_number": chassis,
        "slot_number": str(slot) if chassis else "",
        "tray_index": str(tray) if chassis else "",
        "host_id": str(host),
        "peer_type": PEERS.get(peer, ""),
        "gpu_fabric_guid": f"0x{int.from_bytes(guid[:8], 'big'):016x}" if any(guid) else "",
    }
    return {"platform": {name: value for name, value in found.items() if value}}


def _modes(handle: Handle) -> Fields:
    persistence = known(pynvml.nvmlDeviceGetPersistenceMode, handle)
    return {
        "compute_mode": COMPUTE_MODES.get(known(pynvml.nvmlDeviceGetComputeMode, handle)),
        "persistence": None if persistence is None else bool(persistence),
    }


def _mig_mode(handle: Handle) -> Fields:
    current, pending = pynvml.nvmlDeviceGetMigMode(handle)
    return {"mig.current": bool(current), "mig.pending": bool(pending)}


def _ecc(handle: Handle) -> Fields:
    current, pending = pynvml.nvmlDeviceGetEccMode(handle)
    return {"ecc": bool(current), "ecc_pending": bool(pending)}


def _uncorrected(handle: Handle) -> Fields:
    return {"uncorrected": pynvml.nvmlDeviceGetTotalEccErrors(handle, UNCORRECTED, VOLATILE)}


def _remapped(handle: Handle) -> Fields:
    correctable, uncorrectable, pending, failed = pynvml.nvmlDeviceGetRemappedRows(handle)
    return {
        "remapped_correctable": correctable,
        "remapped_uncorrectable": uncorrectable,
        "remap_pending": bool(pending),
        "remap_failed": bool(failed),
    }


def _retirement(handle: Handle) -> Fields:
    return {"retired_pending": bool(pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle))}


def _retired(handle: Handle) -> Fields:
    causes = (
        pynvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS,
        pynvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,
    )
    return {"retired_pages": sum(len(pynvml.nvmlDeviceGetRetiredPages_v2(handle, cause)) for cause in causes)}


def _recovery(handle: Handle) -> Fields:
    field = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])[0]
    if field.nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(field.nvmlReturn)
    return {"recovery": RECOVERY.get(field.value.uiVal, f"action-{field.value.uiVal}")}


def _mps(handle: Handle) -> Fields:
    return {"mps": bool(pynvml.nvmlDeviceGetMPSComputeRunningProcesses(handle))}


def _fabric(handle: Handle) -> Fields:
    """The newest form that the driver knows."""
    for info in (pynvml.c_nvmlGpuFabricInfo_v3_t(), pynvml.c_nvmlGpuFabricInfo_v2_t()):
        if known(pynvml.nvmlDeviceGetGpuFabricInfoV, handle, ctypes.byref(info)) is not None:
            return {"fabric": _fabric_facts(info)}
    info = pynvml.c_nvmlGpuFabricInfo_t()
    pynvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
    return {"fabric": _fabric_facts(info)}


def _fabric_facts(info: Any) -> facts.Fabric:
    return facts.Fabric(
        state=info.state,
        status=info.status,
        cluster=str(uuid.UUID(bytes=bytes(info.clusterUuid))),
        clique=info.cliqueId,
        health=getattr(info, "healthMask", None),
        summary=getattr(info, "healthSummary", None),
    )


def _links(handle: Handle) -> Fields:
    found = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        active = known(pynvml.nvmlDeviceGetNvLinkState, handle, link)
        if active is None:
            break
        remote = known(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
        found.append(
            facts.NvLink(
                link=link,
                active=bool(active),
                version=known(pynvml.nvmlDeviceGetNvLinkVersion, handle, link),
                remote=None if remote is None else address(remote),
                remote_type=known(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link),
            )
        )
    return {"links": tuple(found)}


class Call(NamedTuple):
    """One row of the table."""

    name: str
    cost: Cost
    ask: Callable[[Handle], Fields]


CALLS: tuple[Call, ...] = (
    Call("MigMode", Cost.FAST, _mig_mode),  # first: a change of it makes all others stale
    Call("RecoveryAction", Cost.FAST, _recovery),
    Call("RemappedRows", Cost.FAST, _remapped),
    Call("RetiredPagesPendingStatus", Cost.FAST, _retirement),
    Call("TotalEccErrors", Cost.FAST, _uncorrected),
    Call("GpuFabricInfo", Cost.FAST, _fabric),
    Call("Modes", Cost.FAST, _modes),
    Call("EccMode", Cost.SLOW, _ecc),
    Call("RetiredPages", Cost.SLOW, _retired),
    Call("PcieLink", Cost.SLOW, _pcie_now),
    Call("NvLinks", Cost.SLOW, _links),
    Call("MPSComputeRunningProcesses", Cost.SLOW, _mps),
    Call("Name", Cost.STATIC, _name),
    Call("MinorNumber", Cost.STATIC, _minor),
    Call("Serial", Cost.STATIC, _serial),
    Call("Board", Cost.STATIC, _board),
    Call("ModuleId", Cost.STATIC, _module),
    Call("Kind", Cost.STATIC, _kind),
    Call("Firmware", Cost.STATIC, _firmware),
    Call("MemoryInfo", Cost.STATIC, _memory),
    Call("BAR1MemoryInfo", Cost.STATIC, _bar1),
    Call("Addressing", Cost.STATIC, _addressing),
    Call("MaxPcieLink", Cost.STATIC, _pcie_most),
    Call("VirtualizationMode", Cost.STATIC, _virtualization),
    Call("PlatformInfo", Cost.STATIC, _platform),
)
