"""Claims on this node: the thread that owns the journal and the executor, and the loop's side of it.

Orders go in through a queue, reports come out through another, an event tells the loop. The thread does
whatever reaches the disk or the kernel; a sick disk stalls it and nobody else. What it says ends up in
`Holdings`, which the link tells the broker of. An order that this node cannot take yet (an inventory that
nobody has found, a full disk) is said to be pending, with the reason; the broker gives it again.
"""

import contextlib
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec

from xce.agent.ends import Ends
from xce.agent.holdings import Holdings
from xce.linux import local_ports
from xce.linux.loop import Loop
from xce.model.claim import ENDED, Binding, BindingState, Chosen, Claim
from xce.model.instance import Instance, Inventory
from xce.model.message import BindingPrepare, BindingRelease, BindingReport
from xce.model.profile import Claims as Settings
from xce.model.profile import profiles

if TYPE_CHECKING:
    from xce.prepare.entry import Report
    from xce.prepare.execute import Executor

START_S = 2.0
"""For the journal to be read before the first hello; one that takes longer is told of later."""
IDLE_S = 3600.0
JOBS_S = 0.05
"""For orders and questions, before what is under way goes on."""
AGAIN_S = 5.0
"""After an error of the thread's own."""
SHOWN = 4
"""Things without an owner in one line."""
WAITING = 10_000
"""Orders that may wait for the thread; the broker gives those that are dropped again."""

_TOLD = ENDED | {BindingState.READY}
T = TypeVar("T")

InstanceMap: TypeAlias = Mapping[str, Instance]
Job: TypeAlias = Callable[["Executor"], Iterator[Any]]
"""What the thread is to do with its executor, and what it has to say of it."""
Known: TypeAlias = tuple[str, int, Binding, Claim, Mapping[str, str]]


class _Began(msgspec.Struct, frozen=True):
    """The journal was read: what it has, and what waits for which reporters' inventories."""

    recovering: str
    waits_for: frozenset[str]
    void: bool
    epoch: int
    """The newest that the journal has seen."""
    unseen: str = ""
    """Why nobody would see what is mounted here; '' if others would."""


class _Fault(msgspec.Struct, frozen=True):
    """Why no claims are served; '' when they are."""

    words: str
    csi: str = ""
    """Why no volumes of CSI plugins are; '' when they are, or there are no plugins."""


class _Seen(msgspec.Struct, frozen=True):
    """What the thread has found out about this host."""

    devices: str
    """What keeps devices from consumers: `bpf`, `v1`, or why nothing does."""
    orphans: tuple[str, ...]
    """Things of ours that no claim owns."""


class _Answer(msgspec.Struct, frozen=True):
    """What a question found, and who wants it."""

    give: Callable[[Any], object]
    found: Any


