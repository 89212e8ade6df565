"""How bindings ended on this host, for whoever waits for one that will never be ready. Pure.

A binding that has ended is forgotten as soon as the broker knows. Its names are kept here for a while, since
a worker that asks a moment later is to be told why. After a restart of the agent only the binding's own id
finds it, in the journal.
"""

from collections.abc import Iterator

import msgspec

from xce.model.claim import ENDED, Binding, BindingState
from xce.model.message import BindingReport

KEPT = 4096
"""Bindings; the oldest are dropped."""


class Known(msgspec.Struct, frozen=True):
    """A binding that was ordered here."""

    binding: str
    claim: str
    consumer: str
    state: BindingState = BindingState.PENDING
    reason: str = ""

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.state in ENDED

    @property
    def failed(self) -> bool:
        """Whether it could not be made ready."""
        return self.state is BindingState.FAILED


class Ends:
    """The newest orders of this host, and what has become of those that have ended."""

    def __init__(self) -> None:
        self._known: dict[str, Known] = {}

    def ordered(self, binding: Binding) -> None:
        """A binding is to be made ready."""
        if binding.id not in self._known:
            self._known[binding.id] = Known(binding.id, binding.claim, binding.consumer.name)
            if len(self._known) > KEPT:
                del self._known[next(iter(self._known))]

    def heard(self, binding: str, report: BindingReport) -> None:
        """What is said of a binding."""
        known = self._known.get(binding)
        if known is not None and report.state in ENDED:
            self._known[binding] = msgspec.structs.replace(known, state=report.state, reason=report.reason)

    def found(self, binding: str, state: BindingState, reason: str) -> None:
        """What the journal has of a binding that has ended, of which nothing is known here."""
        self._known.setdefault(binding, Known(binding, "", "", state, reason))

    def newest(self, name: str) -> Iterator[Known]:
        """Of each claim and consumer that `name` (a binding, claim or consumer) means, the newest binding."""
        seen = set()
        for one in reversed(self._known.values()):
            if name in {one.binding, one.claim, one.consumer} and (one.claim, one.consumer) not in seen:
                seen.add((one.claim, one.consumer))
                yield one
