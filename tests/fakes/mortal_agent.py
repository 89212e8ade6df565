"""The agent as it is, but at a point of its work with claims it dies, and others with it.

    python -m tests.fakes.mortal_agent CONFIG STRIKE

The file STRIKE has a line `POINT PID...`: those processes are killed when the point is passed, and then the
agent. The first kill removes the file. `STRIKE.passed` has all points that were passed.
"""

import contextlib
import os
import signal
import sys
from pathlib import Path

from xce.agent import config, daemon
from xce.agent.log import Log
from xce.agent.memory import Memory
from xce.model.configuration import AgentFile
from xce.model.role import Role


def main(path: str, strike: str) -> int:
    class Mortal(daemon.Daemon):
        """See the module."""

        @staticmethod
        def mark(point: str) -> None:
            with open(f"{strike}.passed", "a", encoding="ascii") as passed:
                passed.write(f"{point}\n")
            with contextlib.suppress(FileNotFoundError):
                where, *pids = Path(strike).read_text().split()
                if where == point:
                    os.unlink(strike)
                    for pid in (*map(int, pids), os.getpid()):
                        os.kill(pid, signal.SIGKILL)

    def read() -> AgentFile:
        return config.read(path, AgentFile, memory=Memory(config.cache_directory()), must_exist=True)

    return Mortal(read, path, role=Role.AGENT, logger=Log()).run()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
