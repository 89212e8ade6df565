"""Bindings from order to release, on the real kernel."""

import os
from pathlib import Path

import msgspec
import pytest

from tests.prepare.world import DENIED, FULL_ASK, OTHER, OWN, World
from xce.model.claim import Ask, BindingState, PortsAsk

pytestmark = pytest.mark.root


def test_one_of_every_kind_is_ready_and_then_gone(world: World) -> None:
    report = world.bind(FULL_ASK, cards=["full"])
    assert (report.state, report.reason) == (BindingState.READY, "")
    assert world.opened(report.binding, OWN, OTHER, "/dev/null") == [
        "ok",
        DENIED,
        "ok",
    ]
    variables = world.variables(report.binding)
    assert variables["MODE"] == "test"
    assert len(variables["XCE_PORTS_RPC"].split(",")) == 2
    with open(variables["XCE_DIR_INPUT"] + "/file") as file:
        assert file.read() == "data"
    assert os.stat(variables["XCE_DIR_SCRATCH"]).st_uid == 4711
    assert os.stat(variables["XCE_DIR_OUT"]).st_uid == 4711
    assert world.release(report.binding).state is BindingState.RELEASED
    assert world.leftovers() == []


def test_a_claim_for_nothing_is_ready_at_once(world: World) -> None:
    report = world.bind(Ask())
    assert report.state is BindingState.READY
    assert world.opened(report.binding, OWN) == [DENIED]
    world.release(report.binding)
    assert world.leftovers() == []


def test_variables_of_the_user_replace_none_that_is_rendered(world: World) -> None:
    asked = Ask(environment={"XCE_BINDING": "stolen", "PATH_TO": "x"}, ports=[PortsAsk(name="rpc")])
    report = world.bind(asked)
    variables = world.variables(report.binding)
    assert (variables["XCE_BINDING"], variables["PATH_TO"]) == (report.binding, "x")


def test_files_with_the_users_variables_are_roots_alone_and_mended(
    world: World,
) -> None:
    report = world.bind(Ask(environment={"TOKEN": "secret"}))
    files = [Path(path) for path in world.evidence(report.binding, "environment")["files"]]
    assert len(files) == 3
    for path in files:
        assert path.stat().st_mode & 0o777 == 0o600
        before = path.read_text()
        path.write_text("changed")
        world.executor.check()
        assert path.read_text() == before
    [device] = msgspec.json.decode(files[-1].read_bytes())["devices"]
    assert "TOKEN=secret" in device["containerEdits"]["env"]


def test_what_goes_with_devices_of_any_kind_goes_with_none_else(world: World) -> None:
    profile = msgspec.structs.replace(world.settings.profiles["default"], device_extras=[OTHER])
    world.settings = msgspec.structs.replace(world.settings, profiles={"default": profile})
    world.restart()
    with_one, without = world.bind(Ask(), cards=["full"]), world.bind(Ask())
    assert world.opened(with_one.binding, OTHER) == ["ok"]
    assert world.opened(without.binding, OTHER) == [DENIED]
