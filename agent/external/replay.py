"""`xce-reporter replay`: see `xce.reporters.replay`."""

from collections.abc import Sequence

SUMMARY = "play a recording as a persistent reporter would print it"


def run(argv: Sequence[str]) -> int:
    """Play it."""
    from xce.reporters import replay  # noqa: PLC0415 - not for --help

    return replay.main(argv)
