"""The rooms are the same ones in folder, configuration and documents, and import no more than they may."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project import tree


@pytest.mark.parametrize("room", tree.ROOMS)
def test_a_room_is_a_relative_link_to_a_folder_beside_xce(room: str) -> None:
    link = tree.ROOT / "xce" / room
    assert str(link.readlink()) == f"../{room}"
    assert (link / "__init__.py").is_file() or not list(link.glob("*.py"))
    assert (link / "py.typed").is_file()


def test_xce_holds_nothing_but_the_links() -> None:
    assert all(path.is_symlink() for path in (tree.ROOT / "xce").iterdir())


def test_bare_imports_of_all_rooms_are_banned() -> None:
    banned = tree.pyproject()["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]
    assert sorted(name for name in banned if "." not in name) == tree.ROOMS


def test_each_room_is_the_source_of_an_import_contract() -> None:
    sources = {
        module
        for contract in tree.pyproject()["tool"]["importlinter"]["contracts"]
        for module in contract.get("source_modules", [])
    }
    assert {source for source in sources if source.count(".") == 1} == {f"xce.{room}" for room in tree.ROOMS}


def test_the_architecture_names_all_rooms() -> None:
    table = re.findall(r"^\| (`.*?) \|", (tree.ROOT / "docs/architecture.md").read_text(), re.MULTILINE)
    named = re.findall(r"`(\w+)/`", " ".join(table))
    assert set(tree.ROOMS) <= set(named)
    assert all((tree.ROOT / name).is_dir() for name in named if name != "packaging")


VIOLATIONS = {
    "model/wrong.py": ("import xce.linux", "model imports no other room"),
    "linux/wrong.py": ("import xce.model", "linux imports no other room"),
    "wire/wrong.py": ("import xce.linux", "wire imports model alone"),
    "reporters/wrong.py": (
        "import xce.prepare",
        "reporters, prepare and csi_node_helper import model and linux alone",
    ),
    "prepare/wrong.py": (
        "import xce.wire",
        "reporters, prepare and csi_node_helper know neither programs nor wire",
    ),
    "broker/wrong.py": ("import xce.reporters", "broker imports model and wire alone"),
    "agent/wrong.py": ("import xce.broker", "agent does not import broker"),
    "agent/socket.py": ("import zmq", "zmq is imported in wire alone"),
    "broker/settings.py": ("import yaml", "yaml is imported in model.document alone"),
    "agent/nvml.py": ("import pynvml", "pynvml is imported in agent.probe.nvml alone"),
    "agent/route.py": ("import pyroute2", "pyroute2 is imported in agent.probe.links alone"),
    "prepare/remote.py": ("import grpclib", "grpclib and protobuf are imported in csi_node_helper alone"),
    "agent/discovery/wrong.py": (
        "import xce.agent.probe.reading",
        "the agent's process does not reach what reads devices",
    ),
    "agent/starter.py": ("import subprocess", "one loop of our own, one way to start a process"),
}


def test_the_import_linter_finds_a_violation_of_each_contract(tmp_path: Path) -> None:
    copy = tree.copy_to(tmp_path)
    for path, (line, _) in VIOLATIONS.items():
        (copy / path).write_text(line + "\n")
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [linter, "--no-logo", "--no-cache"], cwd=copy, capture_output=True, text=True, check=False
    )
    contracts = {contract["name"] for contract in tree.pyproject()["tool"]["importlinter"]["contracts"]}
    assert done.returncode == 1, done.stdout + done.stderr
    assert set(re.findall(r"^(.*?) BROKEN\b", done.stdout, re.MULTILINE)) == contracts
    assert {name for _, name in VIOLATIONS.values()} == contracts
