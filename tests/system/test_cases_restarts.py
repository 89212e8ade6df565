"""What went wrong for people when disks were full, and when programs and hosts were started anew.

The steps alone, at every moment and with every fault, are tried in tests/prepare.
"""

import contextlib
import json
import os
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.linux.kernel import in_place_of
from tests.system.harness import AgentProgram
from tests.system.one_node import (
    CACHE,
    CARD,
    DATA,
    FAILED,
    HOME,
    PENDING,
    PREPARING,
    READY,
    RELEASED,
    RELEASING,
    Node,
    removed,
    starting,
)
from tests.system.test_claims import INVENTORY, OTHER, OWN, REFUSED, bindings_of, ended, run_in, until_there
from tests.system.test_claims_killed import left
from xce.linux import mountapi
from xce.linux.cgroup import Cgroup
from xce.model.claim import Ask, BindingState, PortsAsk, binding_number

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts and control groups need root"),
]


def on_a_small_disk(agent: AgentProgram) -> None:
    """Its state is on a file system of 4 MiB."""
    place = agent.folder / "state"
    tree, at = mountapi.make("tmpfs", {"size": "4m"}), os.open(place, os.O_PATH)
    mountapi.attach(tree, at)
    for fd in (tree, at):
        os.close(fd)


def fill(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(512)):
            pass


NO_SPACE = "cannot record intent: no space"


@starting(on_a_small_disk)
def test_c_sta_04_on_a_full_disk_nothing_begins_and_everybody_is_told_why(one: Node) -> None:
    ask = Ask(mounts=[DATA])
    stays, goes = one.ready("stays", ask), one.ready("goes", ask)
    ballast = one.folder("state") / "ballast"
    before, seen = left(one.agent), one.view(stays)
    fill(ballast)
    late = one.order("late", ask)
    one.release("goes")
    assert one.told(late, NO_SPACE).binding.state is PENDING
    view = one.told(goes, NO_SPACE)
    assert (view.binding.state, view.conditions) == (RELEASING, ["blocked"])
    assert NO_SPACE in one.agent.command("claim", "why", "late").stderr
    assert NO_SPACE in one.agent.command("claim", "why", "goes").stdout
    assert NO_SPACE in one.agent.command("claim", "release", "stays").stderr
    shown = one.agent.command("status").stdout
    assert f"binding {goes}: ready, blocked: {NO_SPACE}" in shown
    assert f"journal: {NO_SPACE}" in shown
    assert left(one.agent) == before
    assert one.view(stays) == seen
    ballast.unlink()
    assert one.client.wait_bindings([late], timeout=30)[late].binding.state is READY
    ended(one.site, one.client, goes)
    assert one.view(stays) == seen
    one.release("stays", "late")
    one.ended(stays, late)
    one.agent.stop()
    mountapi.unmount(str(one.folder("state")))


def stands(one: Node, binding: str, state: BindingState) -> bool:
    return one.view(binding).binding.state is state


def test_c_sta_05_after_a_reboot_nothing_is_ready_by_the_record_alone(one: Node, tmp_path: Path) -> None:
    """No mounts, no control groups; the second one's instance is not found any more."""
    both = Ask(instances=CARD, mounts=[DATA])
    first, second = one.ready("first", both, card="card-own"), one.ready("second", both, card="card-other")
    assert one.agent.stop() == 0
    for mount in one.mounts():
        mountapi.unmount(mount.point)
    for group in Cgroup(one.claims["cgroup"]).children():
        group.kill()
        one.site.until(group.remove)
    for name in ("claims", "cdi"):
        removed(one.folder(name))
    one.agent.script("cards", "#!/bin/sh\nexit 0\n", interval=0.2)
    cards: Any = INVENTORY["instances"]
    found = {**INVENTORY, "instances": cards[:1]}
    boot = tmp_path / "boot_id"
    boot.write_text("0b00710b-0000-4000-8000-000000000000\n")
    with in_place_of("/proc/sys/kernel/random/boot_id", boot):
        one.agent.start()
        for binding in (first, second):
            one.site.until(partial(stands, one, binding, PREPARING))
            assert one.view(binding).binding.reason == "the host was started anew"
        assert left(one.agent) == []
        one.agent.script("cards", f"#!/bin/sh\necho '{json.dumps(found)}'\n")
        one.site.until(partial(stands, one, first, READY))
        one.site.until(partial(stands, one, second, FAILED))
        assert one.view(second).binding.reason == "instance card-other is not on this node now"
        assert run_in(one.agent, "first", OWN, OTHER) == ["open", REFUSED]
        assert [mount.point for mount in one.mounts()] == [str(one.point(first, "data"))]
        before = one.view(first)
        steps = one.agent.ask(op="claim", name="first")["bindings"][0]["steps"]
        one.agent.kill()
        one.agent.start()
        until_there(one.site, "node1")
        one.site.until(lambda: bindings_of(one.agent).get(first, {}).get("state") == "ready")
        assert one.view(first) == before
        assert one.agent.ask(op="claim", name="first")["bindings"][0]["steps"] == steps, "nothing is redone"
        one.release("first", "second")
        one.ended(first)
        one.agent.stop()


