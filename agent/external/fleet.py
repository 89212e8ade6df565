"""`xce-reporter fleet N`: N hosts that are not there, each with a connection of its own.

For demonstrations, load tests and a broker's rehearsal: their handshakes, hellos, reports, heartbeats and
reconnects are those of real agents, since the code is the agents' own; only their values (the built-in load
indices and attributes) are made up, and what they do about claims (`claims.py`). They share one key, whose
host pattern must cover their names.
"""

import random
import resource
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from xce.agent.cli import GOOD, TROUBLE, USAGE, output
from xce.agent.cli.options import Options, UsageError
from xce.agent.core import Core, Identity
from xce.agent.effect import Effect, Judge, Learn, Ordered
from xce.agent.external import copies
from xce.agent.external.claims import NEVER, HostClaims
from xce.agent.link import Link
from xce.agent.node import Node
from xce.agent.types import Types
from xce.linux.loop import Loop, Timer
from xce.model import VERSION, document
from xce.model.builtin_types import ATTRIBUTES, BUILTIN, DISCOVERY, LOAD_INDICES
from xce.model.instance import Instance
from xce.model.link import Phase
from xce.model.message import ReporterState
from xce.model.refusal import ConfigRefused
from xce.model.resource import Kind
from xce.model.role import Role
from xce.model.simulated import Loss, SimulatedClaims
from xce.model.supply import name_problem
from xce.model.value import Value
from xce.reporters.inventory import Found
from xce.wire import dealer, keys
from xce.wire.keys import KeyFileError, KeyPair

SUMMARY = "connect any number of simulated hosts to a broker"
PROGRAM = "xce-reporter fleet"
USAGE_TEXT = f"""\
usage: {PROGRAM} --broker ENDPOINT [--key FILE --broker-key FILE] [options] N

  --key FILE         an agent's key whose host pattern covers all the names
  --broker-key FILE  the broker's public key
  --prefix TEXT      names are TEXT and a number (default: sim)
  --first NUMBER     of the first host (default 1)
  --interval S       between two reports of a host (default 15)
  --seed NUMBER      of the values (default 1)
  --machine PATH     what each of them is: a file or folder as of 'xce-agent inventory --from'.
                     With several, parted by commas, hosts take turns
  --claims FILE      have them take claims: delays and faults, in YAML (docs/simulation.md)

Prints how many are linked whenever that changes. Ends with TERM or INT."""

DESCRIPTORS_EACH = 6
SHOW_S = 1.0


class SimulatedHost:
    """One host: the agent's own parts, and a source that makes up values."""

    def __init__(
        self,
        loop: Loop,
        name: str,
        *,
        endpoint: str,
        credentials: Callable[[], tuple[KeyPair | None, bytes | None]],
        interval: float,
        chance: random.Random,
        instances: Sequence[Instance] = (),
        claims: SimulatedClaims | None = None,
    ) -> None:
        self._loop, self._interval, self._chance = loop, interval, chance
        self.node = Node(Types())
        identity = Identity(
            role=Role.AGENT.value,
            name=name,
            software=VERSION,
            machine_id=f"simulated-{name}",
            boot_id="simulated-1",
            nonce=f"{chance.getrandbits(64):016x}",
            address=f"simulated {name}",
        )
        self._claims = HostClaims(name, claims, self._lose) if claims is not None else None
        self._claims_timer: Timer | None = None
        self._boots, self._lost = 1, False
        holdings = self._claims.holdings if self._claims is not None else None
        self.core = Core(identity, self.node, now=loop.now(), random=random.uniform, holdings=holdings)
        self.link = Link(
            loop,
            self.core,
            endpoint=endpoint,
            credentials=credentials,
            on_effect=self._on_effect,
            every_turn=False,
        )
        self._runs = 0
        self._values: dict[str, Value] = {
            kind.name: chance.randrange(1, 1 << 16) if kind.kind is Kind.NUMERIC else f"simulated {kind.name}"
            for kind in ATTRIBUTES
        }
        self._report()
        if instances:
            self.node.stock(DISCOVERY, Found(copies.of_host(instances, name), complete=True))
            self.node.set_state(DISCOVERY, ReporterState(state="running", mode="builtin"))
        self.link.turn()

    def _report(self) -> None:
        """The next frame: the load indices move, the attributes stay."""
        self._loop.call_later(self._interval * (1 if self._runs else self._chance.random()), self._next)
        self._runs += 1
        for kind in LOAD_INDICES:
            self._values[kind.name] = round(self._chance.uniform(0, 1 if kind.name == "ut" else 1000), 2)
        now, ttl = self._loop.now(), 3 * self._interval
        known = {name: value for name, value in self._values.items() if name in self.node.types.in_force}
        self.node.table.publish(BUILTIN, known, run=self._runs, at=now, ttl=ttl, now=now)
        state = ReporterState(state="running", mode="builtin", ttl_ms=int(ttl * 1000), runs=self._runs)
        self.node.set_state(BUILTIN, state)

    def _next(self) -> None:
        self._report()
        self._turn()

    def _turn(self) -> None:
        if not self._lost:
            self.link.turn()

    # --------------------------------------------------------------------------------------------- claims

    def _advance(self) -> None:
        """Do for claims what is due, and say so."""
        if self._claims is not None:
            self._claims.advance(self._loop.now())
            self._watch_claims()
            self._turn()

    def _watch_claims(self) -> None:
        if self._claims_timer is not None:
            self._claims_timer.cancel()
        when = NEVER if self._claims is None else self._claims.due()
        self._claims_timer = self._loop.call_at(when, self._advance) if when != NEVER else None

    def _lose(self, loss: Loss, for_s: float) -> None:
        """Go without a word, once this turn is over."""
        self._loop.call_later(0, self._go, loss, for_s)

    def _go(self, loss: Loss, for_s: float) -> None:
        if self._lost:
            return
        self._lost = True
        self.link.close()
        self.core.link_failed("the host is lost, as its claims' file says", self._loop.now())
        if for_s != NEVER:
            self._loop.call_later(for_s, self._come_back, loss)

    def _come_back(self, loss: Loss) -> None:
        if loss.reboot and self._claims is not None:
            self._boots += 1
            self.core.identity = replace(self.core.identity, boot_id=f"simulated-{self._boots}")
            self._claims.started_anew(self._loop.now())
            self._watch_claims()
        self._lost = False
        self.core.reopen(self._loop.now())
        self.link.turn()

    # --------------------------------------------------------------------------------------------- effects

    def _on_effect(self, effect: Effect) -> None:
        if isinstance(effect, Ordered) and self._claims is not None:
            self._claims.ordered(effect.order, self._loop.now())
            self._watch_claims()
        elif isinstance(effect, Learn):
            self.node.types.learn(effect.types)
            self.node.apply_types(self._loop.now())
        elif isinstance(effect, Judge):
            self.node.types.judge(effect.types)


