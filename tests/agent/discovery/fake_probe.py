"""Tiny probes in shell, for tests of what runs the probe: each is a program that does one thing."""

from pathlib import Path

LINE = '{"xce":1,"instances":[{"id":"GPU-a","kind":"gpu","attributes":{"vendor":"nvidia"}}]}'
RESTING = '{"xce":1,"instances":[],"rest":true,"interval_s":50}'
ORDERS = """
while read -r order <&3; do
    case $order in
    *'"release"'*) echo '{"answer":"release","number":'"$(echo "$order" | tr -cd 0-9)"'}' ;;
    *) echo "$order" >> "$(dirname "$0")/orders" ;;
    esac
done
"""


def make(folder: Path, text: str) -> list[str]:
    """The command of a probe that runs this; each start leaves a line in `starts`."""
    script = folder / "probe.sh"
    script.write_text(f'echo "$1" >> "{folder}/starts"\n{text}\n')
    return ["/bin/sh", str(script)]


def starts(folder: Path) -> int:
    """How often it was started."""
    file = folder / "starts"
    return len(file.read_text().splitlines()) if file.exists() else 0
