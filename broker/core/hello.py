"""Hello: who a peer is, whether it may be that, and what it is told.

Who may speak for a host: a key that is good for its name, and of several agents the one that is there. A
second agent is refused and named on both sides until the first has been silent; the same process on a new
connection, or one whose predecessor's connection has ended, takes over at once.
"""

from xce.broker.core import access
from xce.broker.core.claims import Claims
from xce.broker.core.hosts import RIVAL_SHOWN_S
from xce.broker.core.key_orders import key_speaks_for
from xce.broker.core.links import TEXT, Links
from xce.broker.core.location import Host
from xce.broker.core.peer import Peer
from xce.broker.core.state import State
from xce.model import fact as facts
from xce.model import message as m
from xce.model.configuration import Discovered
from xce.model.role import Role
from xce.model.supply import name_problem

JOINS = 50_000
"""Facts of joining that may wait for the disk."""
LOCAL_KEY = "local"
"""Stands in the ledger for a host that joined over the local socket."""


class Hellos:
    """Lets peers in."""

    def __init__(self, state: State, links: Links, claims: Claims) -> None:
        self.state, self._links, self._claims = state, links, claims

    def hello(self, peer: Peer, hello: m.Hello, now: float) -> None:
        """Let a peer in, or say why not."""
        if problem := self._stranger(peer, hello):
            self.state.refuse(peer, problem[0], problem[1], hint=problem[2])
            return
        role = Role(hello.role)
        if role is Role.AGENT:
            self._agent(peer, hello, now)
        elif role is Role.REPORTER:
            self._external(peer, hello, now)
        else:
            self._enter(peer, role, hello.name)
            self.state.send(peer, self._welcome(hello, resync=False, host=None))

    def _stranger(self, peer: Peer, hello: m.Hello) -> tuple[str, str, str] | None:
        """Why somebody may not be who he says; None if he may."""
        if hello.protocol != m.PROTOCOL:
            words = f"the broker speaks protocol {m.PROTOCOL}, not {hello.protocol}"
            return "protocol", words, "install the same version on both sides"
        if hello.role not in set(Role):
            return "role", f"no role {hello.role!r}; there are {', '.join(Role)}", ""
        problem = name_problem(hello.name)
        texts = (hello.software, hello.machine_id, hello.boot_id, hello.nonce, hello.address)
        if problem or any(len(text) > TEXT or not text.isprintable() for text in texts):
            return "name", f"name {hello.name[:TEXT]!r} {problem}".rstrip(), ""
        if not peer.key:
            return None  # the local socket is guarded by its file mode: any role may be said there
        record = self.state.journal.ledger.good_key(peer.key)
        if record is None:
            return "role", "this key is not known any more", ""
        if record.role != hello.role:
            words = f"key {record.name} has the role {record.role}, not {hello.role}"
            return "role", words, "use the key that was made for this"
        hosts = record.hosts if hello.role == Role.AGENT else []
        if not key_speaks_for(record.name, hosts, hello.name):
            good = ", ".join(hosts) or record.name
            return "name", f"key {record.name} may not speak for {hello.name}, only for {good}", ""
        return None

    def _agent(self, peer: Peer, hello: m.Hello, now: float) -> None:
        state, hosts = self.state, self.state.hosts
        name = hello.name
        if (reason := hosts.released(name)) is not None:
            hint = "add it again with: xce-broker host add"
            state.refuse(peer, "released", f"host {name} was released: {reason}", hint=hint, retry_s=60)
            return
        if not hosts.expected(name) and state.config.discovered is Discovered.REFUSE:
            hint = "put it into hosts.yaml and reload the broker"
            state.refuse(peer, "unknown-host", f"nobody expects host {name}", hint=hint, retry_s=60)
            return
        host = hosts.host(name)
        same = host.peer is peer or (bool(hello.nonce) and host.nonce == hello.nonce)
        if host.peer is not None and not same and now <= host.deadline:
            self._rival(host, peer, hello, now)
            return
        if host.peer is not None and host.peer is not peer:
            self._links.leave(host.peer)
        if peer.host is not None and peer.host is not host:
            peer.host.peer = None
        self._enter(peer, Role.AGENT, name)
        peer.host, host.peer, host.nonce = host, peer, hello.nonce
        peer.told_spread = state.spread_ms
        peer.sequence, peer.asked_again = 0, 0.0
        optional = {"software": hello.software, "machine_id": hello.machine_id, "boot_id": hello.boot_id}
        optional["claims"] = "no" if hello.bindings is None else "yes"
        host.agent = {field: text for field, text in optional.items() if text}
        host.epoch, host.newest = hello.epoch, hello.newest
        host.where = self._where(peer, hello)
        if host.silent:
            state.note(f"host {name} is back, {host.where}", fault=False, host=name)
        if host.rival == host.where:
            host.rival = ""
        self._joined(host, peer, hello)
        interval_s = self._interval_s()
        host.quiet_s = interval_s * state.config.missed_heartbeats
        host.deadline = now + host.quiet_s
        host.synced = False
        resync = not hello.digest or hello.digest != state.intake.digest(host)
        hosts.arrived(host)
        if not resync:
            hosts.synced(host)
        welcome = self._welcome(hello, resync=resync, host=host)
        host.told = m.Standing(state=welcome.state, conditions=welcome.conditions, holds=welcome.holds)
        state.send(peer, welcome)

    def _external(self, peer: Peer, hello: m.Hello, now: float) -> None:
        state = self.state
        external = state.externals.identity(hello.name)
        same = external.peer is peer or (bool(hello.nonce) and external.nonce == hello.nonce)
        if external.peer is not None and not same and now <= external.deadline:
            where = external.where
            state.refuse(peer, "duplicate", f"reporter {hello.name} is already served by {where}")
            return
        if external.peer is not None and external.peer is not peer:
            self._links.leave(external.peer)
        self._enter(peer, Role.REPORTER, hello.name)
        peer.identity, external.peer, external.nonce = external, peer, hello.nonce
        peer.told_spread = state.spread_ms
        peer.sequence, peer.asked_again = 0, 0.0
        external.where = self._where(peer, hello)
        external.told = {}
        external.quiet_s = self._interval_s() * state.config.missed_heartbeats
        external.deadline = now + external.quiet_s
        resync = not hello.digest or hello.digest != external.digest()
        state.send(peer, self._welcome(hello, resync=resync, host=None))

    def _welcome(self, hello: m.Hello, *, resync: bool, host: Host | None) -> m.Welcome:
        state = self.state
        interval_ms = int(self._interval_s() * 1000)
        position = state.changes.position()
        wanted: list[str] = []
        bindings = self._claims.hello(host, hello.bindings) if host is not None else False
        if host is not None:
            for reporter in [name for name in host.view.inventories if name not in hello.inventories]:
                state.intake.inventory_gone(host, reporter)
            held = host.view.inventories
            wanted = [
                reporter
                for reporter, ref in hello.inventories.items()
                if reporter not in host.bodies or held[reporter].digest != ref.digest
            ]
        return m.Welcome(
            epoch=position.epoch,
            incarnation=position.incarnation,
            heartbeat_ms=interval_ms,
            silent_after_ms=interval_ms * state.config.missed_heartbeats,
            resync=resync,
            inventories=wanted,
            types=None if hello.types == state.types.digest else state.types.list,
            state=host.view.state if host else "",
            conditions=host.view.conditions if host else [],
            holds=host.view.holds if host else [],
            bindings=bindings,
            next_key=state.next_key,
            spread_ms=state.spread_ms,
        )

    def _rival(self, host: Host, peer: Peer, hello: m.Hello, now: float) -> None:
        """A second agent of this name: refused, and named on both sides."""
        state, where = self.state, self._where(peer, hello)
        if host.rival != where:
            state.note(
                f"host {host.name} is served by {host.where}; refused {where}", fault=True, host=host.name
            )
        host.rival, host.rival_until = where, now + RIVAL_SHOWN_S
        state.hosts.rivals.add(host)
        state.hosts.show(host)
        state.refuse(
            peer,
            "duplicate",
            f"host {host.name} is already served by {host.where}",
            hint="give each machine a name and key of its own, or stop the other agent",
        )

    def _joined(self, host: Host, peer: Peer, hello: m.Hello) -> None:
        """A host's first hello, or one with a new key or machine, is a fact; nobody waits for it."""
        key = peer.key or LOCAL_KEY
        for ledger in (self.state.journal.ledger, self.state.journal.draft):
            record = ledger.hosts.get(host.name)
            if record is not None and (record.key, record.machine_id) == (key, hello.machine_id):
                return
        if self.state.journal.fault or len(self.state.journal) > JOINS:
            return  # it will be one at the next hello
        before = self.state.journal.draft.hosts.get(host.name)
        if before is not None and hello.machine_id and before.machine_id not in {"", hello.machine_id}:
            words = f"host {host.name} is another machine now: {hello.machine_id}, before {before.machine_id}"
            self.state.note(words, fault=True, host=host.name)
        joined = facts.HostJoined(host=host.name, key=key, machine_id=hello.machine_id)
        self.state.out.append(self.state.journal.persist([joined], by=peer.title))

    def _enter(self, peer: Peer, role: Role, name: str) -> None:
        peer.be(role, name)
        peer.allowed = access.ALLOWED[role]

    def _where(self, peer: Peer, hello: m.Hello) -> str:
        return " ".join(filter(None, (hello.address, f"at {peer.address}")))

    def _interval_s(self) -> float:
        config = self.state.config
        return max(config.heartbeat, len(self.state.supply.hosts) / config.heartbeats_per_second)
