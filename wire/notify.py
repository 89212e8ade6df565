"""What the service manager is told, sd_notify(3): datagrams to the socket that NOTIFY_SOCKET names.

Not by systemd's own library: where that is missing, a start by the unit would wait for READY without end.
"""

import contextlib
import os
import socket
from collections.abc import Callable

_WITHIN_S = 1.0
"""A manager that does not read holds nobody up."""


def notifier() -> Callable[[str], None] | None:
    """What tells the manager lines like `READY=1`, or drops them; None where no manager listens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return None
    where = "\0" + address[1:] if address.startswith("@") else address  # abstract: unix(7)

    def tell(text: str) -> None:
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as told,
        ):
            told.settimeout(_WITHIN_S)
            told.sendto(text.encode(), where)

    return tell