class Claims:
    """The loop's side. `make` builds the executor, in the thread; it raises OSError when it cannot."""

    def __init__(
        self,
        loop: Loop,
        make: Callable[[], "Executor"],
        inventory: Callable[[str], Inventory | None],
        changed: Callable[[], None],
        *,
        taking: bool = True,
    ) -> None:
        """`inventory` gives a reporter's inventory; `changed` is called when there is a new hello to say.
        Without `taking`, what is there is looked after, and nothing new begins.
        """
        self.holdings = Holdings()
        self.ends = Ends()
        self.fault = "the journal of claims has not been read yet"
        self.seen = _Seen("", ())
        self.csi_fault = self.unseen = ""
        """Why claims that mount something will fail; '' if they need not."""
        self.tell: Callable[[str, BindingReport], object] = lambda _name, _report: None
        """Hears of each binding that has become ready or has ended, once."""
        self._inventory, self._changed, self._taking = inventory, changed, taking
        self._inbox: deque[Job | None] = deque()
        self._outbox: deque[Any] = deque()
        self._asked = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """There is something in the inbox."""
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._began: _Began | None = None
        self.newest_epoch = 0
        """Of the orders that were given, and of what the journal has."""
        self._orders: dict[str, BindingPrepare] = {}
        """Given while the journal recovers: what the broker knows that this node has."""
        self._loop = loop
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(make,), name="claims", daemon=True)
        self._thread.start()
        loop.add_reader(self._event, self._collect)
        self._ready.wait(START_S)
        self._take_all()

    def close(self, deadline: float) -> bool:
        """Let go of the journal; what is bound stays bound. False if the disk did not answer in time."""
        self._inbox.append(None)
        os.eventfd_write(self._asked, 1)
        self._thread.join(deadline)
        if not self._thread.is_alive():
            self._loop.remove_reader(self._event)
            os.close(self._event)
            os.close(self._asked)
            return True
        return False

    # ---------------------------------------------------------------------------------- the loop's side

    def ordered(self, order: BindingPrepare | BindingRelease) -> None:
        """The broker has given an order, or somebody on this host."""
        self.newest_epoch = max(self.newest_epoch, order.epoch)
        recovering = self._began is not None and bool(self._began.recovering)
        if isinstance(order, BindingRelease):
            if recovering and order.was is not None:
                self.ordered(order.was)
            elif not recovering:  # otherwise it is given again, and what it is about is taken up first
                self._put(partial(_release, order=order))
            return
        if not self._thread.is_alive():  # whatever it held is not known: nothing ends by that
            self._pending(order, self.fault)
            return
        self.ends.ordered(order.binding)
        self.holdings.claims[order.binding.id] = order.claim.id
        if recovering:
            self._orders[order.binding.id] = order
        else:
            instances = self._chosen(order.binding.instances)
            if isinstance(instances, str):
                self._pending(order, f"this node has no inventory of {instances} yet")
            else:
                self._put(partial(_prepare, order=order, instances=instances, taking=self._taking))

    def document(self) -> dict[str, Any]:
        """For the status."""
        return {"devices": self.seen.devices, "orphans": list(self.seen.orphans)}

    def orphans_trouble(self) -> str:
        """What of ours no claim owns, in one line."""
        found = self.seen.orphans
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        hint = " (claims.orphans: clean removes what can be)"
        return f"no claim owns {', '.join(found[:SHOWN])}{more}{hint}" if found else ""

    def ask(self, question: Callable[["Executor"], T], answer: Callable[[T], object]) -> None:
        """Put a question to the thread; `answer` gets what it gives, in the loop."""
        self._put(lambda executor: iter([_Answer(answer, question(executor))]))

    def turn(self) -> None:
        """What waited for an inventory or for the broker may go on now; cheap when nothing waits."""
        began = self._began
        if began is None:
            return
        if began.recovering and self.holdings.settled:
            orders = self._orders.values()
            wanted = {chosen.reporter for one in orders for chosen in one.binding.instances}
            if not isinstance(found := self._instances(wanted), str):
                known: list[Known] = [
                    (one.op_id, one.epoch, one.binding, one.claim, one.volume) for one in orders
                ]
                self._orders.clear()
                self._began = msgspec.structs.replace(began, recovering="")
                self.holdings.uncertain = False
                self._put(partial(_settle, known=known, instances=found))
        elif began.void and not isinstance(found := self._instances(began.waits_for), str):
            self._began = msgspec.structs.replace(began, void=False)
            self._put(partial(_resume, instances=found))

    def _instances(self, reporters: Iterable[str]) -> InstanceMap | str:
        """All instances of these reporters by id, or the first one whose inventory is not whole yet."""
        found: dict[str, Instance] = {}
        for reporter in sorted(set(reporters)):
            inventory: Inventory | None = self._inventory(reporter)
            if inventory is None or not inventory.complete:
                return reporter
            found |= {one.id: one for one in inventory.instances}
        return found

    def _chosen(self, wanted: Iterable[Chosen]) -> InstanceMap | str:
        """The same for those that were chosen; one that is listed needs no whole inventory to be judged."""
        found: dict[str, Instance] = {}
        for chosen in sorted(wanted, key=lambda one: one.reporter):
            inventory: Inventory | None = self._inventory(chosen.reporter)
            if inventory is not None:
                found |= {one.id: one for one in inventory.instances}
            if inventory is None or not (inventory.complete or chosen.id in found):
                return chosen.reporter
        return found

    def _put(self, job: "Job") -> None:
        if len(self._inbox) < WAITING:  # otherwise the broker gives it again
            self._inbox.append(job)
            os.eventfd_write(self._asked, 1)

    def _pending(self, order: BindingPrepare, note: str) -> None:
        if order.binding.id not in self.holdings.reports:
            report = BindingReport(state=BindingState.PENDING, epoch=order.epoch, note=note)
            self.holdings.report(order.binding.id, report)

    def _collect(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._event)
        self._take_all()

    def _take_all(self) -> None:
        while self._outbox:
            match self._outbox.popleft():
                case _Began() as began:
                    self._began = began
                    self.newest_epoch = max(self.newest_epoch, began.epoch)
                    self.holdings.uncertain = bool(began.recovering)
                    self.holdings.serving = True
                    self.fault, self.unseen = "", began.unseen
                    self._changed()
                case _Fault(words, csi):
                    self.fault, self.csi_fault = words, csi
                case _Seen() as seen:
                    self.seen = seen
                case _Answer() as one:
                    one.give(one.found)
                case (str() as binding, BindingReport() as report, str() as claim):
                    self.ends.heard(binding, report)
                    before = self.holdings.reports.get(binding)
                    self.holdings.report(binding, report, claim)
                    news = before is None or before.state is not report.state
                    if news and report.state in _TOLD and self._began is not None:
                        self.tell(binding, report)

    # --------------------------------------------------------------------------------- the thread's side

    def _work(self, make: Callable[[], "Executor"]) -> None:
        try:
            executor = make()
            self._say(*_begin(executor))
        except Exception as error:  # noqa: BLE001 - whatever it is: no claims are served, and that is said
            self._say(_Fault(f"no claims are served: {error}"))
            return
        finally:
            self._ready.set()
        poll = select.poll()
        for fd in (self._asked, executor.node.errands.fileno()):
            poll.register(fd, select.POLLIN)
        try:
            while self._do_jobs(executor):
                poll.poll(self._advance(executor) * 1000)
        finally:
            executor.close()

    def _do_jobs(self, executor: "Executor") -> bool:
        """What was asked for, as far as there is time: what is under way has its turn too. False: end."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._asked)
        end = time.monotonic() + JOBS_S
        while self._inbox:
            job = self._inbox.popleft()
            if job is None:
                return False
            try:
                self._say(*job(executor))
            except Exception as error:  # noqa: BLE001 - as below
                self._say(_bug(error))
            if time.monotonic() > end:
                break
        return True

    def _advance(self, executor: "Executor") -> float:
        """Go on with what is under way; in how many seconds there is more."""
        try:
            wait = _sooner(executor.node.csi.turn(), executor.advance())
            fault = _Fault("", csi=executor.node.csi.problem)
            self._say(*(_told(executor, report) for report in executor.news()), fault, _seen(executor))
        except Exception as error:  # noqa: BLE001 - a bug must not end the thread: releases would hang
            self._say(_bug(error))
            wait = AGAIN_S
        return 0.0 if self._inbox else IDLE_S if wait is None else wait

    def _say(self, *news: Any) -> None:
        self._outbox.extend(news)
        os.eventfd_write(self._event, 1)


def _sooner(one: float | None, other: float | None) -> float | None:
    return min((wait for wait in (one, other) if wait is not None), default=None)


def _seen(executor: "Executor") -> _Seen:
    isolation = executor.node.isolation
    why = f"nothing ({isolation.reason})" if isolation.mechanism == "none" else ""
    return _Seen(why or isolation.mechanism, tuple(executor.orphans))


def _bug(error: Exception) -> _Fault:
    return _Fault(f"internal error: claims: {error!r}; please report it")


def _begin(executor: "Executor") -> Iterator[Any]:
    """What is in the journal at the start."""
    for report in executor.reports():
        yield _told(executor, report)
    void = [entry for entry in executor.entries.values() if entry.void]
    needed = frozenset(chosen.reporter for entry in void for chosen in entry.order.binding.instances)
    epoch = executor.journal.standing.epoch
    yield _Began(executor.recovering, needed, bool(void), epoch, _unseen(executor))


def _unseen(executor: "Executor") -> str:
    why = executor.node.visible
    return f"mounts would not be visible outside, claims that need them fail: {why}" if why else ""


def _prepare(
    executor: "Executor", order: BindingPrepare, instances: InstanceMap, *, taking: bool
) -> Iterator[Any]:
    from xce.prepare.entry import ended  # noqa: PLC0415 - only where claims are served
    from xce.prepare.execute import Refused  # noqa: PLC0415
    from xce.prepare.journal import NotRecorded  # noqa: PLC0415

    binding = order.binding
    if not taking and binding.id not in executor.entries and executor.journal.tombstone(binding.id) is None:
        reason = "this host takes no claims any more (claims.enabled in its agent.yaml)"
        yield (
            binding.id,
            BindingReport(state=BindingState.FAILED, epoch=order.epoch, reason=reason),
            binding.claim,
        )
        return
    try:
        report = executor.prepare(
            op_id=order.op_id,
            epoch=order.epoch,
            binding=binding,
            claim=order.claim,
            instances=instances,
            words=order.volume,
        )
    except (Refused, NotRecorded) as error:
        if binding.id in executor.entries:
            return
        if (stone := executor.journal.tombstone(binding.id)) is not None:
            yield _told(executor, ended(binding.id, stone))
            return
        note = str(error)
        yield binding.id, BindingReport(state=BindingState.PENDING, epoch=order.epoch, note=note), ""
        return
    yield _told(executor, report)


def _release(executor: "Executor", order: BindingRelease) -> Iterator[Any]:
    from xce.prepare.execute import Refused  # noqa: PLC0415
    from xce.prepare.journal import NotRecorded  # noqa: PLC0415

    # What cannot be recorded, or is of an older reign, changes nothing; the broker gives it again.
    with contextlib.suppress(Refused, NotRecorded):
        yield _told(executor, executor.release(op_id=order.op_id, epoch=order.epoch, binding=order.binding))


def _settle(executor: "Executor", known: Iterable[Known], instances: InstanceMap) -> Iterator[Any]:
    from xce.prepare.journal import NotRecorded  # noqa: PLC0415

    try:
        for report in executor.settle(known, instances):
            yield _told(executor, report)
    except NotRecorded as error:
        yield _Fault(str(error))
        epoch = executor.journal.standing.epoch
        yield _Began(executor.recovering, frozenset(), False, epoch, _unseen(executor))


def _resume(executor: "Executor", instances: InstanceMap) -> Iterator[Any]:
    executor.resume(instances)
    yield from (_told(executor, report) for report in executor.news())


def _told(executor: "Executor", report: "Report") -> tuple[str, BindingReport, str]:
    """A report as the broker reads it, with its binding, and the claim while that is known."""
    entry = executor.entries.get(report.binding)
    void = entry is not None and entry.void  # what was done is gone; it waits to be planned anew
    told = BindingReport(
        state=report.state,
        epoch=report.epoch,
        reason="the host was started anew" if void else report.reason,
        evidence=report.evidence,
        ports=report.ports,
        conditions=[condition.value for condition in report.conditions],
        note=report.note,
        instances=entry.order.binding.instances if entry is not None else [],
        quarantine=report.quarantine,
        wants_words=report.wants_words,
    )
    return report.binding, told, entry.order.claim.id if entry is not None else ""


def ports_trouble(settings: Settings) -> str:
    """Which ports of claims can be lost to outgoing connections, and what to do; ''."""
    for name, profile in profiles(settings).items():
        if words := local_ports.overlap(profile.ports.low, profile.ports.high):
            return f"profile {name}: {words}"
    return ""


def executor_of(
    settings: Settings, state_directory: str, boot_id: str, mark: Callable[[str], None]
) -> Callable[[], "Executor"]:
    """How the executor of this machine is made. Nothing of it is imported before."""

    def make() -> "Executor":
        from xce.prepare import local  # noqa: PLC0415 - a node without claims pays nothing for them
        from xce.prepare.execute import Executor  # noqa: PLC0415
        from xce.prepare.journal import Journal  # noqa: PLC0415

        return Executor(Journal(state_directory), local.node(settings, mark=mark), boot_id)

    return make
