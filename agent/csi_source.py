"""What CSI plugins say of this node and of volumes in use, as values: `csi:PLUGIN` and `csi:PLUGIN/VOLUME`.

On the agent's loop; the thread of claims is asked, and nothing here waits. Each volume has a feed of its own,
so that the age of its values is that of the plugin's answer about it. A plugin that does not answer makes its
values old, and then unknown; one that is gone, or a volume that nobody has any more, takes its values along.
Volumes that providers make have no name that would mean the same tomorrow: only `xce-agent csi volumes` has
them.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from xce.model import csi_values
from xce.model.csi import Outcome, Seen
from xce.model.message import ReporterState
from xce.model.resource import ResourceType, value_problem
from xce.model.value import Absent, Presence, Reading

if TYPE_CHECKING:
    from xce.agent.claims import Claims
    from xce.agent.node import Node
    from xce.linux.loop import Loop, Timer
    from xce.prepare.csi.survey import Findings, Survey, Volume

TICK_S = 5.0
PLUGIN_TTL_S = 6 * TICK_S
MODE = "csi"
VOLUMES = 64
"""Whose statistics are told; the others are left out, and that is said."""


class CsiSource:
    """Of one agent that takes claims and has plugins. `types_changed()` brings new types into force."""

    def __init__(
        self,
        loop: "Loop",
        node: "Node",
        claims: "Claims",
        types_changed: Callable[[], object],
        *,
        survey: "Survey",
        tick_s: float = TICK_S,
    ) -> None:
        self._loop, self._node, self._claims, self._types_changed = loop, node, claims, types_changed
        self._survey, self._tick_s = survey, tick_s
        self._ttl_s = survey.every_s * 3
        self._types: dict[str, dict[str, ResourceType]] = {}
        """By feed."""
        self._answered: dict[str, float] = {}
        """By feed of a volume: the answer that was told last."""
        self.fault = ""
        """Plugins that have never answered: they have no feed that could say so."""
        self._asking = False
        self._timer: Timer | None = None
        self._runs = 0

    def start(self) -> None:
        """Look now and from now on."""
        self._timer = self._loop.call_later(self._tick_s, self.start)
        if not self._asking:  # the thread may be busy with a slow disk
            self._asking = True
            self._claims.ask(self._survey.look, self._take)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def documents(self, answer: Callable[[list[dict[str, Any]]], object]) -> None:
        """All volumes that bindings here have, for people."""

        def told(found: "Findings") -> None:
            answer([_document(one, self._loop.now()) for one in found.volumes])

        self._claims.ask(self._survey.look, told)

    # ---------------------------------------------------------------------------------------------- taking

    def _take(self, found: "Findings") -> None:
        self._asking = False
        silent = [one for one in found.plugins if one.problem and not one.asked]
        self.fault = "; ".join(f"plugin {one.plugin}: {one.problem}" for one in silent)
        here = {seen.plugin: seen for seen in found.plugins if seen.asked}
        named = {one.name: one for one in found.volumes if one.name and one.step.plugin in here}
        told = dict(sorted(named.items())[:VOLUMES])
        types = {f"{csi_values.FEED}{plugin}": csi_values.plugin_types(plugin) for plugin in here}
        types |= {_feed(one): csi_values.volume_types(name) for name, one in told.items()}
        self._declare(types)
        left_out = len(named) - len(told)
        for seen in here.values():
            self._tell_plugin(seen, sum(one.step.plugin == seen.plugin for one in found.volumes), left_out)
        for one in told.values():
            self._tell_volume(one, here[one.step.plugin])

    def _declare(self, types: dict[str, dict[str, ResourceType]]) -> None:
        """Feeds that are not there any more take their values and types along."""
        if types.keys() == self._types.keys():
            return
        for feed in self._types.keys() - types.keys():
            self._node.remove(feed)
            self._answered.pop(feed, None)
            self._node.types.declare(_origin(feed), [])
        for feed in types.keys() - self._types.keys():
            self._node.types.declare(_origin(feed), types[feed].values())
        self._types = types
        self._types_changed()

    def _tell_plugin(self, seen: Seen, volumes: int, left_out: int) -> None:
        feed = f"{csi_values.FEED}{seen.plugin}"
        if seen.ready:
            self._publish(feed, _plugin_values(seen, volumes), at=self._loop.now(), ttl=PLUGIN_TTL_S)
        else:
            self._node.table.fault(feed, seen.problem)
        note = f"statistics of {left_out} more volumes are not told" if left_out else ""
        self._state(feed, "" if seen.ready else seen.problem, note, self._tick_s, PLUGIN_TTL_S)

    def _tell_volume(self, volume: "Volume", seen: Seen) -> None:
        feed, answer, cause = _feed(volume), volume.answer, "" if seen.ready else seen.problem
        kinds = self._types[feed].values()
        in_force = all(kind.name in self._node.types.in_force for kind in kinds)
        if answer is not None and self._answered.get(feed) != answer.at:
            if in_force:  # else once more, when the broker has let them in
                self._answered[feed] = answer.at
            if answer.told.outcome is Outcome.OK:
                self._publish(feed, _volume_values(volume), at=answer.at, ttl=self._ttl_s)
            else:
                self._node.table.fault(feed, answer.told.message or answer.told.outcome)
        if answer is not None and answer.told.outcome is not Outcome.OK:
            cause = cause or answer.told.message or answer.told.outcome.value
        self._state(feed, cause, "", self._survey.every_s, self._ttl_s)

    def _publish(self, feed: str, values: Mapping[str, Reading], *, at: float, ttl: float) -> None:
        self._runs += 1
        known: dict[str, Reading] = {}
        for part, reading in values.items():
            kind = self._node.types.in_force.get(self._types[feed][part].name)
            if kind is not None:  # else the broker has not let it in, or not yet
                problem = "" if isinstance(reading, Absent) else value_problem(kind, reading)
                unfit = Absent(Presence.UNKNOWN, cause=f"refused: {problem}")
                known[kind.name] = unfit if problem else reading
        self._node.table.publish(feed, known, run=self._runs, at=at, ttl=ttl, now=self._loop.now())

    def _state(self, feed: str, cause: str, note: str, interval: float, ttl: float) -> None:
        refused = "; ".join(self._node.types.problems.get(_origin(feed), ()))
        state = ReporterState(
            state="running",
            cause=cause or refused,
            note=note,
            mode=MODE,
            interval_ms=round(interval * 1000),
            ttl_ms=round(ttl * 1000),
        )
        self._node.set_state(feed, state)


def _feed(volume: "Volume") -> str:
    return f"{csi_values.FEED}{volume.step.plugin}/{volume.name}"


def _origin(feed: str) -> str:
    """Where the broker is told that its types come from."""
    return f"claims.csi of agent.yaml, {feed.removeprefix(csi_values.FEED)}"


def _plugin_values(seen: Seen, volumes: int) -> dict[str, Reading]:
    values: dict[str, Reading] = {"volumes": volumes}
    values["topology"] = sorted(f"{key}={value}" for key, value in seen.topology.items())
    unsaid = Absent(Presence.NOT_APPLICABLE, cause="the plugin says nothing about it")
    values["node"] = seen.node_id or unsaid
    values["volumes_max"] = seen.max_volumes or unsaid
    values["volumes_free"] = max(0, seen.max_volumes - volumes) if seen.max_volumes else unsaid
    return values


def _volume_values(volume: "Volume") -> dict[str, Reading]:
    """What the plugin has said; what it leaves out is unknown."""
    from xce.prepare.csi.survey import figures  # noqa: PLC0415 - only where claims are served

    found = figures(volume.answer)
    unsaid = Absent(Presence.UNKNOWN, cause="the plugin does not say it")
    return {name: found.get(name, unsaid) for name in csi_values.volume_types("x")}


def _document(volume: "Volume", now: float) -> dict[str, Any]:
    from xce.prepare.csi.survey import figures  # noqa: PLC0415

    answer = volume.answer
    refused = answer is not None and answer.told.outcome is not Outcome.OK
    return {
        "plugin": volume.step.plugin,
        "volume": volume.step.volume,
        "source": volume.step.source,
        "state": str(volume.state),
        "bindings": volume.users,
        "bytes": volume.bytes,
        "unmet": volume.unmet,
        "statistics": figures(answer),
        "statistics_age_s": now - answer.at if answer is not None else None,
        "problem": (answer.told.message or answer.told.outcome.value) if answer and refused else "",
    }
