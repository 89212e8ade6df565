"""The thread that owns the journal of claims and their executor, and what it can be told to do.

Whatever reaches the disk or the kernel is done here; a sick disk stalls this thread and nobody else. Jobs go
in through a queue, and what there is to say comes out through another, with an event for the loop of
`claims.py`. An error of a job, or a bug, is said and does not end the thread.
"""

import contextlib
import math
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from xce.model.claim import BindingState, Condition
from xce.model.instance import Instance
from xce.model.message import BindingPrepare, BindingRelease, BindingReport

if TYPE_CHECKING:
    from xce.prepare.entry import Report
    from xce.prepare.execute import Executor

IDLE_S = 3600.0
JOBS_S = 0.05
"""For orders and questions, before what is under way goes on."""
AGAIN_S = 5.0
"""After an error of the thread's own."""
MADE_AGAIN_S = 2.0
"""Between tries to read the journal."""
STALLED_S = 5.0
"""A turn takes a fraction of a second. Whoever is so long at one waits for the kernel."""
WAITING = 10_000
"""Orders that may wait for the thread; the broker gives those that are dropped again."""
LOCAL = "local"
"""Id of an order that somebody on this host gives."""

InstanceMap: TypeAlias = Mapping[str, Instance]
Job: TypeAlias = Callable[["Executor"], Iterator[Any]]
"""What the thread is to do with its executor, and what it has to say of it."""


class Began(msgspec.Struct, frozen=True):
    """The journal was read: what it has, and what waits for which reporters' inventories."""

    recovering: str
    waits_for: frozenset[str]
    void: bool
    epoch: int
    """The newest that the journal has seen."""
    newest: int
    """The highest number of a binding that it has."""
    unseen: str = ""
    """Why nobody would see what is mounted here; '' if others would."""


class Settled(msgspec.Struct, frozen=True):
    """All that the broker knows of this node is taken up: it is not recovering any more."""


class Fault(msgspec.Struct, frozen=True):
    """Why no claims are served; '' when they are."""

    words: str
    csi: str = ""
    """Why no volumes of CSI plugins are; '' when they are, or there are no plugins."""


class Seen(msgspec.Struct, frozen=True):
    """What the thread has found out about this host."""

    devices: str
    """What keeps devices from consumers: `bpf`, `v1`, or why nothing does."""
    orphans: tuple[str, ...]
    """Things of ours that no claim owns."""
    unrecorded: str = ""
    """Why the journal cannot be written: orders wait for that; '' when it can."""
    unremoved: tuple[str, ...] = ()
    """Directories of jobs that cannot be removed though their time is over, and why."""
    hanging: str = ""
    """Where children wait in the kernel and cannot be ended, and how many."""
    cleaned: tuple[str, ...] = ()
    """Orphans that were taken away since this was said last."""


class Answer(msgspec.Struct, frozen=True):
    """What a question found, and who wants it."""

    give: Callable[[Any], object]
    found: Any


