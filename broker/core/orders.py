"""Orders: what each one turns into, or why it is refused.

Pure. An order is judged against the ledger as it will be once everything that is on its way to the disk is
there. It gives facts (none, when all is as wanted already) or raises `Refusal`; it never changes anything
itself.
"""

import re
from collections.abc import Sequence
from typing import Any

from xce.broker.core import claim_orders, key_orders
from xce.broker.core.effect import Audit
from xce.broker.core.ledger import HostRecord, Ledger
from xce.broker.core.peer import Peer
from xce.broker.core.situation import Refusal, Situation, check_reason, way_to
from xce.model import fact as facts
from xce.model import message as m
from xce.model.resource import Scope, value_problem
from xce.model.role import Role
from xce.model.site import Site
from xce.model.supply import (
    Hold,
    HoldEnds,
    LocationKind,
    PoolAmount,
    Source,
    location,
    name_problem,
    split_location,
)

HOLDS = 1024
"""Of a location, by orders: all of them are in its view, which goes to everybody."""
_LABEL = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def decide(order: m.Order, caller: Peer, now: Situation) -> list[facts.Change]:
    """The facts that carry an order out; raises `Refusal`."""
    judge: Any = _JUDGES[type(order)]
    changes: list[facts.Change] = judge(order, caller, now)
    return changes


def made_by(changes: Sequence[facts.Change]) -> list[str]:
    """Ids of what facts make, for the answer."""
    made: list[str] = []
    for change in changes:
        if change.__class__ is facts.ClaimCreated:
            made.append(change.claim.id)
        elif change.__class__ is facts.BindingMade:
            made.append(change.binding.id)
    return made


def about(order: m.Order) -> str:
    """What an order is about, for the audit: no secrets are in any order."""
    if order.__class__ in claim_orders.JUDGES:
        return claim_orders.about(order)
    match order:
        case m.HoldAdd():
            return f"{order.location}: {order.reason}"
        case m.HoldRelease():
            return f"{order.location}: {order.owner}"
        case m.PoolSet():
            amounts = {"base": order.base, "borrowed": order.borrowed}
            said = [f"{name}={amount:g}" for name, amount in amounts.items() if amount is not None]
            return " ".join([order.pool, order.resource, *said])
        case m.HostDrain() | m.HostRelease():
            return f"{order.host}: {order.reason}"
        case m.HostAdd() | m.HostAdmit() | m.HostUndrain():
            return order.host
        case _:
            return key_orders.about(order)


def audit(peer: Peer, order: m.Order, result: str, revision: int = 0) -> Audit:
    """The line of the audit for an order of a peer."""
    return Audit(
        who=peer.name,
        role=peer.role or "",
        operation=str(order.__struct_config__.tag),
        target=about(order),
        op_id=order.id,
        result=result,
        revision=revision,
        address=peer.address,
    )


# ------------------------------------------------------------------------------------------------- hosts


def _host_add(order: m.HostAdd, caller: Peer, now: Situation) -> list[facts.Change]:
    if problem := name_problem(order.host):
        raise Refusal("invalid", f"cannot add host {order.host!r}: {problem}")
    for group in order.groups:
        if problem := name_problem(group):
            raise Refusal("invalid", f"cannot add host {order.host}: group {group!r}: {problem}")
    if not 0 <= order.join_within_s <= 31 * 86400:
        raise Refusal("invalid", f"cannot add host {order.host}: join_within_s must be 0 to 31 days")
    source = Source.PROVISIONER if caller.role is Role.PROVIDER else Source.CONFIG
    record = now.ledger.hosts.get(order.host)
    if record is not None and record.released is None and record.source is not None:
        same = (order.groups, order.instance, order.template, order.join_within_s)
        if same == (record.groups, record.instance, record.template, record.join_within_s):
            return []
        if source is not record.source:
            raise Refusal("conflict", f"cannot add host {order.host}: it exists, from {record.source.value}")
    if record is None and order.host in now.site.groups_of and caller.role is Role.PROVIDER:
        raise Refusal("conflict", f"cannot add host {order.host}: it is in hosts.yaml")
    return [
        facts.HostAdded(
            host=order.host,
            source=source,
            groups=order.groups,
            instance=order.instance,
            template=order.template,
            join_within_s=order.join_within_s,
        )
    ]


