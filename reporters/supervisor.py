"""All reporters of a node: who there is, who may start now, and what is left of runs that nobody wanted.

The supervisor keeps the sum of the weights of one-shot runs within the budget, the number of children that
cannot be killed within a bound, and every process of a reporter inside its own control group, so that after a
stop, or a crash and the next start, nothing is left. It knows nothing of values: see `Sink`.
"""

import errno
import os
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import blake2b

from xce.linux import mountinfo, users
from xce.linux.cgroup import Cgroup
from xce.linux.loop import Loop
from xce.linux.reaper import Reaper
from xce.model import message
from xce.model.configuration import AgentReporters
from xce.reporters import cage, schedule, show
from xce.reporters.common import Write
from xce.reporters.directory import Candidate
from xce.reporters.ending import PATIENCE, Ending, Group, Stuck
from xce.reporters.launch import GROUP
from xce.reporters.reporter import Reporter
from xce.reporters.result import Sink, View

CONTROLLERS = frozenset({"memory", "pids"})
LEAVING_LOOK, LEAVING_LOOKS = 0.02, 50
"""Seconds between, and number of, tries to remove the groups at the end."""
NAME_CHARACTERS = 200
"""Of a host's name in that of a group, which may have 255 in all."""
BESIDE = "xce-agent-itself"
"""The group that the agent moves to when the one that it is in shall hand controllers on."""
STOP_GRACE = 5.0
"""Longest time between TERM and KILL when the agent stops."""


def label(name: str, state_directory: str) -> str:
    """What tells two agents of a host apart, also of the same name; the same after a crash.

    Each has a state directory, which it locks. `state_directory` must not be able to hang.
    """
    place = blake2b(os.fsencode(os.path.realpath(state_directory)), digest_size=4).hexdigest()
    return f"{name[:NAME_CHARACTERS]}-{place}"


def home(label: str, *, setting: str = "", own: Cgroup | None) -> Cgroup | None:
    """The group below which reporters get theirs; None if there is none, and then runs are held less tightly.

    `setting` is agent.yaml's `cgroup`, `own` the group that the agent is in, `label` tells two agents of a
    host apart. The kernel hands controllers on only from a group without processes of its own: an agent that
    has its group to itself (a unit with Delegate=yes) moves into a group beside the reporters'.
    """
    if setting:
        group = Cgroup(setting.rstrip("/"))
        if not group.parent().genuine():
            raise OSError(
                errno.EOPNOTSUPP, f"{group.parent().path} is no control group of version 2", setting
            )
        group.create()
    elif own is not None and own.writable():
        if own.name == BESIDE:
            own = own.parent()
        elif own.own_pids() == [os.getpid()] and CONTROLLERS & own.controllers():
            beside = own.child(BESIDE)
            beside.create()
            beside.enter()
        own.enable(set(CONTROLLERS))
        group = own.child(f"xce-{label}")
        group.create()
    else:
        return None
    group.enable(set(CONTROLLERS))
    return group


