"""The client library: talk to the broker from an ordinary program.

    with Client(Broker("ipc:///run/xce-broker/broker.sock")) as client:
        print(client.ask(StatusRequest(id="")).revision)
        for event in client.watch():
            print(event)

One thread, no background work: bytes move only inside a call. Do not share a client between threads. Errors
are `BrokerRefused` (the broker says no) and `BrokerUnreachable` (no answer in time).
"""

import math
import select
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TypeVar, overload

from xce.broker.claim_rows import undecided
from xce.broker.follow import CREDIT, Follow
from xce.broker.line import Broker, Line
from xce.broker.mirror import Mirror
from xce.broker.session import (
    Bodies,
    BrokerError,
    BrokerRefused,
    BrokerUnreachable,
    Changed,
    Ending,
    Event,
    Fresh,
    LinkNews,
    Question,
    Request,
    Taking,
    op_id,
)
from xce.model.instance import Inventory
from xce.model.message import (
    Answer,
    BackupRequest,
    BindingView,
    BrokerStatus,
    Claims,
    ClaimsRequest,
    Done,
    Failed,
    InventoriesRequest,
    InventoryBodies,
    Keys,
    KeysRequest,
    Mine,
    MineRequest,
    Order,
    StatusRequest,
)
from xce.wire.codec import without_collector

__all__ = [
    "Bodies",
    "Broker",
    "BrokerError",
    "BrokerRefused",
    "BrokerUnreachable",
    "Changed",
    "Client",
    "Event",
    "Fresh",
    "LinkNews",
    "Mirror",
    "Watch",
    "op_id",
]

TIMEOUT_S = 10.0

D = TypeVar("D", bound=Ending)


