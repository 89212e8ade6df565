"""The program: `python -m xce.csi_node_helper.main`, its socket as descriptor 3. It ends with that socket."""

import asyncio
import contextlib
import socket
from pathlib import Path

from xce.csi_node_helper.serve import Server
from xce.model import csi

NAME = "xce-csi-helper"
"""As process lists show it; the kernel keeps 15 characters."""
SOCKET = 3


async def serve() -> None:
    """Until end of file."""
    reader, writer = await asyncio.open_connection(
        sock=socket.socket(fileno=SOCKET), limit=csi.FRAME_BYTES + 4
    )
    await Server(reader, writer).run()


def main() -> None:
    """Run it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(NAME, encoding="ascii")
    asyncio.run(serve())


if __name__ == "__main__":
    main()
