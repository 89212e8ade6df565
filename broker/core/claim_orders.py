"""Orders about claims: what each turns into, or why it is refused. Like `orders.py`, pure and all at once.

The broker chooses nothing: hosts and instances come with the order, and are checked here against what is
known now, with everything that is on its way to the disk.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import msgspec

from xce.broker.core import choice, gang
from xce.broker.core.claim_ledger import ClaimLedger, ClaimRecord
from xce.broker.core.location import Host
from xce.broker.core.peer import Peer
from xce.broker.core.situation import Refusal, Situation, check_reason
from xce.model import fact as facts
from xce.model import message as m
from xce.model.claim import (
    ENDED,
    LIST,
    AccessMode,
    Binding,
    BindingState,
    Chosen,
    ClaimForm,
    Consumer,
    Quarantine,
    Reclaim,
)
from xce.model.claim_check import claim_problem, consumer_problem
from xce.model.role import Role

CLAIMS = 500_000
"""Of all owners; more are refused, so that the ledger stays within the memory of its machine."""
READY_WITHIN_S = 31 * 86400.0


def about(order: Any) -> str:
    """What an order is about, for the audit."""
    match order:
        case m.ClaimCreate():
            return order.claim.id or "a claim"
        case m.ClaimDelete() | m.ClaimProvide():
            return order.claim
        case m.ClaimBind():
            shown = ", ".join(f"{place.claim} on {place.host}" for place in order.places[:8])
            return shown if len(order.places) <= 8 else f"{shown}, and {len(order.places) - 8} more"
        case m.ClaimRelease():
            return order.claim or order.gang or ", ".join(order.bindings[:8])
        case m.BindingForce():
            return f"{order.binding}: {order.reason}"
        case _:
            return f"{order.host} {order.instance}: {order.reason}"


# ------------------------------------------------------------------------------------------------ claims


def _create(order: m.ClaimCreate, caller: Peer, now: Situation) -> list[facts.Change]:
    claim = order.claim
    if problem := claim_problem(claim):
        raise Refusal("invalid", f"cannot create claim {claim.id[:64]!r}: {problem}")
    if len(now.ledger.claims.claims) >= CLAIMS:
        raise Refusal("busy", f"cannot create a claim: there are {CLAIMS} already", "delete some")
    name = claim.id or f"c{now.ledger.revision + 1}"
    if name in now.ledger.claims.claims:
        raise Refusal("conflict", f"cannot create claim {name}: it exists", "choose another id, or delete it")
    made = msgspec.structs.replace(claim, id=name, owner=claim.owner or caller.name)
    return [facts.ClaimCreated(claim=made)]


def _provide(order: m.ClaimProvide, caller: Peer, now: Situation) -> list[facts.Change]:
    record = _record(now, order.claim, "provide")
    if not record.claim.provider or (caller.role is not Role.ADMIN and caller.name != record.claim.provider):
        provider = record.claim.provider or "nobody"
        raise Refusal("forbidden", f"cannot provide claim {order.claim}: {provider} provides it")
    if len(order.reason) > 4096 or sum(len(k) + len(v) for k, v in order.volume.items()) > 32_768:
        raise Refusal("invalid", f"cannot provide claim {order.claim}: its texts are too long")
    change = facts.ClaimProvided(
        claim=order.claim, state=order.state, reason=order.reason, volume=order.volume
    )
    if record.ending and order.state is BindingState.RELEASED and not now.ledger.claims.live(order.claim):
        return [change, facts.ClaimDeleted(claim=order.claim)]
    return [change]


def _delete(order: m.ClaimDelete, _caller: Peer, now: Situation) -> list[facts.Change]:
    record = _record(now, order.claim, "delete")
    if live := now.ledger.claims.live(order.claim):
        raise Refusal(
            "conflict",
            f"cannot delete claim {order.claim}: {live[0].id} on {live[0].host} is {live[0].state.value}",
            f"release it first: xce-broker claim release {order.claim}",
        )
    if record.ending:
        return []
    return ended_with(now.ledger.claims, order.claim, ending=True) or [facts.ClaimEnding(claim=order.claim)]


def ended_with(
    ledger: ClaimLedger, claim: str, *, ending: bool = False, without: Sequence[str] = ()
) -> list[facts.Change]:
    """The end of a claim that is ending, once its bindings have ended but those `without`, which end now."""
    record = ledger.claims.get(claim)
    if record is None or not (record.ending or ending):
        return []
    if any(one.id not in without for one in ledger.live(claim)):
        return []
    waits = record.claim.provider and not (
        record.claim.form is ClaimForm.STANDALONE and record.claim.reclaim is Reclaim.RETAIN
    )
    if waits and record.provided is not BindingState.RELEASED:
        return []
    return [facts.ClaimDeleted(claim=claim)]


# ----------------------------------------------------------------------------------------------- binding


def _bind(order: m.ClaimBind, _caller: Peer, now: Situation) -> list[facts.Change]:
    if not 1 <= len(order.places) <= LIST:
        raise Refusal("invalid", f"cannot bind: give 1 to {LIST} places")
    if not 0 <= order.ready_within_s <= READY_WITHIN_S:
        raise Refusal("invalid", "cannot bind: ready_within_s must be 0 to 31 days")
    first = _unused(order, now)
    name = f"g{first}" if len(order.places) > 1 else ""
    made: list[Binding] = []
    beside: dict[str, dict[tuple[str, str], Binding]] = {}
    held: dict[str, list[tuple[Chosen, str]]] = {}
    there: dict[str, dict[str, dict[Consumer, Binding]]] = {}
    for number, place in enumerate(order.places):
        record = _record(now, place.claim, "bind")
        if place.claim not in beside:
            beside[place.claim] = {_where(one): one for one in now.ledger.claims.live(place.claim)}
        _may_bind(record, place, beside[place.claim])
        if place.host not in there:
            there[place.host] = {}
            for one in now.ledger.claims.on(place.host):
                there[place.host].setdefault(one.consumer.name, {})[one.consumer] = one
        others = there[place.host].setdefault(place.consumer.name, {})
        _one_consumer(place, others.values())
        binding = Binding(
            id=f"b{first + number}",
            claim=place.claim,
            host=place.host,
            consumer=place.consumer,
            instances=_choose(record, place, held, now),
            read_only=place.read_only or record.claim.access is AccessMode.ROX,
            gang=name,
            ready_within_s=order.ready_within_s,
            op_id=order.id,
            epoch=now.epoch,
        )
        made.append(binding)
        beside[place.claim][_where(binding)] = binding
        others[binding.consumer] = binding
        held[place.host] += [(chosen, "it is picked twice") for chosen in binding.instances]
    return [facts.BindingMade(binding=binding) for binding in made]


def _unused(order: m.ClaimBind, now: Situation) -> int:
    """A number that no binding had, whatever became of this store: nodes remember what it may have lost."""
    hosts = (now.hosts.get(place.host) for place in order.places)
    known = max((host.newest for host in hosts if host is not None), default=0)
    return max(now.ledger.revision, now.ledger.claims.newest, known) + 1


def _where(binding: Binding) -> tuple[str, str]:
    return binding.host, binding.consumer.name


def _may_bind(record: ClaimRecord, place: m.Place, live: Mapping[tuple[str, str], Binding]) -> None:
    """A claim may be bound there, beside the bindings that it has; raises `Refusal`."""
    what = f"bind claim {place.claim} on {place.host}"
    if problem := consumer_problem(place.consumer):
        raise Refusal("invalid", f"cannot {what}: consumer.{problem}")
    if record.ending:
        raise Refusal("conflict", f"cannot {what}: the claim is ending")
    if record.provided is not BindingState.READY:
        words = f"its provider {record.claim.provider} says {record.provided.value}"
        raise Refusal("conflict", f"cannot {what}: {words}", "wait for the claim to be ready")
    if (one := live.get((place.host, place.consumer.name))) is not None:
        raise Refusal(
            "conflict", f"cannot {what}: consumer {one.consumer.name} has it already, binding {one.id}"
        )
    if record.claim.access is AccessMode.RWOP and live:
        one = next(iter(live.values()))
        words = f"one consumer may have it, and {one.consumer.name} on {one.host} does ({one.id})"
        raise Refusal("conflict", f"cannot {what}: {words}")
    if record.claim.access is AccessMode.RWO and live:
        one = next(iter(live.values()))  # all of them are on one host
        if one.host != place.host:
            words = f"one host may have it, and {one.host} does ({one.id}, {one.state.value})"
            raise Refusal("conflict", f"cannot {what}: {words}")


def _one_consumer(place: m.Place, others: Iterable[Binding]) -> None:
    """Who has the same name on a host has the same processes and devices; raises `Refusal` for two.

    What one of them does not say is not different.
    """
    for other, field in product(others, ("user", "job", "index")):
        mine, theirs = getattr(place.consumer, field), getattr(other.consumer, field)
        if mine and theirs and mine != theirs:
            words = f"consumer {other.consumer.name} is there with {field} {theirs!r} (binding {other.id})"
            raise Refusal(
                "conflict",
                f"cannot bind claim {place.claim} on {place.host} for {field} {mine!r}: {words}",
                "give each job a consumer of its own",
            )


def _choose(
    record: ClaimRecord, place: m.Place, held: dict[str, list[tuple[Chosen, str]]], now: Situation
) -> list[Chosen]:
    host: Host | None = now.hosts.get(place.host)
    if problem := choice.host_problem(host, place.host, settled=now.settled(place.host)):
        code = "not-found" if host is None else "conflict"
        raise Refusal(code, f"cannot bind claim {place.claim}: {problem}", "choose another host")
    assert host is not None, "internal error: a host without a problem that is not there"
    if place.host not in held:
        held[place.host] = now.ledger.claims.held(place.host)
    return choice.choose(host, place.instances, record.claim.ask, held[place.host], now.inventory)


def _release(order: m.ClaimRelease, _caller: Peer, now: Situation) -> list[facts.Change]:
    ledger = now.ledger.claims
    if order.reason:
        check_reason(order.reason, "release")
    if sum(map(bool, (order.claim, order.gang, order.bindings))) != 1:
        raise Refusal("invalid", "cannot release: give a claim, a gang, or bindings")
    if len(order.bindings) > LIST:
        raise Refusal("invalid", f"cannot release: at most {LIST} bindings in one order")
    ending: list[facts.Change] = []
    if order.claim:
        record = _record(now, order.claim, "release")
        wanted = ledger.all_of(order.claim)
        if record.claim.form is ClaimForm.TEMPLATE and not record.ending:
            ending = ended_with(ledger, order.claim, ending=True) or [facts.ClaimEnding(claim=order.claim)]
    else:
        names = order.bindings or list(ledger.of_gang.get(order.gang, ()))
        if missing := [name for name in names if name not in ledger.bindings]:
            raise Refusal("not-found", f"cannot release {missing[0]!r}: there is no such binding")
        if not names:
            raise Refusal("not-found", f"cannot release {order.gang!r}: there is no such gang")
        wanted = [ledger.bindings[name] for name in names]
    return [*ending, *release_all(ledger, wanted, order.reason)]


def release_all(ledger: ClaimLedger, wanted: Sequence[Binding], reason: str) -> list[facts.Change]:
    """Release bindings, and what falls with them."""
    found: dict[str, facts.Change] = {}
    for binding in wanted:
        if binding.state not in ENDED and binding.state is not BindingState.RELEASING:
            found[binding.id] = gang.released(binding, reason)
    for binding in wanted:
        if binding.id in found:
            for one in gang.fallen(ledger, binding, reason or "it was released"):
                found.setdefault(one.binding, one)
    return list(found.values())


def _force(order: m.BindingForce, caller: Peer, now: Situation) -> list[facts.Change]:
    check_reason(order.reason, f"force the release of {order.binding}")
    ledger = now.ledger.claims
    binding = ledger.bindings.get(order.binding)
    if binding is None:
        raise Refusal("not-found", f"cannot force {order.binding!r}: there is no such binding")
    if binding.state in ENDED:
        return []
    reason = f"forced by {caller.title}: {order.reason}"
    moved = facts.BindingMoved(binding=binding.id, state=BindingState.RELEASED, reason=reason, forced=True)
    kept = [
        facts.InstanceQuarantined(
            host=binding.host,
            quarantine=Quarantine(
                instance=chosen, reason=reason, by=caller.title, binding=binding.id, since=now.wall()
            ),
        )
        for chosen in binding.instances
    ]
    fallen = gang.fallen(ledger, binding, reason)
    return [moved, *kept, *fallen, *ended_with(ledger, binding.claim, without=[binding.id])]


# -------------------------------------------------------------------------------------------- quarantine


def _quarantine(order: m.QuarantineSet, caller: Peer, now: Situation) -> list[facts.Change]:
    check_reason(order.reason, f"quarantine {order.instance} on {order.host}")
    host = now.hosts.get(order.host)
    if host is None:
        raise Refusal("not-found", f"cannot quarantine on {order.host!r}: there is no such host")
    before = now.ledger.claims.quarantine.get(order.host, {}).get(order.instance)
    if before is not None and (before.reason, before.by) == (order.reason, caller.title):
        return []
    chosen = before.instance if before is not None else _seen(host, order.instance, now)
    kept = Quarantine(
        instance=chosen,
        reason=order.reason,
        by=caller.title,
        binding=before.binding if before else "",
        since=now.wall(),
    )
    return [facts.InstanceQuarantined(host=order.host, quarantine=kept)]


def _seen(host: Host, instance: str, now: Situation) -> Chosen:
    """An instance of a host as it is now."""
    for reporter, known in host.view.inventories.items():
        instances = now.inventory(host, reporter)
        if instance in instances:
            return choice.as_chosen(instance, reporter, known.generation, instances)
    raise Refusal("not-found", f"cannot quarantine {instance!r}: no inventory of {host.name} has it")


def _clear(order: m.QuarantineClear, _caller: Peer, now: Situation) -> list[facts.Change]:
    check_reason(order.reason, f"clear {order.instance} on {order.host}")
    if order.instance not in now.ledger.claims.quarantine.get(order.host, {}):
        words = f"{order.instance!r} on {order.host!r} is not quarantined"
        raise Refusal("not-found", f"cannot clear: {words}", "xce-broker quarantine list")
    return [facts.QuarantineCleared(host=order.host, instance=order.instance, reason=order.reason)]


def _record(now: Situation, claim: str, verb: str) -> ClaimRecord:
    record = now.ledger.claims.claims.get(claim)
    if record is None:
        raise Refusal("not-found", f"cannot {verb} claim {claim[:64]!r}: there is no such claim")
    return record


JUDGES: dict[type, Any] = {
    m.ClaimCreate: _create,
    m.ClaimProvide: _provide,
    m.ClaimBind: _bind,
    m.ClaimRelease: _release,
    m.ClaimDelete: _delete,
    m.BindingForce: _force,
    m.QuarantineSet: _quarantine,
    m.QuarantineClear: _clear,
}
