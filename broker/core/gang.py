"""Gangs: bindings that become ready at once, or are all released.

Pure, over the ledger. A gang *stands* once it was ready as a whole: from then on each binding goes its own
way, a rebooted node's comes back alone (all of them may be away at once), and nobody is released for
another's sake. Until then the end of one is the end of all.
"""

from collections.abc import Mapping

from xce.broker.core.claim_ledger import ClaimLedger
from xce.model import fact as facts
from xce.model.claim import ENDED, Binding, BindingState
from xce.model.message import BindingReport

_UNREADY = frozenset({BindingState.PENDING, BindingState.PREPARING})
_OVER = ENDED | {BindingState.RELEASING}


def ready(
    ledger: ClaimLedger, binding: Binding, verified: Mapping[str, BindingReport]
) -> list[facts.GangReady]:
    """The one fact that makes a gang ready, once each binding of it that is not ready yet is verified.

    `verified` are bindings of this gang alone, all of them not ready yet.
    """
    if not ledger.was_ready(binding) and (
        ledger.count(binding.gang, *_OVER) or len(verified) < ledger.count(binding.gang, *_UNREADY)
    ):
        return []
    members = ledger.members(binding.gang)
    waiting = [one for one in members if one.state in _UNREADY and one.id in verified]
    if not waiting:
        return []
    return [facts.GangReady(gang=binding.gang, members=[ready_one(one, verified[one.id]) for one in waiting])]


def ready_one(binding: Binding, report: BindingReport) -> facts.BindingMoved:
    """A binding is ready, as its node says."""
    return facts.BindingMoved(
        binding=binding.id,
        state=BindingState.READY,
        reason=report.reason,
        evidence=report.evidence,
        ports=report.ports,
    )


def released(binding: Binding, reason: str) -> facts.BindingMoved:
    """A binding is to go; what it picked stays its own until it has gone."""
    return facts.BindingMoved(
        binding=binding.id,
        state=BindingState.RELEASING,
        reason=reason,
        evidence=binding.evidence,
        ports=binding.ports,
    )


def fallen(ledger: ClaimLedger, binding: Binding, why: str) -> list[facts.BindingMoved]:
    """What the end of one binding does to the rest of its gang: nothing, if it stands alone or its gang
    stands.
    """
    if not binding.gang or ledger.was_ready(binding):
        return []
    reason = f"gang {binding.gang} cannot become ready: {binding.id} on {binding.host}: {why}"
    return [
        released(one, reason)
        for one in ledger.members(binding.gang)
        if one.id != binding.id and one.state not in ENDED and one.state is not BindingState.RELEASING
    ]
