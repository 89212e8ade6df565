"""A node for tests: real control groups, filters and mounts, in directories and groups of the test's own.

Two terminals that nobody else can have (`OWN`, `OTHER`) stand in for GPUs: the base list of the profile does
not have them, opening one that is denied gives EPERM.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.linux.kernel import make_group, terminal
from xce.linux import mountapi, mountinfo, syscalls
from xce.linux.cgroup import Cgroup
from xce.linux.users import User
from xce.model.claim import (
    AccessMode,
    Ask,
    Binding,
    BindingState,
    Chosen,
    Claim,
    Consumer,
    MountAsk,
    PortsAsk,
    SharedAsk,
)
from xce.model.instance import Instance
from xce.model.profile import Claims, Profile, Reuse, ScratchRoot, SharedVolume, Volume
from xce.prepare import local
from xce.prepare.entry import Report
from xce.prepare.execute import Executor, Known
from xce.prepare.journal import Journal

ALICE = User("alice", 4711, 4711)
USERS = {"alice": ALICE, "bob": User("bob", 4712, 4712)}
BASE = ["c *:* m", "b *:* m", "c 1:3 rwm", "c 1:8 rwm", "c 1:9 rwm"]
OWN, OTHER = terminal(), terminal()
DENIED = "Operation not permitted"
"""What a process gets that opens a device which its filter does not let it."""
INSTANCES = {
    "card-full": Instance(id="card-full", kind="card", attributes={"device_files": [OWN]}),
    "card-zero": Instance(id="card-zero", kind="card", attributes={"device_files": [OTHER]}),
}
BOOT = "boot-1"
STEADY = {BindingState.READY, BindingState.RELEASED, BindingState.FAILED}

_TRY = """
import os, sys
for path in sys.argv[1:]:
    try:
        os.close(os.open(path, os.O_RDONLY))
        print("ok")
    except OSError as error:
        print(os.strerror(error.errno))
