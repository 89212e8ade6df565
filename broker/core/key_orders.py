"""Orders about keys: accepting, revoking, rotating, and joining with a token.

Pure, as `orders.py`. A token is a key of the role *joiner*: it can do one thing, once, until its time is
over: have another key accepted, for the role and the hosts that it was made for.
"""

import re
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any

from xce.broker.core.ledger import KeyRecord
from xce.broker.core.peer import Peer
from xce.broker.core.situation import Refusal, Situation, check_reason
from xce.model import fact as facts
from xce.model import message as m
from xce.model.hostlist import pattern_problem
from xce.model.role import Role
from xce.model.supply import name_problem

_KEY = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
LONGEST_TOKEN_S = 31 * 86400
JOINS = (Role.AGENT, Role.REPORTER, Role.PROVIDER, Role.CONTROLLER)
"""Roles that a token may grant: an admin's key is made and handed over by an admin."""


def about(order: m.Order) -> str:
    """What an order is about, for the audit."""
    match order:
        case m.KeyAdd():
            grants = f" for {order.grants}" if order.grants else ""
            return f"{order.role} {order.name} {order.public}{grants}"
        case m.KeyRevoke():
            return f"{order.name}: {order.reason}"
        case m.Join():
            return f"{order.name} {order.public}"
        case m.KeyRotate():
            return order.public
        case _:
            return ""


def key_problem(name: str, role: str, public: str, hosts: list[str]) -> str:
    """'' if a key may be accepted as this, otherwise what is wrong."""
    if name_problem(name):
        return f"name {name!r}: {name_problem(name)}"
    if role not in set(Role):
        return f"role {role!r}: must be one of {', '.join(Role)}"
    if not _KEY.fullmatch(public):
        return "the public key must be 40 characters of Z85"
    if any(not pattern or len(pattern) > 253 or not pattern.isprintable() for pattern in hosts):
        return "host patterns must be shell-style patterns"
    return next((problem for pattern in hosts if (problem := pattern_problem(pattern))), "")


def key_speaks_for(name: str, hosts: list[str], host: str) -> bool:
    """Whether an agent's key may speak for a host: by its patterns, or by its name when it has none."""
    return any(fnmatchcase(host, pattern) for pattern in hosts) if hosts else name == host


def _key_add(order: m.KeyAdd, _caller: Peer, now: Situation) -> list[facts.Change]:
    what = f"add the key of {order.name}"
    if problem := key_problem(order.name, order.role, order.public, order.hosts) or _token_problem(order):
        raise Refusal("invalid", f"cannot {what}: {problem}")
    _unused(order.public, what, now)
    record = now.ledger.keys.get(order.public)
    if record is not None:
        if record.revoked is not None:
            raise Refusal(
                "conflict",
                f"cannot {what}: it was revoked ({record.revoked})",
                "make a new one with: xce-broker key new",
            )
        if (record.name, record.role, record.hosts) == (order.name, order.role, order.hosts):
            return []
    until = ""
    if order.lifetime_s:
        until = (datetime.fromisoformat(now.wall()) + timedelta(seconds=order.lifetime_s)).isoformat()
    return [
        facts.KeyAdded(
            name=order.name,
            role=order.role,
            public=order.public,
            hosts=order.hosts,
            grants=order.grants,
            until=until,
            admit=order.admit,
        )
    ]


def _token_problem(order: m.KeyAdd) -> str:
    if order.role != Role.JOINER:
        return "only a token grants a role, ends, or admits" if order.grants or order.lifetime_s else ""
    if order.grants not in JOINS:
        return f"a token is for one of the roles {', '.join(JOINS)}"
    if not 0 < order.lifetime_s <= LONGEST_TOKEN_S:
        return "a token lives for at most 31 days"
    return "" if order.hosts else "a token needs patterns of names that may join with it"


def _unused(public: str, what: str, now: Situation) -> None:
    if public == now.own_key:
        raise Refusal("conflict", f"cannot {what}: it is the broker's own")


