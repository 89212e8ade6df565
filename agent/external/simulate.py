"""`xce-reporter simulate`: see `xce.reporters.simulate`."""

from collections.abc import Sequence

SUMMARY = "print values that move by the rules of a file, as a persistent reporter"


def run(argv: Sequence[str]) -> int:
    """Play it."""
    from xce.reporters import simulate  # noqa: PLC0415 - not for --help

    return simulate.main(argv)
