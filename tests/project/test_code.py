"""What the product's code never does, and what every module has."""

import ast
import sys
from pathlib import Path

import pytest

from tests.project import tree

NEVER = {
    "os.fork": "the one process starter is linux.spawn",
    "os.forkpty": "the one process starter is linux.spawn",
    "os.system": "the one process starter is linux.spawn",
    "os.popen": "the one process starter is linux.spawn",
    "os.posix_spawnp": "a program is started by its path",
    "subprocess": "the one process starter is linux.spawn",
    "multiprocessing": "the one process starter is linux.spawn",
    "pty": "the one process starter is linux.spawn",
    "concurrent": "one loop thread decides",
    "os.wait": "a blocking wait",
    "os.wait3": "a blocking wait",
    "os.wait4": "a blocking wait",
    "os.waitpid": "a blocking wait; linux.reaper waits for children",
    "shutil.rmtree": "never delete recursively by path",
    "zmq.asyncio": "eight times the cost of a plain loop per message",
    "pickle": "code in data",
    "eval": "code in data",
    "exec": "code in data",
}
LIBRARIES = {
    "agent": {"msgspec", "prctl", "prometheus_client", "psutil", "pynvml", "pyroute2", "rich", "systemd"},
    "broker": {"msgspec", "prometheus_client", "rich", "systemd"},
    "csi_node_helper": {"google", "grpclib", "msgspec"},
    "linux": {"prctl"},
    "model": {"msgspec", "yaml"},
    "prepare": {"msgspec"},
    "reporters": {"msgspec", "psutil"},
    "wire": {"msgspec", "systemd", "zmq"},
}


def used_names(source: str) -> set[str]:
    """Dotted names that the source uses, imports resolved, and keyword arguments as `NAME=`."""
    module = ast.parse(source)
    names = {"": ""}
    found = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
            names |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute):
            text = ast.unparse(node)
            first, dot, rest = text.partition(".")
            found.add(names.get(first, first) + dot + rest)
        elif isinstance(node, ast.Call):
            found |= {f"{keyword.arg}=" for keyword in node.keywords}
            if isinstance(node.func, ast.Name):
                found.add(names.get(node.func.id, node.func.id))
    return found


def forbidden(source: str) -> set[str]:
    """The entries of NEVER that the source uses; a module stands for all that is in it."""
    used = used_names(source)
    never = {name for name in NEVER if any(use == name or use.startswith(name + ".") for use in used)}
    return never | ({"preexec_fn"} & {use.removesuffix("=") for use in used})


def libraries(source: str) -> set[str]:
    """Third-party packages that the source imports."""
    modules = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add(node.module or "")
    return {name.partition(".")[0] for name in modules} - sys.stdlib_module_names - {"xce"}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import os\nos.fork()", {"os.fork"}),
        ("import os as system\nsystem.fork()", {"os.fork"}),
        ("from os import fork\nfork()", {"os.fork"}),
        ("import subprocess", {"subprocess"}),
        ("from subprocess import run", {"subprocess"}),
        ("def f():\n    import multiprocessing.pool", {"multiprocessing"}),
        ("import shutil\nshutil.rmtree('x')", {"shutil.rmtree"}),
        ("Popen(x, preexec_fn=f)", {"preexec_fn"}),
        ("eval('1')", {"eval"}),
        ("import os\nos.posix_spawn('x', [], {})\nloop.fork()", set()),
    ],
)
def test_the_guard_sees_through_imports(source: str, found: set[str]) -> None:
    assert forbidden(source) == found


@pytest.mark.parametrize("path", tree.modules(), ids=str)
def test_a_product_module_uses_nothing_forbidden(path: Path) -> None:
    assert {name: NEVER.get(name) for name in forbidden((tree.ROOT / path).read_text())} == {}


@pytest.mark.parametrize("path", tree.modules(), ids=str)
def test_a_room_imports_only_the_libraries_that_it_may(path: Path) -> None:
    assert libraries((tree.ROOT / path).read_text()) <= LIBRARIES[path.parts[0]]


def test_all_libraries_of_the_rooms_are_declared_dependencies() -> None:
    names = {
        "google": "protobuf",
        "prctl": "python-prctl",
        "pynvml": "nvidia-ml-py",
        "systemd": "systemd-python",
        "yaml": "pyyaml",
        "zmq": "pyzmq",
    }
    wanted = {names.get(name, name.replace("_", "-")) for room in LIBRARIES.values() for name in room}
    declared = {dependency.partition(">")[0] for dependency in tree.pyproject()["project"]["dependencies"]}
    assert wanted == declared


@pytest.mark.parametrize(
    "path", [*tree.modules(), *tree.tracked("tests/*.py", "docs/*.py", "bench/*.py")], ids=str
)
def test_a_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse((tree.ROOT / path).read_text())), "no docstring at its head"
