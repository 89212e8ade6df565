"""Checks across resources.yaml and hosts.yaml, and the static supply that the two describe together.

Pure. `check_site` wants placed documents, so that each error has its line. `site_of` may only be called with
documents that passed: it does not check again.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from xce.model.builtin_types import BUILTIN_TYPES
from xce.model.configuration import GroupEntry, HostsFile, ResourcesFile
from xce.model.hostlist import expand
from xce.model.refusal import ConfigError
from xce.model.resource import ResourceType, Scope, normalise, ttl_problem, value_problem
from xce.model.schema import Document, nearest
from xce.model.supply import LocationKind, PoolAmount, location, name_problem
from xce.model.value import Value

POOLED = (Scope.POOL, Scope.EXTERNAL)


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """What the files say should exist, ranges expanded."""

    types: dict[str, ResourceType]
    """The built-in types and the site's own, by name; the site's wins."""
    groups_of: dict[str, list[str]]
    """Every host in `hosts:`, in order, with its groups."""
    members: dict[str, list[str]]
    """Every group, with all host names that it lists, also those of hosts that may come later."""
    values: dict[str, dict[str, Value]]
    """Static values by location key (`host:node17`, `group:gpu`)."""
    pools: dict[str, dict[str, PoolAmount]]


def types_of(resources: ResourcesFile) -> dict[str, ResourceType]:
    """All types that hold in the cluster before any reporter declares one."""
    return BUILTIN_TYPES | {kind.name: kind for kind in reversed(resources.types)}  # of two, the first


def check_site(resources: Document[ResourcesFile], hosts: Document[HostsFile]) -> list[ConfigError]:
    """Everything that is wrong between the parts of the two files, in order of file and line."""
    types = types_of(resources.value)
    in_resources = _check_types(resources) + _check_pools(resources, types)
    in_hosts = _check_names(hosts) + _check_static(hosts, types)
    return sorted(in_resources, key=_line) + sorted(in_hosts, key=_line)


def site_of(resources: ResourcesFile, hosts: HostsFile) -> Site:
    """The static supply; a host's own value wins over its groups'."""
    types = types_of(resources)
    members = {group.name: _members(group) for group in hosts.groups}
    groups_of: dict[str, list[str]] = {}
    own: dict[str, dict[str, Value]] = {}
    for entry in hosts.hosts:
        for host in expand(entry.name):
            groups_of[host] = list(entry.groups)
            own[host] = dict(entry.values)
    values: dict[str, dict[str, Value]] = {}
    for group in hosts.groups:
        if group.values:
            values[location(LocationKind.GROUP, group.name)] = _normal(types, group.values)
        listed = members[group.name]
        for host in listed:
            if host in groups_of and group.name not in groups_of[host]:
                groups_of[host].append(group.name)
        in_group = set(listed) | {host for host, groups in groups_of.items() if group.name in groups}
        for host in in_group if group.host_values else ():
            own[host] = dict(group.host_values) | own.get(host, {})
    for host, mine in own.items():
        if mine:
            values[location(LocationKind.HOST, host)] = _normal(types, mine)
    pools = {pool.name: dict(pool.resources) for pool in resources.pools}
    return Site(types=types, groups_of=groups_of, members=members, values=values, pools=pools)


def _line(error: ConfigError) -> int:
    return error.line


def _members(group: GroupEntry) -> list[str]:
    return [host for text in group.hosts for host in expand(text)]


def _normal(types: Mapping[str, ResourceType], values: Mapping[str, Value]) -> dict[str, Value]:
    return {name: normalise(types[name], value) for name, value in values.items()}


def _check_types(resources: Document[ResourcesFile]) -> list[ConfigError]:
    errors = []
    first: dict[str, int] = {}
    for place, kind in enumerate(resources.value.types):
        where = ("types", place, "name")
        if kind.name in first:
            line = resources.line("types", first[kind.name], "name")
            errors.append(resources.error(where, f"is declared twice, first in line {line}", "remove one"))
            continue
        first[kind.name] = place
        known = BUILTIN_TYPES.get(kind.name)
        if known and (kind.kind, kind.scope, kind.unit) != (known.kind, known.scope, known.unit):
            unit = f" in {known.unit}" if known.unit else ""
            problem = f"is built in as {known.kind.value}{unit} of a host"
            errors.append(resources.error(where, problem, "keep kind, unit and scope, or take another name"))
        if problem := ttl_problem(kind, known.interval if known else None):
            errors.append(resources.error(("types", place, "ttl"), problem))
    return errors


def _check_pools(resources: Document[ResourcesFile], types: Mapping[str, ResourceType]) -> list[ConfigError]:
    _, errors = _check_once(resources, "pools", [pool.name for pool in resources.value.pools])
    for place, pool in enumerate(resources.value.pools):
        for name, amount in pool.resources.items():
            at = ("pools", place, "resources", name)
            problem, hint = _declared_problem(types, name, POOLED)
            if not problem:
                problem = value_problem(types[name], amount.base + amount.borrowed)
            if not problem and (amount.base < 0 or amount.borrowed < 0):
                problem = "an amount cannot be below 0"
            if problem:
                errors.append(resources.error(at, problem, hint))
    return errors


def _check_names(hosts: Document[HostsFile]) -> list[ConfigError]:
    groups, errors = _check_groups(hosts)
    first: dict[str, int] = {}
    for place, entry in enumerate(hosts.value.hosts):
        where = ("hosts", place, "name")
        if problem := _expand_problem(entry.name):
            errors.append(hosts.error(where, problem))
            continue
        names = expand(entry.name)
        if twice := next((host for host in names if host in first), ""):
            line = hosts.line("hosts", first[twice], "name")
            errors.append(hosts.error(where, f"{twice} is declared twice, first in line {line}"))
        first.update(dict.fromkeys(names, place))
        for item, name in enumerate(entry.groups):
            if name not in groups:
                hint = nearest(name, list(groups)) or "declare it under 'groups:'"
                errors.append(hosts.error(("hosts", place, "groups", item), f"no group {name!r}", hint))
    return errors


def _check_once(
    document: Document[Any], listed: str, names: Iterable[str]
) -> tuple[dict[str, int], list[ConfigError]]:
    """Every name with the place of its first entry in a list, and what is wrong with names."""
    errors = []
    first: dict[str, int] = {}
    for place, name in enumerate(names):
        where = (listed, place, "name")
        if problem := name_problem(name):
            errors.append(document.error(where, problem))
        if name in first:
            line = document.line(listed, first[name], "name")
            errors.append(document.error(where, f"is declared twice, first in line {line}", "remove one"))
        first.setdefault(name, place)
    return first, errors


def _check_groups(hosts: Document[HostsFile]) -> tuple[dict[str, int], list[ConfigError]]:
    """Every group with the place of its first entry, and what is wrong with them."""
    groups, errors = _check_once(hosts, "groups", [group.name for group in hosts.value.groups])
    for place, group in enumerate(hosts.value.groups):
        for item, text in enumerate(group.hosts):
            if problem := _expand_problem(text):
                errors.append(hosts.error(("groups", place, "hosts", item), f"{text}: {problem}"))
    return groups, errors


def _expand_problem(text: str) -> str:
    try:
        expand(text)
    except ValueError as problem:
        return str(problem)
    return ""


def _check_static(hosts: Document[HostsFile], types: Mapping[str, ResourceType]) -> list[ConfigError]:
    errors = []
    for place, entry in enumerate(hosts.value.hosts):
        errors += _check_values(hosts, types, ("hosts", place, "values"), entry.values, Scope.HOST)
    for place, group in enumerate(hosts.value.groups):
        errors += _check_values(hosts, types, ("groups", place, "values"), group.values, Scope.HOST_GROUP)
        where = ("groups", place, "host_values")
        errors += _check_values(hosts, types, where, group.host_values, Scope.HOST)
    return errors + _check_disagreements(hosts)


def _check_values(
    hosts: Document[HostsFile],
    types: Mapping[str, ResourceType],
    where: tuple[str, int, str],
    values: Mapping[str, Value],
    scope: Scope,
) -> list[ConfigError]:
    errors = []
    for name, value in values.items():
        problem, hint = _declared_problem(types, name, (scope,))
        problem = problem or value_problem(types[name], value)
        if problem:
            errors.append(hosts.error((*where, name), problem, hint))
    return errors


def _declared_problem(
    types: Mapping[str, ResourceType], name: str, scopes: tuple[Scope, ...]
) -> tuple[str, str]:
    kind = types.get(name)
    if kind is None:
        return "no such resource type", nearest(name, list(types)) or "declare it in resources.yaml"
    if kind.scope not in scopes:
        wanted = " or ".join(scope.value for scope in scopes)
        return f"has scope {kind.scope.value}; here stand values of scope {wanted}", ""
    return "", ""


def _check_disagreements(hosts: Document[HostsFile]) -> list[ConfigError]:
    """Two groups that give one host different values of one name, where the host itself does not decide."""
    decided: dict[str, Mapping[str, Value]] = {}
    listed: dict[str, list[str]] = {}
    for entry in hosts.value.hosts:
        if not _expand_problem(entry.name):
            for host in expand(entry.name):
                decided[host] = entry.values
                listed[host] = entry.groups
    errors = []
    given: dict[tuple[str, str], tuple[int, Value]] = {}
    for place, group in enumerate(hosts.value.groups):
        if not group.host_values or any(_expand_problem(text) for text in group.hosts):
            continue
        members = dict.fromkeys(_members(group))
        members |= dict.fromkeys(host for host, groups in listed.items() if group.name in groups)
        told: set[str] = set()
        for host in members:
            for name, value in group.host_values.items():
                other, before = given.setdefault((host, name), (place, value))
                if before != value and name not in decided.get(host, {}) and name not in told:
                    told.add(name)
                    rival = hosts.value.groups[other].name
                    errors.append(
                        hosts.error(
                            ("groups", place, "host_values", name),
                            f"{host} is also in group {rival}, which says {before!r}",
                            "give the value in the host's own entry",
                        )
                    )
    return errors
