"""What should be there, held against what is; and port ranges as instances."""

from pathlib import Path

import pytest

from xce.agent.discovery import expect, ports
from xce.linux import local_ports
from xce.model.configuration import Expected, PortRange, Tolerance
from xce.model.instance import Health, Instance, ill


def gpus(count: int, *, lost: int = 0, unknown: int = 0) -> list[Instance]:
    healths = [Health.LOST] * lost + [Health.UNKNOWN] * unknown
    healths += [Health.AVAILABLE] * (count - len(healths))
    return [
        Instance(id=f"GPU-{number}", kind="gpu", health=health, attributes={"pci": f"0000:0{number}:00.0"})
        for number, health in enumerate(healths)
    ]


def held(found: list[Instance], **expected: object) -> str:
    conditions = expect.conditions([Expected(kind="gpu", **expected)], found)  # type: ignore[arg-type]
    assert all(one.hold and one.name == "inventory" for one in conditions)
    return conditions[0].reason if conditions else ""


@pytest.mark.parametrize(
    ("mode", "fewer", "right", "more"),
    [
        (Tolerance.STRICT, "gpu: 4 expected, 3 found", "", "gpu: 4 expected, 5 found"),
        (Tolerance.ALLOW_EXTRA, "gpu: 4 expected, 3 found", "", ""),
        (Tolerance.ALLOW_MISSING, "", "", "gpu: 4 expected, 5 found"),
        (Tolerance.IGNORE, "", "", ""),
    ],
)
def test_what_may_differ_is_the_mode(mode: Tolerance, fewer: str, right: str, more: str) -> None:
    assert [held(gpus(count), count=4, mode=mode) for count in (3, 4, 5)] == [fewer, right, more]


def test_a_lost_one_is_missing_and_an_unknown_one_is_not() -> None:
    assert held(gpus(4, lost=1), count=4) == "gpu: 4 expected, 3 found"
    assert held(gpus(4, unknown=4), count=4) == ""


def test_ids_are_uuids_or_addresses_and_the_missing_ones_are_named() -> None:
    assert held(gpus(2), ids=["GPU-0", "0000:01:00.0"]) == ""
    assert held(gpus(2), ids=["GPU-0", "GPU-9"]) == "gpu: 2 expected, 2 found, without GPU-9"
    assert held(gpus(2), ids=["GPU-0", "GPU-9"], mode=Tolerance.ALLOW_EXTRA).endswith("without GPU-9")
    strangers = held(gpus(2), ids=["GPU-0", "GPU-9"], mode=Tolerance.ALLOW_MISSING)
    assert strangers == "gpu: 2 expected, 2 found, of which 1 are not the expected ones"


def test_an_expectation_that_makes_no_sense_is_refused() -> None:
    assert "occurs twice" in expect.problem([Expected(kind="gpu", count=1), Expected(kind="gpu", count=2)])
    assert "more than count" in expect.problem([Expected(kind="gpu", count=1, ids=["a", "b"])])
    assert "say count" in expect.problem([Expected(kind="gpu")])
    assert expect.problem([Expected(kind="gpu", mode=Tolerance.IGNORE)]) == ""


def kernel(tmp_path: Path, own: str, reserved: str = "") -> str:
    folder = tmp_path / "proc/sys/net/ipv4"
    folder.mkdir(parents=True)
    (folder / "ip_local_port_range").write_text(own)
    (folder / "ip_local_reserved_ports").write_text(reserved + "\n")
    return str(tmp_path)


POOL = PortRange(name="jobs", first=32768, last=33767)


def test_a_range_is_one_instance_with_a_count(tmp_path: Path) -> None:
    (one,) = ports.instances([POOL], kernel(tmp_path, "40000\t60999\n"))
    assert (one.id, one.kind, one.capacity) == ("ports:jobs", "port-range", {"ports": 1000})
    assert one.attributes == {"first": 32768, "last": 33767}
    assert one.notes == []
    assert not ill(one)


def test_a_range_is_not_offered_since_ports_are_asked_for_otherwise(tmp_path: Path) -> None:
    (one,) = ports.instances([POOL], kernel(tmp_path, "40000\t60999\n"))
    assert one.health is Health.UNAVAILABLE
    assert "a claim asks for `ports`" in one.reason


def test_a_range_that_the_kernel_uses_too_is_told(tmp_path: Path) -> None:
    """Case C-DIR-01."""
    root = kernel(tmp_path, "32768\t60999\n")
    (told,) = ports.conditions([POOL], root)
    assert told.reason.startswith("ports jobs: the kernel gives 32768-33767 to outgoing connections")
    assert not told.hold
    assert ports.instances([POOL], root)[0].notes == [told.reason]


def test_ports_that_are_reserved_from_the_kernel_are_no_overlap(tmp_path: Path) -> None:
    root = kernel(tmp_path, "32768\t60999\n", "32768-33000,33001-33700,40000")
    (told,) = ports.conditions([POOL], root)
    assert "gives 33701-33767 to" in told.reason
    assert local_ports.automatic(f"{root}/proc") == [(33701, 39999), (40001, 60999)]


def test_ranges_that_make_no_sense_are_refused() -> None:
    assert "above last" in ports.problem([PortRange(name="a", first=2, last=1)])
    overlapping = [PortRange(name="a", first=1, last=5), PortRange(name="b", first=5, last=9)]
    assert ports.problem(overlapping) == "b and a share ports"
    assert ports.problem([PortRange(name="a", first=1, last=5), PortRange(name="b", first=6, last=9)]) == ""