def _host_admit(order: m.HostAdmit, _caller: Peer, now: Situation) -> list[facts.Change]:
    record = _record(now, order.host, "admit")
    if record.released is not None:
        raise Refusal("conflict", f"cannot admit host {order.host}: it was released", "add it again")
    if record.admitted or record.source is not None or order.host in now.site.groups_of:
        return []
    return [facts.HostAdmitted(host=order.host)]


def _host_drain(order: m.HostDrain, caller: Peer, now: Situation) -> list[facts.Change]:
    check_reason(order.reason, f"drain host {order.host}")
    record = _record(now, order.host, "drain")
    if record.released is not None:
        raise Refusal("conflict", f"cannot drain host {order.host}: it was released")
    if record.drain is not None:
        if record.drain.owner != caller.title and caller.role is not Role.ADMIN:
            raise Refusal(
                "conflict", f"cannot drain host {order.host}: {record.drain.owner} drains it already"
            )
        if (record.drain.owner, record.drain.reason) == (caller.title, order.reason):
            return []
    return [facts.HostDrained(host=order.host, owner=caller.title, reason=order.reason)]


def _host_undrain(order: m.HostUndrain, caller: Peer, now: Situation) -> list[facts.Change]:
    record = _record(now, order.host, "undrain")
    if record.drain is None:
        return []
    if record.drain.owner != caller.title and caller.role is not Role.ADMIN:
        raise Refusal(
            "forbidden",
            f"cannot undrain host {order.host}: {record.drain.owner} drains it",
            "only its owner and admins may end a drain",
        )
    return [facts.HostUndrained(host=order.host)]


def _host_release(order: m.HostRelease, caller: Peer, now: Situation) -> list[facts.Change]:
    check_reason(order.reason, f"release host {order.host}")
    record = _record(now, order.host, "release")
    if record.released is not None:
        return []
    if caller.role is Role.PROVIDER and record.source is not Source.PROVISIONER:
        raise Refusal(
            "forbidden",
            f"cannot release host {order.host}: no provisioner added it",
            "ask an admin",
        )
    if order.host in now.site.groups_of:
        raise Refusal(
            "conflict",
            f"cannot release host {order.host}: it is in hosts.yaml",
            "take it out of the file and reload the broker first, or drain it",
        )
    if bound := now.ledger.claims.on(order.host):
        raise Refusal(
            "conflict",
            f"cannot release host {order.host}: binding {bound[0].id} of claim {bound[0].claim} is on it",
            "release its bindings first: xce-broker claim list --host",
        )
    return [facts.HostReleased(host=order.host, reason=order.reason)]


def _record(now: Situation, host: str, verb: str) -> HostRecord:
    record = now.ledger.hosts.get(host)
    if record is None and f"host:{host}" not in now.present:
        raise Refusal("not-found", f"cannot {verb} host {host!r}: there is no such host")
    return record or HostRecord()


# ------------------------------------------------------------------------------------------------- holds


def _hold_add(order: m.HoldAdd, caller: Peer, now: Situation) -> list[facts.Change]:
    key = _location(order.location, now, "hold")
    check_reason(order.reason, f"hold {key}")
    if order.label and not _LABEL.fullmatch(order.label):
        raise Refusal("invalid", f"cannot hold {key}: label {order.label!r}: letters, digits, '_.-' only")
    owner = f"{caller.title}/{order.label}" if order.label else caller.title
    ends = HoldEnds.MANUAL if caller.role is Role.ADMIN else HoldEnds.OWNER
    before = now.ledger.holds.get(key, {}).get(owner)
    if before is not None and (before.reason, before.ends) == (order.reason, ends):
        return []
    if before is None and len(now.ledger.holds.get(key, {})) >= HOLDS:
        raise Refusal("busy", f"cannot hold {key}: {HOLDS} holds are on it already", "release some")
    hold = Hold(owner=owner, reason=order.reason, ends=ends, since=now.wall())
    return [facts.HoldAdded(location=key, hold=hold)]