"""


def settings_for(place: Path, group: Cgroup, quota: Path | None = None) -> Claims:
    """Everything in one directory; check at every turn."""
    scratch = {"memory": ScratchRoot(), "disk": ScratchRoot(path=str(place / "scratch"))}
    if quota is not None:
        scratch["quota"] = ScratchRoot(path=str(quota))
    return Claims(
        directory=str(place / "run"),
        cgroup=group.path,
        cdi_directory=str(place / "cdi"),
        check_s=0.05,
        remote_s=20,
        profiles={
            "default": Profile(
                devices=BASE,
                device_paths=["/dev/pts/*", "/dev/nvidia*"],
                volumes={
                    "data": Volume(path=str(place / "data")),
                    "fixed": Volume(path=str(place / "data"), read_only=True),
                    "staged": Volume(type="tmpfs", options=["size=1m"]),
                },
                scratch=scratch,
                shared={
                    "home": SharedVolume(path=str(place / "shared"), retention_s=0),
                    "foreign": SharedVolume(path=str(place / "foreign")),
                    "again": SharedVolume(path=str(place / "shared"), again=Reuse.ATTEMPT),
                },
                grace_s=0.3,
                dirty_after_s=0.2,
            )
        },
    )


def number(path: str) -> str:
    """MAJOR:MINOR of a device file."""
    rdev = os.stat(path).st_rdev
    return f"{os.major(rdev)}:{os.minor(rdev)}"


class World:
    """One node, its executor, and what a controller would say to it."""

    def __init__(self, place: Path, group: Cgroup, **overrides: Any) -> None:
        self.place, self.group, self.overrides = place, group, overrides
        for name in ("data/dir", "shared", "state", "scratch"):
            (place / name).mkdir(parents=True, exist_ok=True)
        (place / "data/file").write_text("data")
        self.quota: Path | None = overrides.pop("quota", None)
        """A scratch root on a file system with quotas."""
        self.settings = settings_for(place, group, self.quota)
        self.instances = dict(INSTANCES)
        self.numbers = iter(range(1, 100_000))
        self.boot = BOOT
        self.ahead = self.booted = 0.0
        """Of the real clocks; and what is 0 for the monotonic one."""
        self.each: Callable[[], object] = lambda: None
        """Called again and again while something is waited for."""
        self.start()

    def start(self) -> None:
        """A new executor over what is there: after the first time, a restart of the agent."""
        arguments: dict[str, Any] = {
            "namespace": "self",
            "find_user": USERS.get,
            "wall": lambda: time.time() + self.ahead,
            **self.overrides,
        }
        node = local.node(self.settings, **arguments)
        clock = lambda: time.monotonic() + self.ahead - self.booted  # noqa: E731
        self.node = node._replace(clock=clock, owner=node.owner._replace(boot=self.boot))
        self.journal = Journal(str(self.place / "state"))
        self.executor = Executor(self.journal, self.node, self.boot)

    def stop(self) -> None:
        """The agent ends; everything that it made stays."""
        self.executor.close()

    def restart(self) -> None:
        """Stop and start."""
        self.stop()
        self.start()

    def reboot(self, state: Mapping[Path, bytes] | None = None) -> None:
        """A new boot id, no mounts, no control groups, an empty /run; directories on disk are still there.

        `state`: what the disk has of the journal, where the machine failed (`Disk`).
        """
        self.stop()
        for path, content in (state or {}).items():
            path.write_bytes(content)
        for point in reversed(self.mounts()):
            syscalls.umount2(point, syscalls.MNT_DETACH)
        for group in self.group.children():
            group.kill()
            while not group.remove():
                time.sleep(0.001)
        for place in (self.settings.directory, self.settings.cdi_directory):
            subprocess.run(["rm", "-rf", "--one-file-system", place], check=True)
        self.boot, self.booted = f"{self.boot}+", time.monotonic() + self.ahead
        self.start()

    def bind(
        self,
        ask: Ask,
        *,
        cards: Sequence[str] = (),
        consumer: Consumer | None = None,
        access: AccessMode = AccessMode.RWX,
        op_id: str = "",
        epoch: int = 1,
        binding: str = "",
        retention_s: float | None = None,
    ) -> Report:
        """Order a binding, and work until it waits for nothing more."""
        order = self.order(
            ask, cards=cards, consumer=consumer, access=access, binding=binding, retention_s=retention_s
        )
        report = self.executor.prepare(
            op_id=op_id or f"op-{order[0].id}",
            epoch=epoch,
            binding=order[0],
            claim=order[1],
            instances=self.instances,
        )
        return self.settled(report.binding)

    def order(
        self,
        ask: Ask,
        *,
        cards: Sequence[str] = (),
        consumer: Consumer | None = None,
        access: AccessMode = AccessMode.RWX,
        binding: str = "",
        retention_s: float | None = None,
    ) -> tuple[Binding, Claim]:
        """A binding and its claim."""
        number = binding or f"b{next(self.numbers)}"
        claim = Claim(id=f"c-{number}", owner="alice", access=access, ask=ask, retention_s=retention_s)
        chosen = [Chosen(id=f"card-{card}", reporter="cards", generation=1, kind="card") for card in cards]
        return (
            Binding(
                id=number,
                claim=claim.id,
                host="here",
                consumer=consumer or Consumer(name=f"job-{number}", user="alice"),
                instances=chosen,
            ),
            claim,
        )

    def release(self, binding: str, *, epoch: int = 1) -> Report:
        """Order a release, and work until it waits for somebody."""
        self.executor.release(op_id=f"end-{binding}", epoch=epoch, binding=binding)
        return self.settled(binding)

    def take_up(self, *known: Known) -> None:
        """End recovery by what the cluster knows."""
        self.executor.settle(known, self.instances)
        self.until(lambda: not self.executor.recovering)

    def settled(self, binding: str, within: float = 30) -> Report:
        """Work until the binding is ready, has ended, or is blocked."""

        def is_settled() -> Report | None:
            report = self.report(binding)
            return report if report.state in STEADY or "blocked" in report.conditions else None

        found: Report = self.until(is_settled, within)
        return found

    def over(self, binding: str, within: float = 30) -> Report:
        """The same; what is busy for a moment has not ended."""
        self.until(lambda: self.report(binding).state in STEADY, within)
        return self.report(binding)

    def until(self, condition: Callable[[], Any], within: float = 30) -> Any:
        """Work until `condition` gives something."""
        deadline = time.monotonic() + within
        while not (found := condition()):
            assert time.monotonic() < deadline, f"not in time: {self.executor.reports()}"
            wait = self.executor.advance()
            self.each()
            time.sleep(min(wait if wait is not None else 0.01, 0.01))
        return found

    def report(self, binding: str) -> Report:
        """What is said of a binding now."""
        entry = self.executor.entries.get(binding)
        if entry is not None:
            return self.executor._report(entry)
        stone = self.journal.tombstone(binding)
        assert stone is not None, f"{binding} is not known"
        return Report(binding=binding, state=stone.state, reason=stone.reason, op_id=stone.op_id)

    def evidence(self, binding: str, kind: str) -> dict[str, Any]:
        """What was read back of the first step of a kind."""
        for work in self.executor.entries[binding].works:
            if work.step.__struct_config__.tag == kind:
                return work.evidence
        raise AssertionError(f"no {kind} in {binding}")

    def opened(self, binding: str, *paths: str) -> list[str]:
        """What a new process of the consumer gets when it opens `paths`."""
        command = [sys.executable, "-I", "-S", "-c", _TRY, *paths]
        return subprocess.run(
            self.inside(binding, command), capture_output=True, text=True, check=True
        ).stdout.split("\n")[:-1]

    def opened_in(self, consumer: str, *paths: str) -> list[str]:
        """The same for a consumer that this node may not know of any more."""
        enter = f'echo $$ > {self.group.path}/xce-consumer-{consumer}/cgroup.procs && exec "$@"'
        command = ["sh", "-c", enter, "sh", sys.executable, "-I", "-S", "-c", _TRY, *paths]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

    def inside(self, binding: str, command: Sequence[str]) -> list[str]:
        """A command that enters the consumer's groups first."""
        groups = self.evidence(binding, "group")["groups"]
        enter = "".join(f"echo $$ > {group}/cgroup.procs && " for group in groups)
        return ["sh", "-c", f'{enter}exec "$@"', "sh", *command]

    def variables(self, binding: str) -> dict[str, str]:
        """The environment file."""
        text = Path(self.settings.directory, binding, "env").read_text()
        return dict(line.split("=", 1) for line in text.splitlines())

    def mounts(self) -> list[str]:
        """Mount points below our directory."""
        return [
            mount.point for mount in mountinfo.read() if mount.point.startswith(f"{self.settings.directory}/")
        ]

    def leftovers(self) -> list[str]:
        """Everything that bindings could leave: mounts, groups, files."""
        found = self.mounts() + [group.path for group in self.group.children()]
        for name in ("run", "cdi", "shared", "scratch"):
            found += [str(path) for path in (self.place / name).rglob("*") if path.name != ".staged"]
        found += [str(path) for path in self.quota.glob("xce-*")] if self.quota else []
        return found

    def close(self) -> None:
        """Take away what a failed test left."""
        self.stop()
        for point in reversed(self.mounts()):
            syscalls.umount2(point, syscalls.MNT_DETACH)


