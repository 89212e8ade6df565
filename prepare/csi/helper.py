"""The CSI helper as its parent sees it: started when there are plugins, asked without waiting, started again.

`HelperClient` is for one thread, and never blocks: `ask` gives the answer, or None to be asked again. A call
is known by its key; another call under the same key takes its place, and nobody waits for the answer to the
first.
"""

import contextlib
import os
import select
import signal
import socket
from collections.abc import Callable

import msgspec

from xce.linux import spawn
from xce.model import csi
from xce.model.csi import Backoff, Outcome

PACKAGE = "xce-csi-node-helper"
"""What to install where the program is missing."""
_TURN_S = 1.0
_RESTART = Backoff(0.5, 30)
_SETTLED_S = 60.0
"""A helper that has lived so long did not fail at its start."""
_READ = 1 << 16
_WRITE_S = 2.0
_PULSE_S, _HUNG_S = 10.0, 20.0
"""A helper that is silent for so long is asked for a sign, and ended when it gives none."""
_PULSE = csi.Ask(id="pulse", plugin="", call=csi.Look())
"""To no plugin, which any helper answers at once."""
_SOCKET = 3
_ENVIRONMENT = {"LC_ALL": "C.UTF-8"}


class _Pending(msgspec.Struct):
    id: str
    call: csi.Call
    told: csi.Told | None = None


