"""The node's bindings as the link sees them: what is to be said of them, and what was heard. Pure.

Reports come from whoever carries orders out (`claims.py`). Each is said until the broker's standing names its
binding, again with every heartbeat; a hello says a digest of all that has not ended. Of a binding that has
ended nothing is kept once the broker knows: its tombstone is in the journal.
"""

from xce.model.claim import ENDED, LIST, BindingState, Condition, holdings_digest
from xce.model.message import BindingNews, BindingReport, BindingStanding

_TROUBLES = {Condition.DEGRADED.value, Condition.BLOCKED.value, Condition.UNCERTAIN.value}
UNKNOWN = "unknown"
"""The standing of a binding that the broker does not know."""


class Holdings:
    """What the node has. `serving`: whether it takes orders about claims at all."""

    def __init__(self) -> None:
        self.serving = False
        self.epoch = 0
        """The newest reign of a broker that this node has had an order of."""
        self.newest = 0
        """The highest number of a binding that this node has known."""
        self.reports: dict[str, BindingReport] = {}
        self.claims: dict[str, str] = {}
        """Whose binding each is, by name of the binding."""
        self.standing: dict[str, str] = {}
        """What the broker has durably of bindings here, as it said last."""
        self.settled = False
        """The broker has given all the orders that it had when the link was made."""
        self.changes = 0
        """Grows with everything that is reported or heard."""
        self.uncertain = False
        """The journal was damaged: whatever the digest would say, everything is to be said."""
        self._unsaid: set[str] = set()
        self._unheard: set[str] = set()
        self._full = False

    def digest(self) -> str | None:
        """For the hello; None: this node takes no claims."""
        if not self.serving:
            return None
        if self.uncertain:
            return UNKNOWN
        held = ((name, report.state) for name, report in self.reports.items())
        return holdings_digest((name, state) for name, state in held if state not in _UNSAID)

    def report(self, binding: str, report: BindingReport, claim: str = "") -> None:
        """What there is to say of a binding now; `claim` where it is known."""
        if claim:
            self.claims[binding] = claim
        if self.reports.get(binding) != report or report.state in ENDED:
            self.reports[binding] = report
            self.changes += 1
        self._unsaid.add(binding)
        self._unheard.add(binding)

    # ------------------------------------------------------------------------------------------ the link

    def welcomed(self, *, full: bool) -> None:
        """A new conversation: everything is to be said, or only what ended and was not heard."""
        self.changes += 1
        self._full, self.settled = full, not full
        if not full:  # the broker has the same, in the same states
            live = (name for name, one in self.reports.items() if one.state not in _UNSAID)
            self.standing |= {name: self.reports[name].state.value for name in live}
        self._unheard = set(self.reports) if full else {n for n in self._unheard if n in self.reports}
        self._unsaid = set(self._unheard)

    def again(self) -> None:
        """A heartbeat: what was not heard is said again."""
        self._unsaid |= self._unheard

    def pending(self) -> bool:
        """Whether `take` would give something."""
        return self._full or bool(self._unsaid)

    def take(self) -> BindingNews | None:
        """What to say now, if there is something."""
        if not self.pending():
            return None
        full, self._full = self._full, False
        begun = (name for name, one in self.reports.items() if one.state is not BindingState.PENDING)
        names = sorted(begun if full else self._unsaid & self.reports.keys())[:LIST]
        self._unsaid.difference_update(names)
        self._unsaid &= self.reports.keys()
        return BindingNews(reports={name: self.reports[name] for name in names}, full=full)

    def unsaid(self, news: BindingNews) -> None:
        """It could not be sent: it is to be said once more, and all of it if it was all."""
        self._full = self._full or news.full
        self._unsaid.update(news.reports)

    def heard(self, standing: BindingStanding) -> None:
        """What the broker has durably. What has ended at both ends is forgotten."""
        self.changes += 1
        self.settled = True
        for name, state in standing.bindings.items():
            mine = self.reports.get(name)
            over = state in _ENDED_WORDS or state == UNKNOWN
            if mine is None:
                self._unheard.discard(name)
            elif mine.state is BindingState.PENDING:
                self._unheard.discard(name)
                if state != BindingState.PENDING:
                    self._forget(name)
            elif mine.state in ENDED:
                if over:
                    self._forget(name)
            elif state not in _ENDED_WORDS:  # else it was given up, and the broker is told that it is here
                self._unheard.discard(name)
                self.standing[name] = state

    def _forget(self, name: str) -> None:
        self.reports.pop(name, None)
        self.claims.pop(name, None)
        self.standing.pop(name, None)
        self._unsaid.discard(name)
        self._unheard.discard(name)

    # -------------------------------------------------------------------------------------------- seen

    def ready(self) -> set[str]:
        """Bindings that are there."""
        return {name for name, report in self.reports.items() if report.state is BindingState.READY}

    def troubles(self) -> dict[str, str]:
        """Bindings that are not what they should be, in words; what ended is not among them for long."""
        return {
            name: ": ".join(
                filter(
                    None, (", ".join([report.state.value, *report.conditions]), report.reason, report.note)
                )
            )
            for name, report in self.reports.items()
            if _TROUBLES & set(report.conditions)
        }

    def documents(self) -> list[dict[str, object]]:
        """For the status: what each binding is here, and at the broker."""
        return [
            {
                "binding": name,
                "claim": self.claims.get(name, ""),
                "state": report.state.value,
                "standing": self.standing.get(name, ""),
                "reason": report.reason,
                "conditions": list(report.conditions),
                "note": report.note,
                "evidence": report.evidence,
                "ports": report.ports,
                "instances": [one.id for one in report.instances],
            }
            for name, report in sorted(self.reports.items(), key=lambda item: (len(item[0]), item[0]))
        ]


_UNSAID = ENDED | {BindingState.PENDING}
"""States of which the digest says nothing: it has ended, or was refused before it began."""
_ENDED_WORDS = frozenset(state.value for state in ENDED)