def _hold_release(order: m.HoldRelease, caller: Peer, now: Situation) -> list[facts.Change]:
    key = _location(order.location, now, "release a hold of")
    own = order.owner == caller.title or order.owner.startswith(f"{caller.title}/")
    if not own and caller.role is not Role.ADMIN:
        raise Refusal(
            "forbidden",
            f"cannot release the hold of {order.owner} on {key}",
            "only its owner and admins may release a hold",
        )
    if order.owner.startswith(("reporter:", "broker:")):
        raise Refusal(
            "conflict",
            f"cannot release the hold of {order.owner} on {key}: it goes with its cause",
            "remove the cause that the hold names",
        )
    if order.owner not in now.ledger.holds.get(key, {}):
        owners = ", ".join(sorted(now.ledger.holds.get(key, {}))) or "nobody"
        raise Refusal("not-found", f"{order.owner} does not hold {key}; {owners} does")
    return [facts.HoldReleased(location=key, owner=order.owner)]


def _location(key: str, now: Situation, verb: str) -> str:
    try:
        kind, name = split_location(key)
    except ValueError as error:
        raise Refusal("invalid", f"cannot {verb} {key!r}: {error}") from error
    known = key in now.present or (kind is LocationKind.HOST and name in now.ledger.hosts)
    if not known and key not in now.ledger.holds:
        hint = way_to(key, now.present)
        raise Refusal("not-found", f"cannot {verb} {key}: there is no such location", hint)
    return key


# ------------------------------------------------------------------------------------------------- pools


def pool_amounts(ledger: Ledger, site: Site, pool: str) -> dict[str, PoolAmount]:
    """A pool's amounts: those of the file, replaced by what was set."""
    return {**site.pools.get(pool, {}), **ledger.pools.get(pool, {})}


def _pool_set(order: m.PoolSet, _caller: Peer, now: Situation) -> list[facts.Change]:
    what = f"set {order.resource} of pool {order.pool}"
    if order.pool not in now.site.pools and order.pool not in now.ledger.pools:
        hint = way_to(location(LocationKind.POOL, order.pool), now.present)
        raise Refusal("not-found", f"cannot {what}: there is no such pool", hint)
    kind = now.types.get(order.resource)
    if kind is None:
        raise Refusal("not-found", f"cannot {what}: no such resource type")
    if kind.scope not in {Scope.POOL, Scope.EXTERNAL}:
        raise Refusal("invalid", f"cannot {what}: its type has scope {kind.scope.value}")
    before = pool_amounts(now.ledger, now.site, order.pool).get(order.resource)
    held = before or PoolAmount()
    base = held.base if order.base is None else order.base
    borrowed = held.borrowed if order.borrowed is None else order.borrowed
    for word, part in (("base", base), ("borrowed", borrowed)):
        if not part >= 0:
            raise Refusal("invalid", f"cannot {what}: {word} must be 0 or more")
    if problem := value_problem(kind, base + borrowed):
        raise Refusal("invalid", f"cannot {what}: {problem}")
    amount = PoolAmount(base=base, borrowed=borrowed)
    return (
        [] if amount == before else [facts.PoolSet(pool=order.pool, resource=order.resource, amount=amount)]
    )


_JUDGES: dict[type, Any] = {
    m.HostAdd: _host_add,
    m.HostAdmit: _host_admit,
    m.HostDrain: _host_drain,
    m.HostUndrain: _host_undrain,
    m.HostRelease: _host_release,
    m.HoldAdd: _hold_add,
    m.HoldRelease: _hold_release,
    m.PoolSet: _pool_set,
    **key_orders.JUDGES,
    **claim_orders.JUDGES,
}