class Client:
    """A link to one broker. It is made in the background; the first call waits for it."""

    def __init__(self, broker: Broker, *, timeout: float = TIMEOUT_S, json: bool = False) -> None:
        """`timeout` (seconds) bounds each call that is not given its own. Raises ValueError for no endpoint.

        `json`: speak JSON instead of MessagePack; only good for looking at the traffic.
        """
        self.timeout = timeout
        self.line = Line(broker, clock=time.monotonic, json=json)

    @overload
    def ask(self, request: StatusRequest, *, timeout: float | None = None) -> BrokerStatus: ...
    @overload
    def ask(self, request: ClaimsRequest, *, timeout: float | None = None) -> Claims: ...
    @overload
    def ask(self, request: KeysRequest, *, timeout: float | None = None) -> Keys: ...
    @overload
    def ask(self, request: MineRequest, *, timeout: float | None = None) -> Mine: ...
    @overload
    def ask(self, request: InventoriesRequest, *, timeout: float | None = None) -> InventoryBodies: ...
    @overload
    def ask(self, request: BackupRequest, *, timeout: float | None = None) -> Done: ...
    @overload
    def ask(self, request: Order, *, timeout: float | None = None) -> Done: ...

    def ask(self, request: Request, *, timeout: float | None = None) -> Answer:
        """The answer to one request; an id of '' becomes a new one.

        An order that was answered is durable. After `BrokerUnreachable` nobody knows whether it was carried
        out: give the same order with the same id again, it is done once.
        """
        return answer_of(self.finish(Question(request), timeout))

    def snapshot(
        self, only: Iterable[str] = (), *, detail: bool = False, timeout: float | None = None
    ) -> Mirror:
        """The map at one moment; `only` bounds it to some locations, `detail` adds origins and ages."""
        with without_collector():
            return mirror_of(self.finish(Taking(only, detail=detail), timeout))

    def inventories(self, wanted: Mapping[str, list[str]]) -> dict[str, dict[str, Inventory]]:
        """Bodies of inventories, by location and reporter."""
        return self.ask(InventoriesRequest(id="", wanted=dict(wanted))).bodies

    def watch(self, *, credit: int = CREDIT, inventories: bool = False) -> "Watch":
        """Follow the map, see `Watch`; with `inventories` the mirror holds their bodies too."""
        return Watch(self, Follow(credit=credit, inventories=inventories))

    def wait_bindings(self, bindings: Collection[str], *, timeout: float) -> dict[str, BindingView]:
        """Wait until each of these bindings is ready or has ended; they, as far as they are there.

        It waits on the stream and asks nothing again. Raises `BrokerUnreachable` when `timeout` is over, and
        names what is not ready.
        """
        watch, deadline = self.watch(), time.monotonic() + timeout
        try:
            left = list(bindings)
            while left:
                if (rest := deadline - time.monotonic()) <= 0:
                    raise not_ready(left, timeout)
                watch.next(rest)
                if watch.mirror is not None:
                    left = undecided(watch.mirror.bindings, bindings)
            return found(watch.mirror, bindings)
        finally:
            watch.close()

    def close(self) -> None:
        """Close the link; may be called twice."""
        self.line.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def wait_until(self, done: Callable[[], bool], timeout: float | None, *, fail_early: bool) -> bool:
        """Move bytes until `done()`; False when `timeout` (seconds, None: no end) is over.

        `fail_early`: also False as soon as the link has failed for good.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if self.line.idle():
                left = math.inf if deadline is None else max(0.0, deadline - time.monotonic())
                poll = select.poll()
                for descriptor in self.line.descriptors():
                    poll.register(descriptor, select.POLLIN)
                poll.poll(min(left, self.line.rest_s()) * 1000)
            self.line.pump()
            if done():
                return True
            if fail_early and self.line.definite():
                return False
            if deadline is not None and deadline <= time.monotonic():
                return False

    def finish(self, conversation: D, timeout: float | None = None) -> D:
        """Hold a conversation that ends; raises `BrokerUnreachable` when it does not in time."""
        timeout = self.timeout if timeout is None else timeout
        self.line.begin(conversation)
        try:
            if not self.wait_until(lambda: conversation.done, timeout, fail_early=True):
                raise self.line.problem(timeout)
        finally:
            self.line.end(conversation)
        return conversation


def answer_of(question: Question) -> Answer:
    """The answer of a question that is done; raises `BrokerRefused`."""
    assert question.answer is not None, "internal error: asked for an answer that has not come"
    if isinstance(question.answer, Failed):
        raise BrokerRefused(question.answer.code, question.answer.message, question.answer.hint)
    return question.answer


def not_ready(left: Sequence[str], timeout: float) -> BrokerUnreachable:
    """The error for bindings that did not come to a decision in time."""
    more = f" and {len(left) - 3} more" if len(left) > 3 else ""
    words = f"{', '.join(left[:3])}{more} not ready within {timeout:g} s"
    return BrokerUnreachable(words, "xce-broker claim show says how far each is")


def found(mirror: Mirror | None, bindings: Collection[str]) -> dict[str, BindingView]:
    """Those of the bindings that a mirror has."""
    views = mirror.bindings if mirror is not None else {}
    return {name: views[name] for name in bindings if name in views}


def mirror_of(taking: Taking) -> Mirror:
    """The mirror of a snapshot that is done; raises `BrokerRefused`."""
    if taking.failed is not None:
        raise BrokerRefused(taking.failed.code, taking.failed.message, taking.failed.hint)
    assert taking.mirror is not None, "internal error: asked for a snapshot that has not come"
    return taking.mirror


class Watch:
    """The map, followed: first `Fresh`, then `Changed` for each turn of the broker, without a gap.

    Where a gap cannot be avoided (the user was too slow, the broker was restarted) `Fresh` comes again and
    says why; `mirror` is then the new one. `LinkNews` tells that the link is down or up again. Only the first
    link must come within the client's timeout; later it is tried for ever.
    """

    def __init__(self, client: Client, follow: Follow) -> None:
        self._client, self._follow = client, client.line.begin(follow)
        self._begun = False

    @property
    def mirror(self) -> Mirror | None:
        """The map as of the last event that was taken."""
        return self._follow.mirror

    def next(self, timeout: float | None = None) -> Event | None:
        """The next event, None when there is none within `timeout` seconds (None: wait for ever).

        Raises `BrokerRefused`, and `BrokerUnreachable` as long as the first snapshot has not come.
        """
        event: Event | None = None

        def found() -> bool:
            nonlocal event
            event = event or self._follow.next()
            return event is not None

        if not self._begun:
            if not self._client.wait_until(found, self._client.timeout, fail_early=True):
                raise self._client.line.problem(self._client.timeout)
        elif not found():
            self._client.wait_until(found, timeout, fail_early=False)
        self._begun = self._begun or isinstance(event, Fresh)
        if self._follow.to_send:
            self._client.line.pump()  # credit goes out now, not when the user comes back
        return event

    def __iter__(self) -> Iterator[Event]:
        while True:
            if (event := self.next()) is not None:
                yield event

    def close(self) -> None:
        """Tell the broker to stop; may be called twice."""
        line = self._client.line
        line.end(self._follow)
        for request in self._follow.leave():
            line.say(request)
        line.pump()
