"""`xce-agent join BROKER --token FILE`: make this host known to a broker, and start the agent."""

import os
import re
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from xce.agent import config
from xce.agent.cli import GOOD, NOT_RUNNING, TROUBLE, output
from xce.agent.cli.options import Options, UsageError

SUMMARY = "make this host known to a broker, with a token, and start the agent"
PROGRAM = "xce-agent join"
USAGE_TEXT = f"""\
usage: {PROGRAM} BROKER --token FILE [--name NAME] [--timeout SECONDS] [--no-start]

  BROKER         HOST, HOST:PORT or tcp://HOST:PORT; the port is 7400 unless given
  --token FILE   what `xce-broker token new` has made; `-` reads it from standard input
  --name NAME    instead of this host's name
  --no-start     leave the service as it is

Makes this host's key, has the broker accept it, and writes where the broker is into /etc/xce/agent.yaml. The
token is used up; the key's secret half never leaves this host. It may be repeated when it was broken off.
exit status: 0 joined, 1 refused, 2 wrong usage or files, 3 the broker cannot be reached"""
HINTS = {
    "rejected by broker": "the token was used, has ended or was revoked: xce-broker token list",
    "broker's key does not match": "the token is another broker's, or the broker's key was changed since it "
    "was made: make a new one there with xce-broker token new",
}
"""By the state of the link: what to do about a broker that is there and takes no token."""
KEYS = Path("/etc/xce/keys")
UNIT = "xce-agent.service"
PORT = 7400


def run(argv: Sequence[str]) -> int:
    """Join."""
    if "--help" in argv:
        print(USAGE_TEXT)
        return GOOD
    options = Options(argv, flags=["--no-start"], values=["--token", "--name", "--timeout"])
    if len(options.arguments) != 1:
        raise UsageError("which broker? one address is needed")
    endpoint = endpoint_of(options.arguments[0])
    text = _token_text(options.get("--token"))
    return _join(endpoint, text, options.get("--name") or socket.gethostname(), options)


def endpoint_of(text: str) -> str:
    """The broker's address as it stands in agent.yaml; raises `UsageError`."""
    host = text.removeprefix("tcp://")
    if not re.search(r":\d+$", host) or host.endswith("]"):
        host = f"{host}:{PORT}"
    name, _, port = host.rpartition(":")
    if not name or not re.fullmatch(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]", name) or not 0 < int(port) < 65536:
        raise UsageError(f"{text!r} is no address of a broker: HOST, HOST:PORT or [IPV6]:PORT")
    return f"tcp://{name}:{port}"


def _token_text(path: str) -> str:
    if not path:
        raise UsageError("which token? --token FILE, or --token - to read it from standard input")
    if path.startswith("xce1:"):
        raise UsageError(
            "--token wants a file or '-': what stands on a command line is to be seen by everybody"
        )
    try:
        return sys.stdin.readline() if path == "-" else Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the token {path}: {error}") from error


def _join(endpoint: str, text: str, name: str, options: Options) -> int:
    from xce.wire import joining, token  # noqa: PLC0415 - not for a wrong usage
    from xce.wire.ask import Denied, NoAnswer  # noqa: PLC0415
    from xce.wire.keys import KeyFileError  # noqa: PLC0415

    try:
        put = joining.asking(endpoint, options.number("--timeout", 10))
        joining.join(put, token.parse(text), name, "agent", KEYS / "agent.key")
        write_broker(Path(config.AGENT), endpoint)
    except (KeyFileError, ValueError, OSError) as error:
        raise UsageError(str(error)) from error
    except Denied as denied:
        output.fail(PROGRAM, f"{denied}\n  hint: {denied.hint}" if denied.hint else str(denied))
        return TROUBLE
    except NoAnswer as failed:
        output.fail(PROGRAM, f"{failed}\n  hint: {HINTS.get(failed.state, 'is it up?')}")
        return TROUBLE if failed.state in HINTS else NOT_RUNNING
    print(f"{name} has joined {endpoint}")
    if options.has("--no-start") or not os.path.isdir("/run/systemd/system"):
        print(f"next: systemctl enable --now {UNIT}")
        return GOOD
    _start()
    return TROUBLE


def write_broker(path: Path, endpoint: str) -> None:
    """Set `broker:` in agent.yaml and leave every other line as it is; the file is replaced whole."""
    try:
        text, mode = path.read_text(), path.stat().st_mode & 0o7777
    except FileNotFoundError:
        text, mode = "", 0o644
    line = f"broker: {endpoint}"
    wanted, found = re.subn(r"(?m)^broker:.*$", line, text, count=1)
    if not found:
        wanted = f"{line}\n{text}"
    if wanted == text:
        return
    fresh = path.with_name(f".{path.name}.join")
    fresh.write_text(wanted)
    fresh.chmod(mode)
    os.replace(fresh, path)


def _start() -> None:
    """Become the command that enables and starts the unit; comes back only if there is none."""
    print(f"starting {UNIT}; then see: xce-agent status", flush=True)
    for path in ("/usr/bin/systemctl", "/bin/systemctl"):
        if os.access(path, os.X_OK):
            os.execv(path, ["systemctl", "enable", "--now", "--quiet", UNIT])  # noqa: S606 - a fixed path
    output.fail(PROGRAM, f"joined, but there is no systemctl to start {UNIT} with")
