"""Real link and device events wake; a storm of them costs nothing."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.linux.kernel import Kernel
from xce.agent.discovery.unread import Unread
from xce.agent.discovery.wake import Wakeup
from xce.agent.probe.frame import KERNEL, NVIDIA

NULL = Path("/sys/class/mem/null/uevent")

SLEEPER = """
import sys
from xce.agent.discovery.wake import Wakeup
from xce.linux import netlink
from xce.linux.loop import Loop
loop = Loop()
say = lambda: print("woken", flush=True)
wakeup = Wakeup(loop, say, settle=0.05, calm=0.3, sockets=lambda: [netlink.links()])
wakeup.open()
loop.call_later(0, lambda: print("ready", flush=True))
loop.call_later(3, loop.stop)
loop.run()
"""


def test_a_link_that_comes_and_goes_wakes_once() -> None:
    """In a network namespace of its own, with the kernel's own events."""
    alone = ["unshare", "-n", "--"]
    if subprocess.run([*alone, "true"], check=False, capture_output=True).returncode:
        pytest.skip("needs network namespaces")
    sleeper = subprocess.Popen(
        [*alone, sys.executable, "-c", SLEEPER],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": "."},
    )
    assert sleeper.stdout is not None
    assert sleeper.stdout.readline() == "ready\n"
    inside = ["nsenter", f"--net=/proc/{sleeper.pid}/ns/net", "ip"]
    subprocess.run([*inside, "link", "add", "xce0", "type", "veth"], check=True)
    subprocess.run([*inside, "link", "set", "xce0", "up"], check=True)
    assert sleeper.stdout.readline() == "woken\n"
    subprocess.run([*inside, "link", "delete", "xce0"], check=True)
    assert sleeper.communicate(timeout=10)[0] == "woken\n"


def event() -> None:
    if not NULL.exists():
        pytest.skip("needs /sys")
    try:
        NULL.write_text("change")
    except OSError as error:
        pytest.skip(f"needs uevents: {error}")


def test_a_device_event_wakes_after_it_has_settled(kernel: Kernel) -> None:
    woken: list[float] = []
    wakeup = Wakeup(kernel.loop, lambda: woken.append(time.monotonic()), settle=0.1, calm=0.5)
    wakeup.open()
    begun = time.monotonic()
    event()
    kernel.until(lambda: woken)
    assert woken[0] - begun >= 0.1
    wakeup.close()
    event()
    kernel.during(0.3)
    assert len(woken) == 1


def test_a_storm_of_events_is_two_readings_with_a_pause_between(kernel: Kernel) -> None:
    woken: list[float] = []
    wakeup = Wakeup(kernel.loop, lambda: woken.append(time.monotonic()), settle=0.05, calm=0.6)
    wakeup.open()
    for _ in range(5000):
        event()
    kernel.until(lambda: woken)
    for _ in range(5000):
        event()
    kernel.until(lambda: len(woken) == 2)
    assert woken[1] - woken[0] >= 0.6
    wakeup.close()


def test_readings_without_news_make_the_pauses_longer(kernel: Kernel) -> None:
    woken: list[float] = []
    wakeup = Wakeup(kernel.loop, lambda: woken.append(time.monotonic()), settle=0.01, calm=0.5)
    wakeup.open()
    event()
    kernel.until(lambda: woken)
    for _ in range(2):
        wakeup.learned(news=False)
    event()
    kernel.until(lambda: len(woken) == 2)
    assert woken[1] - woken[0] >= 2
    wakeup.learned(news=True)
    event()
    kernel.until(lambda: len(woken) == 3)
    assert woken[2] - woken[1] < 2
    wakeup.close()


def test_a_source_is_late_once_and_again_only_after_it_was_read() -> None:
    unread = Unread(10)
    assert unread.due() is None
    unread.wanted(100)
    assert unread.due() == 110
    assert unread.late(109) == []
    assert sorted(unread.late(110)) == [KERNEL, NVIDIA]
    assert unread.late(200) == []
    assert unread.due() is None
    unread.read(300, without=[NVIDIA], rest=False)
    assert unread.late(309) == []
    assert unread.late(310) == [KERNEL]
    unread.read(400, without=[], rest=True)
    assert unread.due() is None
