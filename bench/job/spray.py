"""The floor of the fan-out: a bare ROUTER that sends the same message to every DEALER, on a beat.

    python -m bench.job.spray PATH PEERS BYTES MESSAGES      sends
    python -m bench.job.spray PATH PEERS                     receives

The sender prints its CPU per message once all have been sent.
"""

import sys
import time

import zmq

from bench.children import say
from bench.job.floor import CONTEXT, dealer

BEAT_S = 0.004


def send(path: str, peers: int, size: int, messages: int) -> None:
    """Wait for all peers, then send."""
    socket = CONTEXT.socket(zmq.ROUTER)
    socket.sndhwm = 0
    socket.bind(f"ipc://{path}")
    say(bound=True)
    names = [socket.recv_multipart()[0] for _ in range(peers)]
    body = bytes(size)
    start, cpu = time.monotonic(), time.process_time()
    for number in range(messages):
        time.sleep(max(0.0, start + number * BEAT_S - time.monotonic()))
        for name in names:
            socket.send(name, zmq.SNDMORE)
            socket.send(body)
    time.sleep(0.2)
    say(cpu_us=(time.process_time() - cpu) / messages * 1e6)


def receive(path: str, peers: int) -> None:
    """Say hello on every socket, then take what comes."""
    CONTEXT.max_sockets = peers + 16
    poller = zmq.Poller()
    for _ in range(peers):
        socket = dealer(path)
        socket.send(b"")
        poller.register(socket, zmq.POLLIN)
    while True:
        for ready, _ in poller.poll():
            ready.recv(zmq.NOBLOCK, copy=False)


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[2:]]
    if len(numbers) == 1:
        receive(sys.argv[1], numbers[0])
    else:
        send(sys.argv[1], *numbers)
