"""The program `xce-csi-node-helper`: the agent gives it a socket as descriptor 3, and it ends with that."""

import contextlib
import os
import resource
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from xce.linux import syscalls
from xce.model import VERSION

PROGRAM = "xce-csi-node-helper"
NAME = "xce-csi-helper"
"""As process lists show it; the kernel keeps 15 characters."""
SOCKET = 3
MEMORY_BYTES = 512 << 20
"""Many times what it needs: a plugin may send without end."""
UNWANTED = ("ssl", "typing_extensions")
"""What asyncio, grpclib and msgspec load if it is there: 5 MB for nothing, since plugins are on this node."""
HELP = f"""\
usage: {PROGRAM} [--version]

Speaks CSI to the node plugins of vendors. xce-agent starts it, hands it a socket as
descriptor {SOCKET}, and ends it by closing that socket; there is nothing to do with it by
hand. `xce-agent csi` shows what it finds.

  --version  this version and those of its libraries: that they are there, and can be loaded

exit status: 0 the agent has closed the socket, 1 a library is missing, 2 it was started by hand"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments in (["--help"], ["-h"]):
        print(HELP)
        return 0
    try:
        if arguments == ["--version"]:
            print(_versions())
            return 0
        if arguments or (ours := _inherited()) is None:
            words = "xce-agent starts it and hands it a socket; by hand, try: xce-agent csi list"
            print(f"{PROGRAM}: cannot run: {words}\n{HELP}", file=sys.stderr)
            return 2
        _serve(ours)
    except ImportError as error:
        print(f"{PROGRAM}: cannot load a library: {error}", file=sys.stderr)
        return 1
    return 0


def _versions() -> str:
    """All that it needs is loaded, or there is an ImportError."""
    import grpclib  # noqa: PLC0415 - `--help` needs none of it
    from google import protobuf  # noqa: PLC0415

    from xce.csi_node_helper import serve  # noqa: F401, PLC0415

    return f"{PROGRAM} {VERSION} (grpclib {grpclib.__version__}, protobuf {protobuf.__version__})"


def _inherited() -> socket.socket | None:
    """The agent's socket; None if there is none."""
    with contextlib.suppress(OSError):
        ours = socket.socket(fileno=SOCKET)
        if ours.family == socket.AF_UNIX and ours.type == socket.SOCK_STREAM:
            return ours
        ours.detach()
    return None


def _serve(ours: socket.socket) -> None:
    """Until end of file. What is in its memory is on no disk: it leaves no core."""
    for name in UNWANTED:
        sys.modules[name] = None  # type: ignore[assignment]  # documented in the import system: not found
    import asyncio  # noqa: PLC0415 - `--help` needs none of it

    from xce.csi_node_helper.serve import serve  # noqa: PLC0415

    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(NAME, encoding="ascii")
    syscalls.leave_no_core()
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, most))
    os.chdir("/")  # nothing is kept busy by it
    asyncio.run(serve(ours))


if __name__ == "__main__":
    sys.exit(main())
