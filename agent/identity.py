"""Who this process is to the broker, and the keys that prove it."""

import os
import socket
from pathlib import Path

from xce.agent.core import Identity
from xce.linux import proc
from xce.model import VERSION
from xce.model.configuration import AgentFile, ExternalFile
from xce.model.role import Role
from xce.wire import keys
from xce.wire.keys import KeyFileError, KeyPair
from xce.wire.trust import Trust


def name_of(settings: AgentFile | ExternalFile, role: Role) -> str:
    """As configured, else the host's name, or an external reporter's key's. Raises `KeyFileError`."""
    if settings.name or role is Role.AGENT:
        return settings.name or socket.gethostname()
    return keys.load(Path(settings.key), secret=False).name


def identity(name: str, role: Role) -> Identity:
    """What hello says: a new nonce for each process."""
    return Identity(
        role=role.value,
        name=name,
        software=VERSION,
        machine_id=proc.machine_id(),
        boot_id=proc.boot_id(),
        nonce=os.urandom(8).hex(),
        address=f"{socket.gethostname()} pid {os.getpid()}",
    )


def broker_key(settings: AgentFile | ExternalFile) -> str:
    """The file with the broker's public key; '' on a local socket, which is guarded by its file mode."""
    return "" if settings.broker.startswith("ipc://") else settings.broker_key


def credentials(settings: AgentFile | ExternalFile, trust: Trust) -> tuple[KeyPair | None, bytes | None]:
    """Our key and the broker's, read anew for each socket, so that a repaired file is enough.

    None on a local socket. Raises ValueError in words.
    """
    if not broker_key(settings):
        return None, None
    try:
        return keys.load(Path(settings.key), secret=True), trust.key()
    except KeyFileError as error:
        missing = isinstance(error.__cause__, FileNotFoundError)
        raise ValueError(f"{error}{'; the keys are made by `join`' if missing else ''}") from error
