"""The broker as it is, but on loopback TCP without keys, which the product itself refuses.

    python -m bench.job.unlocked run --config FILE

The goals compare hubs over TCP, and the peers have no keys: with CURVE on one side only, what is measured is
encryption (which is a goal of its own, G9).
"""

import sys
from typing import Any

import xce.broker.daemon
from xce.broker.cli import main
from xce.wire.router import Router


class _Unlocked(Router[Any]):
    def _bind_all(self, listen: list[str], _key: object) -> None:
        for endpoint in listen:
            self.socket.bind(endpoint)
            self.endpoints.append(endpoint)


if __name__ == "__main__":
    xce.broker.daemon.Router = _Unlocked  # type: ignore[attr-defined]
    sys.exit(main())
