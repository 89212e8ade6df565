"""A disk is full or fails from some point on, and is well again a while later: at every point, on a real file
system.

While it is, nothing is said that is not on record: no READY, no RELEASED. What was begun is still known,
and goes on by itself once there is room; only an order that was refused, with words, is given again.
"""

import contextlib
import errno
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.linux.sickdisk import SickFolder
from tests.prepare.points import (
    FAILED,
    READY,
    SCENARIOS,
    Point,
    Scenario,
    Watch,
    assert_end,
    passed,
    sample,
    worlds,
)
from tests.prepare.world import World
from xce.linux import mountapi, syscalls
from xce.linux.cgroup import Cgroup
from xce.model.claim import ENDED, BindingState
from xce.prepare.entry import STATES, Phase
from xce.prepare.journal import NotRecorded, Order, Tombstone
from xce.prepare.journalfile import copied

pytestmark = [pytest.mark.root, pytest.mark.slow]

FULL_TURNS = 3
"""For which the disk stays full."""
SIZE = 4 << 20


class Disk:
    """A file system in memory of its own, with little room."""

    words = "no space"
    """What is said of it while it is full."""

    def __init__(self, place: Path) -> None:
        self.place, self.ballast = place, place / "ballast"
        place.mkdir(parents=True)
        tree, at = mountapi.make("tmpfs", {"size": str(SIZE), "mode": "0755"}), os.open(place, os.O_PATH)
        mountapi.attach(tree, at)
        os.close(tree)
        os.close(at)

    def fill(self) -> None:
        """To the last byte."""
        fd = os.open(self.ballast, os.O_WRONLY | os.O_CREAT)
        with contextlib.suppress(OSError):
            while os.write(fd, bytes(1 << 16)):
                pass
        with contextlib.suppress(OSError):
            while os.write(fd, bytes(512)):
                pass
        os.close(fd)

    def free(self) -> None:
        self.ballast.unlink(missing_ok=True)

    def close(self) -> None:
        syscalls.umount2(str(self.place), syscalls.MNT_DETACH)


class FailingDisk:
    """One whose writes fail instead."""

    words = "its disk fails"

    def __init__(self, place: Path) -> None:
        self.folder = SickFolder(place, place.with_name("sick"))

    def fill(self) -> None:
        self.folder.ill(writes=errno.EIO, syncs=errno.EIO)

    def free(self) -> None:
        self.folder.ill()

    def close(self) -> None:
        self.folder.close()


def on_record(world: World) -> dict[str, BindingState]:
    """What the journal on the disk says of each binding."""
    with (
        copied(world.journal.path) as copy,
        contextlib.closing(sqlite3.connect(copy)) as connection,
    ):
        rows = connection.execute("SELECT kind, name, body FROM record").fetchall()
    found = {}
    for kind, name, body in rows:
        if kind == "order":
            found[name] = STATES[Phase(msgspec.json.decode(body, type=Order).phase)]
        elif kind == "tombstone":
            found[name] = msgspec.json.decode(body, type=Tombstone).state
    return found


class Shortage:
    """From a point on the disk is full, for some turns of the node; what is said meanwhile is looked at."""

    def __init__(self, disk: Disk | FailingDisk) -> None:
        self.disk, self.watch = disk, Watch(self.begin)
        self.world: World | None = None
        self.left = 0
        self.known: set[str] = set()
        self.refused = self.held = False

    def begin(self) -> None:
        self.disk.fill()
        self.left = FULL_TURNS
        assert self.world is not None
        self.known = set(self.world.executor.entries)

    def turn(self) -> None:
        """After each turn of the node."""
        if not self.left:
            return
        assert self.world is not None
        recorded = on_record(self.world)
        told = {
            report.binding: report for report in (*self.world.executor.reports(), *self.world.executor.news())
        }
        for name, report in told.items():
            if report.state in {READY, *ENDED}:
                assert recorded[name] is report.state, f"{report} and on record {recorded[name]}"
        lost = self.known - told.keys() - {name for name, state in recorded.items() if state in ENDED}
        assert not lost, f"{lost} are not known any more"
        waiting = [entry.waiting.reason for entry in self.world.executor.entries.values() if entry.waiting]
        self.held |= any(self.disk.words in reason for reason in waiting)
        self.world.ahead += 1.0
        self.left -= 1
        if not self.left:
            self.disk.free()
            self.world.ahead += 2.0

    def play(self, world: World, scenario: Scenario, at: Point) -> None:
        """All of a scenario, with no room from a point on, and then with room."""
        self.world, world.each = world, self.turn
        scenario.before(world)
        self.watch.begin(at)
        self.act(scenario)
        assert self.watch.at is None or at.turn, f"{at} was not passed"
        while self.left:
            world.executor.advance()
            self.turn()

    def act(self, scenario: Scenario) -> None:
        """An order that is refused was not taken, and is given again once there is room."""
        assert self.world is not None
        try:
            scenario.act(self.world)
        except NotRecorded as error:
            self.refused = self.disk.words in str(error)
            while self.left:
                self.world.executor.advance()
                self.turn()
            scenario.act(self.world)


def short(disk: Disk | FailingDisk, place: Path, group: Cgroup, scenario: Scenario, at: Point) -> Shortage:
    shortage = Shortage(disk)
    try:
        with worlds(place, group, shortage.watch) as node:
            shortage.play(node, scenario, at)
            assert_end(node, scenario._replace(end=reached(node, scenario)))
    finally:
        disk.close()
    return shortage


def reached(node: World, scenario: Scenario) -> dict[str, BindingState]:
    """The scenario's end; or what could not be made for want of room has failed, and says so."""
    end = dict(scenario.end)
    for binding, state in end.items():
        report = node.over(binding)
        if state is READY and report.state is FAILED and "No space left" in report.reason:
            end[binding] = FAILED
    return end


def assert_all(
    make: Callable[[Path], Disk | FailingDisk], fast: Path, world: World, scenario: Scenario
) -> None:
    """At every point; `make` gives a disk for a node's place."""
    points = passed(fast / "whole", world.group.child("whole"), scenario)
    wrong, seen = {}, list[Shortage]()
    for number, at in enumerate(sample(points)):
        place, group = fast / str(number), world.group.child(str(number))
        try:
            seen.append(short(make(place), place, group, scenario, at))
        except AssertionError as error:
            wrong[f"{at.name}#{at.turn}"] = str(error)[:600]
        group.remove()
    assert not wrong, "\n".join(f"{where}: {what}" for where, what in wrong.items())
    assert any(one.held or one.refused for one in seen), "the disk was never full"


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("what", ["the journal's", "every"])
def test_c_sta_04_with_a_full_disk_at_every_point_nothing_is_said_that_is_not_on_record(
    fast: Path, world: World, what: str, name: str
) -> None:
    assert_all(
        lambda place: Disk(place if what == "every" else place / "state"), fast, world, SCENARIOS[name]
    )


@pytest.mark.parametrize("name", ["prepare", "release"])
def test_with_a_disk_that_fails_at_every_point_nothing_is_said_that_is_not_on_record(
    fast: Path, world: World, name: str
) -> None:
    assert_all(lambda place: FailingDisk(place / "state"), fast, world, SCENARIOS[name])
