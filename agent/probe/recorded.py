"""`nvml.json`, what a recorded machine's NVIDIA library answered, as the facts that the probe would read.

Pure. The format is that of the recordings: one object per GPU with the library's words by meaning, null where
it said "not supported". What is not there stays unknown. Nothing here is used on a real machine.
"""

from typing import Annotated

import msgspec

from xce.agent.probe.facts import Fabric, Mig, MigSlice, Nvidia, NvidiaGpu

MIB = 1 << 20

_Words = dict[str, str | int | None]
_ENABLED = {"Enabled": True, "Yes": True, "Disabled": False, "No": False}
_FABRIC = {"Not Supported": 0, "Not Started": 1, "In Progress": 2, "Completed": 3}
_COMPUTE = {"Default": "default", "Exclusive_Process": "exclusive-process", "Prohibited": "prohibited"}


class System(msgspec.Struct, frozen=True):
    """What was said of the driver."""

    driver_version: str | None = None
    cuda_version: str | None = None
    attached_gpus: str | int | None = None


class Memory(msgspec.Struct, frozen=True):
    """Memory of a GPU, in MiB."""

    total: int | None = None
    reserved: int | None = None


class Slice(msgspec.Struct, frozen=True):
    """One MIG device."""

    uuid: str
    gi: int | None = None
    ci: int | None = None
    profile: str | None = None
    placement: tuple[int, int] | None = None
    memory_mib: int | None = None
    sm: int | None = None
    ce: int | None = None
    dec: int | None = None
    enc: int | None = None
    jpg: int | None = None
    ofa: int | None = None


class Device(msgspec.Struct, frozen=True):
    """One GPU. Keys that are of no use here are passed over."""

    index: int
    uuid: str
    sysfs: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")] | None = (
        None
    )
    name: str | None = None
    brand: str | None = None
    architecture: str | None = None
    compute_capability: str | None = None
    minor: int | None = None
    serial: str | None = None
    board_id: str | None = None
    board_part_number: str | None = None
    multigpu_board: bool | None = None
    module_id: str | None = None
    vbios: str | None = None
    persistence: str | None = None
    compute_mode: str | None = None
    addressing_mode: str | None = None
    c2c: str | None = None
    mig_current: str | None = None
    mig_pending: str | None = None
    mig_devices: list[Slice] = []
    memory_mib: Memory = Memory()
    bar1_total_mib: int | None = None
    ecc_current: str | None = None
    ecc_pending: str | None = None
    retired_pages_pending: str | None = None
    remapped_rows: _Words | None = None
    recovery_action: str | None = None
    virtualization_mode: str | None = None
    pcie_gen_max: str | None = None
    pcie_width_max: str | None = None
    fabric: _Words | None = None
    platform: _Words = {}


class Answers(msgspec.Struct, frozen=True):
    """The file."""

    system: System = System()
    devices: list[Device] = []


def nvidia(text: bytes) -> Nvidia:
    """The facts. Raises `msgspec.MsgspecError`, a ValueError, for what is no such file."""
    answers = msgspec.json.decode(text, type=Answers)
    count = answers.system.attached_gpus
    return Nvidia(
        driver=answers.system.driver_version,
        cuda=answers.system.cuda_version,
        count=int(count) if count is not None else len(answers.devices),
        gpus=tuple(_gpu(device) for device in answers.devices),
    )


def _gpu(device: Device) -> NvidiaGpu:
    rows = device.remapped_rows or {}
    return NvidiaGpu(
        index=device.index,
        uuid=device.uuid,
        pci=device.sysfs,
        minor=device.minor,
        name=device.name,
        serial=device.serial,
        board_id=int(device.board_id, 16) if device.board_id else None,
        board_part=device.board_part_number,
        multi_board=device.multigpu_board,
        module=_number(device.module_id),
        brand=device.brand.lower() if device.brand else None,
        architecture=device.architecture.lower() if device.architecture else None,
        compute_capability=device.compute_capability,
        memory=_bytes(device.memory_mib.total),
        reserved=_bytes(device.memory_mib.reserved),
        bar1=_bytes(device.bar1_total_mib),
        ecc=_switch(device.ecc_current),
        ecc_pending=_switch(device.ecc_pending),
        compute_mode=_COMPUTE.get(device.compute_mode or ""),
        persistence=_switch(device.persistence),
        addressing=device.addressing_mode.lower() if device.addressing_mode else None,
        c2c=_switch(device.c2c),
        vbios=device.vbios,
        pcie_gen_max=_number(device.pcie_gen_max),
        pcie_width_max=_number(device.pcie_width_max),
        virtualization=device.virtualization_mode.lower() if device.virtualization_mode else None,
        fabric=_fabric(device.fabric),
        platform={name: str(value) for name, value in device.platform.items() if value is not None},
        mig=_mig(device),
        remapped_correctable=_number(rows.get("corr")),
        remapped_uncorrectable=_number(rows.get("unc")),
        remap_pending=_switch(rows.get("pending")),
        remap_failed=_switch(rows.get("failure")),
        retired_pending=_switch(device.retired_pages_pending),
        recovery=device.recovery_action.lower() if device.recovery_action else None,
    )


def _mig(device: Device) -> Mig:
    slices = [
        MigSlice(
            uuid=one.uuid,
            gi=one.gi,
            ci=one.ci,
            profile=one.profile,
            placement=one.placement,
            memory=_bytes(one.memory_mib),
            sm=one.sm,
            engines={
                name: count
                for name in ("ce", "dec", "enc", "jpg", "ofa")
                if (count := getattr(one, name)) is not None
            },
        )
        for one in device.mig_devices
    ]
    return Mig(current=_switch(device.mig_current), pending=_switch(device.mig_pending), slices=tuple(slices))


def _fabric(words: _Words | None) -> Fabric | None:
    if words is None or words.get("state") is None:
        return None
    cluster, clique = words.get("cluster_uuid"), words.get("clique_id")
    return Fabric(
        state=_FABRIC.get(str(words["state"])),
        status=0 if words.get("status") == "Success" else None,
        cluster=str(cluster) if cluster is not None else None,
        clique=_number(clique),
    )


def _switch(word: object) -> bool | None:
    return _ENABLED.get(str(word))


def _number(word: object) -> int | None:
    """`16x` is 16."""
    digits = str(word).rstrip("x")
    return int(digits) if digits.isdecimal() else None


def _bytes(mib: int | None) -> int | None:
    return mib * MIB if mib is not None else None
