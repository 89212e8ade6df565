"""The resource types that a node works by: the cluster's, and those that its NAME.yaml files declare.

Pure. The cluster's types win. A declared type that the cluster does not know is used once the broker has let
it in (`judge`); until then values of it wait. Without a broker to ask (`alone`) it is used at once. Every
declaration that is not in force is in `problems`, with both places named.
"""

from collections.abc import Iterable, Mapping

from xce.model.builtin_types import BUILTIN_TYPES
from xce.model.resource import ResourceType, types_digest

CLUSTER = "the cluster"


class Types:
    """`cluster`: what was last learned; without it the built-in types. `alone`: there is nobody to ask."""

    def __init__(self, cluster: Iterable[ResourceType] | None = None, *, alone: bool = False) -> None:
        self.alone = alone
        self.learned = cluster is not None
        """Whether the cluster has ever said what its types are."""
        known = BUILTIN_TYPES.values() if cluster is None else cluster
        self.cluster: dict[str, ResourceType] = {kind.name: kind for kind in known}
        self.digest = types_digest(self.cluster.values())
        self.in_force: dict[str, ResourceType] = {}
        """What values are checked against."""
        self.waiting: dict[str, str] = {}
        """Name to the file that declares it, while the broker has not answered."""
        self.problems: dict[str, list[str]] = {}
        """By file."""
        self.version = 0
        """Counts changes of `in_force`."""
        self._declared: dict[str, list[ResourceType]] = {}
        self._verdicts: dict[str, str] = {}
        self.untold: set[str] = set()
        """Files with declarations that the broker was not asked about; of no use while there is none."""
        self._settle()

    def learn(self, types: Iterable[ResourceType]) -> None:
        """The cluster's types are these now."""
        self.learned = True
        self.cluster = {kind.name: kind for kind in types}
        self.digest = types_digest(self.cluster.values())
        self._settle()

    def declare(self, file: str, types: Iterable[ResourceType]) -> None:
        """A NAME.yaml declares these types, and none any more if there are none."""
        before, now = self._declared.get(file, []), list(types)
        if before == now:
            return
        if now:
            self._declared[file] = now
            self.untold.add(file)
        else:
            self._declared.pop(file, None)
            self.untold.discard(file)
        for kind in before:
            self._verdicts.pop(kind.name, None)
        self._settle()

    def judge(self, verdicts: Mapping[str, str]) -> None:
        """The broker's answer: name to '' or the reason for refusing it."""
        self._verdicts.update(verdicts)
        self._settle()

    def take_untold(self) -> dict[str, list[ResourceType]]:
        """Declarations that the broker is to be asked about, by file."""
        told, self.untold = self.untold, set()
        return {} if self.alone else {file: self._declared[file] for file in sorted(told)}

    def ask_again(self) -> None:
        """There is a broker that may not have been asked."""
        self.untold = set(self._declared)

    def ask_about_refused(self) -> None:
        """Have what the broker refused be asked again: its policy or its disk may be another by now."""
        refused = {name for name, verdict in self._verdicts.items() if verdict}
        self.untold |= {
            file
            for file, kinds in self._declared.items()
            if refused.intersection(kind.name for kind in kinds)
        }

    def _settle(self) -> None:
        """Decide anew what is in force, from everything that is known."""
        in_force, places = dict(self.cluster), dict.fromkeys(self.cluster, CLUSTER)
        self.waiting, self.problems = {}, {}
        for file in sorted(self._declared):
            for kind in self._declared[file]:
                if problem := self._problem(file, kind, in_force.get(kind.name), places.get(kind.name, "")):
                    self.problems.setdefault(file, []).append(problem)
                elif kind.name not in in_force and kind.name not in self.waiting:
                    if self.alone or kind.name in self._verdicts:
                        in_force[kind.name], places[kind.name] = kind, file
                    else:
                        self.waiting[kind.name] = file
        if in_force != self.in_force:
            self.in_force = in_force
            self.version += 1

    def _problem(self, file: str, kind: ResourceType, known: ResourceType | None, place: str) -> str:
        if known == kind:
            return ""
        this = f"type {kind.name} in {file} is"
        if verdict := self._verdicts.get(kind.name):
            return f"{this} refused by the broker: {verdict}"
        if known is not None:
            hint = ": only the file that it came from may change it" if place == CLUSTER else ""
            return f"{this} not what {place} says, which wins{hint}"
        first = self.waiting.get(kind.name)
        if first and next(one for one in self._declared[first] if one.name == kind.name) != kind:
            return f"{this} not what {first} says, which came first"
        return ""
