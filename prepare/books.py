"""The bindings of a node in memory and on disk, who shares what, and what is said of them.

Memory follows the disk: a phase or a step is further only once its record is written. No decisions here.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import overload

import msgspec

from xce.model.claim import Chosen
from xce.model.profile import profile_of
from xce.prepare import tags
from xce.prepare.csi import usage
from xce.prepare.entry import PHASES, Entry, Event, Phase, Report, StepState
from xce.prepare.handler import PEER, At, Node, Peer, Wait
from xce.prepare.journal import Journal, Order, Work
from xce.prepare.plan import PlanRefused
from xce.prepare.step import Csi, Kept, Step


class _Peers(Sequence[Peer]):
    """Worked out when somebody asks: all ports of a node are one thing, and each look at one goes by all."""

    def __init__(self, entry: Entry, sharers: Mapping[tuple[str, int], Entry]) -> None:
        self._entry, self._sharers = entry, sharers

    @functools.cached_property
    def _all(self) -> list[Peer]:
        return [
            Peer(other.id, other.works[n].step, other.holds(n), other.leaving, n)
            for (_, n), other in self._sharers.items()
            if other is not self._entry and other.works[n].state != StepState.UNDONE
        ]

    def __len__(self) -> int:
        return len(self._all)

    @overload
    def __getitem__(self, index: int) -> Peer: ...

    @overload
    def __getitem__(self, index: slice) -> list[Peer]: ...

    def __getitem__(self, index: int | slice) -> Peer | list[Peer]:
        return self._all[index]


class Books:
    """What the executor knows."""

    def __init__(self, journal: Journal, node: Node) -> None:
        self.journal, self.node = journal, node
        self.entries: dict[str, Entry] = {}
        self._by_key: dict[str, dict[tuple[str, int], Entry]] = {}
        self._news: dict[str, Report] = {}
        self._told: dict[str, Report] = {}

    def close(self) -> None:
        """Let go of the journal and of children; what is bound stays bound. May be called twice."""
        self.journal.close()
        self.node.errands.close()
        self.node.users.close()
        self.node.mounts.close()
        tags.let_go(self.node.settings.directory)

    # --------------------------------------------------------------------------------------------- telling

    def news(self) -> list[Report]:
        """What has changed since the last call."""
        news, self._news = list(self._news.values()), {}
        return news

    def reports(self, only: Iterable[Entry] | None = None) -> list[Report]:
        """All bindings that are worked on or held, or only some of them."""
        return [self._report(entry) for entry in (self.entries.values() if only is None else only)]

    def _report(self, entry: Entry) -> Report:
        profile = profile_of(self.node.settings, entry.order.claim.ask.profile)
        return self._tell(entry.report(profile.dirty_after_s if profile else 0, self.node.clock()))

    def _tell(self, report: Report) -> Report:
        if self._told.get(report.binding) != report:
            self._news[report.binding] = report
        if report.binding in self.entries:
            self._told[report.binding] = report
        else:
            self._told.pop(report.binding, None)
        return report

    # ------------------------------------------------------------------------------------------ the books

    def _add(self, entry: Entry) -> Entry:
        self.entries[entry.id] = entry
        for number, key in enumerate(entry.keys):
            self._by_key.setdefault(key, {})[(entry.id, number)] = entry
        return entry

    def wake(self, news: str) -> None:
        """Let those go on that wait for an answer (`BINDING/STEP`), or for what has news."""
        if (entry := self.entries.get(news.rpartition("/")[0])) is not None:
            entry.wake = 0.0
        for entry in self.entries.values() if "/" not in news else ():
            if entry.waiting is not None and entry.waiting.on == news:
                entry.wake = 0.0

    def _wake_sharers(self, entry: Entry, number: int) -> None:
        """A step has come further: those who share what it works on may have waited for that."""
        for sharer in self._by_key.get(entry.keys[number], {}).values():
            if sharer.waiting is not None and sharer.waiting.on == PEER:
                sharer.wake = 0.0

    def _forget(self, entry: Entry) -> None:
        del self.entries[entry.id]
        for number, key in enumerate(entry.keys):
            self._wake_sharers(entry, number)
            others = self._by_key[key]
            del others[(entry.id, number)]
            if not others:
                del self._by_key[key]
        self.node.errands.forget(entry.id)

    def _at(self, entry: Entry, number: int) -> At:
        peers = _Peers(entry, self._by_key.get(entry.keys[number], {}))
        progress = entry.progress.setdefault(number, {})
        rollback = entry.phase is Phase.UNDOING and not entry.order.stood
        host = entry.order.binding.host
        return At(
            self.node,
            entry.id,
            number,
            peers,
            entry.works,
            progress,
            entry.copies,
            rollback,
            entry.words,
            host,
        )

    def holders(self, wanted: Sequence[Chosen]) -> Iterator[tuple[Chosen, Entry]]:
        """Who has any of these instances, or a part or the whole of one, in whatever phase."""
        for entry in self.entries.values():
            for held in entry.order.binding.instances:
                for chosen in wanted:
                    if chosen.id in {held.id, *held.parents} or held.id in chosen.parents:
                        yield chosen, entry

    def admit(self, planned: Sequence[Step], binding: str, *, void: bool = True) -> None:
        """Nobody may have its volumes in a way that excludes it; raises `PlanRefused`.

        `void`: those count too that wait to be planned anew.
        """
        others = [one for one in self.entries.values() if one.id != binding and (void or not one.void)]
        for step in planned:
            if not isinstance(step, Csi):
                continue
            sharers, volumes = [], set()
            for entry in others:
                for work in entry.works:
                    if isinstance(work.step, Csi) and work.step.staging == step.staging:
                        sharers.append(Peer(entry.id, work.step, work.evidence, entry.leaving))
                    elif isinstance(work.step, Csi) and work.step.plugin == step.plugin and not entry.leaving:
                        volumes.add(work.step.staging)
            seen = self.node.csi.seen(step.plugin)
            most = seen.max_volumes if seen is not None else None
            shared = any(not peer.leaving for peer in sharers)
            if problem := usage.conflict(step, sharers) or usage.too_many(
                step, len(volumes), most, shared=shared
            ):
                raise PlanRefused(problem)

    def _move(self, entry: Entry, event: Event, *, synced: bool = True, **fields: str | int) -> None:
        """A phase further, on disk first."""
        phase = PHASES.step(entry.phase, event)
        order = msgspec.structs.replace(entry.order, phase=phase, **fields)
        self._write(entry, {}, f"order.{phase}", order=order, synced=synced)
        entry.wake, entry.waiting = 0.0, None

    def _fail(self, entry: Entry, reason: str) -> None:
        self._move(entry, Event.FAILED, reason=reason)

    def _write(
        self,
        entry: Entry,
        works: dict[int, Work],
        what: str,
        *,
        order: Order | None = None,
        kept: Kept | None = None,
        synced: bool = True,
    ) -> None:
        self.node.mark(f"{what}.before-write")
        self.journal.put(order, entry.unwritten | works, entry.id, kept, synced=synced)
        self.node.mark(f"{what}.after-write")
        entry.unwritten.clear()
        entry.order = order or entry.order
        for number, work in works.items():
            entry.works[number] = work

    def _hold(self, entry: Entry, wait: Wait) -> None:
        entry.waiting, entry.wake = wait, self.node.clock() + wait.seconds
