"""The registration folder: a stock registrar's plugin is found, answered, followed and let go."""

import contextlib
import os
import socket
import time
from typing import Any

import pytest

from tests.csi_node_helper.world import World, until
from xce.model.csi import Outcome

pytestmark = pytest.mark.root
NAME = "fake.xce.example"


def register(world: World, also: str = "", sockets: dict[str, str] | None = None, **registrar: Any) -> str:
    folder = world.place("registry")
    world.plugin.stop()
    world.plugin.control(registry=folder, also=also, registrar=registrar)
    world.plugin.start()
    world.client.close()
    world.know(registration=folder, sockets=sockets or {})
    world.client.turn()
    return folder


def notified(world: World) -> dict[str, object]:
    call = until("an answer to the registrar", lambda: world.plugin.calls("NotifyRegistrationStatus"))[-1]
    return {name: call[name] for name in call if name not in {"rpc", "secrets"}}


def test_a_plugin_that_registers_is_used_by_its_own_name(world: World) -> None:
    register(world)
    seen = world.seen(NAME, asked=True)
    assert seen.registered
    assert seen.socket == world.plugin.socket
    assert notified(world) == {"plugin_registered": True}
    assert world.call(world.stage(), plugin=NAME).outcome is Outcome.OK
    assert "no plugin 'fake'" in world.call(world.stage()).message


@pytest.mark.parametrize(
    ("registrar", "words"),
    [({"type": "DRAPlugin"}, "of type CSIPlugin"), ({"supported_versions": ["0.3.0"]}, "version 1")],
    ids=["kind", "version"],
)
def test_one_that_does_not_fit_is_told_why(world: World, registrar: dict[str, Any], words: str) -> None:
    register(world, **registrar)
    assert words in str(notified(world)["error"])
    assert world.client.seen(NAME) is None


def test_one_whose_socket_is_gone_is_let_go_and_comes_back(world: World) -> None:
    folder = register(world)
    world.seen(NAME, ready=True)
    world.plugin.stop()
    os.unlink(f"{folder}/{NAME}-reg.sock")
    assert "not there any more" in world.seen(NAME, asked=False).problem
    assert world.call(world.stage(), plugin=NAME).outcome is Outcome.NEVER_SENT
    world.plugin.start()
    assert world.seen(NAME, ready=True).problem == ""


def test_a_plugin_cannot_register_under_the_name_of_one_that_an_admin_has_written_down(world: World) -> None:
    register(world, endpoint="/elsewhere/csi.sock", sockets={NAME: world.plugin.socket})
    world.seen(NAME, asked=True)
    until("a refusal", lambda: "has a plugin" in str(notified(world).get("error")))
    assert world.seen(NAME, asked=True).socket == world.plugin.socket


def test_a_registrar_that_hangs_keeps_no_other_waiting(world: World) -> None:
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(world.place("registry") + "/a-reg.sock")  # the first of the folder
        mute.listen()
        register(world)
        world.seen(NAME, ready=True)
        with mute.accept()[0] as hanging:
            hanging.setblocking(False)
            with pytest.raises(BlockingIOError):  # it is waited for still, so nobody has waited for its end
                list(iter(lambda: hanging.recv(1 << 16), b""))


def test_a_folder_full_of_sockets_takes_no_plugin_away(world: World) -> None:
    folder = register(world)
    world.seen(NAME, ready=True)
    with contextlib.ExitStack() as mutes:
        for number in range(70):  # before its own in the folder, and more than are looked at
            mute = mutes.enter_context(socket.socket(socket.AF_UNIX))
            mute.bind(f"{folder}/a{number}-reg.sock")
        time.sleep(1.2)  # two looks at the folder
        assert world.seen(NAME).ready


def test_of_two_registrars_of_one_plugin_the_second_stays_when_the_first_is_gone(world: World) -> None:
    """As when a new release of a vendor's calls its socket otherwise, and is started beside the old one."""
    folder = register(world, also="new-reg.sock")
    until("both", lambda: len(world.plugin.calls("NotifyRegistrationStatus")) == 2)
    os.unlink(f"{folder}/{NAME}-reg.sock")
    until("the second anew", lambda: len(world.plugin.calls("NotifyRegistrationStatus")) == 3)
    assert world.seen(NAME, ready=True).problem == ""


@pytest.mark.parametrize("endpoint", ["/a\0b", "/" + "a" * 200])
def test_an_endpoint_that_is_no_path_of_a_socket_is_shown(world: World, endpoint: str) -> None:
    register(world, endpoint=endpoint)
    assert world.seen(NAME, asked=False, ready=False).problem != ""
