"""One plugin's socket: connects, makes calls, and tells what was never heard from what may have been done.

A connection is made anew when the socket file is another one than before, or the old connection is gone.
Calls that are on their way over an old connection end there in peace.
"""

import asyncio
import os
from typing import Any, TypeAlias

from grpclib.client import Channel
from grpclib.const import Cardinality
from grpclib.encoding.proto import ProtoCodec
from grpclib.exceptions import GRPCError

from xce.csi_node_helper import verbs
from xce.csi_node_helper.messages import Method
from xce.model.csi import Outcome

_CONNECT_S = 5.0
_GRACE_S = 1.0
"""After the deadline, for the library to notice it."""
ANSWER_BYTES = 1 << 16
"""Many times what the protocol lets a plugin say; whatever it is becomes frames that the agent takes."""

File: TypeAlias = tuple[int, int, int]
"""Device, inode and time of change: the number of a file that is gone is given to the next one."""


class CallFailed(Exception):
    """A call without a good answer: what is known of it, and the words, as they came."""

    def __init__(self, outcome: Outcome, code: int, message: str) -> None:
        super().__init__(message)
        self.outcome, self.code, self.message = outcome, code, message


class _Codec(ProtoCodec):
    """Of answers that are not too long."""

    def decode(self, data: bytes, message_type: Any) -> Any:
        if len(data) > ANSWER_BYTES:
            words = f"the plugin has answered with {len(data)} bytes, and {ANSWER_BYTES} are the most"
            raise CallFailed(Outcome.UNCERTAIN, 0, words)
        return super().decode(data, message_type)


class _Channel(Channel):
    """Stock servers refuse some names of the authority; this one they all take."""

    def _get_authority(self, host: str, port: int) -> str:  # noqa: ARG002 - the base calls it
        return "localhost"


class _Link:
    """A channel, the socket file that it was made for, and how many calls are on their way."""

    def __init__(self, channel: Channel, file: File) -> None:
        self.channel, self.file, self.calls = channel, file, 0


class Connection:
    """To the socket at `path`. All methods belong to one event loop."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._link: _Link | None = None
        self._connecting = asyncio.Lock()

    def file(self) -> File | None:
        """Which file the socket is now; None if there is none."""
        try:
            about = os.stat(self.path)
        except (OSError, ValueError):  # a plugin that registers names a path, and no path has a NUL
            return None
        return about.st_dev, about.st_ino, about.st_ctime_ns

    async def call(self, method: Method, request: Any, seconds: float) -> Any:
        """The answer. Raises `CallFailed`."""
        link = await self._linked()
        link.calls += 1
        try:
            async with (
                asyncio.timeout(seconds + _GRACE_S),
                link.channel.request(
                    method.path, Cardinality.UNARY_UNARY, method.request, method.answer, timeout=seconds
                ) as stream,
            ):
                await stream.send_message(request, end=True)
                answer = await stream.recv_message()
            if answer is None:
                raise CallFailed(Outcome.UNCERTAIN, 0, "the plugin has closed the call without an answer")
            return answer
        except GRPCError as error:
            code = error.status.value
            raise CallFailed(verbs.outcome(code), code, error.message or error.status.name) from error
        except TimeoutError as error:
            words = f"no answer within {seconds:g} s; the plugin may still be at work"
            raise CallFailed(Outcome.UNCERTAIN, 4, words) from error
        except (CallFailed, asyncio.CancelledError):
            raise
        except Exception as error:  # the library's errors have no base
            words = f"the call was cut off: {type(error).__name__} {error}"
            raise CallFailed(Outcome.UNCERTAIN, 0, words) from error
        finally:
            link.calls -= 1
            self._drop_unless_used(link)

    async def _linked(self) -> _Link:
        async with self._connecting:
            file = self.file()
            if file is None:
                raise CallFailed(Outcome.NEVER_SENT, 0, f"there is no socket {self.path}")
            old = self._link
            if old is not None and old.file == file:
                try:
                    await asyncio.wait_for(old.channel.__connect__(), _CONNECT_S)
                except (OSError, TimeoutError):
                    pass  # a new one may do better, or say why not
                else:
                    return old
            self._link = None
            if old is not None:
                self._drop_unless_used(old)
            channel = _Channel(path=self.path, codec=_Codec())
            try:
                await asyncio.wait_for(channel.__connect__(), _CONNECT_S)
            except (OSError, TimeoutError) as error:
                channel.close()
                words = getattr(error, "strerror", None) or str(error) or "nobody takes the connection"
                raise CallFailed(Outcome.NEVER_SENT, 0, f"cannot connect to {self.path}: {words}") from error
            self._link = _Link(channel, file)
            return self._link

    def _drop_unless_used(self, link: _Link) -> None:
        if link is not self._link and link.calls == 0:
            link.channel.close()

    def close(self) -> None:
        """End it, and whatever is on its way; may be called twice."""
        link, self._link = self._link, None
        if link is not None:
            link.channel.close()
