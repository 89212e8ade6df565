"""The types that both sides know without being told: LSF's 11 load indices and the attributes of a host.

Names, meaning, units and directions are LSF's (load indices and static resources in the LSF reference), so
that `select[...]` strings move over. A site may declare one of them in resources.yaml to change its ttl or
what a stale value does, but not its kind. They are nobody's by type: the agent's own source `builtin` owns
them as long as it runs (`reporters.load_indices`); with it switched off, a site's reporter may report them.
"""

from xce.model.resource import Kind, Order, ResourceType

BUILTIN = "builtin"
"""Name of the agent's in-process source of these types."""
DISCOVERY = "discovery"
OWN = frozenset({BUILTIN, DISCOVERY})
"""The agent's own sources; no reporter may be called so."""


def _index(name: str, unit: str, order: Order, interval: float, description: str) -> ResourceType:
    return ResourceType(
        name=name,
        kind=Kind.NUMERIC,
        unit=unit,
        order=order,
        interval=interval,
        ttl=interval * 3,  # two readings may be lost before the third is missed
        minimum=0,
        description=description,
    )


_UP, _DOWN = Order.INCREASING, Order.DECREASING
LOAD_INDICES = (
    _index("r15s", "", _UP, 15, "run queue length, exponentially averaged over 15 seconds"),
    _index("r1m", "", _UP, 15, "run queue length, exponentially averaged over 1 minute"),
    _index("r15m", "", _UP, 15, "run queue length, exponentially averaged over 15 minutes"),
    _index("ut", "", _UP, 15, "share of CPU time in use, 0 to 1, exponentially averaged over 1 minute"),
    _index("pg", "pages/s", _UP, 15, "pages swapped in and out, exponentially averaged over 1 minute"),
    _index("io", "KB/s", _UP, 15, "block devices' input and output, exponentially averaged over 1 minute"),
    _index("ls", "", _UP, 30, "login sessions"),
    _index("it", "min", _DOWN, 30, "idle time: since the last key was pressed in any login session"),
    _index("swp", "MB", _DOWN, 15, "free swap space"),
    _index("mem", "MB", _DOWN, 15, "memory that can be had without swapping"),
    _index("tmp", "MB", _DOWN, 120, "space in /tmp that an unprivileged user can have"),
)
"""In LSF's order."""


def _count(name: str, unit: str, description: str) -> ResourceType:
    return ResourceType(
        name=name, kind=Kind.NUMERIC, unit=unit, minimum=0, interval=600, ttl=1800, description=description
    )


def _text(name: str, description: str) -> ResourceType:
    return ResourceType(name=name, kind=Kind.STRING, interval=600, ttl=1800, description=description)


ATTRIBUTES = (
    _count("maxmem", "MB", "memory of the host"),
    _count("maxswp", "MB", "swap space of the host"),
    _count("maxtmp", "MB", "size of the file system of /tmp"),
    _count("ncpus", "", "logical processors that are online"),
    _count("nprocs", "", "processor packages (sockets)"),
    _count("ncores", "", "cores of one processor package"),
    _count("nthreads", "", "hardware threads of one core"),
    _count("ndisks", "", "whole local disks"),
    _count("numa_nodes", "", "memory nodes"),
    _text("type", "host type: LSF's name of operating system and architecture, X86_64 for example"),
    _text("model", "processor model, as the processor calls itself"),
    _text("arch", "machine architecture as `uname -m` says it"),
    _text("ostype", "operating system in lower case: linux"),
    _text("osver", "distribution and its version"),
    _text("kernel", "kernel release"),
)

BUILTIN_TYPES: dict[str, ResourceType] = {kind.name: kind for kind in (*LOAD_INDICES, *ATTRIBUTES)}
"""Both, by name."""
