"""A wire between two ends of a TCP connection that a test can cut."""

import selectors
import socket
import threading
from types import TracebackType


class CuttableWire:
    """Listens on a port of its own and passes bytes to `port`; `cut` ends all connections at once."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._other: dict[socket.socket, socket.socket] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def cut(self) -> None:
        """End every connection; new ones are taken again at once."""
        with self._lock:
            for end in list(self._other):
                self._drop(end)

    def __enter__(self) -> "CuttableWire":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(10)
        self.cut()
        self._selector.close()
        self._server.close()

    def _serve(self) -> None:
        while not self._stop.is_set():
            for key, _ in self._selector.select(0.05):
                with self._lock:
                    if key.fileobj is self._server:
                        self._accept()
                    elif key.fileobj in self._other:
                        self._pass(key.fileobj)

    def _accept(self) -> None:
        near, _ = self._server.accept()
        try:
            far = socket.create_connection(("127.0.0.1", self._target), 5)
        except OSError:
            near.close()
            return
        for end, other in ((near, far), (far, near)):
            self._other[end] = other
            self._selector.register(end, selectors.EVENT_READ)

    def _pass(self, end: socket.socket) -> None:
        try:
            data = end.recv(65536)
            self._other[end].sendall(data)
        except OSError:
            data = b""
        if not data:
            self._drop(end)

    def _drop(self, end: socket.socket) -> None:
        other = self._other.get(end)
        if other is not None:
            for one in (end, other):
                del self._other[one]
                self._selector.unregister(one)
                one.close()
