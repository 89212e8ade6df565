"""When a reporter runs, how long it may, and how long its values live. Pure; times are the loop's clock."""

from collections.abc import Callable
from typing import NamedTuple

from xce.model.configuration import AgentReporters, ReporterSettings
from xce.model.reporter import ReporterEvent
from xce.reporters import schedule

HEALTHY = 60.0
"""A persistent run that ends after so many seconds (or interval + timeout) was no failed start."""
PROBE = 3600.0
"""Seconds between tries of a quarantined reporter."""


class Timing(NamedTuple):
    """Seconds: between runs, for a run (persistent: of silence beyond that), and of its place on the grid."""

    interval: float
    timeout: float
    offset: float

    @property
    def ttl(self) -> float:
        """After which its values are stale."""
        return schedule.time_to_live(self.interval, self.timeout)

    @property
    def healthy(self) -> float:
        """A persistent run of this length has started well."""
        return max(HEALTHY, self.ttl)

    def missed(self, started: float, now: float) -> int:
        """Turns that came while a run was still going on."""
        return schedule.overruns(started, now, self.interval, self.offset)

    def pause(self, event: ReporterEvent, failures: int, chance: Callable[[], float]) -> float:
        """Until the next try after so many failures in a row."""
        if event is ReporterEvent.GAVE_UP:
            return PROBE * (1 + schedule.SPREAD * chance())
        return schedule.backoff(failures, self.interval, chance)


def timing_of(
    settings: ReporterSettings, default: AgentReporters, asked: float | None, *, host: str, name: str
) -> Timing:
    """By a reporter's own file, the agent's, and the interval that a type of its names asks for."""
    interval = schedule.effective_interval(settings.interval, default.interval, [asked])
    timeout = settings.timeout or default.timeout
    return Timing(interval=interval, timeout=timeout, offset=schedule.phase(host, name, interval))
