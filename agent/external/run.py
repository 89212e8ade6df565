"""`xce-reporter run [DIR]`: the same scripts, in the same cage, for values of pools and other places.

They are sent in the role `reporter`, under the identity that the resource types name; a value's name is
`NAME`, or `NAME@pool:X` where several places have it. Credentials that the scripts use stay on this machine.
"""

import os
from collections.abc import Sequence

from xce.agent.cli import GOOD, TROUBLE, USAGE, output
from xce.agent.cli.options import Options, UsageError

SUMMARY = "run the reporters of a directory for pools, groups and external resources"
PROGRAM = "xce-reporter run"
USAGE_TEXT = f"""\
usage: {PROGRAM} [--config FILE] [DIR]

  --config FILE  instead of /etc/xce/reporter.yaml, which may be missing
  DIR            of the reporters; instead of `reporters.directory`

exit status: 0 after a clean stop, 1 when it could not start"""


def run(argv: Sequence[str]) -> int:
    """Serve until TERM or INT."""
    import xce.agent.diet  # noqa: F401, PLC0415 - before everything else
    from xce.agent import config, daemon  # noqa: PLC0415
    from xce.agent.lock import CannotStart  # noqa: PLC0415
    from xce.agent.memory import Memory  # noqa: PLC0415
    from xce.model.configuration import ExternalFile  # noqa: PLC0415
    from xce.model.refusal import ConfigRefused  # noqa: PLC0415
    from xce.model.role import Role  # noqa: PLC0415

    if "--help" in argv:
        print(USAGE_TEXT)
        return GOOD
    try:
        options = Options(argv, values=["--config"])
        if len(options.arguments) > 1:
            raise UsageError(f"expected one DIR, not {len(options.arguments)}")
        path = options.get("--config", config.EXTERNAL)
        folder = os.path.abspath(options.arguments[0]) if options.arguments else ""

        def read() -> ExternalFile:
            memory = Memory(config.cache_directory())
            settings = config.read(path, ExternalFile, memory=memory, must_exist=options.has("--config"))
            return config.with_directory(settings, folder) if folder else settings

        return daemon.run(read, path, role=Role.REPORTER)
    except UsageError as error:
        output.fail(PROGRAM, f"{error}\n{USAGE_TEXT}")
        return USAGE
    except ConfigRefused as refused:
        output.fail(PROGRAM, "\n".join(str(error) for error in refused.errors))
    except CannotStart as error:
        output.fail(PROGRAM, str(error))
    return TROUBLE
