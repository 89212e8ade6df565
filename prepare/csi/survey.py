"""What is known of plugins and of the volumes in use here, for those who look on; it changes nothing.

`Survey` belongs to the thread of the executor and never waits: each look takes answers that have come and
asks for what is due. A plugin is asked for statistics only if it has announced them, of volumes that somebody
has and nobody is about to give back, and of few at a time: the plugin's calls for claims come first.
"""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from xce.model import csi
from xce.model.csi import NodeAbility, Outcome
from xce.prepare.csi import usage
from xce.prepare.csi.usage import State
from xce.prepare.step import Csi

if TYPE_CHECKING:
    from xce.prepare.books import Books

EVERY_S = 60.0
"""Between two questions for one volume's statistics: plugins give the same for minutes anyway."""
DEADLINE_S = 10.0
AT_ONCE = 2
"""For one plugin."""


class Answer(NamedTuple):
    """What came of the last question for a volume's statistics."""

    at: float
    """Clock."""
    told: csi.Told


class Volume(msgspec.Struct, kw_only=True):
    """A volume that bindings here have or are about to have."""

    step: Csi
    name: str
    """As agent.yaml calls it; '' for one that a provider has chosen."""
    state: str
    users: list[str]
    staying: bool
    """Somebody has it who does not leave."""
    bytes: int = 0
    """Size that it was made to have; 0: that was never asked for."""
    unmet: str = ""
    """Why it is not as large as it is to be."""
    answer: Answer | None = None


class Findings(NamedTuple):
    """One look."""

    plugins: list[csi.Seen]
    volumes: list[Volume]


class Survey:
    """See the module."""

    def __init__(self, *, every_s: float = EVERY_S) -> None:
        self.every_s = every_s
        self._answers: dict[str, Answer] = {}
        self._asked: dict[str, float] = {}
        """By staging directory: when the volume was asked for last."""
        self._waiting: dict[str, Volume] = {}

    def look(self, books: "Books") -> Findings:
        """What is known now."""
        calls, now = books.node.csi, books.node.clock()
        plugins = {seen.plugin: seen for seen in calls.plugins()}
        volumes = {one.step.staging: one for one in in_use(books)}
        for staging, volume in list(self._waiting.items()):
            if staging in volumes and volumes[staging].staying:
                self._ask(volume, books, now)
            else:
                calls.forget(_key(staging))
                del self._waiting[staging]
        for staging in self._asked.keys() - volumes.keys():
            del self._asked[staging]
            self._answers.pop(staging, None)
        for staging, volume in volumes.items():
            if self._is_due(volume, plugins.get(volume.step.plugin), now):
                self._asked[staging] = now
                self._waiting[staging] = volume
                self._ask(volume, books, now)
            volume.answer = self._answers.get(staging)
        return Findings(list(plugins.values()), list(volumes.values()))

    def _is_due(self, volume: Volume, seen: csi.Seen | None, now: float) -> bool:
        staging = volume.step.staging
        if staging in self._waiting or not volume.staying or volume.state != State.PUBLISHED:
            return False
        if seen is None or not seen.ready or NodeAbility.GET_VOLUME_STATS not in seen.abilities:
            return False
        busy = sum(one.step.plugin == seen.plugin for one in self._waiting.values())
        return busy < AT_ONCE and now - self._asked.get(staging, -math.inf) >= self.every_s

    def _ask(self, volume: Volume, books: "Books", now: float) -> None:
        step = volume.step
        call = csi.Statistics(volume=step.volume, path=step.target, staging=step.staging)
        told = books.node.csi.ask(_key(step.staging), step.plugin, call, DEADLINE_S)
        if told is not None:
            self._answers[step.staging] = Answer(now, told)
            self._waiting.pop(step.staging, None)


def in_use(books: "Books") -> Iterable[Volume]:
    """Each volume once, with all bindings that have it or were promised it."""
    found: dict[str, Volume] = {}
    for entry in books.entries.values():
        for work in entry.works:
            step = work.step
            if not isinstance(step, Csi):
                continue
            state = usage.state_of(work.evidence)
            volume = found.setdefault(
                step.staging,
                Volume(step=step, name=_name(step, books), state=state, users=[], staying=False),
            )
            volume.users.append(entry.id)
            if not entry.leaving and state is State.PUBLISHED:
                volume.state, volume.staying = state, True
            volume.bytes = max(volume.bytes, work.evidence.get("bytes", 0))
            volume.unmet = volume.unmet or work.evidence.get("unmet", "")
    return found.values()


def figures(answer: Answer | None) -> dict[str, int | bool]:
    """What a plugin has said of a volume, by the names of `csi_values.volume_types`; {} if nothing good."""
    if answer is None or answer.told.outcome is not Outcome.OK:
        return {}
    found: dict[str, int | bool] = {}
    for one in answer.told.usage:
        if one.unit in {"bytes", "inodes"}:
            found |= {f"{one.unit}_total": one.total, f"{one.unit}_used": one.used}
            found[f"{one.unit}_available"] = one.available
    if answer.told.abnormal is not None:
        found["abnormal"] = answer.told.abnormal
    return found


def _name(step: Csi, books: "Books") -> str:
    profile = books.node.profile(step.profile)
    volume = profile.volumes.get(step.source) if profile is not None else None
    if volume is None or volume.csi is None or volume.csi.id != step.volume:
        return ""
    return step.source if step.profile in {"", "default"} else f"{step.profile}.{step.source}"


def _key(staging: str) -> str:
    return f"statistics {staging}"
