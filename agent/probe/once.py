"""One reading of this machine for a command, in a process of its own: `machine` starts it and waits for it.

A vendor's library may hang or crash: that ends the child, and what the kernel shows is told all the same. As
a program (`python -m xce.agent.probe.once SETTINGS`) it prints the facts as JSON and leaves.
"""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

import xce.agent
from xce.agent.probe import classify, facts, sysfs
from xce.agent.probe.classify import NVIDIA
from xce.linux import spawn
from xce.linux.loop import Loop
from xce.linux.reaper import Reaper
from xce.model.configuration import Discovery

COMMAND = (sys.executable, "-P", "-m", "xce.agent.probe.once")
KILL_S = 2.0
"""For a killed child to be gone."""
FACTS_BYTES = 64 << 20
"""More than any machine's; then the child is ended."""


def machine(settings: Discovery, *, command: Sequence[str] = COMMAND) -> facts.Machine:
    """The facts; of the library its silence, if it says nothing in time. Raises OSError without a child."""
    text = _Reading(settings, command).text
    try:
        return msgspec.json.decode(text or b"", type=facts.Machine)
    except msgspec.MsgspecError:
        ended = "ended without an answer" if text is not None else f"said nothing for {settings.timeout:g} s"
        library = facts.Nvidia(error=f"the process that asks it {ended}")
        return msgspec.structs.replace(sysfs.read(Path(settings.root)), nvidia=library)


class _Reading:
    """One child from start to end. A child that cannot be killed (it hangs in a driver) is left behind."""

    def __init__(self, settings: Discovery, command: Sequence[str]) -> None:
        self.text: bytes | None = None
        """All that it printed; None if that did not end in time."""
        self._found, self._heard = bytearray(), False
        self._loop = Loop()
        ours, theirs = os.pipe()
        try:
            child = self._start([*command, msgspec.json.encode(settings).decode()], theirs)
            self._loop.add_reader(ours, lambda: self._read(ours))
            self._loop.call_later(settings.timeout, self._loop.stop)
            self._loop.run()
            self._heard = True
            if child.alive:
                child.signal(signal.SIGKILL)
                self._loop.call_later(KILL_S, self._loop.stop)
                self._loop.run()
        finally:
            os.close(ours)
            self._loop.close()

    def _start(self, command: Sequence[str], out: int) -> spawn.Child:
        try:
            reaper = Reaper(self._loop)
            child = spawn.spawn(command, _environment(), fds={1: out, 2: 2})
            reaper.watch(child, lambda _: self._loop.stop() if self._heard else None)
            return child
        finally:
            os.close(out)

    def _read(self, fd: int) -> None:
        more = os.read(fd, 1 << 16)
        self._found += more
        if not more or len(self._found) > FACTS_BYTES:
            self.text = bytes(self._found) if not more and not self._heard else None
            self._loop.remove_reader(fd)
            self._loop.stop()


def _environment() -> Mapping[str, str]:
    root = str(Path(xce.agent.__file__).parents[2])
    fixed = {"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "PYTHONPATH": root}
    library = os.environ.get("LD_LIBRARY_PATH")
    return {**fixed, **({"LD_LIBRARY_PATH": library} if library else {})}


def main(argument: str) -> int:
    """Print the facts of the machine that the settings (`Discovery` in JSON) are about."""
    settings = msgspec.json.decode(argument, type=Discovery)
    machine = sysfs.read(Path(settings.root))
    if settings.root == "/":
        from xce.agent.probe import links  # noqa: PLC0415 - the parent must not import pyroute2

        machine = links.refine(machine)
    if expected := _held(machine):
        from xce.agent.probe import nvml  # noqa: PLC0415 - the parent must not load the library

        library = nvml.Library(settings.library)
        machine = msgspec.structs.replace(machine, nvidia=library.read(expected, everything=True))
        library.close()
    sys.stdout.buffer.write(msgspec.json.encode(machine))
    return 0


def _held(machine: facts.Machine) -> tuple[str, ...]:
    """NVIDIA's GPUs, by what PCI and the driver say."""
    kinds = classify.kinds(machine)
    shown = [
        one.address for one in machine.pci if kinds[one.address] == classify.GPU and one.vendor == NVIDIA
    ]
    return tuple(sorted({*shown, *machine.nvidia_proc}))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
