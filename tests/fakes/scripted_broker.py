"""A broker that says what a test wants, over the real sockets, in the real encodings, in its own thread.

For what a real broker never does on purpose: say nothing, leave out a change, talk rubbish.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType

import msgspec
import zmq

from xce.model.message import Heartbeat, Report, ToBroker
from xce.wire import codec
from xce.wire.keys import KeyPair
from xce.wire.router import Router
from xce.wire.zap import Authenticator

Answers = Iterable[msgspec.Struct | bytes]


class ScriptedBroker:
    """Answers each message with what `script` gives for it; bytes go out as they are."""

    def __init__(
        self,
        script: Callable[[ToBroker], Answers],
        *,
        local: Path | None = None,
        key: KeyPair | None = None,
        accept: tuple[bytes, ...] = (),
    ) -> None:
        self._script = script
        self.heard: list[ToBroker] = []
        self.raw: list[bytes] = []
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.accept: Callable[[bytes], str | None] = lambda public: "peer" if public in accept else None
        self._zap = Authenticator(self._accepts, context=self.context)
        self._router = Router[bytes](
            listen=["tcp://127.0.0.1:*"] if key else [],
            local=str(local or ""),
            key=key,
            admit=lambda stranger: stranger.routing_id,
            gone=lambda _peer: None,
            context=self.context,
        )
        self.endpoints = self._router.endpoints
        self._last = b""
        self._unasked: deque[bytes] = deque()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def say(self, message: msgspec.Struct | bytes) -> None:
        """Send something unasked to whoever spoke last, at the thread's next turn: the socket is its own."""
        self._unasked.append(message if isinstance(message, bytes) else codec.encode(message))

    def __enter__(self) -> "ScriptedBroker":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(10)
        self._router.close()
        self._zap.close()
        self.context.term()

    def _accepts(self, public: bytes) -> str | None:
        return self.accept(public)

    def _serve(self) -> None:
        while not self._stop.is_set():
            zmq.zmq_poll([(self._router.socket, zmq.POLLIN), (self._zap.socket, zmq.POLLIN)], 20)
            self._zap.serve()
            self._router.serve_monitor()
            while self._unasked:
                self._router.send(self._last, self._unasked.popleft())
            for peer, data in self._router.receive():
                message = codec.decode_for_broker(data)
                assert not isinstance(message, Report | Heartbeat)
                self.raw.append(data)
                self.heard.append(message)
                self._last = peer
                for answer in self._script(message):
                    encode = codec.encode_json if codec.is_json(data) else codec.encode
                    self._router.send(peer, answer if isinstance(answer, bytes) else encode(answer))
