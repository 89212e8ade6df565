"""`xce-agent inventory` and `topology` against a real agent with a real probe, and beside one."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.agent.picture.test_plan import GOLDEN, H100
from tests.system.hardware import Rig
from tests.system.harness import Site, python

pytestmark = [pytest.mark.system]


def command(*words: object) -> subprocess.CompletedProcess[str]:
    argv = [*python("xce.agent.cli"), *(str(word) for word in words)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def told(rig: Rig, *words: object) -> dict[str, Any]:
    ran = command("inventory", "--socket", rig.node.socket, "--json", *words)
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def test_an_agent_on_a_simulated_machine_shows_what_its_file_shows(site: Site, tmp_path: Path) -> None:
    """What is published is enough for the same table, matrix and picture."""
    rig = Rig(site, tmp_path, machine=str(H100)).start()
    site.until(lambda: len(told(rig)["instances"]) == 35)
    shown = command("topology", "--socket", rig.node.socket)
    assert shown.stdout == (GOLDEN / "h100.matrix").read_text()
    table = command("inventory", "--socket", rig.node.socket)
    assert (table.returncode, table.stdout.split("\n\n")[0]) == (
        0,
        (GOLDEN / "h100.inventory").read_text().split("\n\n")[0],
    )
    drawn = command("topology", "--socket", rig.node.socket, "--svg", "-").stdout
    assert drawn.count('class="tile gpu"') == 8 + 1  # one in the legend


def test_a_lost_gpu_is_told_with_its_time_and_ends_the_command_with_one(site: Site, tmp_path: Path) -> None:
    rig = Rig(site, tmp_path, "one-lost").start()
    site.until(lambda: len(told(rig)["instances"]) == 4)
    assert command("inventory", "--socket", rig.node.socket).returncode == 0
    rig.step(1)
    site.until(lambda: "lost" in rig.health().values())
    shown = command("inventory", "--socket", rig.node.socket)
    assert shown.returncode == 1
    assert "GPU3: lost: GPU is lost (since 20" in shown.stdout
    one = command("inventory", "--socket", rig.node.socket, "GPU3")
    assert one.returncode == 1
    assert "evidence                NVML:" in one.stdout


def test_beside_an_agent_the_machine_is_read_in_a_process_of_its_own(site: Site, tmp_path: Path) -> None:
    """Through the stand-in of the library, as agent.yaml says; a library that hangs costs its word alone."""
    rig = Rig(site, tmp_path, "minor-swap", timeout=3).start()
    configuration = rig.node.folder / "agent.yaml"
    site.until(lambda: len(told(rig)["instances"]) == 4)
    here = command("inventory", "--here", "--json", "--config", configuration)
    assert here.returncode == 0, here.stderr
    assert [one["id"] for one in json.loads(here.stdout)["instances"]] == [*rig.all()]
    file = tmp_path / "recorded.json"
    assert command("inventory", "--record", file, "--config", configuration).returncode == 0
    again = command("inventory", "--from", file, "--json")
    assert json.loads(again.stdout)["instances"] == json.loads(here.stdout)["instances"]
    rig.orders(hang="nvmlDeviceGetCount_v2")
    hangs = command("inventory", "--here", "--config", configuration)
    assert hangs.returncode == 1
    assert "said nothing for 3 s" in hangs.stdout
