"""The process of the reporting hosts.

    python -m bench.job.publisher JOB

Prints a line when all hosts are connected and have reported once, and one after each phase.
"""

import gc
import signal
import sys
import time
from pathlib import Path

import msgspec

from bench.children import say
from bench.job.hub import Send
from bench.job.hubs import HUBS
from bench.job.shared import FLAT_OUT, Counters, Job

_LOOK_EACH = 64
"""Reports between two looks at how far the consumer is."""


class Publisher:
    """All hosts of a job."""

    def __init__(self, job: Job) -> None:
        self._job, self._hub = job, HUBS[job.hub]
        self._counters = Counters(Path(job.counters))
        self._frames = [
            [self._hub.frame(job, job.first + host, variant) for variant in range(job.variants)]
            for host in range(job.hosts)
        ]
        self._numbers = [1] * job.hosts
        self._sends: list[Send] = []

    def run(self) -> None:
        """Connect, report once, then follow the phases."""
        self._sends = self._hub.connect(self._job)
        self._hub.seed(self._job, self._sends)
        gc.collect()
        gc.disable()
        say(connected=len(self._sends))
        for phase, rate in enumerate(self._job.phases):
            while self._counters.phase < phase:
                time.sleep(0.001)
            start = time.process_time()
            if rate == FLAT_OUT:
                self._flat_out()
            else:
                self._at_rate(rate, self._job.total(phase))
            say(cpu_s=time.process_time() - start)
        say(trouble=self._hub.finish())
        signal.pause()  # stays connected until it is ended

    def _send(self, host: int) -> None:
        number = self._numbers[host] = self._numbers[host] + 1
        frame = self._frames[host][number % self._job.variants]
        self._sends[host](frame.stamp(time.monotonic_ns(), number))

    def _flat_out(self) -> None:
        counters, window, send = self._counters, self._job.window, self._send
        sent = 0
        for _ in range(self._job.rounds):
            for host in range(self._job.hosts):
                send(host)
                sent += 1
                if not sent % _LOOK_EACH:
                    while sent - counters.received > window:
                        time.sleep(0.0002)

    def _at_rate(self, rate: float, total: int) -> None:
        start = time.monotonic()
        for index in range(total):
            early = start + index / rate - time.monotonic()
            if early > 0:
                time.sleep(early)
            self._send(index % self._job.hosts)


if __name__ == "__main__":
    Publisher(msgspec.json.decode(sys.argv[1], type=Job)).run()
