"""The client library for programs that live in an asyncio loop. Same calls, same errors as `client.py`.

    async with AsyncClient(Broker("ipc:///run/xce-broker/broker.sock")) as client:
        print((await client.ask(StatusRequest(id=""))).revision)
        async for event in client.watch():
            print(event)

The running loop reads the link as soon as bytes come, so several tasks may use one client at a time. It
watches the two descriptors of the link itself: zmq.asyncio would cost eight times the CPU per message.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from types import TracebackType
from typing import overload

from xce.broker.claim_rows import undecided
from xce.broker.client import TIMEOUT_S, D, answer_of, found, mirror_of, not_ready
from xce.broker.follow import CREDIT, Follow
from xce.broker.line import Broker, Line
from xce.broker.mirror import Mirror
from xce.broker.session import Event, Fresh, Question, Request, Taking
from xce.model.instance import Inventory
from xce.model.message import (
    Answer,
    BindingView,
    BrokerStatus,
    Claims,
    ClaimsRequest,
    Done,
    InventoriesRequest,
    InventoryBodies,
    Keys,
    KeysRequest,
    Order,
    StatusRequest,
)


class AsyncClient:
    """A link to one broker, in the loop that is running when it is made."""

    def __init__(self, broker: Broker, *, timeout: float = TIMEOUT_S, json: bool = False) -> None:
        """`timeout` (seconds) bounds each call without its own. Raises ValueError for a bad endpoint."""
        self.timeout = timeout
        self.line = Line(broker, clock=time.monotonic, json=json)
        self._loop = asyncio.get_running_loop()
        self._read: tuple[int, ...] = ()
        self._moved = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self.turn()

    @overload
    async def ask(self, request: StatusRequest, *, timeout: float | None = None) -> BrokerStatus: ...
    @overload
    async def ask(self, request: ClaimsRequest, *, timeout: float | None = None) -> Claims: ...
    @overload
    async def ask(self, request: KeysRequest, *, timeout: float | None = None) -> Keys: ...
    @overload
    async def ask(self, request: InventoriesRequest, *, timeout: float | None = None) -> InventoryBodies: ...
    @overload
    async def ask(self, request: Order, *, timeout: float | None = None) -> Done: ...

    async def ask(self, request: Request, *, timeout: float | None = None) -> Answer:
        """The answer to one request; see `Client.ask`."""
        return answer_of(await self.finish(Question(request), timeout))

    async def snapshot(
        self, only: Iterable[str] = (), *, detail: bool = False, timeout: float | None = None
    ) -> Mirror:
        """The map at one moment; see `Client.snapshot`."""
        return mirror_of(await self.finish(Taking(only, detail=detail), timeout))

    async def inventories(self, wanted: Mapping[str, list[str]]) -> dict[str, dict[str, Inventory]]:
        """Bodies of inventories, by location and reporter."""
        return (await self.ask(InventoriesRequest(id="", wanted=dict(wanted)))).bodies

    def watch(self, *, credit: int = CREDIT, inventories: bool = False) -> "AsyncWatch":
        """Follow the map: see `client.Watch`."""
        return AsyncWatch(self, Follow(credit=credit, inventories=inventories))

    async def wait_bindings(self, bindings: Collection[str], *, timeout: float) -> dict[str, BindingView]:
        """Wait until each of these bindings is ready or has ended; see `Client.wait_bindings`."""
        watch, deadline = self.watch(), self._loop.time() + timeout
        try:
            left = list(bindings)
            while left:
                if (rest := deadline - self._loop.time()) <= 0:
                    raise not_ready(left, timeout)
                await watch.next(rest)
                if watch.mirror is not None:
                    left = undecided(watch.mirror.bindings, bindings)
            return found(watch.mirror, bindings)
        finally:
            watch.close()

    def close(self) -> None:
        """Close the link; calls that wait raise `BrokerUnreachable`. May be called twice."""
        if self._timer is not None:
            self._timer.cancel()
        self._listen(())
        self.line.close()
        self._wake()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def wait_until(self, done: Callable[[], bool], timeout: float | None, *, fail_early: bool) -> bool:
        """Wait until `done()`; False when `timeout` (seconds, None: no end) is over or the client is closed.

        `fail_early`: also False as soon as the link has failed for good.
        """
        deadline = None if timeout is None else self._loop.time() + timeout
        self.turn()
        while not done():
            left = None if deadline is None else deadline - self._loop.time()
            if self.line.closed or (fail_early and self.line.definite()) or (left is not None and left <= 0):
                return False
            await asyncio.wait([self._moved], timeout=left)
        return True

    def turn(self) -> None:
        """Move what can be moved, then listen for more; the loop calls it."""
        if self.line.closed:
            return
        moved = self.line.pump()
        self._listen(self.line.descriptors())
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(0 if moved else self.line.rest_s(), self.turn)
        self._wake()

    def _listen(self, descriptors: tuple[int, ...]) -> None:
        if descriptors != self._read:
            for descriptor in self._read:
                self._loop.remove_reader(descriptor)
            for descriptor in descriptors:
                self._loop.add_reader(descriptor, self.turn)
            self._read = descriptors

    def _wake(self) -> None:
        self._moved.set_result(None)
        self._moved = self._loop.create_future()

    async def finish(self, conversation: D, timeout: float | None = None) -> D:
        """Hold a conversation that ends; see `Client.finish`."""
        timeout = self.timeout if timeout is None else timeout
        self.line.begin(conversation)
        try:
            if not await self.wait_until(lambda: conversation.done, timeout, fail_early=True):
                raise self.line.problem(timeout)
        finally:
            self.line.end(conversation)
        return conversation


class AsyncWatch:
    """The map, followed, as in `client.Watch`."""

    def __init__(self, client: AsyncClient, follow: Follow) -> None:
        self._client, self._follow = client, client.line.begin(follow)
        self._begun = False

    @property
    def mirror(self) -> Mirror | None:
        """The map as of the last event that was taken."""
        return self._follow.mirror

    async def next(self, timeout: float | None = None) -> Event | None:
        """The next event; see `client.Watch.next`. None also when the client was closed."""
        found: list[Event] = []

        def look() -> bool:
            if not found and (event := self._follow.next()) is not None:
                found.append(event)
            return bool(found)

        if not self._begun:
            if not await self._client.wait_until(look, self._client.timeout, fail_early=True):
                raise self._client.line.problem(self._client.timeout)
        elif not look():
            await self._client.wait_until(look, timeout, fail_early=False)
        self._client.turn()
        event = found[0] if found else None
        self._begun = self._begun or isinstance(event, Fresh)
        return event

    async def __aiter__(self) -> AsyncIterator[Event]:
        while not self._client.line.closed:
            if (event := await self.next()) is not None:
                yield event

    def close(self) -> None:
        """Tell the broker to stop; may be called twice."""
        self._client.line.end(self._follow)
        for request in self._follow.leave():
            self._client.line.say(request)
        self._client.turn()
