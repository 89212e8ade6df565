"""The library as one process holds it.

Handles live for one reading: they are asked for anew each time, since a MIG change, a reset or a lost GPU
makes the old ones point elsewhere. What does not change is remembered by UUID, until handles are given back.
"""

import ctypes
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml

from xce.agent.probe import facts, governor
from xce.agent.probe.governor import Budget, Cost, Meter
from xce.agent.probe.nvml import calls, slices
from xce.agent.probe.nvml.calls import CALLS, UNKNOWN_CODES, Call, Fields, Handle
from xce.agent.probe.nvml.events import Events

SONAME = "libnvidia-ml.so.1"
MISMATCH = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
GONE = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})
"""Answers after which a GPU is asked nothing more in this reading."""
WORDS = {
    MISMATCH: "driver/library mismatch",
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "library not found",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "driver not loaded",
}
IDENTITY = "Identity"
MODE = CALLS[0]
DEVICES = Call("MigDevices", Cost.FAST, slices.slices)
PROFILES = Call("MigProfiles", Cost.SLOW, slices.profiles)
TROUBLE = (pynvml.NVMLError, ctypes.ArgumentError, UnicodeDecodeError, ValueError)
"""All that a call can raise, whatever the library put into its structures."""


BUDGET = Budget()


class Library:
    """Found, initialised, asked, given back.

    `path` is the file to load, or the folder of `libnvidia-ml.so.1`; '' lets the dynamic linker find it.
    """

    def __init__(
        self,
        path: str = "",
        *,
        clock: Callable[[], float] = time.monotonic,
        timer: Callable[[], float] = time.perf_counter,
        budget: Budget = BUDGET,
    ) -> None:
        self._path = os.path.join(path, SONAME) if path and os.path.isdir(path) else path
        self._clock, self._timer, self._budget = clock, timer, budget
        self._open = False
        self._loaded: tuple[str, object] | None = None
        self._meters = {
            name: Meter(name=name, cost=cost)
            for name, cost in [
                (IDENTITY, Cost.FAST),
                *((call.name, call.cost) for call in (*CALLS, DEVICES, PROFILES)),
            ]
        }
        self._asked: dict[str, float] = {}
        self._retry: set[str] = set()
        self._urgent = False
        self._answers: dict[str, dict[str, Fields | str]] = {}
        self._static: dict[str, object] = {}
        self._events = Events(clock)
        self.fresh_process = False
        """Only a new process can go on: driver and library do not match, or its file was replaced."""

    # ------------------------------------------------------------------------------------- open and close

    def open(self) -> tuple[str, int]:
        """Load and initialise; why that failed, and the code. ('', 0): it is open."""
        if self._open:
            return "", 0
        try:
            if self._path and self._loaded is None:
                pynvml.nvmlLib = ctypes.CDLL(self._path)
                pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001 - of another file
            pynvml.nvmlInit()
        except OSError as error:
            return f"library not found: {error}", pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
        except pynvml.NVMLError as error:
            self._note_file()
            self.fresh_process = self.fresh_process or error.value == MISMATCH
            return WORDS.get(error.value, str(error)), error.value
        self._open = True
        self._note_file()
        return "", 0

    def release(self) -> None:
        """Give all handles back, so that a MIG change or a reset can go on. `read` takes them again."""
        self._events.drop()
        self._answers.clear()
        self._static.clear()
        self._asked.clear()
        if self._open:
            self._open = False
            try:
                pynvml.nvmlShutdown()
            except pynvml.NVMLError:
                return  # it was not initialised any more: nothing is held

    close = release

    def _note_file(self) -> None:
        """Remember which file was loaded: a driver update replaces it below a running process."""
        if self._loaded is None and pynvml.nvmlLib is not None:
            path = self._path or _file_of(pynvml.nvmlLib)
            self._loaded = (path, _state(path))

    # ------------------------------------------------------------------------------------------------ ask

    def read(self, expected: tuple[str, ...] = (), *, everything: bool = False) -> facts.Nvidia:
        """One reading. `expected`: addresses of GPUs bound to the driver, asked for by address if not listed.

        Only what is due is asked, the rest is what was answered before; `everything` asks all of it.
        """
        error, code = self.open()
        if error:
            return facts.Nvidia(error=error, code=code, xids=self._events.heard())
        if self._loaded is not None and _state(self._loaded[0]) != self._loaded[1]:
            self.fresh_process = True
        try:
            count = pynvml.nvmlDeviceGetCount()
        except TROUBLE as trouble:
            return self._refused(trouble)
        due = self._due(everything=everything)
        reading = _Reading(self._timer)
        gpus = [self._by_index(index, due, reading) for index in range(count)]
        excluded = self._once("excluded", _excluded) or ()
        gpus = self._with_missing(gpus, set(expected).difference(excluded), due, reading)
        self._measure(reading)
        known = {gpu.uuid for gpu in gpus}
        self._answers = {uuid: kept for uuid, kept in self._answers.items() if uuid in known}
        self._events.forget_but(known)
        self._urgent = self._events.wait(0.0) > 0
        return facts.Nvidia(
            driver=self._once("driver", pynvml.nvmlSystemGetDriverVersion),
            nvml=self._once("nvml", pynvml.nvmlSystemGetNVMLVersion),
            cuda=self._once("cuda", _cuda),
            excluded=excluded,
            count=count,
            gpus=tuple(gpus),
            xids=self._events.heard(),
        )

    def wait_events(self, timeout_s: float) -> int:
        """Wait for XIDs at most so long; how many came. The next reading has them, and is a fresh one."""
        count = self._events.wait(timeout_s)
        self._urgent = self._urgent or count > 0
        return count

    def notes(self) -> tuple[str, ...]:
        """What people should know of the asking itself."""
        dear = [
            f"{meter.name} every {math.ceil(meter.interval_s / 60)} min"
            for meter in self.meters()
            if meter.interval_s is not None
            and meter.interval_s > (governor.nominal(meter.cost, self._budget) or 0.0)
        ]
        rare = (f"NVML calls that take long are asked more rarely: {', '.join(dear)}",) if dear else ()
        return (*rare, f"XIDs cannot be heard: {self.deaf}") if self.deaf else rare

    @property
    def deaf(self) -> str:
        """Why XIDs cannot be heard; '' if they can."""
        return self._events.error

    def meters(self) -> tuple[Meter, ...]:
        """What the calls cost, and how often each is asked."""
        return governor.governed(self._meters.values(), self._budget)

    def _refused(self, trouble: Exception) -> facts.Nvidia:
        """The library itself gives an error: start over with the next reading."""
        code = getattr(trouble, "value", 0)
        self.release()
        self.fresh_process = self.fresh_process or code == MISMATCH
        return facts.Nvidia(error=WORDS.get(code, str(trouble)), code=code, xids=self._events.heard())

    @property
    def interval_s(self) -> float:
        """How often to read, at the most: finding out which GPUs there are has its cost too."""
        return next(meter.interval_s or 0.0 for meter in self.meters() if meter.name == IDENTITY)

    def _due(self, *, everything: bool) -> set[str]:
        """The calls to ask in this reading."""
        now, due = self._clock(), set()
        for meter in self.meters():
            asked, every = self._asked.get(meter.name), meter.interval_s
            if every is None:
                every = self._budget.slow_s if meter.name in self._retry else float("inf")
            urgent = self._urgent and meter.cost == Cost.FAST
            if everything or urgent or asked is None or now - asked >= every:
                due.add(meter.name)
                self._asked[meter.name] = now
        return due

    def _measure(self, reading: "_Reading") -> None:
        for name, seconds in reading.seconds.items():
            failed = reading.failed.get(name, 0)
            self._meters[name] = governor.measured(self._meters[name], seconds, failed)
            (self._retry.add if failed else self._retry.discard)(name)

    def _once(self, name: str, ask: Callable[[], Any]) -> Any:
        if name not in self._static:
            try:
                self._static[name] = calls.known(ask)
            except TROUBLE:
                return None
        return self._static[name]

    # ---------------------------------------------------------------------------------------------- a GPU

    def _by_index(self, index: int, due: set[str], reading: "_Reading") -> facts.NvidiaGpu:
        try:
            with reading.of(IDENTITY):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        except TROUBLE as trouble:
            return facts.NvidiaGpu(index=index, **_error("GetHandleByIndex", trouble))
        return self._gpu(handle, index, due, reading)

    def _with_missing(
        self,
        gpus: list[facts.NvidiaGpu],
        expected: set[str],
        due: set[str],
        reading: "_Reading",
    ) -> list[facts.NvidiaGpu]:
        """Ask by address for what is not listed: so an error that had no name comes with one."""
        listed = {gpu.pci for gpu in gpus if gpu.pci is not None}
        asked = [self._by_address(each, due, reading) for each in sorted(expected - listed)]
        named = sum(1 for gpu in asked if gpu.error)
        kept = []
        for gpu in gpus:
            if gpu.error and not gpu.uuid and gpu.pci is None and named:
                named -= 1  # the same GPU, with its address now
            else:
                kept.append(gpu)
        return kept + asked

    def _by_address(self, pci: str, due: set[str], reading: "_Reading") -> facts.NvidiaGpu:
        try:
            with reading.of(IDENTITY):
                handle = pynvml.nvmlDeviceGetHandleByPciBusId(pci.encode())
            index = calls.known(pynvml.nvmlDeviceGetIndex, handle)
        except TROUBLE as trouble:
            return facts.NvidiaGpu(pci=pci, **_error("GetHandleByPciBusId", trouble))
        return self._gpu(handle, index, due, reading)

    def _gpu(self, handle: Handle, index: int | None, due: set[str], reading: "_Reading") -> facts.NvidiaGpu:
        found: dict[str, object] = {"index": index}
        call = "GetPciInfo"
        try:
            with reading.of(IDENTITY):
                pci = calls.known(pynvml.nvmlDeviceGetPciInfo, handle)
                found["pci"] = None if pci is None else calls.address(pci)
                call = "GetUUID"
                uuid = found["uuid"] = pynvml.nvmlDeviceGetUUID(handle)
        except TROUBLE as trouble:
            return _gpu_of(found | _error(call, trouble))
        self._events.register(handle, uuid)
        kept = self._answers.setdefault(uuid, {})
        mode = kept.get(MODE.name)
        self._ask(MODE, handle, kept, due, reading)
        if kept.get(MODE.name) != mode and mode is not None:
            kept = self._answers[uuid] = {MODE.name: kept[MODE.name]}  # another mode makes all else stale
        for each in CALLS[1:]:
            self._ask(each, handle, kept, due, reading)
        if _fields(kept).get("mig.current"):
            self._ask_mig(handle, kept, due, reading)
        found |= _fields(kept)
        if reading.lost is not None:
            found |= reading.lost
            reading.lost = None
        return _gpu_of(found, {name: answer for name, answer in kept.items() if isinstance(answer, str)})

    def _ask_mig(
        self, handle: Handle, kept: dict[str, Fields | str], due: set[str], reading: "_Reading"
    ) -> None:
        """What exists, and what could. Where the first has changed, the second is asked anew."""
        before = kept.get(DEVICES.name)
        self._ask(DEVICES, handle, kept, due, reading)
        if kept.get(DEVICES.name) == {}:
            kept[DEVICES.name] = "not supported"  # MIG is on: slices that cannot be listed are not absent
        if kept.get(DEVICES.name) != before:
            kept.pop(PROFILES.name, None)
        self._ask(PROFILES, handle, kept, due, reading)

    def _ask(
        self, call: Call, handle: Handle, kept: dict[str, Fields | str], due: set[str], reading: "_Reading"
    ) -> None:
        """One call, if it is due or was never answered for this GPU; nothing more once the GPU is gone."""
        if reading.lost is not None or (call.name in kept and call.name not in due):
            return
        try:
            with reading.of(call.name):
                kept[call.name] = call.ask(handle)
        except TROUBLE as trouble:
            code = getattr(trouble, "value", 0)
            if code in UNKNOWN_CODES:
                kept[call.name] = {}
                return
            reading.failed[call.name] = reading.failed.get(call.name, 0) + 1
            kept[call.name] = f"{trouble} ({code})"
            if code in GONE:
                reading.lost = _error(call.name, trouble)


