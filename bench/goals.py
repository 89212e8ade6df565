"""The goals: what is wanted of the product, as one table.

Most are ratios against a floor or a peer of the same run, because they survive another machine; the rest are
CPU, memory, bytes and milliseconds that are far from what makes one machine differ from the next.
"""

import math

import msgspec


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """One row. `must` is kept, `stretch` is wanted; a must of infinity is none."""

    key: str
    """`G7`, or `G7.redis` where a goal has several parts."""
    what: str
    must: float
    stretch: float
    unit: str = "x"
    """`x`: a ratio against the floor or peer that `what` names."""
    at_least: bool = False
    """Larger is better."""


def _at_most(key: str, what: str, must: float, stretch: float, unit: str = "x") -> Goal:
    return Goal(key=key, what=what, must=must, stretch=stretch, unit=unit)


def _at_least(key: str, what: str, must: float, stretch: float, unit: str = "x") -> Goal:
    return Goal(key=key, what=what, must=must, stretch=stretch, unit=unit, at_least=True)


_TABLE = (
    _at_least("G1", "ingest, reports/s, against redis SET + PUBLISH", 0.75, 1.0),
    _at_least("G2", "ingest, reports/s, against redis HSET + PUBLISH", 0.9, 1.2),
    _at_least("G3.nats", "ingest, reports/s, against NATS JetStream KV", 1.2, 1.5),
    _at_least("G3.rabbit", "ingest, reports/s, against a fanout exchange of RabbitMQ", 6, 9),
    _at_least("G3.etcd", "ingest, reports/s, against etcd put + watch", 8, 11),
    _at_most("G4", "broker CPU per 100k values, against redis SET + PUBLISH", 1.8, 1.2),
    _at_most("G5", "broker CPU per 20-value report, flat out", 12, 8, "µs"),
    _at_least("G6.200", "values/s per core of broker CPU, 200-value reports", 4e6, 8e6, ""),
    _at_least("G6.20", "values/s per core of broker CPU, 20-value reports", 1.7e6, 2.5e6, ""),
    _at_most("G7", "report to watcher at 1,000 reports/s, p99", 10, 2, "ms"),
    _at_most("G7.redis", "the same against redis PUBLISH", 20, 4),
    _at_most("G8.1000", "broker CPU at 1,000 reports/s, against redis SET + PUBLISH", 2.5, 1.3),
    _at_most("G8.5000", "broker CPU at 5,000 reports/s, against redis SET + PUBLISH", 1.5, 1.0),
    _at_most("G9", "broker CPU per report with CURVE over TCP, against TCP without", 1.4, 1.2),
    _at_most("G10.mget", "snapshot of 500 hosts at the consumer, against redis MGET", 1.5, 0.8),
    _at_most("G10.hgetall", "snapshot of 500 hosts at the consumer, against redis HGETALL", 0.5, 0.2),
    _at_most("G11.build", "snapshot of 10,000 hosts: CPU of the broker to build it", 10, 1.5, "ms"),
    _at_most("G11.wait", "longest wait of a report while such snapshots are taken", 20, 2, "ms"),
    _at_most("G12", "snapshot of 10,000 GPU hosts to one who holds the inventories", 100, 40, "ms"),
    _at_most("G13", "differences between mirror and snapshot after restart and slow consumer", 0, 0, ""),
    _at_most("G14.values", "broker memory per connected host with 20 values", 40, 31, "kB"),
    _at_most("G14.inventory", "the same with an inventory of 32 instances", 60, 43, "kB"),
    _at_most("G15", "longest wait of a report with 10,000 hosts loaded", 50, 10, "ms"),
    _at_most("G16", "8,000 agents are back and resynced after a restart, CURVE", 15, 5, "s"),
    _at_least("G17", "durable claim transitions/s of 64 clients, against etcd transactions", 3, 5),
    _at_least("G17.apart", "the transitions/s, ours through 64 sockets of one process", -math.inf, 3),
    _at_most("G17.cpu", "the broker's CPU for each of them, against etcd's", 0.4, 0.2),
    _at_least(
        "G17.plain", "the transitions/s, both sides by plain sockets instead of libraries", -math.inf, 3
    ),
    _at_most("G18.etcd", "one client's wait for a durable claim transition, p50, against etcd", 0.7, 0.4),
    _at_most("G18.plain", "the same, both sides by plain sockets instead of libraries", math.inf, 0.7),
    _at_most("G18.disk", "the same against a bare fdatasync on the same disk", 4, 2),
    _at_most("G19", "broker start with 100,000 facts and 10,000 hosts until it answers", 1.5, 0.5, "s"),
    _at_most("G20", "agent's resident memory, against node_exporter", 1.5, 1.0),
    _at_most("G20.size", "agent's resident memory", 30, 20, "MB"),
    _at_most(
        "G20.node", "agent with all its children, resident, on a node without accelerators", 30, 20, "MB"
    ),
    _at_most("G20.anon", "agent's anonymous memory, against node_exporter", math.inf, 1.5),
    _at_most("G21", "agent's CPU at rest, against node_exporter scraped each 10 s", 1.0, 0.4),
    _at_most("G22", "agent and ten sh reporters each 10 s, against collectd exec", 1.0, 0.4),
    _at_most("G23", "agent's own CPU per run, one after the other, against subprocess.run", 1.0, 0.5),
    _at_most("G23.paced", "the same at ten a second, with cold caches", math.inf, 1.0),
    _at_most("G24", "agent exec to first values at the watcher, against node_exporter's scrape", 8, 3),
    _at_most("G24.time", "agent exec to first values at the watcher", 150, 60, "ms"),
    _at_most("G25", "`xce-agent status`, against `python3 -c pass`", 10, 5),
    _at_most("G25.time", "`xce-agent status`", 100, 50, "ms"),
    _at_most("G26", "claim of 11 device rules and a mount made true, on disk, against `runc run`", 0.2, 0.05),
    _at_most("G26.job", "8 GPUs, 8 NICs, 2 mounts, scratch made and taken back, against `crun run`", 1, 0.5),
    _at_most("G26.calls", "the same against its bare system calls, in memory", math.inf, 10),
    _at_most("G26.slow", "8 claims at once from a file server that takes 0.2 s, against one", 4, 1.5),
    _at_most("G27", "the claim of G26 with its journal in memory", 2, 0.4, "ms"),
    _at_most("G28", "broker CPU per delta at 100 watchers, against 1 watcher", 30, 15),
    _at_most("G29", "ingest at 100,000 hosts, against 1,000 hosts", 2.5, 1.8),
    _at_most("G30.all", "bytes of a 20-value report, all changed", 340, 180, "B"),
    _at_most("G30.four", "bytes of a 20-value report, 4 changed", 120, 80, "B"),
    _at_most("G31", "full reading of /sys: 8 GPUs, 11 NICs, 160 other PCI functions", 20, 6, "ms"),
    _at_most("G31.floor", "the same against opening and reading the same files", 6, 3),
    _at_most("G32", "topology of 64 GPUs and 64 NICs from its facts", 100, 30, "ms"),
    _at_most("G34", "all of a discovery: /sys, 8 GPUs asked everything, topology, instances", 100, 40, "ms"),
    _at_most("G34.steady", "CPU of a later reading, in which nothing has changed", 60, 25, "ms"),
    _at_most(
        "G34.wire",
        "bytes of an inventory of 8 GPUs and 12 NICs, when it changes",
        65536,
        16384,
        "B",
    ),
    _at_most("G33", "what the helper adds to a CSI call of the bare library", 3, 1, "ms"),
    _at_most("G33.size", "resident memory of the CSI helper after 1,000 calls", 45, 32, "MB"),
    _at_most("G33.start", "from no helper to its first answer", 1000, 400, "ms"),
    _at_most("G35", "a new agent takes up 200 CSI volumes in use: journal and kernel read", 500, 150, "ms"),
    _at_most("G35.calls", "calls for volumes that their plugin gets for that", 0, 0, ""),
    _at_most("G35.size", "resident memory of the CSI helper that has made those volumes", 45, 32, "MB"),
)
GOALS = {goal.key: goal for goal in _TABLE}
