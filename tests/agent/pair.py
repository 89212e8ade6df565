"""An agent's core and node with the broker's core: no sockets, one clock, a line that the test can cut."""

from typing import Any

import msgspec

from tests.broker.world import TYPES, World, site
from xce.agent.core import Core, Identity
from xce.agent.effect import Close, Judge, Learn, Open, Send
from xce.agent.node import Node
from xce.agent.types import Types
from xce.model import message as m
from xce.model.builtin_types import BUILTIN_TYPES
from xce.model.configuration import BrokerFile
from xce.model.link import Phase
from xce.model.message import ReporterState
from xce.model.value import Reading
from xce.wire import codec

HOST = "node1"


class Pair:
    """`reachable`: whether a connection can be made."""

    def __init__(self, *, config: BrokerFile | None = None) -> None:
        self.world = World(config=config, files=site(types={**BUILTIN_TYPES, **TYPES}))
        self._nonces = 0
        self.types = Types()
        self.node = Node(self.types)
        self.core = self._core()
        self.reachable = True
        self.vanish = 0
        """So many of the next ticks vanish on the way to the broker."""
        self.runs = 0
        self.said: list[msgspec.Struct] = []
        self._open = False
        self._peer = ""
        self._connections = 0
        self._read = 0

    def _core(self) -> Core:
        self._nonces += 1
        nonce = f"n{self._nonces}"
        identity = Identity(role="agent", name=HOST, nonce=nonce, address=f"{HOST} pid 7", machine_id="m")
        return Core(identity, self.node, now=self.now, random=lambda _low, high: high)

    @property
    def now(self) -> float:
        return self.world.now

    # ------------------------------------------------------------------------------------- on the node

    def publish(self, reporter: str, *, ttl: float = 60, cause: str = "", **values: Reading) -> None:
        self.runs += 1
        state = ReporterState(state="waiting", cause=cause, ttl_ms=int(ttl * 1000), runs=self.runs)
        self.node.set_state(reporter, state)
        known = {name: reading for name, reading in values.items() if name in self.types.in_force}
        self.node.table.publish(reporter, known, run=self.runs, at=self.now, ttl=ttl, now=self.now)

    def remove(self, reporter: str) -> None:
        self.node.remove(reporter)

    # ---------------------------------------------------------------------------------------- the line

    def cut(self) -> None:
        """The connection ends on both sides."""
        if self._peer:
            self._peer = ""
            self.world.gone(f"link{self._connections}")
            self.core.link_down("cut", self.now)

    def restart_broker(self) -> None:
        """The broker starts again on its facts, without its last values."""
        self.cut()
        self.world = self.world.restart(after_s=0)
        self._read = 0

    def restart_agent(self) -> None:
        """The agent's process ends and another begins, which has heard nobody yet."""
        self.cut()
        self._open = False
        self.node = Node(self.types, generations=self.node.generations, cold=True)
        self.core = self._core()

    def step(self) -> None:
        """Everything that can happen without time passing."""
        for _ in range(100):
            self.node.table.settle(self.now)
            self._connect()
            heard = self._hear()
            effects = self.core.step(self.now)
            for effect in effects:
                self._carry_out(effect)
            if not effects and not heard:
                return
        raise AssertionError("the two talk for ever")

    def wait(self, seconds: float, *, step: float = 0.5) -> None:
        """Time passes for both."""
        end = self.now + seconds
        self.step()
        while self.now < end:
            self.world.wait(min(step, end - self.now), step=step)
            self.step()

    def settle(self) -> None:
        """Let everything heal: the line, refusals, silences, and the digest in the next heartbeats."""
        self.reachable, self.vanish = True, 0
        self.node.warm_up()
        self.wait(200)
        assert self.core.phase is Phase.SYNCED, self.core.trouble

    # ------------------------------------------------------------------------------------------- seen

    def held(self) -> m.LocationView:
        """What the broker holds of the host."""
        return self.world.see(f"host:{HOST}")

    def _connect(self) -> None:
        if not self._open or self._peer or not self.reachable:
            return
        self._connections += 1
        self._peer = f"link{self._connections}"
        public = self.world.peer(HOST, hosts=[HOST]).key
        self.world.connect(self._peer, public)
        self._read = 0
        self.core.link_up(self.now)

    def _hear(self) -> int:
        if not self._peer:
            return 0
        news = self.world.inbox(self._peer)[self._read :]
        self._read += len(news)
        for message in news:
            data: Any = message
            self.core.receive(data, self.now)
        return len(news)

    def _carry_out(self, effect: object) -> None:
        match effect:
            case Open():
                self._open = True
            case Close():
                self._open = False
                self.cut()
            case Learn(types):
                self.types.learn(types)
                self.node.apply_types(self.now)
            case Judge(types):
                self.types.judge(types)
                self.node.apply_types(self.now)
            case Send(message):
                self._send(message)

    def _send(self, message: msgspec.Struct) -> None:
        codec.encode(message)
        self.said.append(message)
        if not self._peer:
            self.core.unsent(message, self.now)
        elif self.vanish and isinstance(message, m.Report | m.Heartbeat):
            self.vanish -= 1
        else:
            self.world.say(self._peer, message)
