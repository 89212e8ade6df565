"""`xce-agent join BROKER --token FILE`: make this host known to a broker, and start the agent."""

import os
import re
import socket
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from xce.agent import config
from xce.agent.cli import GOOD, NOT_RUNNING, TROUBLE, output, settings
from xce.agent.cli.options import Options, UsageError
from xce.model.configuration import AgentFile

SUMMARY = "make this host known to a broker, with a token, and start the agent"
PROGRAM = "xce-agent join"
USAGE_TEXT = f"""\
usage: {PROGRAM} BROKER --token FILE [--name NAME] [--timeout SECONDS] [--no-start]

  BROKER         HOST, HOST:PORT or tcp://HOST:PORT; the port is 7400 unless given
  --token FILE   what `xce-broker token new` has made; `-` reads it from standard input
  --name NAME    instead of this host's name; it is written into agent.yaml
  --no-start     leave the service as it is

Makes this host's key, has the broker accept it, and writes where the broker is into /etc/xce/agent.yaml. The
token is used up; the key's secret half never leaves this host. It may be repeated when it was broken off.
exit status: 0 joined, 1 refused, 2 wrong usage or files, 3 the broker cannot be reached"""
KEYS = Path("/etc/xce/keys")
UNIT = "xce-agent.service"


def run(argv: Sequence[str]) -> int:
    """Join."""
    if "--help" in argv:
        print(USAGE_TEXT)
        return GOOD
    options = Options(argv, flags=["--no-start"], values=["--token", "--name", "--timeout"])
    if len(options.arguments) != 1:
        raise UsageError("which broker? one address is needed")
    own = settings.read("", AgentFile).name
    name = options.get("--name") or own or socket.gethostname()
    more = {} if name == (own or socket.gethostname()) else {"name": name}
    path = Path(config.AGENT)
    code = enter(PROGRAM, name, options, role="agent", key=KEYS / "agent.key", path=path, more=more)
    if code != GOOD:
        return code
    if options.has("--no-start") or not os.path.isdir("/run/systemd/system"):
        print(f"next: systemctl enable --now {UNIT}")
        return GOOD
    _start()
    return TROUBLE


def enter(
    program: str, name: str, options: Options, *, role: str, key: Path, path: Path, more: Mapping[str, str]
) -> int:
    """Have the broker accept a new key for `name`; where it is, and `more`, is written into `path`."""
    from xce.wire import joining  # noqa: PLC0415 - not for a wrong usage
    from xce.wire.ask import Denied, NoAnswer  # noqa: PLC0415
    from xce.wire.keys import KeyFileError  # noqa: PLC0415

    if not options.get("--token"):
        raise UsageError("which token? --token FILE, or --token - to read it from standard input")
    try:
        endpoint = joining.endpoint_of(options.arguments[0])
        ticket = joining.token_of(options.get("--token"))
        put = joining.asking(endpoint, options.number("--timeout", 10))
        configure = partial(write, path, {"broker": endpoint, **more})
        joining.join(put, ticket, name, role, key, configure=configure)
    except (KeyFileError, ValueError, OSError) as error:
        raise UsageError(str(error)) from error
    except Denied as denied:
        output.fail(program, f"{denied}\n  hint: {denied.hint}" if denied.hint else str(denied))
        return TROUBLE
    except NoAnswer as failed:
        output.fail(program, f"{failed}\n  hint: {joining.HINTS.get(failed.state, 'is it up?')}")
        return TROUBLE if failed.state in joining.HINTS else NOT_RUNNING
    print(f"{name} has joined {endpoint}")
    return GOOD


def write(path: Path, wanted: Mapping[str, str]) -> None:
    """Set these keys in agent.yaml and leave every other line as it is; the file is replaced whole."""
    try:
        before, mode = path.read_text(), path.stat().st_mode & 0o7777
    except FileNotFoundError:
        before, mode = "", 0o644
    text = before
    for key, value in wanted.items():
        text, found = re.subn(rf"(?m)^{key}:.*$", f"{key}: {value}", text, count=1)
        if not found:
            text = f"{key}: {value}\n{text}"
    if text == before:
        return
    fresh = path.with_name(f".{path.name}.join")
    fresh.write_text(text)
    fresh.chmod(mode)
    os.replace(fresh, path)


def _start() -> None:
    """Become the command that enables and starts the unit; comes back only if there is none.

    An agent that runs with the key of before is started anew: it would try that one for a while.
    """
    print(f"starting {UNIT}; then see: xce-agent status", flush=True)
    for path in ("/usr/bin/systemctl", "/bin/systemctl"):
        if os.access(path, os.X_OK):
            command = f"{path} --quiet enable {UNIT}; exec {path} restart {UNIT}"
            os.execv("/bin/sh", ["sh", "-c", command])  # noqa: S606 - fixed paths
    output.fail(PROGRAM, f"joined, but there is no systemctl to start {UNIT} with")
