"""What the service manager hears of us (sd_notify(3)), where one listens."""

import os
import time

from xce.wire.notify import notifier


class Service:
    """Tells systemd; without one, does nothing."""

    def __init__(self) -> None:
        self._told = ""
        self._tell = notifier()

    def ready(self) -> None:
        """Started, or done with reloading."""
        self._say("READY=1")

    def reloading(self) -> None:
        """The configuration is being read anew."""
        self._say(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Told to end."""
        self._say("STOPPING=1")

    def alive(self) -> None:
        """For the watchdog."""
        self._say("WATCHDOG=1")

    def status(self, text: str) -> None:
        """For `systemctl status`; told when it has changed."""
        if self._tell is not None and text != self._told:
            self._told = text
            self._say(f"STATUS={text}")

    def watchdog_s(self) -> float | None:
        """How often it wants to hear that we are alive: half of WATCHDOG_USEC (sd_watchdog_enabled(3))."""
        microseconds, pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
        if not microseconds.isdecimal() or (pid and pid != str(os.getpid())):
            return None
        return int(microseconds) / 2e6

    def _say(self, text: str) -> None:
        if self._tell is not None:
            self._tell(text)