def run(argv: Sequence[str]) -> int:
    """Serve until TERM or INT."""
    if "--help" in argv:
        print(USAGE_TEXT)
        return GOOD
    values = [
        *("--broker", "--key", "--broker-key", "--prefix", "--first", "--interval", "--seed", "--machine"),
        "--claims",
    ]
    try:
        options = Options(argv, values=values)
        if len(options.arguments) != 1 or not options.arguments[0].isdecimal():
            raise UsageError(f"expected one N\n{USAGE_TEXT}")
        if not options.get("--broker"):
            raise UsageError("expected --broker ENDPOINT")
        if problem := name_problem(options.get("--prefix", "sim")):
            raise UsageError(f"--prefix: {problem}")
        machines = [_instances(path) for path in options.get("--machine").split(",") if path]
        claims = None
        if options.has("--claims"):
            file = options.get("--claims")
            claims = document.given(Path(file).read_bytes, file, SimulatedClaims, UsageError)
        credentials = _credentials(options)
        _make_room(int(options.arguments[0]))
    except (UsageError, KeyFileError) as error:
        output.fail(PROGRAM, str(error))
        return USAGE
    except (OSError, ValueError) as error:
        output.fail(PROGRAM, f"cannot have so many connections: {error}")
        return TROUBLE
    _serve(options, credentials, machines, claims)
    return GOOD


def _instances(path: str) -> Sequence[Instance]:
    from xce.agent.probe import instances, machinefile, topology  # noqa: PLC0415 - most fleets have none

    try:
        machine = machinefile.load(path)
        admin = machinefile.load_admin(path) if Path(path).is_dir() else None
    except ConfigRefused as refused:
        raise UsageError(str(refused)) from refused
    return instances.found(machine, topology.topology(machine, admin)).instances


def _serve(
    options: Options,
    credentials: tuple[KeyPair | None, bytes | None],
    machines: Sequence[Sequence[Instance]],
    claims: SimulatedClaims | None,
) -> None:
    import signal  # noqa: PLC0415

    loop = Loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.on_signal(number, loop.stop)
    hosts = _hosts(loop, options, credentials, machines, claims)
    told = ""

    def show() -> None:
        nonlocal told
        linked = sum(host.core.phase is Phase.SYNCED for host in hosts)
        trouble = next((host.core.trouble for host in hosts if host.core.trouble), "")
        text = f"{linked} of {len(hosts)} linked"
        text += f"; {trouble}" if trouble and linked < len(hosts) else ""
        if text != told:
            told = text
            print(text, flush=True)
        loop.call_later(SHOW_S, show)

    show()
    loop.run()
    for host in hosts:
        host.core.goodbye(0, loop.now())
        host.link.turn()
    loop.turn(0.05)
    for host in hosts:
        host.link.close()
    loop.close()


def _hosts(
    loop: Loop,
    options: Options,
    credentials: tuple[KeyPair | None, bytes | None],
    machines: Sequence[Sequence[Instance]],
    claims: SimulatedClaims | None,
) -> list[SimulatedHost]:
    first, seed = int(options.number("--first", 1)), int(options.number("--seed", 1))
    return [
        SimulatedHost(
            loop,
            f"{options.get('--prefix', 'sim')}{first + number}",
            endpoint=options.get("--broker"),
            credentials=lambda: credentials,
            interval=options.number("--interval", 15),
            chance=random.Random(f"{seed} {first + number}"),  # noqa: S311 - values, not secrets
            instances=machines[number % len(machines)] if machines else (),
            claims=claims,
        )
        for number in range(int(options.arguments[0]))
    ]


def _credentials(options: Options) -> tuple[KeyPair | None, bytes | None]:
    if not options.get("--key"):
        return None, None
    key = keys.load(Path(options.get("--key")), secret=True)
    return key, keys.load(Path(options.get("--broker-key")), secret=False).public


def _make_room(count: int) -> None:
    """Raise the limit on descriptors as far as needed and allowed."""
    needed = DESCRIPTORS_EACH * count + 256
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(needed, hard) if hard != -1 else needed, hard))
        if hard not in {-1} and hard < needed:
            print(
                f"{PROGRAM}: only {hard} descriptors are allowed, {needed} would be needed", file=sys.stderr
            )
    dealer.allow(count)