class _Reading:
    """What one reading measured so far."""

    def __init__(self, timer: Callable[[], float]) -> None:
        self._timer = timer
        self._name, self._began = "", 0.0
        self.seconds: dict[str, float] = {}
        self.failed: dict[str, int] = {}
        self.lost: dict[str, Any] | None = None
        """The error of the GPU that is being read, if it is gone."""

    def of(self, name: str) -> "_Reading":
        self._name, self._began = name, self._timer()
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        took = self._timer() - self._began
        self.seconds[self._name] = self.seconds.get(self._name, 0.0) + took


def _error(call: str, trouble: Exception) -> dict[str, Any]:
    code = getattr(trouble, "value", 0)
    return {"error": f"{call}: {trouble} ({code})", "code": code}


def _fields(kept: dict[str, Fields | str]) -> dict[str, object]:
    return {
        name: value
        for answer in kept.values()
        if not isinstance(answer, str)
        for name, value in answer.items()
    }


def _gpu_of(found: dict[str, object], failures: dict[str, str] | None = None) -> facts.NvidiaGpu:
    """The facts of what was found."""
    failures = failures or {}
    plain: dict[str, Any] = {name: value for name, value in found.items() if not name.startswith("mig.")}
    mig: dict[str, Any] = {
        name.removeprefix("mig."): value for name, value in found.items() if name.startswith("mig.")
    }
    if mig.get("current"):
        taken = {each.gi for each in mig.get("slices", ())}
        mig["bare"] = tuple(gi for gi in mig.get("bare", ()) if gi not in taken)
    else:
        mig = {name: value for name, value in mig.items() if name in ("current", "pending")}
    mig["error"] = next((f"{name}: {failures[name]}" for name in _MIG if name in failures), "")
    unanswered = tuple(f"{name}: {text}" for name, text in failures.items())
    return facts.NvidiaGpu(mig=facts.Mig(**mig), unanswered=unanswered, **plain)


_MIG = (MODE.name, DEVICES.name)


def _cuda() -> str:
    version = pynvml.nvmlSystemGetCudaDriverVersion_v2()
    return f"{version // 1000}.{version % 1000 // 10}"


def _excluded() -> tuple[str, ...]:
    count = pynvml.nvmlGetExcludedDeviceCount()
    return tuple(calls.address(pynvml.nvmlGetExcludedDeviceInfoByIndex(index).pci) for index in range(count))


def _file_of(library: ctypes.CDLL) -> str:
    """The file that a loaded library is mapped from."""
    function = ctypes.cast(library.nvmlInitWithFlags, ctypes.c_void_p).value or 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, _, last = line.split(maxsplit=1)[0].partition("-")
        if int(first, 16) <= function < int(last, 16):
            return line.split(maxsplit=5)[5]
    return ""


def _state(path: str) -> object:
    """What identifies a file's content; None if it is gone."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
