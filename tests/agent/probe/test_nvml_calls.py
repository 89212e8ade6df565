"""What calls into the library cost, and what only a process of its own can go through."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.agent.probe.conftest import Lab, Make
from tests.agent.probe.gpus import four
from xce.agent.probe.governor import Budget


def test_what_does_not_change_is_asked_once_and_what_does_when_it_is_due(lab: Make) -> None:
    node = lab({**four(), "0.persistence": 0})
    node.library.read()
    node.stand_in.answer(
        {
            **four(),
            "0.persistence": 1,
            "0.name": "NVIDIA A100 with another name",
            "0.ecc": 1,
            "0.ecc_pending": 1,
        }
    )
    node.clock.now += 9.9
    assert node.library.read().gpus[0].persistence is False
    node.clock.now += 0.1
    gpu = node.library.read().gpus[0]
    assert (gpu.persistence, gpu.ecc, gpu.name) == (True, None, "NVIDIA A100-SXM4-40GB")
    node.clock.now += 50
    gpu = node.library.read().gpus[0]
    assert (gpu.ecc, gpu.name) == (True, "NVIDIA A100-SXM4-40GB")
    assert node.library.read(everything=True).gpus[0].name == "NVIDIA A100 with another name"


def test_a_slow_call_is_measured_and_asked_more_rarely_than_the_others(lab: Make) -> None:
    node = lab(four())
    node.library = node.new(budget=Budget(share=0.01))
    node.stand_in.control({"sleep.nvmlDeviceGetComputeMode.*": 50})
    for _ in range(2):
        node.library.read()
        node.clock.now += 60
    meters = {meter.name: meter for meter in node.library.meters()}
    assert meters["Modes"].last_s >= 0.2, "four GPUs of 50 ms each"
    assert (meters["Modes"].interval_s or 0) > 19
    assert meters["RecoveryAction"].interval_s == 10.0
    assert meters["Name"].interval_s is None
    assert node.library.interval_s == 10.0
    (note,) = node.library.notes()
    assert note.startswith("NVML calls that take long are asked more rarely: Modes every ")


def test_a_static_call_that_failed_is_asked_again_with_the_slow_ones(lab: Make) -> None:
    node = lab(four())
    node.stand_in.control({"code.nvmlDeviceGetName.1": 999})
    assert node.library.read().gpus[1].name is None
    node.stand_in.control()
    node.clock.now += 59
    assert node.library.read().gpus[1].name is None
    node.clock.now += 1
    assert node.library.read().gpus[1].name == "NVIDIA A100-SXM4-40GB"


CHILD = """
from xce.agent.probe.nvml import Library
library = Library()
print(len(library.read().gpus), flush=True)
library.close()
"""


def child(node: Lab, program: str = CHILD) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, **node.stand_in.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def test_the_linker_finds_the_library_if_no_path_is_given(lab: Make) -> None:
    process = child(lab(four()))
    assert process.communicate(timeout=20)[0] == "4\n"


def test_the_stand_in_crashes_when_told(lab: Make) -> None:
    node = lab(four())
    node.stand_in.control({"crash.nvmlDeviceGetSerial.2": 1})
    process = child(node)
    assert process.communicate(timeout=20)[0] == ""
    assert process.returncode == -signal.SIGSEGV


def test_the_stand_in_hangs_when_told(lab: Make) -> None:
    node = lab(four())
    node.stand_in.control({"hang.nvmlDeviceGetCount_v2.*": 1})
    process = child(node)
    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(timeout=1.0)
    process.kill()
    process.communicate()


LEAK = """
import os
from pathlib import Path
from xce.agent.probe.nvml import Library
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
library = Library()
library.read()
before = resident()
library.read()
print(resident() - before)
"""


def test_the_stand_in_leaks_when_told(lab: Make) -> None:
    node = lab(four())
    node.stand_in.control({"leak.nvmlDeviceGetUUID.*": 4 << 20})
    assert int(child(node, LEAK).communicate(timeout=20)[0]) >= 15 << 20, "4 MiB for each of 4 GPUs"


def test_the_stand_in_is_slow_the_first_time_when_told(lab: Make) -> None:
    node = lab(four())
    node.stand_in.control({"once.nvmlDeviceGetPersistenceMode.*": 150})
    took = []
    for _ in range(9):
        began = time.monotonic()
        node.library.read(everything=True)
        took.append(time.monotonic() - began)
    assert took[0] >= 0.15
    assert min(took[1:]) < 0.15, "by one of them, however busy the machine is"
