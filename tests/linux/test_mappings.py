"""A device that a process has mapped, though its descriptor is closed; nothing is waited for."""

import os
from collections.abc import Iterator

import pytest

from tests.fakes.descriptors import allowed
from tests.linux.test_holders import Sitter, headless
from xce.linux import bpf, btf, holders, mappings
from xce.linux.mappings import Mappings
from xce.linux.openfiles import DeviceNumber

pytestmark = pytest.mark.root
ZERO = DeviceNumber("c", os.makedev(1, 5))
MAPPED = """
import ctypes, os
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + 3 * [ctypes.c_int] + [ctypes.c_long]
f = os.open({path!r}, os.O_RDONLY)
assert libc.mmap(None, 4096, 1, 2, f, 0) not in (None, 2**64 - 1)
os.close(f)
"""
"""A program that has a device mapped, and no descriptor of it."""


@pytest.fixture(name="maps")
def make_maps() -> Iterator[Mappings]:
    try:
        maps = Mappings()
    except (OSError, btf.BtfRefused) as error:
        pytest.skip(f"this kernel does not list mappings without waiting: {error}")
    yield maps
    maps.close()


def test_a_mapping_without_a_descriptor_is_seen(maps: Mappings) -> None:
    sitter, other = Sitter(MAPPED.format(path="/dev/zero")), Sitter("pass")
    devices = holders.Devices()
    assert sitter.process.pid not in {one.pid for one in devices({ZERO})}
    mapped, _ = devices.mapped({ZERO})
    [found] = [one for one in mapped if one.pid in {sitter.process.pid, other.process.pid}]
    assert (found.pid, found.how) == (sitter.process.pid, "mapping of 1:5")
    assert sitter.process.pid not in maps({DeviceNumber("b", ZERO.number)}).mapped, "another kind of device"
    sitter.leave()
    assert sitter.process.pid not in maps({ZERO}).mapped
    other.leave()
    devices.close()


def test_a_process_whose_first_thread_has_ended_has_its_mappings_still(maps: Mappings) -> None:
    sitter = headless(MAPPED.format(path="/dev/zero"))
    assert maps({ZERO}).mapped[sitter.process.pid] == ZERO
    sitter.leave()
    assert sitter.process.pid not in maps({ZERO}).mapped


def test_a_moment_without_descriptors_does_not_blind_for_ever() -> None:
    devices = holders.Devices()
    sitter = Sitter(MAPPED.format(path="/dev/zero"))
    with allowed(3), pytest.raises(OSError, match="Too many open files"):
        devices.mapped({ZERO})
    if mappings.find() is not None:
        assert sitter.process.pid in {one.pid for one in devices.mapped({ZERO})[0]}
    sitter.leave()
    devices.close()


MANY = 3000


def test_a_process_with_thousands_of_mappings_keeps_nobody_from_being_seen(maps: Mappings) -> None:
    """One that says more of a process than a page or eight takes was refused the whole walk."""
    code = MAPPED.format(path="/dev/zero").replace("assert libc", f"for i in range({MANY}): assert libc")
    sitter = Sitter(code.replace("4096, 1, 2", "4096, 1 + i % 2 * 2, 2"))  # alike ones would become one
    with open(f"/proc/{sitter.process.pid}/maps", encoding="ascii") as lines:
        assert sum("/dev/zero" in line for line in lines) > MANY - 10
    other = Sitter("pass")
    fresh = Mappings()
    for look in (maps, fresh):
        assert look({ZERO}).mapped[sitter.process.pid] == ZERO
        assert other.process.pid not in look({ZERO}).mapped
    fresh.close()
    sitter.leave()
    other.leave()


@pytest.mark.parametrize("kind", ["c", "b"])
def test_one_of_very_many_devices_is_found(maps: Mappings, kind: str) -> None:
    sitter = Sitter(MAPPED.format(path="/dev/zero"))
    others = {DeviceNumber(kind, os.makedev(4000, number)) for number in range(1000)}
    assert sitter.process.pid not in maps(others).mapped
    assert maps({*others, ZERO}).mapped[sitter.process.pid] == ZERO
    assert maps(()).mapped == {}
    sitter.leave()


def test_where_the_kernel_does_not_list_them_nobody_is_said_to_have_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(bpf, "load", refused)
    assert mappings.find() is None
    devices = holders.Devices()
    assert devices.mapped({ZERO}) == ([], [])
    devices.close()
