"""Each file of the broker emptied, torn, scribbled on or lost, one by one, after kill -9 with claims ready.

Which files there are is what is found. The broker starts with all that it knew, or says in words which file
is wrong and does not start; in no case is a device given away, a claim forgotten, or a file of its deleted.
By default each file in one of these ways; with `XCE_TEST_FULL=1` in all of them.
"""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.nodes import gpus
from tests.broker.test_claims_live import bind_order, until
from tests.fakes.claim_agent import ClaimAgent
from tests.fakes.damage import Damage, to_each
from tests.fakes.live_broker import LiveBroker
from xce.broker.client import BrokerRefused, BrokerUnreachable, Client
from xce.model import message as m
from xce.model.claim import Ask, Binding, Claim, InstanceAsk
from xce.model.role import Role

pytestmark = [pytest.mark.system, pytest.mark.slow]

KEPT = ("state", "audit", "broker.key", "accepted")


def files_of(directory: Path) -> list[str]:
    """All that it keeps."""
    roots = [directory / name for name in KEPT]
    found = [path for root in roots for path in (root, *root.rglob("*")) if path.is_file()]
    return sorted(str(path.relative_to(directory)) for path in found)


def bindings(broker: LiveBroker) -> dict[str, Binding]:
    with Client(broker.local, timeout=20) as client:
        return {name: one.binding for name, one in client.ask(m.ClaimsRequest(id="")).bindings.items()}


def judged(broker: LiveBroker, client: Client, claim: str, gpu: str) -> list[str]:
    """Bind a claim, once the host may be chosen; raises `BrokerRefused`."""
    end = time.monotonic() + 20
    while True:
        until(broker, "node1")
        try:
            return client.ask(bind_order(claim, "node1", gpu)).made
        except BrokerRefused as refused:
            if "has it" in str(refused) or time.monotonic() > end:
                raise
            time.sleep(0.02)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LiveBroker]:
    """It has been stopped once, so that its caches are there, and has recorded something since."""
    with LiveBroker(tmp_path, tcp=True) as broker:
        broker.new_key("sched", Role.CONTROLLER)
        ask = Ask(instances=[InstanceAsk(kind="gpu")])
        with ClaimAgent(broker.local, "node1", {"level": 1}, inventory=gpus()):
            for number, gpu in enumerate(("GPU-a", "GPU-b")):
                with Client(broker.local) as client:
                    client.ask(m.ClaimCreate(id="", claim=Claim(id=f"c{number}", ask=ask)))
                    client.wait_bindings(judged(broker, client, f"c{number}", gpu), timeout=20)
                if number == 0:
                    broker.stop()
                    broker.start()
            with Client(broker.local) as client:
                client.ask(m.ClaimCreate(id="", claim=Claim(id="greedy", ask=ask)))
            broker.kill()
            yield broker


def put_back(directory: Path, saved: Path) -> None:
    for path in files_of(directory):
        (directory / path).unlink()
    for path in files_of(saved):
        shutil.copy2(saved / path, directory / path)


def contents(directory: Path) -> dict[str, bytes]:
    """What is in the files. Not of the lock, nor of the database, which takes up its log."""
    return {
        path: b"" if path.endswith((".lock", ".db")) else (directory / path).read_bytes()
        for path in files_of(directory)
    }


def test_c_sta_01_with_a_damaged_file_the_broker_has_all_or_says_what_is_wrong(
    broker: LiveBroker, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    saved = tmp_path_factory.mktemp("saved")
    shutil.copytree(tmp_path, saved, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock"))
    broker.start()
    before = bindings(broker)
    assert len(before) == 2
    broker.kill()
    files = files_of(saved)
    assert {"state/facts.db", "state/facts.db-wal", "state/values.cache", "broker.key"} <= set(files)
    wrong = {}
    for damage in to_each(files):
        put_back(tmp_path, saved)
        damage.to(tmp_path)
        try:
            holds_on(broker, damage, before)
        except (AssertionError, BrokerUnreachable) as error:
            wrong[damage] = str(error)[:600]
        broker.kill()
    assert not wrong, "\n".join(f"{where}: {what}" for where, what in wrong.items())


def holds_on(broker: LiveBroker, damage: Damage, before: dict[str, Binding]) -> None:
    directory, said = broker.directory, broker.log.stat().st_size
    left = contents(directory)
    broker.begin()
    if broker.answers() is None:
        words = broker.log.read_bytes()[said:].decode().splitlines()[-1]
        assert words.startswith("xce-broker: ")
        assert damage.path.removesuffix("-wal").rpartition("/")[2] in words
        assert "Traceback" not in broker.log.read_text()
        assert contents(directory) == left, "it was not to be touched"
        return
    assert bindings(broker) == before
    with Client(broker.local) as client:
        for gpu in ("GPU-a", "GPU-b"):
            with pytest.raises(BrokerRefused, match="has it"):
                judged(broker, client, "greedy", gpu)
