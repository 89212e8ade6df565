"""MIG of one GPU as the library states it. Nothing is computed from an id; what is not stated is unknown."""

import ctypes
import re
from typing import Any

import pynvml

from xce.agent.probe import facts
from xce.agent.probe.nvml.calls import UNKNOWN_CODES, Fields, Handle, known

MIB = 1 << 20
MOST_PLACEMENTS = 64
_PROFILE = re.compile(r"\bMIG (\S+)$")


def profiles(handle: Handle) -> Fields:
    """GPU instance profiles with their places, and which GPU instances there are (with what placement)."""
    found, instances = [], []
    for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        info = known(_profile_info, handle, number)
        if info is None:
            continue
        found.append(_profile(handle, info))
        instances += [pynvml.nvmlGpuInstanceGetInfo(each).id for each in _instances(handle, info)]
    return {"mig.profiles": tuple(found), "mig.bare": tuple(sorted(instances))}


def _profile_info(handle: Handle, number: int) -> Any:
    """Version 2 has the name; older drivers know version 1 alone."""
    newer = known(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, number)
    return (
        newer if newer is not None else pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number, version=1)
    )


def _profile(handle: Handle, info: Any) -> facts.MigProfile:
    return facts.MigProfile(
        id=info.id,
        name=_profile_name(info),
        slices=info.sliceCount,
        memory=info.memorySizeMB * MIB,
        placements=_placements(handle, info),
        instances=info.instanceCount,
        remaining=known(pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity, handle, info.id),
        sm=info.multiprocessorCount,
        engines={
            "ce": info.copyEngineCount,
            "dec": info.decoderCount,
            "enc": info.encoderCount,
            "jpg": info.jpegCount,
            "ofa": info.ofaCount,
        },
    )


def _profile_name(info: Any) -> str:
    name = getattr(info, "name", b"")
    text: str = name.decode("ascii", "replace") if isinstance(name, bytes) else name
    return text.removeprefix("MIG ") or f"profile-{info.id}"


def _placements(handle: Handle, info: Any) -> tuple[tuple[int, int], ...]:
    count = ctypes.c_uint(0)
    ask = pynvml.nvmlDeviceGetGpuInstancePossiblePlacements
    if known(ask, handle, info.id, None, ctypes.byref(count)) is None:
        return ()
    places = (pynvml.c_nvmlGpuInstancePlacement_t * min(count.value, MOST_PLACEMENTS))()
    count = ctypes.c_uint(len(places))
    ask(handle, info.id, places, ctypes.byref(count))
    return tuple((place.start, place.size) for place in places[: count.value])


def _instances(handle: Handle, info: Any) -> list[Any]:
    room = (pynvml.c_nvmlGpuInstance_t * max(info.instanceCount, 1))()
    count = ctypes.c_uint(0)
    ask = pynvml.nvmlDeviceGetGpuInstances
    if known(ask, handle, info.id, room, ctypes.byref(count)) is None:
        return []
    return list(room[: count.value])


def slices(handle: Handle) -> Fields:
    """The MIG devices that exist. Their index has gaps and moves; it is used for asking and forgotten."""
    found = []
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        device = known(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        if device is not None:
            found.append(_slice(handle, device))
    return {"mig.slices": tuple(found)}


def _slice(parent: Handle, device: Handle) -> facts.MigSlice:
    name = known(pynvml.nvmlDeviceGetName, device)
    profile = _PROFILE.search(name or "")
    gi = known(pynvml.nvmlDeviceGetGpuInstanceId, device)
    placement = None if gi is None else _placement(parent, gi)
    slice_ = facts.MigSlice(
        uuid=pynvml.nvmlDeviceGetUUID(device),
        gi=gi,
        ci=known(pynvml.nvmlDeviceGetComputeInstanceId, device),
        profile=profile.group(1) if profile else None,
        name=name,
        placement=placement,
    )
    attributes = known(pynvml.nvmlDeviceGetAttributes, device)
    return slice_ if attributes is None else _with_attributes(slice_, attributes)


def _placement(parent: Handle, gi: int) -> tuple[int, int] | None:
    """Unknown also for want of rights, which the slice itself does not need."""
    try:
        info = known(pynvml.nvmlGpuInstanceGetInfo, pynvml.nvmlDeviceGetGpuInstanceById(parent, gi))
    except pynvml.NVMLError as error:
        if error.value not in UNKNOWN_CODES | {pynvml.NVML_ERROR_NO_PERMISSION}:
            raise
        return None
    return None if info is None else (info.placement.start, info.placement.size)


def _with_attributes(slice_: facts.MigSlice, stated: Any) -> facts.MigSlice:
    return facts.MigSlice(
        uuid=slice_.uuid,
        gi=slice_.gi,
        ci=slice_.ci,
        profile=slice_.profile,
        name=slice_.name,
        placement=slice_.placement,
        memory=stated.memorySizeMB * MIB,
        sm=stated.multiprocessorCount,
        gpu_slices=stated.gpuInstanceSliceCount,
        compute_slices=stated.computeInstanceSliceCount,
        engines={
            "ce": stated.sharedCopyEngineCount,
            "dec": stated.sharedDecoderCount,
            "enc": stated.sharedEncoderCount,
            "jpg": stated.sharedJpegCount,
            "ofa": stated.sharedOfaCount,
        },
    )