class Supervisor:
    """See the module. Feed it with `update`; it tells the sink. `group` comes from `home`."""

    def __init__(
        self,
        loop: Loop,
        reaper: Reaper,
        sink: Sink,
        settings: AgentReporters,
        *,
        node: cage.Node,
        state_directory: str,
        group: Cgroup | None,
        look_again: Callable[[], object] = lambda: None,
        chance: Callable[[], float] = random.random,
        patience: float = PATIENCE,
        uid: int | None = None,
        find_user: Callable[[str], users.User | None] = users.find,
        write: Write = lambda _, job: job(),
    ) -> None:
        self.loop, self.reaper, self.sink, self.settings = loop, reaper, sink, settings
        self.node, self.state_directory, self.group = node, state_directory, group
        self.mounts = mountinfo.Table()
        self.patience, self.chance, self.write = patience, chance, write
        me = os.geteuid() if uid is None else uid
        self.policy = cage.Policy(uid=me, user=settings.user, allow_root=settings.allow_root)
        self.trusted: Collection[int] = {0, me}
        self.find_user, self.look_again = find_user, look_again
        self.reporters: dict[str, Reporter] = {}
        self._assigned: dict[str, tuple[float | None, Sequence[str]]] = {}
        self._waiting: dict[str, Reporter] = {}
        self.living: set[Reporter] = set()
        self._leaving: dict[str, Reporter] = {}
        """Removed, and a run of them is not over."""
        self._swept: dict[str, Ending] = {}
        """Groups of reporters that are not there any more."""
        self._stopped: Callable[[], object] | None = None
        self._stopping = False

    # ---------------------------------------------------------------------------------------- orders

    def update(self, candidates: Mapping[str, Candidate]) -> None:
        """The directory as it is now. What an agent before this one left behind is ended, too."""
        if self._stopping:
            return
        for name in self.reporters.keys() - candidates.keys():
            self._each(self._remove, name)
        for candidate in candidates.values():
            reporter = self.reporters.get(candidate.name)
            self._each(reporter.offer if reporter else self._add, candidate)
        self._each(self._sweep)

    def _each(self, do: Callable[..., object], *what: object) -> None:
        """What goes wrong with one must not cost the others their turn."""
        try:
            do(*what)
        except Exception as error:  # noqa: BLE001
            self.loop.on_error(error, do)

    def assign(self, name: str, *, interval: float | None = None, names: Sequence[str] = ()) -> None:
        """What the cluster's types say of a reporter: shortest interval, and the names it should give."""
        self._assigned[name] = (interval, names)
        if reporter := self.reporters.get(name):
            reporter.assign(interval, names)

    def reset(self, name: str) -> bool:
        """Forget a reporter's failures and try it at once; False if there is none of that name."""
        reporter = self.reporters.get(name)
        if reporter is not None:
            self.look_again()
            reporter.reset()
        return reporter is not None

    def stop(self, done: Callable[[], object]) -> None:
        """End everything that runs; `done()` when nothing is left but what cannot be killed."""
        self._stopping, self._stopped = True, done
        self._waiting.clear()
        for reporter in list(self.reporters.values()):
            reporter.stop(STOP_GRACE)
        self._maybe_stopped()

    def kill(self) -> None:
        """Do not wait for those that have been told to end."""
        for group in self.group.children() if self.group else ():
            if group.name.startswith(GROUP):
                group.kill()

    # ------------------------------------------------------------------------------------------ show

    def states(self) -> dict[str, message.ReporterState]:
        """The state of every reporter as others see it, with all counters as they are now."""
        now = self.loop.now()
        return {name: show.told(reporter, now) for name, reporter in self.reporters.items()}

    def warnings(self) -> dict[str, str]:
        """What is wrong with the files of reporters that run all the same."""
        return {
            name: reporter.candidate.warning
            for name, reporter in self.reporters.items()
            if reporter.candidate.warning
        }

    def view(self, name: str) -> View | None:
        """What is not in a reporter's state; None: there is no such reporter."""
        reporter = self.reporters.get(name)
        return show.view(reporter, self.loop.now()) if reporter else None

    @property
    def abandoned(self) -> int:
        """Reporters, present and removed, with children that cannot be killed."""
        named = sum(bool(reporter.unkillable) for reporter in self.living)
        return named + sum(ending.stuck for ending in self._swept.values())

    @property
    def remains(self) -> dict[str, list[Stuck]]:
        """What cannot be killed of reporters that are not there any more."""
        left = {name: reporter.unkillable for name, reporter in self._leaving.items() if reporter.unkillable}
        return left | {name: ending.named for name, ending in self._swept.items() if ending.stuck}

    @property
    def running(self) -> int:
        """Sum of the weights of the one-shot runs in progress; what is abandoned takes no share."""
        return sum(
            reporter.weight
            for reporter in self.living
            if reporter.run is not None and not reporter.unkillable
        )

    # ------------------------------------------------------------------------- what reporters ask for

    def has_own_user(self, candidate: Candidate) -> bool:
        """See `Shared`."""
        wanted = candidate.settings.user
        if wanted in ("", self.settings.user, "root") or self.policy.uid != 0:
            return False
        users_named = [reporter.candidate.settings.user for reporter in self.reporters.values()]
        return users_named.count(wanted) <= 1

    def ready(self, reporter: Reporter) -> None:
        """See `Shared`."""
        if self._stopping:
            return
        if not (self.living or self._swept or self._waiting):  # mostly
            reporter.start()
            return
        self._waiting[reporter.name] = reporter
        self._start_waiting()

    def finished(self, reporter: Reporter) -> None:
        """See `Shared`."""
        if not reporter.alive:
            self.living.discard(reporter)
            if self._leaving.get(reporter.name) is reporter:
                del self._leaving[reporter.name]
                self._discard(reporter)
        if self._waiting:
            self._start_waiting()
        if self._stopped is not None:
            self._maybe_stopped()

    # --------------------------------------------------------------------------------------- inside

    def _add(self, candidate: Candidate) -> None:
        name = candidate.name
        before = self._leaving.pop(name, None)
        self._swept.pop(name, None)
        leftover: Group | None = None
        if before is not None:
            self.living.discard(before)  # what is left of it is the new one's from now on
            leftover = before.run.group if before.run is not None else None
        reporter = Reporter(self, candidate, leftover)
        self.reporters[name] = reporter
        if name in self._assigned:
            reporter.assign(*self._assigned[name])

    def _remove(self, name: str) -> None:
        reporter = self.reporters.pop(name)
        self._waiting.pop(name, None)
        reporter.withdraw()
        self.sink.gone(name)
        if reporter.alive:
            self._leaving[name] = reporter
        else:
            self._discard(reporter)

    def _discard(self, reporter: Reporter) -> None:
        reporter.close()
        self._discard_group(reporter.name)

    def _start_waiting(self) -> None:
        if self._stopping or not self._waiting:
            return
        if self._at_risk() >= self.settings.max_abandoned:
            if (count := self.abandoned) >= self.settings.max_abandoned:
                why = (
                    f"not started: {count} reporters have children here that cannot be killed (max_abandoned)"
                )
                for reporter in self._waiting.values():
                    reporter.hold_back(why)
            return  # `finished` comes for each
        asking = [
            schedule.Waiting(name=name, weight=reporter.weight, due=reporter.due)
            for name, reporter in self._waiting.items()
        ]
        for name in schedule.admit(asking, running=self.running, budget=self.settings.budget):
            self._waiting.pop(name).start()

    def _at_risk(self) -> int:
        """Reporters with unkillable children, and those whose run is being ended: it may turn out as one."""
        ending = sum(reporter.ending and not reporter.unkillable for reporter in self.living)
        return self.abandoned + ending

    def _sweep(self) -> None:
        """End what is in groups that belong to no reporter, and remove them."""
        if self.group is None:
            return
        for group in self.group.children():
            name = group.name.removeprefix(GROUP)
            if name == group.name:
                continue  # not a reporter's
            if name not in self.reporters and name not in self._leaving and name not in self._swept:
                self._discard_group(name)

    def _discard_group(self, name: str) -> None:
        if self.group is None:
            return
        group = self.group.child(GROUP + name)
        if group.remove():
            return

        def ended() -> None:
            self._swept.pop(name, None)
            if name not in self.reporters:
                self.loop.call_later(0, group.remove)
            self._maybe_stopped()

        self._swept[name] = Ending(
            self.loop, group, grace=0, on_end=ended, on_stuck=lambda _: None, patience=self.patience
        )

    def _maybe_stopped(self) -> None:
        if self._stopped is None:
            return
        if any(not reporter.unkillable for reporter in self.living):
            return
        if any(not ending.stuck for ending in self._swept.values()):
            return
        done, self._stopped = self._stopped, None
        for reporter in self.reporters.values():
            reporter.close()
        self.mounts.close()
        self._leave(done, looks=0 if self.living else LEAVING_LOOKS)

    def _leave(self, done: Callable[[], object], looks: int) -> None:
        """Remove our groups. For a moment after a kill the kernel still calls them busy."""
        if self.group is None or self.group.remove() or looks == 0:
            done()
        else:
            self.loop.call_later(LEAVING_LOOK, self._leave, done, looks - 1)
