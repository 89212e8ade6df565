"""`xce-reporter`: values that belong to no host, played, simulated, or by the thousand.

One module per subcommand in `external/`, loaded only when it is named; see `agent/cli/`.
"""

import sys
from collections.abc import Sequence

from xce.agent.cli import dispatch

COMMANDS = ("run", "join", "status", "explain", "replay", "simulate", "fleet")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns its exit code."""
    return dispatch(
        "xce-reporter", "xce.agent.external", COMMANDS, list(sys.argv[1:] if argv is None else argv)
    )


if __name__ == "__main__":
    sys.exit(main())
