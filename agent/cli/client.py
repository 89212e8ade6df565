"""How the commands talk to the running agent. Imports little: `status` must be quick."""

import contextlib
import json
import os
import select
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from xce.agent.cli import ENDED, NOT_RUNNING, CommandError
from xce.agent.cli.options import UsageError

TIMEOUT_S = 5.0
ANSWER_BYTES = 64 << 20


class Program(NamedTuple):
    """Whom the commands can ask: how it is called, where it listens, and what to do if it does not."""

    name: str
    file: str
    """Its configuration."""
    socket: str
    hint: str


AGENT = Program(
    "agent",
    "agent.yaml",
    "/run/xce-agent/agent.sock",
    "start it:          systemctl start xce-agent\n"
    "see why it ended:  journalctl -u xce-agent -n 20\n"
    "try by hand:       xce-agent run",
)
EXTERNAL = Program(
    "external reporter",
    "reporter.yaml",
    "/run/xce-reporter/agent.sock",
    "start it:  xce-reporter run",  # it has no unit of ours
)


class AgentError(CommandError):
    """The agent said no; the message is its own."""


class Ended(AgentError):
    """What was waited for will never be."""

    code = ENDED


class NotRunning(CommandError):
    """No agent answers; the message says what to do."""

    code = NOT_RUNNING


def ask(path: str, *, of: Program = AGENT, within_s: float = TIMEOUT_S, **request: Any) -> dict[str, Any]:
    """One question, one answer. Raises `AgentError`, `NotRunning`."""
    return next(follow(path, of=of, within_s=within_s, **request))


def follow(
    path: str,
    *,
    of: Program = AGENT,
    within_s: float = TIMEOUT_S,
    idle: Callable[[], object] | None = None,
    **request: Any,
) -> Iterator[dict[str, Any]]:
    """One question, answers until the agent ends. Raises `AgentError`, `NotRunning`.

    With `idle`, which is called each second meanwhile, only the first has to come in time.
    """
    rest, answered = bytearray(), False
    with _connect(path, of) as connection:
        connection.settimeout(within_s)
        with _in_words(path, of, within_s):
            connection.sendall(json.dumps(request).encode() + b"\n")
        while True:
            while answered and idle is not None and not select.select([connection], [], [], 1.0)[0]:
                idle()
            with _in_words(path, of, within_s):
                if not (data := connection.recv(1 << 20)):
                    break
                rest += data
                *lines, rest = rest.split(b"\n") if b"\n" in data else [rest]
                if len(rest) > ANSWER_BYTES:
                    raise ValueError(f"an answer has more than {ANSWER_BYTES} bytes")
                answers = [json.loads(line) for line in lines]
            for answer in answers:
                if "error" in answer:
                    raise (Ended if answer.get("ended") else AgentError)(str(answer["error"]))
                answered = True
                yield answer
    raise NotRunning(f"the {of.name} at {path} ended")


@contextlib.contextmanager
def _in_words(path: str, of: Program, within_s: float) -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise NotRunning(f"the {of.name} at {path} did not answer within {within_s:g} s") from None
    except (OSError, ValueError) as error:
        raise NotRunning(f"the {of.name} at {path} broke off: {error}") from None


def socket_path(given: str, configuration: str = "", *, of: Program = AGENT) -> str:
    """The agent's socket: as given, where the given configuration says, of the environment's
    XCE_AGENT_SOCKET, or where /etc/xce/agent.yaml says; the same of an external reporter, without the
    environment. Raises `UsageError` for a configuration that cannot be used.
    """
    if not given and not configuration and of is AGENT:
        given = os.environ.get("XCE_AGENT_SOCKET", "")
    if given or (not configuration and os.path.exists(of.socket)):
        return given or of.socket
    return _configured(configuration, of) or of.socket


def _configured(path: str, of: Program) -> str:
    """The socket that a site has put elsewhere; reading YAML is slow, so this comes last."""
    from xce.agent import config  # noqa: PLC0415
    from xce.agent.memory import Memory  # noqa: PLC0415
    from xce.model.configuration import AgentFile, ExternalFile  # noqa: PLC0415
    from xce.model.refusal import ConfigRefused  # noqa: PLC0415

    kind = AgentFile if of is AGENT else ExternalFile
    default = config.AGENT if of is AGENT else config.EXTERNAL
    try:
        settings = config.read(path or default, kind, memory=Memory(""), must_exist=bool(path))
    except ConfigRefused as refused:
        there = f"{config.run_directory(path or default)}/agent.sock"
        if os.path.exists(there):  # of an agent that goes by what stood there before, and says so
            return there
        if path:
            raise UsageError(str(refused)) from refused
        return ""
    return f"{settings.run_directory}/agent.sock"


def _connect(path: str, of: Program) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # In line for a queue that others fill waits only who blocks: `settimeout` would not.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", int(TIMEOUT_S), 0))
    try:
        connection.connect(path)
    except OSError as error:
        connection.close()
        raise NotRunning(_advice(path, of, error)) from None
    return connection


def _advice(path: str, of: Program, error: OSError) -> str:
    if isinstance(error, PermissionError):
        return f"cannot reach the {of.name}: no permission for {path}"
    if isinstance(error, FileNotFoundError | ConnectionRefusedError):
        return f"the {of.name} is not running (nobody listens at {path})\n{of.hint}"
    return f"cannot reach the {of.name} at {path}: {error.strerror or error}"
