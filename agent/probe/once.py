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
from xce.agent.probe import facts, sysfs
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
        shown = sysfs.read(Path(settings.root))
        return msgspec.structs.replace(
            shown,
            nvidia=facts.Nvidia(error=f"the process that asks it {ended}"),
            faults=(*shown.faults, f"the process that reads the machine {ended}"),
        )


class _Reading:
    """One child from start to end. A child that cannot be killed (it hangs in a driver) is left behind."""

    def __init__(self, settings: Discovery, command: Sequence[str]) -> None:
        self.text: bytes | None = None
        """All that it printed; None if that did not end in time."""
        self._found, self._heard = bytearray(), False
        self._loop = Loop()
        ours, theirs = os.pipe()
        try:
            argv = [*command, msgspec.json.encode(settings).decode()]
            child = self._start(argv, _environment(settings.environment), theirs)
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

    def _start(self, command: Sequence[str], environment: Mapping[str, str], out: int) -> spawn.Child:
        try:
            reaper = Reaper(self._loop)
            child = spawn.spawn(list(command), environment, fds={1: out, 2: 2})
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
            if not self._heard:
                self._loop.stop()


def _environment(more: Mapping[str, str]) -> Mapping[str, str]:
    root = str(Path(xce.agent.__file__).parents[2])
    fixed = {"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "PYTHONPATH": root}
    library = os.environ.get("LD_LIBRARY_PATH")
    return {**fixed, **({"LD_LIBRARY_PATH": library} if library else {}), **more}


def main(argument: str) -> int:
    """Print the facts of the machine that the settings (`Discovery` in JSON) are about."""
    from xce.agent.probe.reading import Reader  # noqa: PLC0415 - the parent must not load what it loads

    reader = Reader(msgspec.json.decode(argument, type=Discovery))
    machine = reader.machine()
    reader.close()
    sys.stdout.buffer.write(msgspec.json.encode(machine))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
