"""The process of the one consumer: mirrors the stream, times it, fetches snapshots and compares.

    python -m bench.job.consumer JOB

Prints a line when it follows, one when it has a report of each host, one after each phase, one after the
snapshots.
"""

import gc
import sys
import time
from pathlib import Path

import msgspec

from bench.children import Said, say
from bench.figures import figure
from bench.job.hub import Mirror
from bench.job.hubs import HUBS
from bench.job.shared import Counters, Job

_SNAPSHOTS = 5
_LATE_S = 60


class Consumer:
    """The one who wants to know everything."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._counters = Counters(Path(job.counters))
        self._mirror = Mirror()
        self._follower = HUBS[job.hub].follow(job, self._mirror)

    def run(self) -> None:
        """Follow the phases, then fetch."""
        say(following=True)
        say(**self._collect(self._job.hosts, _LATE_S))
        gc.collect()
        gc.freeze()
        gc.disable()  # a pause of ours must not look like one of the hub
        for phase in range(len(self._job.phases)):
            while self._counters.phase < phase:
                time.sleep(0.001)
            say(**self._collect(self._job.total(phase), self._job.seconds + _LATE_S))
        time.sleep(0.3)
        say(**self._fetch())

    def _collect(self, total: int, limit_s: float) -> Said:
        """Take `total` reports."""
        mirror, counters, pump = self._mirror, self._counters, self._follower.pump
        deadline = time.monotonic() + limit_s
        cpu, start = time.process_time(), 0.0
        while mirror.received < total and time.monotonic() < deadline:
            pump()
            if not start and mirror.received:
                start = time.monotonic()
            counters.received = mirror.received
        wall, cpu = time.monotonic() - start, time.process_time() - cpu
        latencies = sorted(mirror.latencies_ns)
        found: Said = {
            "received": mirror.received,
            "changes": len(latencies),
            "wanted": total,
            "wall_s": wall,
            "cpu_s": cpu,
        }
        for name, share in (("p50_ms", 0.5), ("p99_ms", 0.99), ("p999_ms", 0.999), ("max_ms", 1.0)):
            place = min(len(latencies) - 1, int(share * len(latencies)))
            found[name] = latencies[place] / 1e6 if latencies else None
        mirror.received = counters.received = 0
        mirror.latencies_ns.clear()
        return found

    def _fetch(self) -> Said:
        """Take snapshots, and compare them with the mirror."""
        times = []
        snapshot: object = None
        for _ in range(_SNAPSHOTS):
            del snapshot  # to forget the one before is no part of the next
            start = time.monotonic()
            snapshot = self._follower.snapshot()
            times.append((time.monotonic() - start) * 1e3)
            if snapshot is None:
                return {"snapshot_ms": None, "same": None}
        return {"snapshot_ms": figure(times).median, "same": snapshot == self._follower.mirrored()}


if __name__ == "__main__":
    Consumer(msgspec.json.decode(sys.argv[1], type=Job)).run()
