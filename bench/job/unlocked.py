"""The broker as it is, but on loopback TCP without keys, which the product itself refuses.

    python -m bench.job.unlocked FILE

The goals compare hubs over TCP, and the peers have no keys: with CURVE on one side only, what is measured is
encryption (which is a goal of its own, G9).
"""

import sys
from pathlib import Path

from xce.broker import daemon
from xce.broker.core.peer import Peer
from xce.wire.router import Router


class _Unlocked(Router[Peer]):
    def _bind_all(self, listen: list[str], _key: object) -> None:
        for endpoint in listen:
            self.socket.bind(endpoint)
            self.endpoints.append(endpoint)


if __name__ == "__main__":
    sys.exit(daemon.run(Path(sys.argv[1]), router=_Unlocked))
