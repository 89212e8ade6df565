"""Bindings that only a node has: nobody knows them, or they were given up for lost.

What a node has bound is never free, whoever knows of it. It is shown, quarantined, and left alone or taken
back, as the broker's settings say; what was given up by an admin is always taken back.
"""

from collections.abc import Mapping
from itertools import islice

from xce.broker.core.claim_views import NOTE
from xce.broker.core.location import Host
from xce.broker.core.state import State
from xce.model import fact as facts
from xce.model import message as m
from xce.model.claim import ENDED, TEXT, Chosen, Quarantine
from xce.model.configuration import Orphans

INSTANCES = 1024
"""Of one host in quarantine for what only it knows: more than any host has, and all that its key may fill."""
KNOWN = 1024
"""Bindings of one host that are shown because nobody knows them."""
PARTS = 16


class Strays:
    """What is done about them. `known`: host to what it has and nobody knows, as it said last."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.known: dict[str, dict[str, m.BindingReport]] = {}

    def given_up(self, host: Host, name: str, report: m.BindingReport) -> list[facts.Change]:
        """A node still has what was given up for lost: it takes it back now."""
        if report.state in ENDED:
            return [facts.BindingGone(host=host.name, binding=name)]
        self.take_back(host.name, name, "", "its release was forced while the node was away")
        return []

    def gone(self, host: Host, reports: Mapping[str, m.BindingReport]) -> list[facts.Change]:
        """What was given up, and a node that says all that it has does not have."""
        given_up = self.state.journal.draft.claims.given_up.get(host.name, ())
        return [facts.BindingGone(host=host.name, binding=one) for one in given_up if one not in reports]

    def unknown(self, host: Host, name: str, report: m.BindingReport) -> list[facts.Change]:
        """What a node has bound and the broker does not know is not free; and free again when it has gone."""
        kept = self.state.journal.draft.claims.quarantine.get(host.name, {})
        if report.state in ENDED:
            return [
                facts.QuarantineCleared(
                    host=host.name, instance=one.instance.id, reason="its node released it"
                )
                for one in kept.values()
                if one.binding == name and not one.by
            ]
        if self.state.config.orphans is Orphans.CLEAN:
            self.take_back(host.name, name, "", "the broker does not know it")
        why = f"the node has it bound by {name}, which the broker does not know"
        new = {one.id: one for one in map(_bounded, report.instances) if one.id not in kept}
        room = max(0, INSTANCES - len(kept))
        self.state.counts["refused.quarantine"] += max(0, len(new) - room)
        return [
            self.quarantined(host, one, why=why, by="", binding=name) for one in list(new.values())[:room]
        ]

    def take_back(self, name: str, binding: str, op_id: str, reason: str) -> None:
        """Tell a host to release what is not wanted there; one that is away shows it when it is back."""
        host = self.state.supply.hosts.get(name)
        if host is not None and host.peer is not None:
            epoch = self.state.epoch_for(name)
            order = m.BindingRelease(epoch=epoch, op_id=op_id, binding=binding, reason=reason)
            self.state.send(host.peer, order)

    def settle(self, host: Host, found: dict[str, m.BindingReport]) -> None:
        """Keep what only a host knows of, and tell the log of the begin and the end of it."""
        strange = ((name, report) for name, report in found.items() if report.state not in ENDED)
        left = dict(islice(strange, KNOWN))
        before = self.known.get(host.name, {})
        if left:
            self.known[host.name] = left
        else:
            self.known.pop(host.name, None)
        if left.keys() - before.keys():
            names = ", ".join(sorted(left)[:8])
            self.state.note(
                f"host {host.name} has bindings that nobody knows: {names}", fault=True, host=host.name
            )
        elif before and not left:
            self.state.note(f"host {host.name} has no unknown bindings any more", fault=False, host=host.name)

    def troubles(self) -> list[str]:
        """What needs an admin, in words."""
        return [
            f"host {host} has bindings that the broker does not know: {', '.join(sorted(found)[:8])}"
            for host, found in list(self.known.items())[:16]
        ]

    def quarantined(
        self, host: Host, chosen: Chosen, *, why: str, by: str, binding: str
    ) -> facts.InstanceQuarantined:
        """An instance of a host may not be used from now on."""
        kept = Quarantine(instance=chosen, reason=why[:NOTE], by=by, binding=binding, since=self.state.wall())
        return facts.InstanceQuarantined(host=host.name, quarantine=kept)


def _bounded(chosen: Chosen) -> Chosen:
    """An instance as a node names it, as it may be kept: no honest node's is cut by this."""
    return Chosen(
        id=chosen.id[:TEXT],
        reporter=chosen.reporter[:TEXT],
        generation=chosen.generation,
        kind=chosen.kind[:TEXT],
        parents=[parent[:TEXT] for parent in chosen.parents[:PARTS]],
        consumes={name[:TEXT]: count for name, count in islice(chosen.consumes.items(), PARTS)},
    )