class Worker:
    """The thread. `make` builds its executor in it; it raises OSError when it cannot."""

    def __init__(self, make: Callable[[], "Executor"]) -> None:
        self.news: deque[Any] = deque()
        """What it has said: the structs above, and reports as `told` makes them."""
        self.event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable when there are news."""
        self._jobs: deque[Job | None] = deque()
        self._asked = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._ready = threading.Event()
        self._began = math.inf
        """When its turn began; infinity: it rests."""
        self._thread = threading.Thread(target=self._work, args=(make,), name="claims", daemon=True)
        self._thread.start()

    # ---------------------------------------------------------------------------------- the loop's side

    def wait(self, seconds: float) -> None:
        """Until the journal has been read, or cannot be."""
        self._ready.wait(seconds)

    def stalled(self) -> str:
        """Why nothing that is asked for is done at the moment, and where to look; ''."""
        if time.monotonic() - self._began < STALLED_S:
            return ""
        where = f"/proc/{os.getpid()}/task/{self._thread.native_id}/stack"
        return f"nothing is done for claims: a disk or file system does not answer (dmesg; cat {where})"

    def put(self, job: Job) -> None:
        """Have it do something."""
        if len(self._jobs) < WAITING:  # otherwise the broker gives it again
            self._jobs.append(job)
            os.eventfd_write(self._asked, 1)

    def heard(self) -> None:
        """The event was seen."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.event)

    def end(self, deadline: float) -> bool:
        """Let go of the journal; False if the disk did not answer in time."""
        self._jobs.append(None)
        os.eventfd_write(self._asked, 1)
        self._thread.join(deadline)
        return not self._thread.is_alive()

    def close(self) -> None:
        """Close the descriptors, once it has ended."""
        os.close(self.event)
        os.close(self._asked)

    # --------------------------------------------------------------------------------- the thread's side

    def _work(self, make: Callable[[], "Executor"]) -> None:
        while (executor := self._made(make)) is None:
            if self._ends_within(MADE_AGAIN_S):
                return
        poll = select.poll()
        for fd in (self._asked, executor.node.errands.fileno(), executor.node.csi.fileno()):
            poll.register(fd, select.POLLIN)
        try:
            while self._turn(executor, poll):
                pass
        finally:
            executor.close()

    def _made(self, make: Callable[[], "Executor"]) -> "Executor | None":
        """What carries claims out; None: not now, a disk that is well again may let us."""
        try:
            executor = make()
            self._say(*_begin(executor))
        except Exception as error:  # noqa: BLE001 - whatever it is: no claims are served, and that is said
            self._say(Fault(f"no claims are served: {_cause(error)}"))
            return None
        finally:
            self._ready.set()
        return executor

    def _ends_within(self, seconds: float) -> bool:
        """Whether the end is asked for. Nothing else can be done meanwhile: it is asked for again."""
        end = time.monotonic() + seconds
        asked = select.poll()
        asked.register(self._asked, select.POLLIN)
        while (left := end - time.monotonic()) > 0:
            if asked.poll(left * 1000):
                os.eventfd_read(self._asked)
            while self._jobs:
                if self._jobs.popleft() is None:
                    return True
        return False

    def _turn(self, executor: "Executor", poll: select.poll) -> bool:
        """What there is to do, and a rest. False: end."""
        self._began = time.monotonic()
        if goes_on := self._do_jobs(executor):
            wait = self._advance(executor)
            self._began = math.inf
            poll.poll(wait * 1000)
        return goes_on

    def _do_jobs(self, executor: "Executor") -> bool:
        """What was asked for, as far as there is time: what is under way has its turn too. False: end."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._asked)
        end = time.monotonic() + JOBS_S
        while self._jobs:
            job = self._jobs.popleft()
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
            recovering = executor.recovering
            wait = _sooner(executor.node.csi.turn(), executor.advance())
            settled = [Settled()] if recovering and not executor.recovering else []
            fault = Fault(executor.trouble, csi=executor.node.csi.problem)
            self._say(
                *(_told(executor, report) for report in executor.news()), *settled, fault, _seen(executor)
            )
        except Exception as error:  # noqa: BLE001 - a bug must not end the thread: releases would hang
            self._say(_bug(error))
            wait = AGAIN_S
        return 0.0 if self._jobs else IDLE_S if wait is None else wait

    def _say(self, *news: Any) -> None:
        self.news.extend(news)
        os.eventfd_write(self.event, 1)


def _sooner(one: float | None, other: float | None) -> float | None:
    return min((wait for wait in (one, other) if wait is not None), default=None)


def _seen(executor: "Executor") -> Seen:
    isolation = executor.node.isolation
    why = f"nothing ({isolation.reason})" if isolation.mechanism == "none" else ""
    unremoved = tuple(executor.unremoved.values())
    cleaned, executor.cleaned = tuple(executor.cleaned), []
    return Seen(
        why or isolation.mechanism,
        tuple(executor.orphans),
        executor.journal.fault,
        unremoved,
        executor.node.errands.hanging,
        cleaned,
    )


def _cause(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error)


def _bug(error: Exception) -> Fault:
    return Fault(f"internal error: claims: {error!r}; please report it")


def _begin(executor: "Executor") -> Iterator[Any]:
    """What is in the journal at the start."""
    for report in executor.reports():
        yield _told(executor, report)
    void = [entry for entry in executor.entries.values() if entry.void]
    needed = frozenset(chosen.reporter for entry in void for chosen in entry.order.binding.instances)
    epoch = executor.journal.standing.epoch
    newest = executor.journal.newest()
    yield Began(executor.recovering, needed, bool(void), epoch, newest, _unseen(executor))


def _unseen(executor: "Executor") -> str:
    why = executor.node.visible
    return f"mounts would not be visible outside, claims that need them fail: {why}" if why else ""


def prepare(
    executor: "Executor", order: BindingPrepare, instances: InstanceMap, *, taking: bool
) -> Iterator[Any]:
    """An order to have a binding. Without `taking`, nothing new begins."""
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


def release(executor: "Executor", order: BindingRelease) -> Iterator[Any]:
    """An order to take one back. One of an older reign, or about what is not known yet, changes nothing."""
    from xce.prepare.execute import Refused  # noqa: PLC0415
    from xce.prepare.journal import NotRecorded  # noqa: PLC0415

    try:
        report = executor.release(op_id=order.op_id, epoch=order.epoch, binding=order.binding)
    except Refused:
        return
    except NotRecorded as error:
        if order.op_id != LOCAL:  # the broker gives it again until it is on record
            yield from _unreleased(executor, order.binding, str(error))
        return
    yield _told(executor, report)


def _unreleased(executor: "Executor", binding: str, why: str) -> Iterator[Any]:
    """What is to go stays as it is, and why."""
    if (entry := executor.entries.get(binding)) is not None:
        name, told, claim = _told(executor, executor.reports([entry])[0])
        conditions = [*told.conditions, Condition.BLOCKED.value]
        yield name, msgspec.structs.replace(told, conditions=conditions, note=why), claim


def settle(executor: "Executor", known: Sequence[BindingPrepare], instances: InstanceMap) -> Iterator[Any]:
    """This is all that the broker says that this node has; taken up as it goes on."""
    from xce.prepare.execute import Known  # noqa: PLC0415

    executor.settle(
        [Known(one.op_id, one.epoch, one.binding, one.claim, one.volume) for one in known], instances
    )
    return iter(())


def resume(executor: "Executor", instances: InstanceMap) -> Iterator[Any]:
    """After a reboot: the inventory is known."""
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