def test_c_sta_05_a_reboot_that_takes_the_journal_along_makes_all_anew_by_what_the_broker_knows(
    one: Node, tmp_path: Path
) -> None:
    """A host without a disk. What was to go meanwhile is gone, and results on a shared volume are kept."""
    ask = Ask(mounts=[DATA, CACHE], shared=HOME.shared, ports=[PortsAsk(name="p", count=1)])
    stays, goes = one.ready("stays", ask), one.ready("goes", Ask(mounts=[DATA]))
    result = one.folder("home") / "root/stays/out/result"
    result.write_text("precious")
    before = one.view(stays).binding
    one.agent.kill()
    one.release("goes")
    for mount in reversed(one.mounts()):
        mountapi.unmount(mount.point)
    for group in Cgroup(one.claims["cgroup"]).children():
        one.site.until(group.remove)
    for name in ("claims", "cdi", "state"):
        removed(one.folder(name))
    one.folder("state").mkdir()
    boot = tmp_path / "boot_id"
    boot.write_text("0b00710b-0000-4000-8000-000000000000\n")
    with in_place_of("/proc/sys/kernel/random/boot_id", boot):
        one.agent.start()
        one.site.until(lambda: one.view(stays).binding.revision > before.revision)
        one.site.until(partial(stands, one, stays, READY))
        after = one.view(stays).binding
        assert (after.ports, after.evidence != before.evidence) == (before.ports, True)
        assert {Path(mount.point).name for mount in one.mounts()} == {"data", "staged", "cache"}
        assert result.read_text() == "precious"
        ended(one.site, one.client, goes)
        one.release("stays")
        one.ended(stays)
        one.agent.stop()


def test_without_its_broker_a_node_mends_and_releases_and_says_so_when_it_is_back(one: Node) -> None:
    stays, goes = one.ready("stays", Ask(mounts=[DATA])), one.ready("goes", Ask(mounts=[DATA]))
    before = one.view(stays)
    one.site.broker.kill()
    mountapi.unmount(str(one.point(stays, "data")))
    one.site.until(lambda: one.mounts(one.point(stays, "data")))
    began = time.monotonic()
    assert one.agent.command("claim", "release", "goes", "--wait", "25").stdout == "goes is released\n"
    assert time.monotonic() - began < 20, "who waits is told at once, and not at the end of his time"
    assert one.mounts(one.point(goes, "data")) == []
    one.site.broker.start()
    one.site.until(partial(stands, one, goes, RELEASED))
    one.site.until(lambda: one.view(stays).conditions == [])
    assert one.view(stays) == before
    one.release("stays", "goes")
    one.ended(stays, goes)


def confirmed(one: Node) -> None:
    """The broker has heard the node since its start."""
    until_there(one.site, "node1")
    one.site.until(lambda: not one.site.snapshot().locations["host:node1"].conditions)


def test_c_sta_01_a_broker_that_goes_back_to_a_copy_orders_its_nodes_and_mixes_up_no_binding(
    one: Node, tmp_path: Path
) -> None:
    """The copy knows neither of the newest reign nor of the newest binding, whose job runs on."""
    broker = one.site.broker
    state = Path(broker.settings["state_directory"])
    first = one.ready("first", Ask(mounts=[CACHE]))
    broker.stop()
    shutil.copytree(state, tmp_path / "copy")
    for _ in range(2):
        broker.start()
        broker.stop()
    broker.start()
    confirmed(one)
    lost = one.ready("lost", Ask(instances=CARD), card="card-own")
    broker.stop()
    removed(state)
    shutil.copytree(tmp_path / "copy", state)
    broker.start()
    confirmed(one)
    assert one.view(first).binding.state is READY
    held = bindings_of(one.agent)[lost]
    new = one.ready("new", Ask(instances=CARD), card="card-other")
    newer = one.ready("newer", Ask(mounts=[DATA]))
    assert binding_number(lost) < binding_number(new) < binding_number(newer)
    assert one.mounts(one.point(newer, "data"))
    assert run_in(one.agent, "lost", OWN, OTHER) == ["open", REFUSED]
    assert run_in(one.agent, "new", OWN, OTHER) == [REFUSED, "open"]
    one.release("first", "new", "newer")
    ended(one.site, one.client, first, new, newer)
    assert bindings_of(one.agent) == {lost: held | {"standing": "unknown"}}
    assert one.agent.command("claim", "release", lost, "--wait", "10").returncode == 0
    one.ended()
