"""Facts and the site's files, shown in the supply map: what should exist, and how it stands.

`fact` is called once for each durable change, `reload` when the files have changed. Both only bring the map
up to what ledger and files say, so that a start, which shows everything at once, gives the same map.
"""

from xce.broker.core.links import Links
from xce.broker.core.location import NEVER, SUPPLY_AVAILABLE, Host
from xce.broker.core.orders import pool_amounts
from xce.broker.core.state import State
from xce.broker.core.types import Types
from xce.model import fact as facts
from xce.model.site import Site
from xce.model.supply import HostEvent, HostState, LocationKind, Source, location
from xce.model.value import Absent, Presence


class SiteMap:
    """Keeps hosts, groups, pools and types of the map true to ledger and files."""

    def __init__(self, state: State, links: Links) -> None:
        self.state, self._links = state, links
        self.types_news = False
        """Followers do not know the newest types yet."""
        self._joining: dict[str, Host] = {}
        """Hosts that have a deadline for joining."""

    def build(self, now: float) -> None:
        """Make the map what ledger and files say; its hosts are shown by `Broker.start`."""
        hosts = self.state.hosts
        for name in sorted({*self.state.site.groups_of, *self.state.journal.ledger.hosts}):
            hosts.host(name)
        hosts.show_groups()
        for name in [*self.state.site.groups_of, *self.state.site.members]:
            self._show_static(name)
        self._show_pools(now)
        for name, record in self.state.journal.ledger.hosts.items():
            host = self.state.supply.hosts[name]
            hosts.restored(host, state=HostState.JOINING if record.key else HostState.EXPECTED)
            self._await(host, now)

    def reload(self, site: Site, now: float) -> None:
        """Take new files for the old."""
        state, before = self.state, self.state.site
        state.site = state.hosts.site = site
        state.hosts.show_all()
        state.hosts.show_groups()
        for name in {*before.groups_of, *site.groups_of, *before.members, *site.members}:
            self._show_static(name)
        self._show_types(now)
        self._show_pools(now)

    def fact(self, change: facts.Change, now: float) -> None:
        """Show what one durable change has changed."""
        match change:
            case facts.HostAdded() | facts.HostReleased() | facts.HostDrained() | facts.HostUndrained():
                self._host_fact(change, now)
            case facts.HostAdmitted() | facts.HostJoined():
                self.state.hosts.show(self.state.hosts.host(change.host))
            case facts.HoldAdded() | facts.HoldReleased():
                self.state.hosts.show_holds(change.location)
            case facts.PoolSet():
                self._show_pools(now)
            case _:
                pass  # epochs and keys are not in the map; for types see `types_admitted`

    def types_admitted(self, now: float) -> None:
        """Types were admitted: all of a batch at once, since all that is held is looked at anew."""
        self._show_types(now)

    def second(self, now: float) -> None:
        """Deadlines of hosts that were to join, and duplicates that have given up."""
        for name, host in list(self._joining.items()):
            if host.join_by == NEVER:
                del self._joining[name]
            elif host.join_by < now:
                del self._joining[name]
                host.join_by, host.overdue = NEVER, True
                self.state.hosts.show(host)
                self.state.note(f"host {name} has not joined in time", fault=True, host=name)
        rivals = self.state.hosts.rivals
        for host in [host for host in rivals if not host.rival or host.rival_until < now]:
            rivals.discard(host)
            host.rival = ""
            self.state.hosts.show(host)
            self.state.note(f"host {host.name} has no duplicate any more", fault=False, host=host.name)

    # ------------------------------------------------------------------------------------------- parts

    def _host_fact(
        self,
        change: facts.HostAdded | facts.HostReleased | facts.HostDrained | facts.HostUndrained,
        now: float,
    ) -> None:
        hosts = self.state.hosts
        host = hosts.host(change.host)
        match change:
            case facts.HostAdded():
                if host.state is HostState.RELEASED:
                    hosts.step(host, HostEvent.EXPECT)
                self._await(host, now)
                hosts.show(host)
                hosts.show_groups()
            case facts.HostReleased():
                hosts.step(host, HostEvent.RELEASE)
                self._links.released(host)
                hosts.show(host)
                hosts.show_groups()
            case facts.HostDrained():
                hosts.step(host, HostEvent.DRAIN)
            case facts.HostUndrained():
                hosts.undrained(host)

    def _await(self, host: Host, now: float) -> None:
        """A host that should join within some time, and has not."""
        record = self.state.hosts.record(host.name)
        if (
            record
            and record.join_within_s
            and not record.key
            and host.peer is None
            and record.released is None
        ):
            # Counted anew from a start of the broker: wall time is never compared.
            host.join_by = now + record.join_within_s
            self._joining[host.name] = host

    def _show_static(self, name: str) -> None:
        for kind in (LocationKind.HOST, LocationKind.GROUP):
            place = self.state.supply.locations.get(location(kind, name))
            if place is not None:
                self.state.intake.set_static(place, dict(self.state.site.values.get(place.key, {})))

    def _show_types(self, now: float) -> None:
        state, before = self.state, self.state.types
        types = Types(state.site.types, state.journal.ledger.types)
        if types.all == before.all:
            return
        changed = {
            name
            for name in before.all.keys() | types.all.keys()
            if before.all.get(name) != types.all.get(name)
        }
        state.use(types)
        self.types_news = True
        for place in list(state.supply.locations.values()):
            state.intake.look_again(place, now, changed)
        state.externals.look_again(now)
        self._links.types_changed()

    def _show_pools(self, now: float) -> None:
        state = self.state
        names = {*state.site.pools, *state.journal.ledger.pools}
        for name in sorted(names):
            place = state.supply.place(LocationKind.POOL, name, Source.CONFIG, SUPPLY_AVAILABLE)
            state.supply.set(place, source=Source.CONFIG, holds=state.hosts.holds(place))
            amounts = pool_amounts(state.journal.ledger, state.site, name)
            for resource in [*place.view.amounts, *amounts]:
                state.supply.set_entry(place, "amounts", resource, amounts.get(resource))
            self._show_vacancies(place.key, now)
        for place in list(state.supply.places.values()):
            if place.kind is LocationKind.POOL and place.name not in names:
                state.supply.remove(place)
        state.externals.look_again(now)

    def _show_vacancies(self, key: str, now: float) -> None:
        """Where an assigned reporter should report and has not, the reading says so."""
        state, place = self.state, self.state.supply.locations[key]
        owned = {name for feed in place.feeds.values() for name in feed.names}
        for name, reading in list(place.values.items()):
            vacant = isinstance(reading, Absent) and reading.presence is Presence.NEVER_SEEN
            if vacant and name not in owned and name not in place.view.amounts:
                state.supply.set_value(place, name, None)
        for name in place.view.amounts:
            if name not in owned and name not in place.values:
                state.supply.set_value(place, name, state.intake.vacancy(place, name, now))
