"""`xce-agent csi`: plugins and statistics as a person sees them."""

import json
from pathlib import Path

import pytest

from tests.csi_node_helper.world import World
from xce.agent.cli import csi as command
from xce.agent.cli import main

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


def test_stats_are_the_plugins_words(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    path = config(world, {"fake": world.plugin.socket})
    assert command.run(["stats", "fake", "vol1", "--config", path]) == 0
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
