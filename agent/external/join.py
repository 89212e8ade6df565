"""`xce-reporter join BROKER --token FILE --name NAME`: make an external reporter known to a broker."""

from collections.abc import Sequence
from pathlib import Path

from xce.agent import config
from xce.agent.cli import GOOD, join, settings
from xce.agent.cli.options import Options, UsageError
from xce.model.configuration import ExternalFile

SUMMARY = "make this external reporter known to a broker, with a token"
PROGRAM = "xce-reporter join"
USAGE_TEXT = f"""\
usage: {PROGRAM} BROKER --token FILE --name NAME [--config FILE] [--timeout SECONDS]

  BROKER         HOST, HOST:PORT or tcp://HOST:PORT; the port is 7400 unless given
  --token FILE   what `xce-broker token new --role reporter` has made; `-` reads it from standard input
  --name NAME    the identity, which resource types name as their reporter
  --config FILE  instead of /etc/xce/reporter.yaml; it is there, and says where the keys are to be

Makes its key, /etc/xce/keys/reporter.key, has the broker accept it, and writes where the broker is into
reporter.yaml. The token is used up. It may be repeated when it was broken off.
exit status: 0 joined, 1 refused, 2 wrong usage or files, 3 the broker cannot be reached"""


def run(argv: Sequence[str]) -> int:
    """Join."""
    if "--help" in argv:
        print(USAGE_TEXT)
        return GOOD
    options = Options(argv, values=["--token", "--name", "--config", "--timeout"])
    if len(options.arguments) != 1:
        raise UsageError("which broker? one address is needed")
    if not options.get("--name"):
        raise UsageError("which identity? --name NAME")
    given = options.get("--config")
    own, path = settings.read(given, ExternalFile), Path(given or config.EXTERNAL)
    code = join.enter(PROGRAM, options.get("--name"), options, own, role="reporter", path=path, more={})
    if code == GOOD:
        print(f"next: xce-reporter run{f' --config {given}' if given else ''}")
    return code
