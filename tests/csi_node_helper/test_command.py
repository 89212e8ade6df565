"""`xce-agent csi`: plugins and statistics as a person sees them."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.csi_node_helper.world import World
from xce.agent.cli import csi as command
from xce.agent.cli import main
from xce.prepare.csi import paths

pytestmark = pytest.mark.root


def config(world: World, plugins: dict[str, str]) -> str:
    path = world.folder / "agent.yaml"
    lines = "".join(f"\n      {name}: {socket}" for name, socket in plugins.items())
    path.write_text(
        f"claims:\n  directory: {world.folder}/run\n  csi:\n    helper: {world.program}\n"
        f"    plugins:{lines or ' {}'}\n"
    )
    return str(path)


def test_list_shows_every_plugin_and_what_is_wrong(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    path = config(world, {"fake": world.plugin.socket, "gone": str(world.folder / "gone.sock")})
    assert command.run(["list", "--config", path]) == 1
    good, bad = capsys.readouterr().out.splitlines()[1:]
    assert good.split()[:4] == ["fake", "available", "7.1", "node-7"]
    assert bad.split()[:2] == ["gone", "problem"]
    assert "there is no socket" in bad


def test_info_names_what_a_plugin_can_do(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.plugin.control(abilities=[1, 99], max_volumes=8)
    path = config(world, {"fake": world.plugin.socket})
    assert command.run(["info", "fake", "--config", path]) == 0
    shown = capsys.readouterr().out
    assert "STAGE_UNSTAGE_VOLUME, number 99" in shown
    assert "zone=a" in shown
    assert command.run(["info", "fake", "--json", "--config", path]) == 0
    assert json.loads(capsys.readouterr().out)["max_volumes"] == 8


def test_of_a_plugin_that_never_answered_nothing_is_said_that_only_it_can_know(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(world, {"gone": str(world.folder / "gone.sock")})
    assert command.run(["info", "gone", "--config", path]) == 1
    shown = capsys.readouterr().out
    assert "there is no socket" in shown
    assert "as many as there are" not in shown
    assert "not on this socket" not in shown


def test_stats_are_the_plugins_words_of_a_volume_that_is_in_use(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(world, {"fake": world.plugin.socket})
    assert command.run(["stats", "fake", "vol1", "--config", path]) == 1
    assert "volume vol1 of plugin fake is not in use on this node" in capsys.readouterr().err
    target = paths.target(f"{world.folder}/run", "fake", "vol1")
    os.makedirs(target)
    subprocess.run(["mount", "-t", "tmpfs", "volume", target], check=True)
    try:
        assert command.run(["stats", "fake", "vol1", "--config", path]) == 0
    finally:
        subprocess.run(["umount", target], check=True)
    assert capsys.readouterr().out.splitlines()[1].split() == ["bytes", "1000", "300", "700"]
    asked = world.plugin.calls("NodeGetVolumeStats")[0]["volume_path"]
    assert asked.startswith(f"{world.folder}/run/.csi/p/")


def test_a_plugin_without_statistics_is_not_asked_for_them(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.plugin.control(abilities=[1])
    assert (
        command.run(["stats", "fake", "vol1", "--config", config(world, {"fake": world.plugin.socket})]) == 1
    )
    assert "has no statistics" in capsys.readouterr().err
    assert world.plugin.calls("NodeGetVolumeStats") == []


@pytest.mark.parametrize("words", [[], ["list", "x"], ["info"], ["nothing"]])
def test_wrong_usage_is_explained(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["csi", *words]) == 2
    assert "usage:" in capsys.readouterr().err


def test_no_plugins_are_said_to_be_none(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.run(["list", "--config", config(world, {})]) == 0
    assert "no CSI plugins" in capsys.readouterr().out
