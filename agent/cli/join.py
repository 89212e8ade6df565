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
from xce.model.configuration import AgentFile, ExternalFile

SUMMARY = "make this host known to a broker, with a token, and start the agent"
PROGRAM = "xce-agent join"
USAGE_TEXT = f"""\
usage: {PROGRAM} BROKER --token FILE [--name NAME] [--config FILE] [--timeout SECONDS] [--no-start]

  BROKER         HOST, HOST:PORT or tcp://HOST:PORT; the port is 7400 unless given
  --token FILE   what `xce-broker token new` has made; `-` reads it from standard input
  --name NAME    instead of this host's name; it is written into agent.yaml
  --config FILE  of the agent, instead of /etc/xce/agent.yaml; it is there, and says where the keys are to be
  --no-start     leave the service as it is

Makes this host's key, has the broker accept it, and writes where the broker is into agent.yaml. The
token is used up; the key's secret half never leaves this host. It may be repeated when it was broken off.
exit status: 0 joined, 1 refused, 2 wrong usage or files, 3 the broker cannot be reached"""
UNIT = "xce-agent.service"


def run(argv: Sequence[str]) -> int:
    """Join."""
    if "--help" in argv:
        print(USAGE_TEXT)
        return GOOD
    options = Options(argv, flags=["--no-start"], values=["--token", "--name", "--config", "--timeout"])
    if len(options.arguments) != 1:
        raise UsageError("which broker? one address is needed")
    given = options.get("--config")
    own = settings.read(given, AgentFile)
    here = own.name or socket.gethostname()
    name = options.get("--name") or here
    more = {} if name == here else {"name": name}
    path = Path(given or config.AGENT)
    code = enter(PROGRAM, name, options, own, role="agent", path=path, more=more)
    if code != GOOD:
        return code
    if given:
        print(f"next: xce-agent run --config {given}")
        return GOOD
    if not os.path.isdir("/run/systemd/system"):
        print("next: xce-agent run; one that runs already takes the new key after a HUP")
        return GOOD
    if options.has("--no-start"):
        print(f"next: systemctl enable {UNIT}; systemctl restart {UNIT}")
        return GOOD
    _start()
    return TROUBLE


def enter(
    program: str,
    name: str,
    options: Options,
    own: AgentFile | ExternalFile,
    *,
    role: str,
    path: Path,
    more: Mapping[str, str],
) -> int:
    """Have the broker accept a new key for `name`; the keys go where `own` has them, and where the broker is,
    with `more`, into `path`.
    """
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
        public = Path(own.broker_key)
        joining.join(put, ticket, name, role, Path(own.key), public=public, configure=configure)
    except (KeyFileError, ValueError, OSError) as error:
        raise UsageError(str(error)) from error
    except Denied as denied:
        output.fail(program, f"{denied}\n  hint: {denied.hint}" if denied.hint else str(denied))
        return TROUBLE
    except NoAnswer as failed:
        hint = joining.HINTS.get(failed.state, "")
        output.fail(program, f"{failed}\n  hint: {hint}" if hint else str(failed))
        return TROUBLE if failed.refused else NOT_RUNNING
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
