"""A binding on this node while it is worked on: its phase, its steps, and what is said of it."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from xce.model.claim import BindingState, Condition
from xce.model.transition import Machine
from xce.model.value import digest_of
from xce.prepare import steps
from xce.prepare.copies import Copies
from xce.prepare.handler import Wait
from xce.prepare.journal import Order, Tombstone, Work
from xce.prepare.step import Csi, Evidence, Ports


class Phase(StrEnum):
    """What is being done with a binding here."""

    PREPARING = "preparing"
    """Its steps are done one after the other."""
    READY = "ready"
    """All are done and were read back."""
    UNDOING = "undoing"
    """One has failed; what was done is taken back."""
    RELEASING = "releasing"
    """It is not wanted any more; all is taken back."""
    RELEASED = "released"
    """Nothing of it is left."""
    FAILED = "failed"
    """It could not be made ready, and nothing of it is left."""


class Event(StrEnum):
    """What moves a binding here."""

    VERIFIED = "verified"
    """Every step is done and the kernel agrees."""
    FAILED = "failed"
    """A step cannot be done."""
    RELEASE = "release"
    """An order to release it."""
    VOID = "void"
    """The machine was started anew: what was done is gone, or may be."""
    CLEARED = "cleared"
    """Everything is taken back."""


_P, _E = Phase, Event
PHASES = Machine(
    "binding on its node",
    Phase.PREPARING,
    {
        (_P.PREPARING, _E.VERIFIED): _P.READY,
        (_P.PREPARING, _E.FAILED): _P.UNDOING,
        (_P.PREPARING, _E.RELEASE): _P.RELEASING,
        (_P.PREPARING, _E.VOID): _P.PREPARING,
        (_P.READY, _E.RELEASE): _P.RELEASING,
        (_P.READY, _E.VOID): _P.PREPARING,
        (_P.UNDOING, _E.RELEASE): _P.RELEASING,
        (_P.UNDOING, _E.CLEARED): _P.FAILED,
        (_P.RELEASING, _E.RELEASE): _P.RELEASING,
        (_P.RELEASING, _E.CLEARED): _P.RELEASED,
    },
    final=frozenset({Phase.RELEASED, Phase.FAILED}),
)
STATES = {
    Phase.PREPARING: BindingState.PREPARING,
    Phase.READY: BindingState.READY,
    Phase.UNDOING: BindingState.PREPARING,
    Phase.RELEASING: BindingState.RELEASING,
    Phase.RELEASED: BindingState.RELEASED,
    Phase.FAILED: BindingState.FAILED,
}
"""What the cluster is told of a phase."""


class StepState(StrEnum):
    """How far one step is. What is done between two writes is begun for the disk: it is done again."""

    BEGUN = "begun"
    """It may be done, in part, or not at all."""
    DONE = "done"
    """It was done, with this evidence."""
    UNDONE = "undone"
    """Nothing of it is left."""


class Report(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the node says of a binding."""

    binding: str
    state: BindingState
    epoch: int = 0
    op_id: str = ""
    reason: str = ""
    conditions: list[Condition] = []
    note: str = ""
    """What it waits for, what blocks it, what has drifted: one sentence."""
    evidence: str = ""
    """Digest of what was read back."""
    ports: dict[str, list[int]] = {}
    quarantine: dict[str, str] = {}
    """Instances that are not clean, and why."""
    wants_words: bool = False
    """What the claim's provider says is not known any more, and needed."""


class Entry:
    """One binding in memory; the journal has the same."""

    def __init__(
        self,
        order: Order,
        works: list[Work],
        words: Mapping[str, str] | None = None,
        *,
        served: float = 0.0,
    ) -> None:
        self.works, self.words = works, words
        self.order = order
        self.served = served
        """Clock at which it was last carried on; 0: it was ordered, and it has not been yet."""
        self.keys = [steps.key(work.step) for work in works]
        self.progress: dict[int, dict[type, Any]] = {}
        """What handlers keep, by step."""
        self.copies = Copies()
        self.unwritten: dict[int, Work] = {}
        """Steps that are further in memory than on disk."""
        self.remarks: list[str] = []
        """What was said while it was taken back, and stays with it."""
        self.wake = 0.0
        """Clock at which it is to be looked at again."""
        self.waiting: Wait | None = None
        self.undo_since: float | None = None
        self.looked = self.quiesced = False
        self.void = False
        """It waits for the inventory, to be planned anew; READY is not said of it meanwhile."""
        self.drift = ""
        self._digest: tuple[list[Evidence], str] | None = None

    @property
    def id(self) -> str:
        """Of the binding."""
        return self.order.binding.id

    @property
    def order(self) -> Order:
        """As it was written last."""
        return self._order

    @order.setter
    def order(self, order: Order) -> None:
        self._order, self.phase = order, Phase(order.phase)

    @property
    def wants_words(self) -> bool:
        """Whether a plugin may be told what the claim's provider says, and nobody here knows that."""
        provided = any(isinstance(work.step, Csi) and work.step.provided for work in self.works)
        return provided and self.words is None and not self.leaving

    def holds(self, number: int) -> Evidence:
        """What a step has given that may still be there: after a reboot little is, until it is done again."""
        work = self.works[number]
        return {} if self.void and not steps.handler(work.step).outlasts_boot else work.evidence

    @property
    def being_taken_up(self) -> bool:
        """Whether it is still looked for what there is of it, after the journal was lost."""
        return self.order.taken_up and self.phase is Phase.PREPARING and not self.void

    @property
    def leaving(self) -> bool:
        """Whether it is taken back."""
        return self.phase in {Phase.UNDOING, Phase.RELEASING}

    def report(self, dirty_after_s: float, now: float) -> Report:
        """What is said of it now."""
        waiting = self.waiting
        blocked = bool(waiting and waiting.blocker and self.leaving)
        conditions = [
            condition
            for condition, holds in (
                (Condition.DEGRADED, bool(self.drift)),
                (Condition.UNDOING, self.phase is Phase.UNDOING),
                (Condition.BLOCKED, blocked),
            )
            if holds
        ]
        dirty = {}
        since = self.undo_since
        if waiting and waiting.instances and since is not None and now - since >= dirty_after_s:
            dirty = dict.fromkeys(waiting.instances, waiting.reason)
        return Report(
            binding=self.id,
            state=BindingState.PREPARING if self.void else STATES[self.phase],
            epoch=self.order.epoch,
            op_id=self.order.release_op or self.order.op_id,
            reason=self.order.reason,
            conditions=conditions,
            note=self.drift or (waiting.reason if waiting else "") or ("since a reboot" if self.void else ""),
            evidence=self.digest() if self.phase is Phase.READY else "",
            ports=self.ports(),
            quarantine=dirty,
            wants_words=self.wants_words,
        )

    def digest(self) -> str:
        """Of all evidence; worked out once, since it is told every second."""
        evidence = [work.evidence for work in self.works]
        if self._digest is None or any(a is not b for a, b in zip(self._digest[0], evidence, strict=True)):
            self._digest = evidence, digest_of(evidence)
        return self._digest[1]

    def ports(self) -> dict[str, list[int]]:
        """What was picked, by name."""
        return {
            work.step.name: list(work.evidence["ports"])
            for work in self.works
            if isinstance(work.step, Ports) and "ports" in work.evidence
        }


def ended(binding: str, stone: Tombstone) -> Report:
    """What is said of a binding that has ended."""
    return Report(
        binding=binding, state=stone.state, epoch=stone.epoch, op_id=stone.op_id, reason=stone.reason
    )