class Disk:
    """What a disk has of the journal at the least: as it was when it was last waited for."""

    def __init__(self, world: World) -> None:
        self.state: dict[Path, bytes] = {}
        self.syncs: list[str] = []
        """The points after which it had been waited for."""
        self._files = [world.place / "state" / name for name in ("claims.sqlite", "claims.sqlite-wal")]
        self._head, self._seen = world.place / "state" / "claims.head", b""
        world.overrides["mark"] = self._look
        world.restart()
        self._look("start")

    def _look(self, point: str) -> None:
        if (head := self._head.read_bytes()) != self._seen:
            self._seen = head
            self.state = {path: path.read_bytes() if path.exists() else b"" for path in self._files}
            self.syncs.append(point)


FULL_ASK = Ask(
    mounts=[MountAsk(name="input", source="data", read_only=True), MountAsk(name="cache", source="staged")],
    scratch_bytes=1 << 20,
    ports=[PortsAsk(name="rpc", count=2)],
    shared=[SharedAsk(volume="home")],
    environment={"MODE": "test"},
)
"""One of every kind of step."""


def make_world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    """Body of the fixture: nothing may be left when all bindings have been released."""
    groups = make_group(tmp_path)
    world = World(tmp_path, next(groups), **getattr(request, "param", {}))
    yield world
    world.close()
    next(groups, None)


def make_fast(tmp_path: Path) -> Iterator[Path]:
    """Body of the fixture: a directory in memory, where a sync costs nothing. To be named before `world`."""
    tree, at = mountapi.make("tmpfs", {"mode": "0755"}), os.open(tmp_path, os.O_PATH)
    mountapi.attach(tree, at)
    os.close(tree)
    os.close(at)
    yield tmp_path
    syscalls.umount2(str(tmp_path), syscalls.MNT_DETACH)
