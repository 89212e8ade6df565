"""What the hosts of the job report: the values, and how a frame that was encoded before is made current.

20 values: LSF's 11 load indices from the source `builtin`, 9 of a site's reporter. Two of them are marks that
are overwritten in the encoded frame before each send: `sent_ns` (the publisher's monotonic clock) for the
latency, and `report_no` for counting, because a hub may merge two reports of a host into one change.
"""

import random
import struct

import msgspec

from xce.model import builtin_types
from xce.model.instance import Instance, Inventory
from xce.model.message import ReporterState
from xce.model.resource import Kind, ResourceType
from xce.model.value import Value

INDICES = tuple(kind.name for kind in builtin_types.LOAD_INDICES)
SITE = ("slots", "scratch_gb", "license_a", "nvme_free_gb", "temp_c", "power_w", "fs_quota_gb")
BUILTIN = builtin_types.BUILTIN
SITE_REPORTER, DEVICES = "site", "devices"
SENT, NUMBER = "sent_ns", "report_no"

_SENT_MARK = 0x7FEEDDCCBBAA9988
_NUMBER_MARK = 0x7AFE5E01
SEQUENCE_MARK = 0x7AFE5E02
HEADS = (SEQUENCE_MARK,)
"""Numbers that MessagePack writes in full length and that occur nowhere else in a frame."""
RUN = 1 << 16
"""Of both reporters, which are persistent: they report all day in one run."""


class Report(msgspec.Struct):
    """What is sent to hubs that are not ours."""

    host: str
    epoch: int
    seq: int
    values: dict[str, Value]


_WELL = ReporterState(state="waiting", mode="persistent", interval_ms=15_000, ttl_ms=86_400_000, runs=1)
STATES = {BUILTIN: _WELL, SITE_REPORTER: _WELL}


def host_name(host: int) -> str:
    """The name of a host of the job."""
    return f"node{host:05d}"


def extra_names(count: int) -> list[str]:
    """Names of the values beyond 20."""
    return [f"site_value_{number:03d}" for number in range(20, count)]


def types(count: int = 20) -> list[ResourceType]:
    """Types that the cluster must declare for `values`."""
    names = [*SITE, SENT, NUMBER, *extra_names(count)]
    return [ResourceType(name=name, kind=Kind.NUMERIC, ttl=86400) for name in names]


def values(host: int, variant: int, count: int = 20) -> tuple[dict[str, Value], dict[str, Value]]:
    """The load indices and the site's values of one report, `count` in all; below 20 the site's only."""
    rng = random.Random(host * 100 + variant)
    indices: dict[str, Value] = {name: round(rng.random() * 100, 3) for name in INDICES if count >= 20}
    site: dict[str, Value] = {SENT: _SENT_MARK, NUMBER: _NUMBER_MARK}
    names = (*SITE, *extra_names(count))[: count - len(indices) - len(site)]
    for index, name in enumerate(names):
        site[name] = rng.randrange(1 << 20) if index % 2 else round(rng.random() * 100, 3)
    return indices, site


def inventory(host: int, instances: int) -> Inventory:
    """What a GPU reporter finds: a quarter GPUs, a quarter NICs, slices of GPUs; 15 attributes each."""
    rng = random.Random(host)
    found: list[Instance] = []
    for index in range(instances):
        kind = ("gpu", "nic", "mig", "mig")[index * 4 // instances]
        identity = f"{kind.upper()}-{rng.randbytes(16).hex()}"
        parent = found[index % (instances // 4)].id if kind == "mig" else ""
        address = f"0000:{index:02x}:00.0"
        attributes: dict[str, Value] = {
            "index": index,
            "vendor": "nvidia",
            "model": "NVIDIA H100 80GB HBM3",
            "memory_mib": 81559,
            "pci": address,
            "pcie_switch": address,
            "numa": index % 2,
            "link_domain": "nvs0",
            "links": 18,
            "mode": "default",
            "ecc": True,
            "driver": "550.54.15",
            "firmware": "28.39.1002",
            "power_limit_w": 700.5,
            "near": [address],
        }
        found.append(Instance(id=identity, kind=kind, parent=parent, attributes=attributes))
    return Inventory(reporter=DEVICES, generation=1, complete=True, instances=found)


class Frame:
    """An encoded report and the places of its marks."""

    def __init__(self, data: bytes, *, heads: tuple[int, ...] = ()) -> None:
        """`heads` are marks besides those in the values, in the order in which `stamp` gets their numbers."""
        self.data = bytearray(data)
        self._sent = _places(data, b"\xcf" + _SENT_MARK.to_bytes(8, "big"))
        self._numbers = _places(data, b"\xce" + _NUMBER_MARK.to_bytes(4, "big"))
        marks = [_places(data, b"\xce" + mark.to_bytes(4, "big")) for mark in heads]
        assert self._sent, "a frame without a mark of the time"
        assert self._numbers, "a frame without a number"
        assert all(marks), "a frame without a sequence"
        self._counts = [place for places in (self._numbers, *marks) for place in places]

    def stamp(self, now_ns: int, number: int) -> bytes | bytearray:
        """Make it the report `number` of its host, sent now."""
        for place in self._sent:
            _pack_time(self.data, place, now_ns)
        for place in self._counts:
            _pack_count(self.data, place, number)
        return self.data


_pack_time = struct.Struct(">Q").pack_into
_pack_count = struct.Struct(">I").pack_into


def _places(data: bytes, mark: bytes) -> list[int]:
    found, place = [], data.find(mark)
    while place >= 0:
        found.append(place + 1)
        place = data.find(mark, place + 1)
    return found


def plain(host: int, variant: int, count: int = 20) -> bytes:
    """A report as peers get it."""
    indices, site = values(host, variant, count)
    return msgspec.msgpack.encode(Report(host_name(host), 7, variant, {**indices, **site}))
