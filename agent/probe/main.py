"""The probe: reads the machine, prints what differs from its last word, and obeys its control pipe.

A child of the agent (`xce.agent.discovery`), and the only process that loads a vendor's library. What hangs
or crashes in such a library costs this process and nobody else; so there is one thread, and its silence is
what gives a hang away. It leaves at the end of its control pipe, after TERM, where nothing has to stay
resident, and, with the status `AGAIN`, where a new process must load the library anew.
"""

import os
import select
import signal
import sys
import time
from typing import TYPE_CHECKING

import msgspec

from xce.agent.probe.frame import AGAIN, CONTROL_FD, Launch, Line, Order
from xce.agent.probe.reading import Reader
from xce.linux import netlink
from xce.linux.cgroup import Cgroup

if TYPE_CHECKING:
    from xce.agent.probe.nvml import Library

EVENTS_S = 1.0
"""How often the library is asked whether it has an event."""
EVERYTHING_S = 600.0
"""Between two readings of what seldom changes and takes long."""
ORDERS = 1 << 16
"""Bytes of orders that may wait for the end of their line."""
_decode = msgspec.json.Decoder(Order).decode
_ALIVE = b"{}"


class Probe:
    """See the module. `run` returns the exit status."""

    def __init__(self, launch: Launch) -> None:
        self.settings = launch.settings
        self.reader = Reader(launch.settings)
        self.reader.released = launch.released
        self._poll = select.poll()
        self._sockets = {one.fileno(): one for one in netlink.both()} if not launch.settings.machine else {}
        for fd in (CONTROL_FD, *self._sockets):
            self._poll.register(fd, select.POLLIN)
        os.set_blocking(CONTROL_FD, False)
        self._orders = bytearray()
        self._last = b""
        self._interval = launch.settings.interval
        self._leaving = False
        self._everything_at = 0.0
        self._due = self._heard_events = time.monotonic()
        signal.signal(signal.SIGTERM, self._terminated)

    def run(self) -> int:
        """Read, tell, and wait, until it is to leave."""
        self._first()
        while not self._leaving:
            line = self._read()
            if line.rest:
                return 0
            if self._library is not None and self._library.fresh_process:
                return AGAIN
            self._wait()
        return 0

    @property
    def _library(self) -> "Library | None":
        return self.reader.library

    # --------------------------------------------------------------------------------------- reading

    def _first(self) -> None:
        """What the kernel says is told before a library is loaded that may hang."""
        line = self.reader.line(library=False)
        if line.pending and not self.reader.released:
            self._print(line)

    def _read(self) -> Line:
        now = time.monotonic()
        everything = now >= self._everything_at
        line = self.reader.line(everything=everything)
        if everything:
            self._everything_at = now + EVERYTHING_S
        self._interval = line.interval_s
        self._print(line)
        self._due = time.monotonic() + self._interval
        return line

    def _print(self, line: Line) -> None:
        said = msgspec.json.encode(line)
        _write(said if said != self._last else _ALIVE)
        self._last = said

    # --------------------------------------------------------------------------------------- waiting

    def _wait(self) -> None:
        """Until the next reading is due or something asks for one."""
        while not self._leaving and (left := self._due - time.monotonic()) > 0:
            ready = {fd for fd, _ in self._poll.poll(min(left, EVENTS_S) * 1000)}
            if CONTROL_FD in ready:
                self._obey()
            if came := [one for fd, one in self._sockets.items() if fd in ready]:
                self._event(came)
            if self._library is not None and not self.reader.released and self._library.wait_events(0):
                self._due = 0

    def _event(self, came: list[netlink.Netlink]) -> None:
        """Links or devices changed: several become one reading, and there is a pause between two."""
        now = time.monotonic()
        for one in came:
            one.drain()
        when = max(now + self.settings.settle, self._heard_events + self.settings.calm)
        if when < self._due:
            self._due = self._heard_events = when

    def _terminated(self, _number: int, _frame: object) -> None:
        self._leaving = True

    # ---------------------------------------------------------------------------------------- orders

    def _obey(self) -> None:
        try:
            data = os.read(CONTROL_FD, ORDERS)
        except BlockingIOError:
            return
        self._orders += data
        if not data or len(self._orders) > ORDERS:
            self._leaving = True
            return
        while (end := self._orders.find(b"\n")) >= 0:
            order = bytes(self._orders[:end])
            del self._orders[: end + 1]
            self._carry_out(_decode(order))

    def _carry_out(self, order: Order) -> None:
        error = ""
        if order.do == "release":
            self.reader.released = True
            try:
                self.reader.close()
            except Exception as failed:  # noqa: BLE001 - whatever it is, the agent has to know
                error = repr(failed)[:200]
        elif order.do == "resume":
            self.reader.released = False
            self._due = self._everything_at = 0
        elif order.do == "read":
            self._due = self._everything_at = 0
        else:
            error = f"cannot do {order.do!r}"
        _write(msgspec.json.encode(Line(answer=order.do, number=order.number, error=error)))


def _write(line: bytes) -> None:
    left = line + b"\n"
    while left:
        left = left[os.write(1, left) :]


def main(argument: str) -> int:
    """Run as `argument` says (`frame.Launch` in JSON)."""
    launch = msgspec.json.decode(argument, type=Launch)
    if launch.group:
        Cgroup(launch.group).enter()
    probe = Probe(launch)
    try:
        return probe.run()
    except BrokenPipeError:
        return 0  # nobody listens any more
    finally:
        probe.reader.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
