"""The examples in Python, given what they cannot use: one line that says so, and no traceback.

What they do with a broker is tried in tests/broker and tests/system.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.mark.parametrize(
    ("line", "status", "words"),
    [
        ("follow.py", 2, "usage: follow.py ENDPOINT [KEY_FILE BROKER_PUB]"),
        ("follow.py tcp://127.0.0.1:1 key", 2, "usage: follow.py ENDPOINT [KEY_FILE BROKER_PUB]"),
        ("follow.py tcp://127.0.0.1:1 /none.key /none.pub", 1, "follow: cannot read /none"),
        ("follow.py nonsense", 1, "follow: cannot connect to 'nonsense': "),
        ("follow.py ipc:///none/b.sock", 1, "follow: cannot reach the broker: there is no socket"),
        ("place.py", 2, "usage: place.py ENDPOINT JOB KIND=COUNT"),
        ("place.py ipc:///none/b.sock job gpu=two", 2, "usage: place.py ENDPOINT JOB KIND=COUNT"),
        ("place.py nonsense job gpu=2", 1, "place: cannot connect to 'nonsense': "),
        ("place.py ipc:///none/b.sock job gpu=2", 1, "place: cannot reach the broker: there is no socket"),
    ],
)
def test_what_cannot_be_used_is_said_in_a_line(line: str, status: int, words: str) -> None:
    name, *arguments = line.split()
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments],
        env=os.environ | {"PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == status
    (told,) = done.stderr.splitlines()
    assert told.startswith(words)
