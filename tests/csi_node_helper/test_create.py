"""`xce-agent csi create | delete`: volumes of plugins that need no controller beside them."""

import json
import os
import subprocess
import textwrap
from typing import Any

import pytest

from tests.csi_node_helper.test_command import config
from tests.csi_node_helper.world import World
from xce.agent.cli import csi as command
from xce.agent.cli import csi_create
from xce.agent.cli.options import UsageError
from xce.model import document
from xce.model.claim import AccessMode
from xce.model.configuration import AgentFile
from xce.model.profile import problems
from xce.prepare.csi import paths

pytestmark = pytest.mark.root


def run(world: World, *words: str) -> int:
    return command.run([*words, "--config", config(world, {"fake": world.plugin.socket})])


def secrets(world: World) -> str:
    path = world.folder / "secrets.json"
    path.write_text('{"token": "correct-horse"}')
    path.chmod(0o600)
    return str(path)


def test_what_is_made_is_printed_as_a_profile_takes_it(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.plugin.control(controller=[1], services=[1, 2])
    words = ("--size", "2m", "--access", "RWOP", "--type", "ext4", "--parameter", "pool=a,b: {x}")
    given = ("--parameter=tier=1", "--secrets", secrets(world))
    assert run(world, "create", "fake", "first", *words, *given) == 0
    text = capsys.readouterr().out
    head = "claims:\n  csi: {plugins: {fake: /run/fake.sock}}\n  profiles:\n    default:\n      volumes:\n"
    file = document.load(head + textwrap.indent(text, " " * 8), "agent.yaml", AgentFile)
    assert problems(file.claims) == {}
    volume = file.claims.profiles["default"].volumes["first"]
    assert volume.csi is not None
    assert (volume.csi.plugin, volume.csi.id, volume.type) == ("fake", "made-first", "ext4")
    assert volume.csi.access is AccessMode.RWOP
    assert volume.csi.context == {"pool": "a,b: {x}", "tier": "1", "made": "by controller"}
    (asked,) = world.plugin.calls("CreateVolume")
    assert asked["secrets"] is True
    assert "required_bytes: 2097152" in asked["capacity_range"]
    assert "zone" in asked["accessibility_requirements"], "it says that it minds from where it is reached"
    assert "correct-horse" not in text


def test_one_that_was_made_is_deleted_unless_it_is_in_use_here(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.plugin.control(controller=[1])
    assert run(world, "create", "fake", "first", "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert made["profile"]["first"]["csi"]["id"] == made["volume"] == "made-first"
    target = paths.target(f"{world.folder}/run", "fake", "made-first")
    os.makedirs(target)
    subprocess.run(["mount", "-t", "tmpfs", "volume", target], check=True)
    assert run(world, "delete", "fake", "made-first") == 1
    assert f"it is in use on this node, mounted at {target}" in capsys.readouterr().err
    subprocess.run(["umount", target], check=True)
    assert world.plugin.calls("DeleteVolume") == []
    assert run(world, "delete", "fake", "made-first") == 0
    assert capsys.readouterr().out == "plugin fake has no volume made-first any more\n"
    assert not (world.plugin.folder / "backing/made-first").exists()


@pytest.mark.parametrize(
    ("controller", "words"),
    [(None, "its controller is elsewhere"), ([1, 2], "have to be attached to a node first")],
)
def test_a_plugin_that_needs_its_controller_is_not_asked(
    world: World, capsys: pytest.CaptureFixture[str], controller: list[int] | None, words: str
) -> None:
    world.plugin.control(controller=controller)
    for verb in ("create", "delete"):
        assert run(world, verb, "fake", "first") == 1
        assert words in capsys.readouterr().err
    assert [call for call in world.plugin.calls() if call["rpc"].endswith("teVolume")] == []


def test_a_refusal_is_said_without_secrets_and_a_doubt_with_what_to_do(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    fault: dict[str, Any] = {"CreateVolume": {"code": 8, "message": "pool is full"}}
    world.plugin.control(controller=[1], faults=fault, behaviours=["echoes-secrets"])
    assert run(world, "create", "fake", "first", "--secrets", secrets(world)) == 1
    said = capsys.readouterr().err
    assert "pool is full" in said
    assert "[hidden]" in said
    assert "correct-horse" not in said
    assert "may exist" not in said
    world.plugin.control(controller=[1], faults={"CreateVolume": {"die": "after"}})
    assert run(world, "create", "fake", "first") == 1
    assert "the same command again gives the same volume" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "g", "-1", "1.5g", "10x", "ten"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--size must be"):
        csi_create.size(text)


def test_a_file_is_found_where_the_command_is_given(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The helper has another current directory."""
    secrets(world)
    monkeypatch.chdir(world.folder)
    world.plugin.control(controller=[1])
    assert run(world, "delete", "fake", "gone", "--secrets", "secrets.json") == 0, capsys.readouterr().err
    assert world.plugin.calls("DeleteVolume")[0]["secrets"] is True


def test_sizes_are_bytes() -> None:
    assert [csi_create.size(text) for text in ("0", "512", "1k", "2G")] == [0, 512, 1024, 2 << 30]
