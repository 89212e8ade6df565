"""XIDs, as the library's event set tells them.

The set is bound to the handles of one initialisation. A GPU that is being lost often cannot say any more who
it is; its UUID is known from when it was registered. What was heard is kept for some time and goes with every
reading, so that one that got lost on its way to the agent comes again; `at` tells it from a new one.
"""

import ctypes
from collections import deque
from collections.abc import Callable
from typing import Any

import pynvml

from xce.agent.probe import facts
from xce.agent.probe.nvml.calls import Handle

KEPT = 256
KEPT_S = 3600.0
NOBODY = 0xFFFFFFFF


def _pointer(handle: Handle) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


class Events:
    """One event set, and what it told."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._set: Any = None
        self._registered: dict[int, str] = {}
        self._heard: deque[facts.Xid] = deque(maxlen=KEPT)
        self._errors: dict[str, str] = {}

    def register(self, handle: Handle, uuid: str) -> None:
        """Hear this GPU from now on; one that is heard already stays as it is."""
        if uuid in self._registered.values():
            return
        try:
            if self._set is None:
                self._set = pynvml.nvmlEventSetCreate()
            kinds = pynvml.nvmlDeviceGetSupportedEventTypes(handle) & pynvml.nvmlEventTypeXidCriticalError
            if kinds:
                pynvml.nvmlDeviceRegisterEvents(handle, kinds, self._set)
        except pynvml.NVMLError as error:
            self._errors[uuid] = f"events of {uuid}: {error} ({error.value})"
            return
        self._errors.pop(uuid, None)
        self._registered[_pointer(handle)] = uuid  # also where there is nothing to hear: not asked again

    def forget_but(self, uuids: set[str]) -> None:
        """A GPU that is gone is registered anew when it comes back."""
        self._registered = {at: uuid for at, uuid in self._registered.items() if uuid in uuids}
        self._errors = {uuid: error for uuid, error in self._errors.items() if not uuid or uuid in uuids}

    def wait(self, timeout_s: float) -> int:
        """Take in what is there, waiting for the first at most so long. How many XIDs were told."""
        count = 0
        milliseconds = int(timeout_s * 1000)
        while self._set is not None and count < KEPT:
            try:
                event = pynvml.nvmlEventSetWait(self._set, milliseconds)
            except pynvml.NVMLError as error:
                self._errors.pop("", None)
                if error.value != pynvml.NVML_ERROR_TIMEOUT:  # as when a GPU is lost: a new set, without it
                    self.drop()
                    self._errors[""] = f"waiting for events: {error} ({error.value})"
                break
            self._heard.append(self._xid(event))
            count, milliseconds = count + 1, 0
        return count

    def _xid(self, event: Any) -> facts.Xid:
        return facts.Xid(
            xid=event.eventData,
            uuid=self._registered.get(_pointer(event.device), ""),
            at=self._clock(),
            gi=None if event.gpuInstanceId == NOBODY else event.gpuInstanceId,
            ci=None if event.computeInstanceId == NOBODY else event.computeInstanceId,
        )

    def heard(self) -> tuple[facts.Xid, ...]:
        """What was told lately, the oldest first."""
        now = self._clock()
        while self._heard and now - self._heard[0].at > KEPT_S:
            self._heard.popleft()
        return tuple(
            facts.Xid(xid=each.xid, uuid=each.uuid, at=each.at, gi=each.gi, ci=each.ci, age_s=now - each.at)
            for each in self._heard
        )

    def drop(self) -> None:
        """Give the set back. What was heard stays."""
        if self._set is not None:
            try:
                pynvml.nvmlEventSetFree(self._set)
            except pynvml.NVMLError as error:
                self._errors[""] = f"giving back the event set: {error} ({error.value})"
        self._set = None
        self._registered.clear()

    @property
    def error(self) -> str:
        """Why XIDs cannot be heard of some GPU; '' if they can."""
        return "; ".join(self._errors.values())
