"""A process that is killed: records batches without end, and says which were acknowledged.

Prints one JSON line `[first revision, last revision]` for each acknowledged batch, written before anything
else happens. A batch's facts carry its op_id and its size, so that a half one can be seen.
"""

import os
import random
import select
import sys

import msgspec

from xce.broker.store import Batch
from xce.broker.store.sqlite import SqliteStore
from xce.model.fact import Fact, HostAdmitted

WINDOW = 8


def main(directory: str) -> None:
    store = SqliteStore(directory)
    revision = store.load().revision
    os.write(1, b"[0,0]\n")
    spans: dict[int, tuple[int, int]] = {}
    while True:
        while len(spans) < WINDOW:
            first, size = revision + 1, random.randint(1, 20)
            revision += size
            op_id = f"op-{first}"
            facts = [
                Fact(revision=number, change=HostAdmitted(host=f"of{size}"), op_id=op_id)
                for number in range(first, revision + 1)
            ]
            spans[first] = (first, revision)
            assert store.submit(Batch(facts, {op_id: ("d", b"x" * random.randint(0, 5000))}), token=first)
        select.select([store.fileno()], [], [], 10)
        for outcome in store.completed():
            assert outcome.error is None, outcome.error
            os.write(1, msgspec.json.encode(spans.pop(outcome.token)) + b"\n")


if __name__ == "__main__":
    main(sys.argv[1])
