"""The look at a reporters' directory in a process of its own, for a directory on a file system that may hang.

`python -m xce.reporters.looker DIRECTORY UID...`: each byte on stdin asks for a look, an `Answer` with its
length in front goes to stdout. It ends at the end of stdin. The scripts themselves are in the answer: what
the agent runs is what was checked, and it opens nothing on that file system.
"""

import os
import struct
import sys
from collections.abc import Mapping

import msgspec

from xce.reporters import directory
from xce.reporters.directory import Candidate
from xce.reporters.frame import escape

HEAD = struct.Struct("<Q")
ANSWER_BYTES = 64 << 20


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a look found. `candidates` None: the same as at the look before, or `fault` says why not."""

    candidates: list[Candidate] | None = None
    fault: str = ""


def main() -> int:
    """Look until nobody asks any more."""
    path, trusted = sys.argv[1], {int(uid) for uid in sys.argv[2:]}
    before: dict[str, Candidate] = {}
    told = False
    while os.read(0, 1):
        answer = _look(path, trusted, before)
        if answer.candidates is not None:
            found = {candidate.name: candidate for candidate in answer.candidates}
            if told and found == before:
                answer = Answer()
            before, told = found, True
        data = msgspec.msgpack.encode(answer)
        if len(data) > ANSWER_BYTES:
            told = False
            data = msgspec.msgpack.encode(
                Answer(fault=f"the scripts are over {ANSWER_BYTES >> 20} MiB together")
            )
        _write(HEAD.pack(len(data)) + data)
    return 0


def _look(path: str, trusted: set[int], before: Mapping[str, Candidate]) -> Answer:
    try:
        found = directory.scan(path, trusted, before=before, copies=True)
    except OSError as error:
        return Answer(fault=f"cannot read {escape(path)}: {error.strerror}")
    return Answer(candidates=list(found.values()))


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


if __name__ == "__main__":
    sys.exit(main())
