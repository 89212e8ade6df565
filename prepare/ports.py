"""Ports of the host for a consumer: picked from a range, tried, and never given to two.

A port is free if it can be bound on every address, of IPv4 and IPv6, TCP and UDP; one that an outgoing
connection uses cannot. What was picked is written down before anybody is told, and tried once more before it
is said to be ready. The agent does not sit on the ports, since then the consumer could not bind them: it
watches who waits on them. What the kernel gives to outgoing connections by itself is picked last, and the
evidence says so: such a port can be lost again.
"""

import errno
import socket
from collections.abc import Sequence

import msgspec

from xce.linux import holders, local_ports
from xce.linux.cgroup import Cgroup
from xce.linux.listening import Socket
from xce.linux.local_ports import Range
from xce.prepare.group import group_of
from xce.prepare.handler import At, Done, Note, Outcome, Plain, StepFailed, Wait
from xce.prepare.inuse import is_allowed
from xce.prepare.step import TAKEN_UP, Evidence, Filter, Group, Ports

_NAMED = 4
"""Of those who wait on a port that is not theirs."""


class _Progress(msgspec.Struct):
    """Kept while ports are looked after."""

    ours: set[Socket] = msgspec.field(default_factory=set)
    """Sockets of its consumer's that wait on them."""
    unseen: set[Socket] = msgspec.field(default_factory=set)
    """Sockets that nobody was seen with at the last look."""


class PortsHandler(Plain[Ports]):
    """See the module."""

    outlasts_boot = True

    def key(self, step: Ports) -> str:
        """All ports of the host are one thing, so that everybody sees what is taken."""
        return "ports"

    def describe(self, step: Ports) -> str:
        """One line."""
        wanted = ", ".join(str(port) for port in step.exact) or f"{step.count} of {step.low} to {step.high}"
        return f"ports {step.name}: {wanted}"

    def look(self, step: Ports, evidence: Evidence, at: At) -> Note | Wait | None:
        """Pick, and have it written down."""
        if "ports" in evidence:
            return None
        held = {port for peer in at.peers for port in peer.evidence.get("ports", [])}
        held |= {
            port for other, given in at.earlier if isinstance(other, Ports) for port in given.get("ports", [])
        }
        return Note({"ports": pick(step, held, local_ports.automatic(at.node.proc))})

    def do(self, step: Ports, evidence: Evidence, at: At) -> Outcome:
        """What is written down is the consumer's, unless a stranger has come first: since a reboot, maybe."""
        taken = [port for port in evidence["ports"] if not is_free(port)]
        if taken and not (TAKEN_UP in evidence and _runs(at)):
            raise StepFailed(f"ports {step.name}: {taken[0]} is in use on this host")
        risky = _unsafe(evidence["ports"], local_ports.automatic(at.node.proc))
        at.node.listening.at(evidence["ports"][0])
        said = {"shared with outgoing connections": risky, "not watched": at.node.listening.problem}
        return Done(evidence | {word: what for word, what in said.items() if what})

    def observe(self, step: Ports, evidence: Evidence, at: At) -> str:
        """The consumer may have bound them or not; who else waits on one is named."""
        waiting = [one for port in evidence["ports"] for one in at.node.listening.at(port)]
        held = at.kept(_Progress)
        strangers = _strangers([one for one in waiting if one not in held.ours], at)
        held.ours = {one for one in waiting if one not in strangers}
        unseen = {one for one, who in strangers.items() if not who}
        new, held.unseen = unseen - held.unseen, unseen  # closed since it was listed, for all we know
        words = list(dict.fromkeys(_words(*one) for one in strangers.items() if one[0] not in new))
        return "; ".join([*words[:_NAMED], *([f"and {len(words) - _NAMED} more"] if words[_NAMED:] else [])])

    def undo(self, step: Ports, evidence: Evidence, at: At) -> Outcome:
        """They are free with the record; who is left of the consumer was ended before."""
        return Done()


def _strangers(waiting: Sequence[Socket], at: At) -> dict[Socket, str]:
    """Those of the sockets that are not the consumer's, and who has each; '' if nobody is seen with it.

    Anybody can have very many on one port: nothing is looked at once for each.
    """
    group = _group(at) if waiting else None
    ids = group.ids() if group is not None else set()
    others = [one for one in waiting if one.group not in ids]
    having = holders.of_sockets({one.inode for one in others}, proc_root=at.node.proc)
    inside = set(group.pids()) if group is not None and others else set()
    daemons = [name for step, _ in at.earlier if isinstance(step, Filter) for name in step.daemons]
    found = {}
    for one in others:
        by = having.get(one.inode, [])
        if any(holder.pid in inside or is_allowed(holder, daemons) for holder in by):
            continue  # it was bound before it came into the group, or for the consumer
        found[one] = ", ".join(f"pid {holder.pid} ({holder.name})" for holder in by[:_NAMED])
    return found


def _words(one: Socket, who: str) -> str:
    whose = who or "somebody that cannot be seen"
    return f"port {one.port} is used by another than its consumer: {whose}"


def _group(at: At) -> Cgroup | None:
    return next((group_of(step.name, at) for step, _ in at.earlier if isinstance(step, Group)), None)


def _runs(at: At) -> bool:
    """Whether the consumer has processes already, which may have its ports."""
    group = _group(at)
    return group is not None and group.populated()


def pick(step: Ports, held: set[int], automatic: Sequence[Range]) -> list[int]:
    """Ports that nobody has and nobody uses, and not the kernel either if possible. Raises `StepFailed`."""
    if step.exact:
        for port in step.exact:
            if port in held:
                raise StepFailed(f"ports {step.name}: {port} is another claim's")
            if not is_free(port):
                raise StepFailed(f"ports {step.name}: {port} is in use on this host")
        return list(step.exact)
    picked: list[int] = []
    asked = range(step.low, step.high + 1)
    unsafe = set(_unsafe(asked, automatic))
    for port in (*(port for port in asked if port not in unsafe), *sorted(unsafe)):
        if len(picked) == step.count:
            break
        if port not in held and is_free(port):
            picked.append(port)
    if len(picked) < step.count:
        raise StepFailed(
            f"ports {step.name}: only {len(picked)} of {step.count} are free from {step.low} to {step.high}"
        )
    return picked


def _unsafe(ports: Sequence[int], automatic: Sequence[Range]) -> list[int]:
    """Those that the kernel may give to an outgoing connection."""
    return [port for port in ports if any(low <= port <= high for low, high in automatic)]


def is_free(port: int) -> bool:
    """Whether nobody has the port: not listening, not for a connection of its own."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            try:
                trial = socket.socket(family, kind)
            except OSError:
                continue  # no IPv6 here
            with trial:
                if family == socket.AF_INET6:
                    trial.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                try:
                    trial.bind((address, port))
                except OSError as error:
                    if error.errno == errno.EADDRNOTAVAIL:
                        continue
                    return False
    return True
