"""The shells load what is generated for them, and complete: a real shell on a terminal, and its TAB key."""

import os
import re
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.project import tree

FOLDER = tree.ROOT / "packaging/completion"
BASH = f"PS1='$ '; bind 'set bell-style none'; source {FOLDER}/xce.bash\n"
ZSH = "PS1='$ '; unsetopt BEEP; fpath=({folder} $fpath); autoload -Uz compinit; compinit -u -d {dump}\n"
WITHIN_S = 20.0


class Shell:
    """An interactive shell whose terminal we hold."""

    def __init__(self, argv: list[str], setting_up: str, home: Path) -> None:
        self._ours, theirs = os.openpty()
        environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TERM": "dumb", "LC_ALL": "C"}
        self._process = subprocess.Popen(
            argv,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            start_new_session=True,
            cwd=home,
        )
        os.close(theirs)
        os.write(self._ours, setting_up.encode() + b"echo rea''dy\n")
        self.until("ready")

    def until(self, wanted: str) -> str:
        """What is on the screen once it has `wanted`."""
        screen, deadline = "", time.monotonic() + WITHIN_S
        while not re.search(wanted, screen):
            left = deadline - time.monotonic()
            assert left > 0, f"no {wanted!r} in {screen!r}"
            if select.select([self._ours], [], [], left)[0]:
                screen += os.read(self._ours, 4096).decode(errors="replace")
        return screen

    def types(self, keys: str, wanted: str) -> None:
        """Press keys, and see it; then give the line up."""
        os.write(self._ours, keys.encode())
        self.until(wanted)
        os.write(self._ours, b"\x15\n")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)


@pytest.fixture(params=["bash", "zsh"])
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shell]:
    name = request.param
    if shutil.which(name) is None:
        pytest.skip(f"needs {name}: apt-get install {name}")
    argv = ["bash", "--norc", "-i"] if name == "bash" else ["zsh", "-f", "-i"]
    setting_up = BASH if name == "bash" else ZSH.format(folder=FOLDER, dump=tmp_path / "dump")
    one = Shell(argv, setting_up, tmp_path)
    yield one
    one.close()


def test_commands_verbs_and_options_are_completed(shell: Shell) -> None:
    shell.types("xce-agent doc\t", r"xce-agent doctor")
    shell.types("xce-broker tok\t", r"xce-broker token")
    shell.types("xce-broker token rev\t", r"token revoke")
    shell.types("xce-agent join --tok\t", r"join --token")
    shell.types("xce-reporter sim\t", r"xce-reporter simulate")


def test_a_file_is_completed_where_a_file_belongs(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "token-of-node17").touch()
    shell.types("xce-agent join --token token-of\t", r"token-of-node17")
