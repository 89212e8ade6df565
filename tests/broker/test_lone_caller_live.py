"""A caller alone, for whom the store's thread has the loop: signals and hung disks meet the real broker."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.test_daemon import status, until
from tests.fakes.live_broker import LiveBroker
from tests.linux.sickdisk import SickDisk
from tests.linux.surroundings import own_mounts
from xce.broker.client import Broker, BrokerError, Client
from xce.model import message as m
from xce.model.claim import Claim, ClaimForm


class Caller(threading.Thread):
    """Gives one order after the other, each as soon as the one before is answered."""

    def __init__(self, address: Broker) -> None:
        super().__init__(daemon=True)
        self._address = address
        self.done: dict[str, int] = {}
        self.error: BrokerError | None = None
        self.over = False

    def run(self) -> None:
        try:
            with Client(self._address, timeout=20) as client:
                while not self.over:
                    name = f"c{len(self.done)}"
                    claim = Claim(id=name, form=ClaimForm.STANDALONE)
                    self.done[name] = client.ask(m.ClaimCreate(id=f"make-{name}", claim=claim)).revision
        except BrokerError as error:
            self.error = error

    def goes_on(self) -> None:
        """Wait until some more are answered."""
        before = len(self.done)
        until(lambda: len(self.done) >= before + 20)


def made(broker: LiveBroker) -> set[str]:
    with Client(broker.local) as client:
        return set(client.ask(m.ClaimsRequest(id="all")).claims)


@pytest.mark.parametrize("way", ["end", "kill"])
def test_what_was_answered_is_there_when_the_broker_ends_in_the_middle(tmp_path: Path, way: str) -> None:
    with LiveBroker(tmp_path) as broker:
        caller = Caller(broker.local)
        caller.start()
        caller.goes_on()
        for _ in range(3):
            broker.reload()
            caller.goes_on()
        began = time.monotonic()
        if way == "end":
            assert broker.stop() == 0
            assert time.monotonic() - began < 10
            orders = {f"make-{name}" for name in caller.done}
            assert orders <= broker.audited(), "answered, and without a line of the audit log"
        else:
            broker.kill()
        answered = set(caller.done)
        broker.start()
        caller.over = True
        caller.join(30)
        assert not caller.is_alive()
        assert answered <= set(caller.done) <= made(broker)
        assert broker.log.read_text().count("took up broker.yaml") == 3


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SickDisk]:
    own_mounts()
    (tmp_path / "sick").mkdir()
    with SickDisk(tmp_path / "state", tmp_path / "sick", size=64 << 20) as disk:
        yield disk


@pytest.mark.root
def test_a_frozen_disk_keeps_the_caller_waiting_and_nobody_else(tmp_path: Path, disk: SickDisk) -> None:
    directory = tmp_path / "broker"
    directory.mkdir()
    with (
        LiveBroker(directory, state_directory=str(disk.root)) as broker,
        Client(broker.local) as other,
    ):
        caller = Caller(broker.local)
        caller.start()
        for _ in range(3):
            caller.goes_on()
            worst = 0.0
            with disk.frozen():
                time.sleep(0.1)
                answered, until_s = len(caller.done), time.monotonic() + 0.6
                while (began := time.monotonic()) < until_s:
                    assert other.snapshot().locations["host:node1"].state == "expected"
                    worst = max(worst, time.monotonic() - began)
                assert len(caller.done) == answered, "answered, and not on the disk"
            assert worst < 0.5
        caller.goes_on()
        caller.over = True
        caller.join(30)
        assert caller.error is None
        assert status(broker).trouble == []
        assert made(broker) == set(caller.done)
        os.kill(status(broker).pid, signal.SIGTERM)
        assert broker.stop() == 0
