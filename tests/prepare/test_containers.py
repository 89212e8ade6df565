"""A container engine takes a binding by its CDI file, and what it does with it ends with the binding."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.linux import engine
from tests.linux.podman import Podman
from tests.linux.surroundings import tun
from tests.prepare.world import FULL_ASK, World
from xce.model.claim import Ask, BindingState, MountAsk
from xce.model.instance import Instance

pytestmark = pytest.mark.root


@pytest.fixture(params=[lambda: "", engine.newer], ids=["of this machine", "newer"])
def podman(tmp_path: Path, world: World, request: pytest.FixtureRequest) -> Iterator[Podman]:
    os.makedirs(world.settings.cdi_directory, exist_ok=True)
    with engine.shared(world.settings.directory):
        yield Podman(tmp_path, world.settings.cdi_directory, programs=request.param())


@pytest.fixture
def card(tmp_path: Path, world: World) -> str:
    """An instance with a device file that can be in a container."""
    path = tun(tmp_path / "card")
    profile = msgspec.structs.replace(world.settings.profiles["default"], device_paths=[path])
    world.settings = msgspec.structs.replace(world.settings, profiles={"default": profile})
    world.instances["card-tun"] = Instance(id="card-tun", kind="card", attributes={"device_files": [path]})
    world.restart()
    return path


_LOOK = """
set -e
(: <>{card}) && echo device
cat /xce/input/file
echo; touch /xce/input/new 2>&1 || true
echo one > /xce/scratch/one && cat "$XCE_DIR_SCRATCH/one"
df -m /xce/scratch | tail -n 1 | awk '{{print $2}}'
touch /xce/out/result
echo $MODE $XCE_PORTS_RPC $XCE_BINDING
"""


def test_podman_gives_a_container_devices_mounts_and_variables_of_a_binding(
    world: World, podman: Podman, card: str
) -> None:
    report = world.bind(FULL_ASK, cards=["tun"])
    options = ["--cgroups=split", "--device", world.evidence(report.binding, "environment")["device"]]
    command = podman.command(options, ["sh", "-c", _LOOK.format(card=card)])
    done = subprocess.run(world.inside(report.binding, command), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ports = ",".join(str(port) for port in report.ports["rpc"])
    assert done.stdout.splitlines() == [
        "device",
        "data",
        "touch: /xce/input/new: Read-only file system",
        "one",
        "1",
        f"test {ports} {report.binding}",
    ]
    assert os.path.exists(f"{world.evidence(report.binding, 'shared')['path']}/out/result")
    assert world.release(report.binding).state is BindingState.RELEASED


@contextlib.contextmanager
def started(command: list[str]) -> Iterator["subprocess.Popen[str]"]:
    """A command that has said something."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "here\n"
            yield process
        finally:
            process.terminate()


def test_a_container_in_the_group_of_a_consumer_ends_with_its_binding(
    world: World, podman: Podman, card: str
) -> None:
    report = world.bind(FULL_ASK, cards=["tun"])
    options = ["--cgroups=split", "--device", f"xce.dev/claim={report.binding}"]
    stay = podman.command(options, ["sh", "-c", f"exec 7<>{card}; echo here; sleep 60"])
    with started(world.inside(report.binding, stay)) as engine:
        assert world.release(report.binding).state is BindingState.RELEASED
        assert engine.wait(10) != 0


def test_a_container_elsewhere_that_still_has_the_mounts_keeps_a_binding_from_being_released(
    world: World, podman: Podman, card: str
) -> None:
    """Its mounts lie at other places there; nothing of it is in the consumer's group.

    What it has of devices it need not have opened: they are not clean as long as it can.
    """
    ask = Ask(mounts=[MountAsk(name="input", source="data")], scratch_bytes=1 << 20)
    report = world.bind(ask, cards=["tun"])
    other = world.bind(ask)
    stray = world.group.child("stray")
    stray.create()
    options = ["--cgroups=split", "--device", f"xce.dev/claim={report.binding}"]
    stay = podman.command(options, ["sh", "-c", "echo here; exec sleep 60"])
    with started(["sh", "-c", f'echo $$ > {stray.path}/cgroup.procs && exec "$@"', "sh", *stay]) as engine:
        held = world.release(report.binding)
        assert (held.state, "blocked" in held.conditions) == (BindingState.RELEASING, True)
        assert "is still mounted elsewhere: pid " in held.note
        assert world.release(other.binding).state is BindingState.RELEASED, "it has another binding's"
        world.until(lambda: world.report(report.binding).quarantine.keys() == {"card-tun"})
        stray.kill()
        engine.wait(20)
        world.until(lambda: world.report(report.binding).state is BindingState.RELEASED)
