"""The lifecycle of hosts: who should exist, who is there, who is not.

A host's state moves by `model.supply.HOST`, never otherwise. Three things decide what controllers see of it:
the site's files and the ledger (should it exist, is it drained, is it held), its agent's link (is it there),
and its reporters' conditions. `show` puts them together; it is called after anything of them has changed.

A host that leaves hosts.yaml is not forgotten while it is there, or was: it becomes a discovered host, and
the policy for those holds it until somebody decides. Holds and drains on it stay.
"""

from collections.abc import Iterable

from xce.broker.core.ledger import HostRecord, Ledger
from xce.broker.core.location import NEVER, SUPPLY_AVAILABLE, Host, Location
from xce.broker.core.supply import SupplyMap
from xce.model import human
from xce.model.message import ReportedCondition
from xce.model.role import Role
from xce.model.site import Site
from xce.model.supply import (
    HOST,
    Condition,
    Hold,
    HoldEnds,
    HostEvent,
    HostState,
    LocationKind,
    Source,
    split_location,
)

UNKNOWN_OWNER = "broker:unknown-host"
RIVAL_SHOWN_S = 120.0
"""How long a refused duplicate is shown after its last attempt."""


class Hosts:
    """Hosts, and their groups, in a supply map."""

    def __init__(self, supply: SupplyMap, ledger: Ledger, site: Site, *, admit: bool) -> None:
        self.supply, self.ledger, self.site = supply, ledger, site
        self.admit = admit
        """Discovered hosts are let in without being asked for."""
        self.syncs = 0
        """Whole tables that were taken."""
        self.rivals: set[Host] = set()
        """Hosts that show a duplicate."""

    # -------------------------------------------------------------------------------------- existence

    def record(self, name: str) -> HostRecord | None:
        """What is durably known of a host."""
        return self.ledger.hosts.get(name)

    def released(self, name: str) -> str | None:
        """Why a host should not exist any more; None if it may."""
        record = self.record(name)
        return record.released if record else None

    def expected(self, name: str) -> bool:
        """Whether somebody has said that this host should exist."""
        record = self.record(name)
        if record is not None and record.released is not None:
            return False
        return name in self.site.groups_of or (
            record is not None and (record.source is not None or record.admitted)
        )

    def source(self, name: str) -> Source:
        """Who decided that it should exist."""
        record = self.record(name)
        if name in self.site.groups_of:
            return Source.CONFIG
        return (record.source if record else None) or Source.DISCOVERED

    def wanted(self, name: str) -> bool:
        """Whether the map has a place for this host."""
        host = self.supply.hosts.get(name)
        return (
            self.expected(name)
            or self.record(name) is not None
            or (host is not None and host.peer is not None)
        )

    def groups(self, name: str) -> list[str]:
        """All groups of a host, from the site's files and from whoever added it."""
        record = self.record(name)
        return sorted({*self.site.groups_of.get(name, ()), *(record.groups if record else ())})

    def host(self, name: str) -> Host:
        """The host of this name, made if needed."""
        return self.supply.host(name, self.source(name))

    def of_key(self, public: str) -> list[Host]:
        """Hosts that are there, or waited for, by this key of an agent, and have no other that is good."""
        keys = self.ledger.keys
        mine = keys.get(public)
        if mine is None or mine.role != Role.AGENT:
            return []
        if any((one.name, one.role, one.revoked) == (mine.name, mine.role, None) for one in keys.values()):
            return []
        return [host for host in self.supply.hosts.values() if self._key_of(host) == public]

    def _key_of(self, host: Host) -> str:
        """The key that a host is there by, or is waited for; '' if it is not."""
        if host.peer is not None:
            return host.peer.key
        record = self.record(host.name)
        gone = host.silent or record is None or record.released is not None
        return "" if gone or record is None else record.key

    # -------------------------------------------------------------------------------------- lifecycle

    def step(self, host: Host, event: HostEvent) -> None:
        """Move a host and show where it is."""
        host.state = HOST.step(host.state, event)
        self.show(host)

    def arrived(self, host: Host) -> None:
        """Its agent has said hello."""
        host.silent = host.rejoining = host.overdue = False
        host.join_by = NEVER
        if host.state is HostState.RELEASED:
            self.step(host, HostEvent.EXPECT)
        self.step(host, HostEvent.HELLO)

    def synced(self, host: Host) -> None:
        """Its whole table has been taken."""
        host.synced = True
        self.syncs += 1
        self.step(host, HostEvent.SYNCED)

    def fell_silent(self, host: Host) -> None:
        """Nothing was heard of it for too long, or its agent said goodbye."""
        host.silent, host.rejoining, host.synced = True, False, False
        host.deadline = NEVER
        self.step(host, HostEvent.SILENT)

    def drained(self, host: Host) -> None:
        """The drain is durable."""
        self.step(host, HostEvent.DRAIN)

    def undrained(self, host: Host) -> None:
        """The end of the drain is durable: it is where its link says."""
        if HOST.allows(host.state, HostEvent.UNDRAIN):
            self.step(host, HostEvent.UNDRAIN)
        if host.peer is not None or host.rejoining:
            self.step(host, HostEvent.HELLO)
            if host.synced or host.rejoining:
                self.step(host, HostEvent.SYNCED)

    def restored(self, host: Host, *, state: HostState) -> None:
        """A host from before the start: as it was, until its agent confirms or stays away. `show` comes
        later.
        """
        record = self.record(host.name)
        if record is not None and record.released is not None:
            host.state = HostState.RELEASED
        elif record is not None and record.drain is not None:
            host.state = HostState.DRAINING
        else:
            host.state = state
        host.silent = state is HostState.LOST
        joined = record is not None and bool(record.key) and record.released is None
        host.rejoining = joined and not host.silent

    # ------------------------------------------------------------------------------------------- view

    def show(self, host: Host) -> None:
        """Put together what controllers see of a host beside its values."""
        record = self.record(host.name)
        about = dict(host.agent)
        if host.where:
            about["address"] = host.where
        if host.rival:
            about["duplicate"] = host.rival
        if record is not None:
            optional = {"instance": record.instance, "template": record.template}
            if record.drain is not None:
                optional["drained"] = f"{record.drain.reason} ({record.drain.owner})"
            if record.released is not None:
                optional["released"] = record.released
            about |= {name: text for name, text in optional.items() if text}
        self.supply.set(
            host,
            source=self.source(host.name),
            state=host.state.value,
            conditions=self._conditions(host),
            holds=self.holds(host),
            groups=self.groups(host.name),
            about=about,
        )

    def holds(self, place: Location) -> list[Hold]:
        """Everything that holds a place: durable holds, and those that go with their cause."""
        held = dict(self.ledger.holds.get(place.key, {}))
        for feed in place.feeds.values():
            for condition in feed.state.conditions if feed.state else ():
                if condition.hold:
                    owner = f"reporter:{feed.reporter}"
                    held[owner] = Hold(
                        owner=owner, reason=_reason(held.get(owner), condition), ends=HoldEnds.OWNER
                    )
        if isinstance(place, Host) and self.unknown(place):
            held[UNKNOWN_OWNER] = Hold(
                owner=UNKNOWN_OWNER,
                reason=f"nobody expects this host; xce-broker host admit {place.name}",
                ends=HoldEnds.OWNER,
            )
        return [held[owner] for owner in sorted(held)]

    def unknown(self, host: Host) -> bool:
        """Whether a host is there that nobody expects."""
        return not self.admit and not self.expected(host.name) and host.state is not HostState.RELEASED

    def _conditions(self, host: Host) -> list[str]:
        conditions = {
            Condition.REJOINING: host.rejoining,
            Condition.SILENT: host.silent,
            Condition.NEVER_JOINED: host.overdue,
            Condition.UNKNOWN_HOST: self.unknown(host),
            Condition.DUPLICATE: bool(host.rival),
        }
        return sorted(condition.value for condition, holds in conditions.items() if holds)

    # ------------------------------------------------------------------------------------ site's files

    def show_groups(self) -> None:
        """Make the map's groups those that the files and the hosts name."""
        sources = dict.fromkeys(self.site.members, Source.CONFIG)
        for groups in self.site.groups_of.values():
            for group in groups:
                sources.setdefault(group, Source.CONFIG)
        for record in self.ledger.hosts.values():
            if record.released is None and record.source is not None:
                for group in record.groups:
                    sources.setdefault(group, record.source)
        for group, source in sources.items():
            place = self.supply.place(LocationKind.GROUP, group, source, SUPPLY_AVAILABLE)
            self.supply.set(place, source=source, holds=self.holds(place))
        for place in list(self.supply.locations.values()):
            if place.kind is LocationKind.GROUP and place.name not in sources:
                self.supply.remove(place)

    def show_all(self, names: Iterable[str] | None = None) -> None:
        """Make the map's hosts those that are wanted, and show them."""
        everybody = {*self.site.groups_of, *self.ledger.hosts, *self.supply.hosts}
        for name in sorted(everybody if names is None else names):
            if self.wanted(name):
                self.show(self.host(name))
            elif name in self.supply.hosts:
                self.supply.remove(self.supply.hosts[name])

    def show_holds(self, key: str) -> None:
        """The holds of a place have changed."""
        place = self.supply.locations.get(key)
        if place is None and split_location(key)[0] is LocationKind.HOST:
            place = self.host(split_location(key)[1])
        if place is not None:
            self.supply.set(place, holds=self.holds(place))


def _reason(before: Hold | None, condition: ReportedCondition) -> str:
    text = human.condition(condition.name, condition.reason)
    return f"{before.reason}; {text}" if before is not None and before.owner.startswith("reporter:") else text
