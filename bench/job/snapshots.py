"""A process that takes snapshots of our broker on a beat, and looks at nothing in them.

python -m bench.job.snapshots PATH SECONDS EACH
"""

import sys
import time

from bench.children import say
from bench.figures import figure
from bench.job.floor import dealer
from xce.model.message import SnapshotBegin, SnapshotRequest
from xce.wire import codec


def run(path: str, seconds: float, each: float) -> None:
    """Prints how many there were, their bytes and how long one took to arrive."""
    socket = dealer(path)
    times: list[float] = []
    size = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        start = time.monotonic()
        socket.send(codec.encode(SnapshotRequest(id="s")))
        begin = codec.decode_from_broker(socket.recv())
        assert isinstance(begin, SnapshotBegin), begin
        size = sum(len(socket.recv(copy=False).buffer) for _ in range(begin.parts + 1))
        times.append((time.monotonic() - start) * 1e3)
        time.sleep(max(0.0, start + each - time.monotonic()))
    say(count=len(times), bytes=size, ms=figure(times).median, longest_ms=max(times))


if __name__ == "__main__":
    run(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
