#!/usr/bin/env python3
"""A controller in its smallest form: takes a snapshot of the supply map and follows the changes.

    follow.py ipc:///run/xce-broker/broker.sock
    follow.py tcp://broker.example.org:7400 controller.key broker.pub

A real controller would place jobs by `watch.mirror.locations`; this one prints. Whatever happens to the link
or to the broker, the mirror is either right or replaced by a fresh one.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from xce.broker.client import Broker, BrokerError, Changed, Client, Event, Fresh, LinkNews
from xce.model.message import Delta, LocationChange, LocationView
from xce.model.value import Absent, Reading
from xce.wire.keys import KeyFileError


def main(arguments: list[str]) -> int:
    """The program: an endpoint, then a key file and the broker's public key for tcp."""
    if len(arguments) not in {1, 3}:
        print("usage: follow.py ENDPOINT [KEY_FILE BROKER_PUB]", file=sys.stderr)
        return 2
    endpoint, *files = arguments
    try:
        broker = Broker.by_files(endpoint, *map(Path, files)) if files else Broker(endpoint)
        with Client(broker) as client:
            for event in client.watch():
                print("\n".join(lines_of(event)), flush=True)
    except (BrokerError, KeyFileError, ValueError) as error:
        print(f"follow: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:  # `| head` has seen enough; Python would write once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def lines_of(event: Event) -> Iterator[str]:
    """An event in words."""
    match event:
        case Fresh(mirror, reason):
            place = mirror.position
            yield f"snapshot {reason or ''}at revision {mirror.revision}, {place.epoch}.{place.sequence}:"
            for key, view in sorted(mirror.locations.items()):
                yield from lines_of_location(key, view)
        case Changed(delta):
            yield from lines_of_delta(delta)
        case LinkNews(up, text):
            yield f"link {'up' if up else 'down'}: {text}"


def lines_of_location(key: str, view: LocationView) -> Iterator[str]:
    """One location of a snapshot."""
    held = "".join(f", held by {hold.owner}: {hold.reason}" for hold in view.holds)
    yield f"  {key}: {view.state}{held}"
    for name, reading in sorted(view.values.items()):
        yield f"    {name} = {text_of(reading)}"


def lines_of_delta(delta: Delta) -> Iterator[str]:
    """What one turn of the broker has changed."""
    number = f"change {delta.position.epoch}.{delta.position.sequence}:"
    for key in delta.removed:
        yield f"{number} {key} is gone"
    for key, change in sorted(delta.changes().items()):
        for text in texts_of(change):
            yield f"{number} {key} {text}"


def texts_of(change: LocationChange) -> Iterator[str]:
    """What has changed at one location."""
    if change.state is not None:
        yield f"is {change.state}"
    if change.holds is not None:
        yield "held by " + (", ".join(hold.owner for hold in change.holds) or "nobody")
    for name, reading in sorted(change.values.items()):
        yield f"{name} = {'withdrawn' if reading is None else text_of(reading)}"


def text_of(reading: Reading) -> str:
    """A value, or why there is none."""
    if isinstance(reading, Absent):
        return f"{reading.presence} ({reading.cause})" if reading.cause else str(reading.presence)
    return " ".join(reading) if isinstance(reading, list) else str(reading)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
