"""One plugin: its queue per volume, what it says of itself, and the calls that are made to it.

Never more than one call is in flight for a volume, and `AT_ONCE` for a plugin. A plugin's faults are its own.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from xce.csi_node_helper import credentials, messages, verbs
from xce.csi_node_helper.connection import CallFailed, Connection
from xce.csi_node_helper.redact import Redactor
from xce.model import csi
from xce.model.csi import Outcome

AT_ONCE = 8
_TICK_S = 0.25
_AGAIN_S, _AGAIN_MOST_S = 0.25, 30.0
_REGULARLY_S = 60.0
_TEXT, _MESSAGE = 256, 2000
"""Characters of what a plugin says of itself, and of an error."""


class _Queue:
    """The turn of one volume, and who waits for it."""

    def __init__(self) -> None:
        self.turn, self.users = asyncio.Lock(), 0


class Plugin:
    """By the name that this node gives it."""

    def __init__(self, name: str, socket: str, *, registered: bool, tell: Callable[[csi.Seen], None]) -> None:
        self.name, self.socket = name, socket
        self.connection = Connection(socket)
        self.redact = Redactor()
        self.seen = csi.Seen(plugin=name, socket=socket, registered=registered)
        self._tell = tell
        self._told: csi.Seen | None = None
        self._queues: dict[str, _Queue] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._looking = asyncio.Lock()
        self._doubt = asyncio.Event()
        """A call has shown that it may not be there any more."""

    # ----------------------------------------------------------------------------------------------- calls

    async def ask(self, ask: csi.Ask) -> csi.Told:
        """Make the call when it is its turn. Cancelled while it waits: the plugin never hears of it."""
        seconds = ask.deadline_s or verbs.DEADLINES_S[type(ask.call)]
        volume = verbs.volume(ask.call)
        if volume is None:
            await self.look(seconds)
            return csi.Told(id=ask.id, outcome=Outcome.OK, message=self.seen.problem)
        queue = self._queues.setdefault(volume, _Queue())
        queue.users += 1
        sent = False
        try:
            async with queue.turn, self._slots:
                sent = True
                return await self._make(ask.id, ask.call, seconds)
        except asyncio.CancelledError:
            outcome = Outcome.UNCERTAIN if sent else Outcome.NEVER_SENT
            return csi.Told(id=ask.id, outcome=outcome, message="nobody waits for it any more")
        finally:
            queue.users -= 1
            if queue.users == 0:
                del self._queues[volume]

    async def _make(self, number: str, call: csi.Call, seconds: float) -> csi.Told:
        try:
            about = (self.name, str(call.__struct_config__.tag), verbs.volume(call) or "")
            secrets = await credentials.fetch(getattr(call, "secrets", ""), about, seconds)
        except credentials.CredentialsRefused as error:
            return csi.Told(id=number, outcome=Outcome.NEVER_SENT, message=str(error))
        request = messages.request(call, secrets)
        self.redact.learn(messages.secret_values(request))
        try:
            answer = await self.connection.call(messages.METHODS[type(call)], request, seconds)
        except CallFailed as error:
            if error.code == 0:  # nothing that it has said itself
                self._doubt.set()
            message = self.redact(error.message)[:_MESSAGE]  # a secret that is cut would not be known
            return csi.Told(id=number, outcome=error.outcome, code=error.code, message=message)
        told = messages.told(number, answer)
        return msgspec.structs.replace(told, message=self.redact(told.message)[:_TEXT])

    # ---------------------------------------------------------------------------------------- what it says

    async def watch(self) -> None:
        """Ask it anew when its socket is another file, when it was or may be not well, and now and then."""
        pause, looked_at = _AGAIN_S, None
        while True:
            self._doubt.clear()
            looked_at = self.connection.file()
            await self.look(verbs.DEADLINES_S[csi.Look])
            well = self.seen.asked and self.seen.ready and not self.seen.problem
            pause = _REGULARLY_S if well else min(_AGAIN_MOST_S, pause * 2)
            waited = 0.0
            while (
                waited < pause and self.connection.file() == looked_at and not (well and self._doubt.is_set())
            ):
                await asyncio.sleep(_TICK_S)
                waited += _TICK_S
            if waited < pause or well:
                pause = _AGAIN_S

    async def look(self, seconds: float) -> None:
        """Ask who it is, what it can do, whether it is well; tell what has changed."""
        async with self._looking:
            try:
                self.seen = await self._look(seconds)
            except CallFailed as error:
                words = self.redact(error.message)[:_TEXT]
                self.seen = msgspec.structs.replace(self.seen, ready=False, problem=words)
            if self.seen != self._told:
                self._told = self.seen
                self._tell(self.seen)

    async def _look(self, seconds: float) -> csi.Seen:
        """What is optional, or fails with plugins that work all the same, is taken as it comes."""
        can = await self._maybe(messages.NODE_GET_CAPABILITIES, seconds)
        who = await self._maybe(messages.GET_PLUGIN_INFO, seconds, also=Outcome.UNCERTAIN)
        what = await self._maybe(messages.GET_PLUGIN_CAPABILITIES, seconds, also=Outcome.UNCERTAIN)
        where = await self._maybe(messages.NODE_GET_INFO, seconds, also=Outcome.UNCERTAIN)
        health = await self._maybe(messages.PROBE, seconds)
        services = messages.services(what) if what is not None else []
        makes = None
        if csi.Service.CONTROLLER in services:  # of the plugin; it may be served elsewhere
            makes = await self._maybe(messages.CONTROLLER_GET_CAPABILITIES, seconds, also=Outcome.UNCERTAIN)
        ready = health is None or messages.is_ready(health)
        most = where.max_volumes_per_node if where is not None else 0
        return msgspec.structs.replace(
            self.seen,
            asked=True,
            ready=ready,
            problem="" if ready else "the plugin says that it is not ready yet",
            name=who.name[:_TEXT] if who is not None else self.seen.name,
            version=who.vendor_version[:_TEXT] if who is not None else self.seen.version,
            abilities=messages.abilities(can) if can is not None else [],
            services=services,
            controller=messages.abilities(makes) if makes is not None else [],
            node_id=where.node_id[:_TEXT] if where is not None else self.seen.node_id,
            max_volumes=most if most > 0 else None,
            topology=dict(where.accessible_topology.segments) if where is not None else self.seen.topology,
        )

    async def _maybe(self, method: messages.Method, seconds: float, also: Outcome | None = None) -> Any:
        """The answer; None if the plugin does not have the call, or failed in the way that `also` says."""
        try:
            return await self.connection.call(method, method.request(), seconds)
        except CallFailed as error:
            if error.outcome in {Outcome.UNSUPPORTED, also}:
                return None
            raise

    def close(self) -> None:
        """End the connection; may be called twice."""
        self.connection.close()