class HelperClient:
    """The helper, and the plugins that it has seen. `program`: the path of what is started."""

    def __init__(self, plugins: csi.Plugins, clock: Callable[[], float], *, program: str) -> None:
        self._plugins, self._clock, self._program = plugins, clock, program
        self._decoder: msgspec.json.Decoder[csi.FromHelper] = msgspec.json.Decoder(csi.FromHelper)
        self._socket: socket.socket | None = None
        self._poll = select.epoll()
        self._handle = -1
        self._text = b""
        self._pending: dict[str, _Pending] = {}
        self._seen: dict[str, csi.Seen] = {}
        self._news: list[str] = []
        self._new: set[str] = set()
        """Plugins of which something was said since somebody asked."""
        self._number = 0
        self._started = self._start_at = 0.0
        self._heard = 0.0
        self._pulse: float | None = None
        """Since when a sign is waited for."""
        self._failures = 0
        self.pid: int | None = None
        self.problem = ""
        """Why there is no helper; '' if there is one, or nobody needed it yet."""

    def turn(self) -> float | None:
        """Start it where there is something for it to do, and take in what it has said of plugins.

        In how many seconds to be called again; None: never, as there are no plugins here.
        """
        if not self._plugins.sockets and not self._plugins.registration:
            return None
        if self._socket is not None or self._plugins.sockets or self._registrar():
            self._ready()
        return _TURN_S

    def _registrar(self) -> bool:
        """Whether a plugin wants to register: until then the helper's memory is saved."""
        try:
            return any(name.endswith(".sock") for name in os.listdir(self._plugins.registration))
        except OSError:
            return False

    # ---------------------------------------------------------------------------------------------- asking

    def ask(self, key: str, plugin: str, call: csi.Call, deadline_s: float | None = None) -> csi.Told | None:
        """What came of the call; None: not known yet, ask again."""
        self.poll()
        pending = self._pending.get(key)
        if pending is not None and pending.call == call:
            if pending.told is not None:
                del self._pending[key]
            return pending.told
        if pending is not None:
            self.forget(key)
        self._number += 1
        number = f"{key}#{self._number}"
        ask = csi.Ask(id=number, plugin=plugin, call=call, deadline_s=deadline_s)
        if not self._ready() or not self._send(ask):
            return csi.Told(id=number, outcome=Outcome.NEVER_SENT, message=self.problem)
        self._pending[key] = _Pending(number, call)
        return None

    def answered(self) -> list[str]:
        """Keys for which an answer has come since the last call; `plugin NAME` for news of a plugin."""
        self.poll()
        news = self._news + [f"plugin {name}" for name in sorted(self._new)]
        self._news, self._new = [], set()
        return news

    def fileno(self) -> int:
        """Readable when the helper has said something, whichever process it is."""
        return self._poll.fileno()

    def pending(self, key: str) -> bool:
        """Whether a call under this key is not answered yet, or its answer was not taken."""
        return key in self._pending

    def forget(self, key: str) -> None:
        """Nobody waits for the call under this key any more; what the plugin makes of it is not known."""
        pending = self._pending.pop(key, None)
        if pending is not None and pending.told is None and self._socket is not None:
            self._send(csi.Cancel(id=pending.id))

    def seen(self, plugin: str) -> csi.Seen | None:
        """A plugin as the helper saw it last; None if it has not said anything of it."""
        self._ready()
        self.poll()
        seen = self._seen.get(plugin)
        if seen is None and self.problem:
            return csi.Seen(plugin=plugin, socket="", problem=self.problem)
        return seen

    def plugins(self) -> list[csi.Seen]:
        """All plugins that were seen, by name."""
        self.poll()
        return [self._seen[name] for name in sorted(self._seen)]

    def poll(self) -> None:
        """Take in what the helper has said."""
        if self._socket is not None and (words := self._hear() or self._feel()):
            self._ended(words)

    def _feel(self) -> str:
        """Why it is ended, '' if it lives. Deadlines are its own: nobody else would end what it hangs in."""
        now = self._clock()
        if self._pulse is None and now - self._heard > _PULSE_S:
            self._pulse = now
            self._send(_PULSE)
        if self._pulse is None or now - self._pulse <= _HUNG_S:
            return ""
        return f"it has hung for {now - self._heard:.0f} s"

    def _hear(self) -> str:
        """Take in what is there; why there will be no more, '' if there may be."""
        assert self._socket is not None
        try:
            while more := self._socket.recv(_READ):
                self._heard, self._pulse = self._clock(), None
                *lines, self._text = (self._text + more).split(b"\n")
                for line in lines:
                    self._take(self._decoder.decode(line))
                if len(self._text) > csi.FRAME_BYTES:
                    return "it said what is no frame"
        except BlockingIOError:
            return ""
        except msgspec.MsgspecError:
            return "it said what is no frame"
        except OSError as error:
            return f"it has ended: {error.strerror}"
        return "it has ended"

    # ------------------------------------------------------------------------------------------ its process

    def _ready(self) -> bool:
        """Whether there is a helper; one is started if it is time."""
        self.poll()
        if self._socket is not None:
            return True
        if self._clock() < self._start_at:
            return False
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            child = spawn.spawn([self._program], _ENVIRONMENT, fds={_SOCKET: theirs.fileno()})
            self._handle, self.pid = spawn.handle(child), child.pid
        except OSError as error:
            ours.close()
            missing = isinstance(error, FileNotFoundError) and not os.path.exists(self._program)
            why = f"install {PACKAGE}" if missing else "agent.yaml: claims.csi.helper"
            self._later(f"cannot start {self._program}: {error.strerror} ({why})")
            return False
        finally:
            theirs.close()
        ours.setblocking(False)
        self._socket, self._started, self.problem = ours, self._clock(), ""
        self._poll.register(ours.fileno(), select.EPOLLIN)
        self._heard, self._pulse = self._started, None
        return self._send(self._plugins)

    def _send(self, message: csi.ToHelper) -> bool:
        """Whether it is on its way. Frames are small: a helper that does not take them soon hangs."""
        assert self._socket is not None
        try:
            self._socket.settimeout(_WRITE_S)
            self._socket.sendall(csi.frame(message))
            self._socket.setblocking(False)
        except OSError as error:
            self._socket.setblocking(False)
            self._hear()  # what it said before it ended counts
            self._ended(f"it takes nothing: {error}")
            return False
        return True

    def _take(self, message: csi.FromHelper) -> None:
        if isinstance(message, csi.Seen):
            self._seen[message.plugin] = message
            self._new.add(message.plugin)
            return
        key = message.id.rpartition("#")[0]
        pending = self._pending.get(key)
        if pending is not None and pending.id == message.id:
            pending.told = message
            self._news.append(key)

    def _ended(self, words: str) -> None:
        """It is gone: what it was asked may have been done."""
        self._let_go()
        if self._clock() - self._started > _SETTLED_S:
            self._failures = 0
        self._later(words)
        for key, pending in self._pending.items():
            if pending.told is None:
                pending.told = csi.Told(id=pending.id, outcome=Outcome.UNCERTAIN, message=self.problem)
                self._news.append(key)
        for name, seen in self._seen.items():
            self._seen[name] = msgspec.structs.replace(seen, ready=False, problem=self.problem)

    def _later(self, words: str) -> None:
        self._failures += 1
        self._start_at = self._clock() + _RESTART.delay(self._failures)
        self.problem = f"the CSI helper is not there: {words}"

    def close(self) -> None:
        """End it; may be called twice."""
        self._let_go()
        self._poll.close()

    def _let_go(self) -> None:
        if self._socket is None:
            return
        self._socket.close()
        self._socket, self.pid = None, None
        self._text = b""
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        with contextlib.suppress(OSError):  # reaped here unless somebody else did
            os.waitid(os.P_PIDFD, self._handle, os.WEXITED | os.WNOHANG)
        os.close(self._handle)
        self._handle = -1
