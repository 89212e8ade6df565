"""Claims, bindings and quarantine as people look at them: rows, and what has become of bindings. Pure."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

import msgspec

from xce.broker.views import natural
from xce.model.claim import ENDED, BindingState, Quarantine
from xce.model.message import BindingView, Claims, ClaimView, Delta

DONE = ENDED | {BindingState.READY}
_TROUBLE = frozenset({"degraded", "undoing", "blocked", "uncertain", "unreachable"})


class ClaimRow(msgspec.Struct, frozen=True, kw_only=True):
    """One claim."""

    claim: str
    form: str
    owner: str
    project: str
    access: str
    state: str
    conditions: list[str]
    """Of the claim and of its bindings."""
    bindings: dict[str, int]
    """State to how many."""
    hosts: list[str]
    """Of live bindings."""
    reason: str
    """What its provider says, or why a binding has failed or is not further."""

    @property
    def is_problem(self) -> bool:
        """Whether somebody should look at it."""
        return self.state == BindingState.FAILED or bool(_TROUBLE.intersection(self.conditions))


class QuarantineRow(msgspec.Struct, frozen=True, kw_only=True):
    """One instance that may not be used."""

    host: str
    instance: str
    kind: str
    reason: str
    by: str
    binding: str
    since: str


def claim_rows(claims: Mapping[str, ClaimView], bindings: Mapping[str, BindingView]) -> list[ClaimRow]:
    """Every claim, by name."""
    of_claim: dict[str, list[BindingView]] = {}
    for view in bindings.values():
        of_claim.setdefault(view.binding.claim, []).append(view)
    rows = [_row(name, view, of_claim.get(name, [])) for name, view in claims.items()]
    return sorted(rows, key=lambda row: natural(row.claim))


def _row(name: str, view: ClaimView, bindings: list[BindingView]) -> ClaimRow:
    live = [one for one in bindings if one.binding.state not in ENDED]
    words = [view.reason, *(one.note or one.binding.reason for one in sorted(bindings, key=_worst))]
    return ClaimRow(
        claim=name,
        form=view.claim.form.value,
        owner=view.claim.owner,
        project=view.claim.project,
        access=view.claim.access.value,
        state=view.state,
        conditions=sorted({*view.conditions, *(word for one in live for word in one.conditions)}),
        bindings=dict(Counter(one.binding.state.value for one in bindings)),
        hosts=sorted({one.binding.host for one in live}, key=natural),
        reason=next(filter(None, words), ""),
    )


def _worst(view: BindingView) -> int:
    """Sorts what failed and what is blocked first."""
    return 0 if view.binding.state is BindingState.FAILED else 1 if view.note else 2


def binding_views(bindings: Mapping[str, BindingView]) -> list[BindingView]:
    """Bindings, the oldest first."""
    return sorted(bindings.values(), key=lambda view: natural(view.binding.id))


def quarantine_rows(quarantined: Mapping[str, Mapping[str, Quarantine]]) -> list[QuarantineRow]:
    """Everything in quarantine, by host and instance."""
    rows = [
        QuarantineRow(
            host=host,
            instance=instance,
            kind=kept.instance.kind,
            reason=kept.reason,
            by=kept.by,
            binding=kept.binding,
            since=kept.since,
        )
        for host, some in quarantined.items()
        for instance, kept in some.items()
    ]
    return sorted(rows, key=lambda row: (natural(row.host), natural(row.instance)))


def undecided(bindings: Mapping[str, BindingView], wanted: Collection[str]) -> list[str]:
    """Of the wanted bindings those that are neither ready nor ended. One that is not there has ended."""
    return [name for name in wanted if name in bindings and bindings[name].binding.state not in DONE]


def changes(
    delta: Delta, claims: Mapping[str, ClaimView], bindings: Mapping[str, BindingView]
) -> Iterator[tuple[str, str, str]]:
    """(claim, binding, text) of what a delta does to claims and bindings; before it they were as given."""
    for name, view in delta.claims.items():
        if (text := _claim_change(claims.get(name), view)) != "":
            yield name, "", text
    for name, now in sorted(delta.bindings.items(), key=lambda item: natural(item[0])):
        before = bindings.get(name)
        known = now or before
        if known is not None and (text := _binding_change(before, now)) != "":
            yield known.binding.claim, name, f"on {known.binding.host} {text}"


def _claim_change(before: ClaimView | None, now: ClaimView | None) -> str:
    if now is None:
        return "gone"
    was = before.state if before else "new"
    words = f"{was} → {now.state}" if was != now.state else ""
    more = [*(one for one in now.conditions if before is None or one not in before.conditions), now.reason]
    return "; ".join(filter(None, [words, *more]))


def _binding_change(before: BindingView | None, now: BindingView | None) -> str:
    if now is None:
        return "gone"
    was = before.binding.state.value if before else "new"
    words = f"{was} → {now.binding.state.value}" if was != now.binding.state else ""
    if words and now.binding.reason:
        words = f"{words} ({now.binding.reason})"
    new = [one for one in now.conditions if before is None or one not in before.conditions]
    over = [f"no longer {one}" for one in (before.conditions if before else []) if one not in now.conditions]
    return "; ".join(filter(None, [words, *new, *over, now.note if new else ""]))


def only(answer: Claims, states: Collection[str]) -> Claims:
    """An answer without the claims in other states; no states: as it is."""
    if not states:
        return answer
    kept = {name: view for name, view in answer.claims.items() if view.state in states}
    of_kept = {name: view for name, view in answer.bindings.items() if view.binding.claim in kept}
    return msgspec.structs.replace(answer, claims=kept, bindings=of_kept)