def _key_revoke(order: m.KeyRevoke, _caller: Peer, now: Situation) -> list[facts.Change]:
    check_reason(order.reason, f"revoke the key of {order.name}")
    matching = {
        public: record for public, record in now.ledger.keys.items() if order.name in {record.name, public}
    }
    if not matching:
        raise Refusal("not-found", f"cannot revoke the key of {order.name!r}: there is none")
    return [
        facts.KeyRevoked(public=public, reason=order.reason)
        for public, record in matching.items()
        if record.revoked is None
    ]


def _join(order: m.Join, caller: Peer, now: Situation) -> list[facts.Change]:
    what = f"join as {order.name}"
    token = _own(caller, now, what)
    if now.wall() > token.until:
        raise Refusal(
            "forbidden",
            f"cannot {what}: the token {token.name} was good until {token.until}",
            "ask for a new one: xce-broker token new",
        )
    if not key_speaks_for("", token.hosts, order.name):
        raise Refusal("forbidden", f"cannot {what}: the token {token.name} is for {', '.join(token.hosts)}")
    hosts = [order.name] if token.grants == Role.AGENT else []
    if problem := key_problem(order.name, token.grants, order.public, hosts):
        raise Refusal("invalid", f"cannot {what}: {problem}")
    _unused(order.public, what, now)
    if order.public in now.ledger.keys:
        raise Refusal("conflict", f"cannot {what}: this key is known already")
    changes: list[facts.Change] = [
        facts.KeyAdded(name=order.name, role=token.grants, public=order.public, hosts=hosts)
    ]
    changes += _retired(order.name, token.grants, f"{order.name} joined anew", now)
    record = now.ledger.hosts.get(order.name)
    known = order.name in now.site.groups_of or (
        record is not None and record.released is None and (record.admitted or record.source is not None)
    )
    if token.admit and token.grants == Role.AGENT and not known:
        changes.append(facts.HostAdmitted(host=order.name))
    return [*changes, facts.KeyRevoked(public=caller.key, reason=f"used by {order.name}")]


def _key_rotate(order: m.KeyRotate, caller: Peer, now: Situation) -> list[facts.Change]:
    what = f"rotate the key of {caller.name}"
    mine = _own(caller, now, what)
    if problem := key_problem(mine.name, mine.role, order.public, mine.hosts):
        raise Refusal("invalid", f"cannot {what}: {problem}")
    _unused(order.public, what, now)
    record = now.ledger.keys.get(order.public)
    if record is not None:
        if (record.name, record.role, record.revoked) == (mine.name, mine.role, None):
            return []
        raise Refusal("conflict", f"cannot {what}: this key is known already")
    return [facts.KeyAdded(name=mine.name, role=mine.role, public=order.public, hosts=mine.hosts)]


def _key_retire(_order: m.KeyRetire, caller: Peer, now: Situation) -> list[facts.Change]:
    mine = _own(caller, now, f"retire old keys of {caller.name}")
    return _retired(mine.name, mine.role, f"{mine.name} has a new one", now, keep=caller.key)


def _own(caller: Peer, now: Situation, what: str) -> KeyRecord:
    record = now.ledger.good_key(caller.key)
    if record is None:
        raise Refusal("forbidden", f"cannot {what}: the connection has no key that is accepted")
    return record


def _retired(name: str, role: str, why: str, now: Situation, *, keep: str = "") -> list[facts.Change]:
    """The other good keys of a name and role are accepted no longer."""
    return [
        facts.KeyRevoked(public=public, reason=why)
        for public, record in now.ledger.keys.items()
        if (record.name, record.role) == (name, role) and record.revoked is None and public != keep
    ]


JUDGES: dict[type, Any] = {
    m.KeyAdd: _key_add,
    m.KeyRevoke: _key_revoke,
    m.KeyRotate: _key_rotate,
    m.KeyRetire: _key_retire,
    m.Join: _join,
}
