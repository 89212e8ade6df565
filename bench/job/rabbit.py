"""RabbitMQ: a fanout exchange over AMQP on loopback TCP, with Python's pika. It keeps no newest report."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bench.children import connects, free_port, started, wait_for
from bench.job.hub import Follower, Hub, Mirror, Send, Server
from bench.job.reports import host_name
from bench.job.shared import Job

_SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""Not the one on the PATH, which changes to a user of its own."""
_EXCHANGE = "reports"
_CONNECTIONS = 10
_PATIENCE_S = 60.0


class Rabbit(Hub):
    """Every report is published once and copied to whoever has bound a queue."""

    name, transport = "RabbitMQ", "tcp"

    def missing(self) -> str:
        """Whether it and its client are installed."""
        if not _SERVER.exists():
            return "rabbitmq-server is not installed"
        return "" if importlib.util.find_spec("pika") else "Python's pika is not installed"

    @contextmanager
    def serve(self, work: Path, job: Job) -> Iterator[Server]:
        """Queues in memory, no plugins."""
        port, names = free_port(), free_port()
        settings: dict[str, Any] = {
            "HOME": str(work),
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"bench{port}@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(work / "mnesia"),
            "RABBITMQ_LOG_BASE": str(work / "logs"),
            "RABBITMQ_PID_FILE": str(work / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(work / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(work / "none"),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(names),
        }
        # Erlang's name server would be started as a daemon, and stay.
        name_server = started(["epmd"], work / "names.log", **settings)
        with name_server, started([str(_SERVER)], work / "log", **settings) as child:
            wait_for(lambda: connects(("127.0.0.1", port)), child, "accepting", _PATIENCE_S)
            yield Server(child, str(port))

    def connect(self, job: Job) -> list[Send]:
        """A few connections: a host of its own each would cost pika more."""
        channels = [_channel(job.address) for _ in range(_CONNECTIONS)]

        def send(channel: Any, host: str, frame: bytes | bytearray) -> None:
            channel.basic_publish(_EXCHANGE, host, bytes(frame))

        return [
            partial(send, channels[host % _CONNECTIONS], host_name(job.first + host))
            for host in range(job.hosts)
        ]

    def follow(self, job: Job, mirror: Mirror) -> Follower:
        """Bind a queue."""
        return _Follower(job, mirror)


class _Follower(Follower):
    def __init__(self, job: Job, mirror: Mirror) -> None:
        self.mirror = mirror
        self._channel = _channel(job.address)
        queue = self._channel.queue_declare("", exclusive=True).method.queue
        self._channel.queue_bind(queue, _EXCHANGE)
        self._channel.basic_consume(queue, lambda *said: mirror.take(said[-1]), auto_ack=True)

    def pump(self) -> None:
        self._channel.connection.process_data_events(0.2)

    def snapshot(self) -> object:
        return None


def _channel(address: str) -> Any:
    """A channel of a connection of its own; the exchange is there."""
    import pika

    where = pika.ConnectionParameters("127.0.0.1", int(address), heartbeat=0)
    channel = pika.BlockingConnection(where).channel()
    channel.exchange_declare(_EXCHANGE, "fanout")
    return channel
