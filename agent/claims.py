"""Claims on this node, the loop's side: orders go to the thread that carries them out (`claim_work.py`).

What the thread says ends up in `Holdings`, which the link tells the broker of. An order that this node cannot
take yet (an inventory that nobody has found, a full disk) is said to be pending, with the reason; the broker
gives it again.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from xce.agent import claim_work
from xce.agent.claim_work import Answer, Began, Fault, InstanceMap, Seen, Settled, Worker
from xce.agent.ends import Ends
from xce.agent.holdings import Holdings
from xce.linux import local_ports
from xce.linux.loop import Loop
from xce.model.claim import ENDED, BindingState, Chosen, Condition, binding_number
from xce.model.instance import Instance, Inventory
from xce.model.message import BindingPrepare, BindingRelease, BindingReport
from xce.model.profile import Claims as Settings
from xce.model.profile import profiles

if TYPE_CHECKING:
    from xce.prepare.execute import Executor

START_S = 2.0
"""For the journal to be read before the first hello; one that takes longer is told of later."""
SHOWN = 4
"""Things without an owner in one line."""

_TOLD = ENDED | {BindingState.READY}
T = TypeVar("T")


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
        self.seen = Seen("", ())
        self.csi_fault = self.unseen = ""
        """Why claims that mount something will fail; '' if they need not."""
        self.tell: Callable[[str, BindingReport], object] = lambda _name, _report: None
        """Hears of each binding that has become ready or has ended, once."""
        self.tidied: Callable[[str], object] = lambda _orphan: None
        """Hears of each thing that no claim owned and that was taken away."""
        self._inventory, self._changed, self._taking = inventory, changed, taking
        self._began: Began | None = None
        self._settling = False
        """The thread has been told what the broker knows, and has not come through it."""
        self._orders: dict[str, BindingPrepare] = {}
        """Given while the journal recovers: what the broker knows that this node has."""
        self._loop = loop
        self._worker = Worker(make)
        loop.add_reader(self._worker.event, self._collect)
        self._worker.wait(START_S)
        self._take_all()

    def close(self, deadline: float) -> bool:
        """Let go of the journal; what is bound stays bound. False if the disk did not answer in time."""
        if not self._worker.end(deadline):
            return False
        self._loop.remove_reader(self._worker.event)
        self._worker.close()
        return True

    def ordered(self, order: BindingPrepare | BindingRelease) -> None:
        """The broker has given an order, or somebody on this host."""
        self.holdings.epoch = max(self.holdings.epoch, order.epoch)
        if self._began is None:  # whatever is held is not known: nothing ends by that
            if isinstance(order, BindingPrepare):
                self._pending(order, self.fault)
            return
        if stalled := self._worker.stalled():
            self._kept_waiting(order, stalled)
        recovering = bool(self._began.recovering)
        if isinstance(order, BindingRelease):
            if recovering and order.was is not None:
                self.ordered(order.was)
            elif not recovering:  # otherwise it is given again, and what it is about is taken up first
                self._worker.put(partial(claim_work.release, order=order))
            return
        self.ends.ordered(order.binding)
        self.holdings.newest = max(self.holdings.newest, binding_number(order.binding.id))
        self.holdings.claims[order.binding.id] = order.claim.id
        if recovering:
            self._orders[order.binding.id] = order
        else:
            instances = self._chosen(order.binding.instances)
            if isinstance(instances, str):
                self._pending(order, f"this node has no inventory of {instances} yet")
            else:
                job = partial(claim_work.prepare, order=order, instances=instances, taking=self._taking)
                self._worker.put(job)

    def document(self) -> dict[str, Any]:
        """For the status."""
        return {"devices": self.seen.devices, "orphans": list(self.seen.orphans)}

    def trouble(self) -> str:
        """Why claims are not served, or orders are not carried out now; ''."""
        return self.fault or self._worker.stalled()

    def orphans_trouble(self) -> str:
        """What of ours no claim owns, in one line."""
        found = self.seen.orphans
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        hint = " (claims.orphans: clean removes what can be)"
        return f"no claim owns {', '.join(found[:SHOWN])}{more}{hint}" if found else ""

    def unremoved_trouble(self) -> str:
        """Which directories of jobs stay though their time is over, in one line."""
        found = self.seen.unremoved
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        return (
            f"cannot be removed though their time is over: {', '.join(found[:SHOWN])}{more}" if found else ""
        )

    def hanging_trouble(self) -> str:
        """Which file systems do not answer, as far as children wait for them in vain."""
        found = self.seen.hanging
        return f"children of claims hang, and end when it answers: {found}" if found else ""

    def ask(self, question: Callable[["Executor"], T], answer: Callable[[T], object]) -> None:
        """Put a question to the thread; `answer` gets what it gives, in the loop."""
        self._worker.put(lambda executor: iter([Answer(answer, question(executor))]))

    def turn(self) -> None:
        """What waited for an inventory or for the broker may go on now; cheap when nothing waits."""
        began = self._began
        if began is None:
            return
        if began.recovering and self.holdings.settled and not self._settling:
            orders = list(self._orders.values())
            wanted = {chosen.reporter for one in orders for chosen in one.binding.instances}
            if not isinstance(found := self._instances(wanted), str):
                self._orders.clear()
                self._settling = True
                self._worker.put(partial(claim_work.settle, known=orders, instances=found))
        elif began.void and not isinstance(found := self._instances(began.waits_for), str):
            self._began = msgspec.structs.replace(began, void=False)
            self._worker.put(partial(claim_work.resume, instances=found))

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

    def _pending(self, order: BindingPrepare, note: str) -> None:
        if order.binding.id not in self.holdings.reports:
            report = BindingReport(state=BindingState.PENDING, epoch=order.epoch, note=note)
            self.holdings.report(order.binding.id, report)

    def _kept_waiting(self, order: BindingPrepare | BindingRelease, why: str) -> None:
        """What was ordered waits for the thread, which cannot say so: the broker is told for it."""
        if isinstance(order, BindingPrepare):
            self._pending(order, why)
        elif (report := self.holdings.reports.get(order.binding)) is not None and report.state not in ENDED:
            conditions = list(dict.fromkeys([*report.conditions, Condition.BLOCKED.value]))
            told = msgspec.structs.replace(report, conditions=conditions, note=why)
            self.holdings.report(order.binding, told)

    def _collect(self) -> None:
        self._worker.heard()
        self._take_all()

    def _take_all(self) -> None:
        while self._worker.news:
            match self._worker.news.popleft():
                case Began() as began:
                    self._began = began
                    self.holdings.epoch = max(self.holdings.epoch, began.epoch)
                    self.holdings.newest = max(self.holdings.newest, began.newest)
                    self.holdings.uncertain = bool(began.recovering)
                    self.holdings.serving = True
                    self.fault, self.unseen = "", began.unseen
                    self._changed()
                case Settled():
                    self._settle()
                case Fault(words, csi):
                    self.fault, self.csi_fault = words, csi
                case Seen() as seen:
                    self.seen = seen
                    for orphan in seen.cleaned:
                        self.tidied(orphan)
                case Answer() as one:
                    one.give(one.found)
                case (str() as binding, BindingReport() as report, str() as claim):
                    self.ends.heard(binding, report)
                    before = self.holdings.reports.get(binding)
                    self.holdings.report(binding, report, claim)
                    news = before is None or before.state is not report.state
                    if news and report.state in _TOLD and self._began is not None:
                        self.tell(binding, report)

    def _settle(self) -> None:
        """The node knows what it holds. What came meanwhile is an order like any other."""
        assert self._began is not None
        self._began = msgspec.structs.replace(self._began, recovering="")
        self._settling = self.holdings.uncertain = False
        orders = list(self._orders.values())
        self._orders.clear()
        for order in orders:
            self.ordered(order)


def ports_trouble(settings: Settings) -> str:
    """Which ports of claims can be lost to outgoing connections, and what to do; ''."""
    for name, profile in profiles(settings).items():
        if found := local_ports.overlap(profile.ports.low, profile.ports.high):
            return f"profile {name}: {found}"
    return ""


def executor_of(
    settings: Settings, state_directory: str, boot_id: str, mark: Callable[[str], None]
) -> Callable[[], "Executor"]:
    """How the executor of this machine is made. Nothing of it is imported before."""

    def make() -> "Executor":
        from xce.prepare import local  # noqa: PLC0415 - a node without claims pays nothing for them
        from xce.prepare.execute import Executor  # noqa: PLC0415
        from xce.prepare.journal import Journal  # noqa: PLC0415

        journal = Journal(state_directory)
        try:
            return Executor(journal, local.node(settings, mark=mark), boot_id)
        except BaseException:
            journal.close()
            raise

    return make
