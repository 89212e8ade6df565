"""`xce-broker provide FILE`: a simulated provider, with delays and faults."""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from xce.broker.cli import COMMANDS, output
from xce.broker.cli.connect import chosen, connect
from xce.broker.cli.options import GOOD, Example, UsageError, carry_out, positive
from xce.broker.cli.options import parser as command_parser
from xce.broker.client import Changed, Client, Fresh, LinkNews
from xce.broker.session import BrokerRefused, BrokerUnreachable
from xce.broker.simulated_provider import SimulatedProvider, Word
from xce.model import document, human
from xce.model.claim import ENDED
from xce.model.message import ClaimProvide
from xce.model.simulated import SimulatedClaims

SUMMARY = COMMANDS["provide"]
ABOUT = """
Claims that name a provider wait for it: it says when what they ask for is there, and when it has let go of
it. This one makes nothing: it waits, fails or hangs as the rules under `claims:` in FILE say, see
docs/simulation.md.
Which claims are meant: those whose provider is the name of our key, or --name.

  claims:
    - {claims: [scratch-*], create_s: [5, 60], delete_s: 2}
    - {share: 0.1, fail: 'no space in pool fast'}
    - {create_s: 3, volume: {path: '/volumes/{claim}'}}
"""
AGAIN_S = 1.0
"""After an order that the broker did not answer."""


def parser() -> argparse.ArgumentParser:
    """The command's options and help."""
    made = command_parser(
        "provide",
        SUMMARY,
        ABOUT,
        [
            Example("xce-broker provide claims.yaml --name store", "on the broker's own host"),
            Example("xce-broker key new store --role provider", "elsewhere: its name is the key's"),
            Example("xce-broker key add store.pub", "on the broker's host"),
            Example("xce-broker provide claims.yaml --key store.key", "until it is interrupted"),
        ],
    )
    made.add_argument("file", type=Path, help="the rules, in YAML")
    made.add_argument("--name", default="", help="of the provider; needed without a key of its own")
    made.add_argument("--seconds", type=positive, default=None, help="end after so long")
    return made


def run(argv: Sequence[str]) -> int:
    """Carry the command out."""
    return carry_out(parser(), _body, argv)


def _body(options: argparse.Namespace) -> int:
    rules = document.given(options.file.read_bytes, str(options.file), SimulatedClaims, UsageError)
    key = chosen(options).key
    name = options.name or (key.name if key is not None else "")
    if not name:
        words = "--name of the provider: the broker's local socket takes no keys, and has no names"
        raise UsageError("which provider?", words)
    end = None if options.seconds is None else time.monotonic() + options.seconds
    with connect(options) as client:
        _serve(client, name, SimulatedProvider(rules), end)
    return GOOD


def _serve(client: Client, name: str, provider: SimulatedProvider, end: float | None) -> None:
    watch = client.watch()
    shown: set[str] = set()
    while end is None or time.monotonic() < end:
        now = time.monotonic()
        for word in provider.take(now):
            _tell(client, provider, word, now)
        waits = min(provider.due(), now + AGAIN_S if end is None else end) - time.monotonic()
        event = watch.next(max(0, waits))
        if isinstance(event, LinkNews):
            output.aside(event.text)
        mirror = watch.mirror
        if mirror is None or not isinstance(event, Changed | Fresh):
            continue
        ours = {claim for claim, view in mirror.claims.items() if view.claim.provider == name}
        if isinstance(event, Fresh):
            output.aside(f"provider {name} follows the broker, which has {len(ours)} claims of it")
        bound = {one.binding.claim for one in mirror.bindings.values() if one.binding.state not in ENDED}
        for claim in ours | shown:
            provider.see(claim, mirror.claims.get(claim), time.monotonic(), bound=claim in bound)
        shown = ours


def _tell(client: Client, provider: SimulatedProvider, word: Word, now: float) -> None:
    order = ClaimProvide(id="", claim=word.claim, state=word.state, reason=word.reason, volume=word.volume)
    try:
        client.ask(order)
    except BrokerUnreachable as error:
        output.aside(f"{word.claim}: {error.message}")
        provider.again(word, now + AGAIN_S)
    except BrokerRefused as error:  # it is gone, or not ours
        output.aside(f"{word.claim}: {error.message}")
    else:
        print(human.printable(f"{word.claim} {word.state.value} {word.reason}".rstrip()), flush=True)
