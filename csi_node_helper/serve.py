"""The helper's side of its socket: reads frames, makes calls, writes answers; ends with the other side."""

import asyncio
import contextlib
import socket as sockets
from collections.abc import Coroutine
from typing import Any

import msgspec

from xce.csi_node_helper.plugin import Plugin
from xce.csi_node_helper.registration import Registration
from xce.model import csi
from xce.model.csi import Outcome

ASKS = 1024
"""Calls that wait or are made; more are answered as never sent."""


async def serve(ours: sockets.socket) -> None:
    """The agent at the other end of this socket, until end of file."""
    reader, writer = await asyncio.open_connection(sock=ours, limit=csi.FRAME_BYTES)
    await Server(reader, writer).run()


class Server:
    """One connection to the node's agent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._decoder: msgspec.json.Decoder[csi.ToHelper] = msgspec.json.Decoder(csi.ToHelper)
        self._plugins: dict[str, Plugin] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._asked: dict[str, asyncio.Task[None]] = {}
        self._registration: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Until end of file. What is on its way then is left to the plugins."""
        try:
            while (message := await self._next()) is not None:
                self._take(message)
                await self._writer.drain()
        finally:
            tasks = [*self._asked.values(), *self._watches.values(), self._registration]
            for task in filter(None, tasks):
                task.cancel()
            for plugin in self._plugins.values():
                plugin.close()

    async def _next(self) -> csi.ToHelper | None:
        """None at the end, and where it is not our agent that speaks."""
        try:
            return self._decoder.decode(await self._reader.readuntil(b"\n"))
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, msgspec.MsgspecError):
            return None

    def _take(self, message: csi.ToHelper) -> None:
        match message:
            case csi.Plugins():
                self._know(message)
            case csi.Cancel():
                if (task := self._asked.get(message.id)) is not None:
                    task.cancel()
            case csi.Ask():
                self._ask(message)

    def _tell(self, message: csi.FromHelper) -> None:
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.write(csi.frame(message))

    # ----------------------------------------------------------------------------------------------- calls

    def _ask(self, ask: csi.Ask) -> None:
        plugin = self._plugins.get(ask.plugin)
        problem = ""
        if plugin is None:
            problem = f"there is no plugin '{ask.plugin}' (agent.yaml: claims.csi), or it has not registered"
        elif len(self._asked) >= ASKS:
            problem = f"{ASKS} calls wait already"
        elif ask.id in self._asked:
            problem = f"call {ask.id} is being made already"
        if plugin is None or problem:
            self._tell(csi.Told(id=ask.id, outcome=Outcome.NEVER_SENT, message=problem))
        else:
            self._asked[ask.id] = self._start(self._answer(plugin, ask))

    async def _answer(self, plugin: Plugin, ask: csi.Ask) -> None:
        try:
            told = await plugin.ask(ask)
        except asyncio.CancelledError:
            told = csi.Told(id=ask.id, outcome=Outcome.UNCERTAIN, message="nobody waits for it any more")
        except Exception as error:  # noqa: BLE001 - one call's fault must not reach another
            words = f"internal error: {type(error).__name__}"  # its text may hold a secret
            told = csi.Told(id=ask.id, outcome=Outcome.UNCERTAIN, message=words)
        del self._asked[ask.id]
        self._tell(told)

    # --------------------------------------------------------------------------------------------- plugins

    def _know(self, wanted: csi.Plugins) -> None:
        for name, socket in wanted.sockets.items():
            self._add(name, socket, registered=False)
        if wanted.registration:
            watch = Registration(wanted.registration, add=self._register, remove=self._unregister)
            self._registration = self._start(watch.watch())

    def _register(self, name: str, socket: str) -> str:
        """Why a plugin that registers is not taken; '' if it is."""
        there = self._plugins.get(name)
        if there is not None and there.socket != socket:
            return f"this node has a plugin '{name}' already, at {there.socket}"
        if there is None:
            self._add(name, socket, registered=True)
        return ""

    def _unregister(self, name: str) -> None:
        """Its registrar's socket is gone; an admin's plugin of that name stays."""
        if (there := self._plugins.get(name)) is not None and there.seen.registered:
            self._remove(name)

    def _add(self, name: str, socket: str, *, registered: bool) -> None:
        plugin = Plugin(name, socket, registered=registered, tell=self._tell)
        self._plugins[name] = plugin
        self._watches[name] = self._start(plugin.watch())

    def _remove(self, name: str) -> None:
        """Let a plugin go; what it does for us it goes on doing."""
        if (plugin := self._plugins.pop(name, None)) is None:
            return
        self._watches.pop(name).cancel()
        plugin.close()
        gone = msgspec.structs.replace(
            plugin.seen, asked=False, ready=False, problem="it is not there any more"
        )
        self._tell(gone)

    @staticmethod
    def _start(work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        return asyncio.get_running_loop().create_task(work)
