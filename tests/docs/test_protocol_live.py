"""The session on the protocol's page, held with the real broker."""

import json
import select
import time
from pathlib import Path
from typing import Any

import pytest

from tests.docs.test_protocol import session
from tests.fakes.fed_agent import FedAgent
from tests.fakes.live_broker import LiveBroker
from xce.broker.client import Broker, Client
from xce.wire.dealer import Dealer

pytestmark = pytest.mark.system


class Raw:
    """JSON over the socket, nothing else."""

    def __init__(self, endpoint: str) -> None:
        self.dealer = Dealer(endpoint, retry_s=(0.05, 0.1))
        self.got: dict[str, list[dict[str, Any]]] = {}
        """Answers by id."""

    def send(self, text: str) -> None:
        deadline = time.monotonic() + 10
        while not self.dealer.send(text.encode()):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def wait(self, request_id: str, count: int) -> None:
        deadline = time.monotonic() + 10
        while len(self.got.get(request_id, [])) < count:
            assert time.monotonic() < deadline, f"{count} answers to {request_id} wanted, got {self.got}"
            if not self.dealer.readable():
                select.select([self.dealer.fileno()], [], [], 0.05)
            for data in self.dealer.receive():
                assert data[:1] == b"{", "JSON is answered in JSON"
                answer = json.loads(data)
                if answer["type"] == "delta" and not {"values", "locations"} & answer.keys():
                    continue  # it says no more than that the facts before it are durable
                self.got.setdefault(answer["id"], []).append(answer)


def until_known(broker: Broker) -> None:
    """Until the broker has everything that the agent says by itself: nothing of it comes into the session."""
    with Client(broker) as client:
        deadline = time.monotonic() + 20
        while True:
            place = client.snapshot().locations["host:node1"]
            if place.state == "available" and place.values.get("level") == 812 and place.reporters:
                return
            assert time.monotonic() < deadline, place
            time.sleep(0.02)


def test_the_session_on_the_page_can_be_held_word_by_word(tmp_path: Path) -> None:
    with LiveBroker(tmp_path) as broker, FedAgent(broker.local, "node1", {"level": 812}) as agent:
        agent.wait_welcome()
        until_known(broker.local)
        raw = Raw(broker.local.endpoint)
        wanted: dict[str, list[str]] = {}
        for arrow, text in session():
            message = json.loads(text)
            if arrow == "→":
                if message.get("id") == "w1" and "since" in message:
                    message["since"] = raw.got["s1"][0]["position"]
                raw.send(json.dumps(message, separators=(",", ":")))
                continue
            if message["type"] == "delta" and "values" in message:
                agent.feed(level=799)
            wanted.setdefault(message["id"], []).append(message["type"])
            raw.wait(message["id"], len(wanted[message["id"]]))
        for request_id, types in wanted.items():
            assert [answer["type"] for answer in raw.got[request_id]][: len(types)] == types
        values, hold = raw.got["w1"][1:3]
        assert values["values"] == {"host:node1": {"level": 799}}
        assert hold["locations"]["host:node1"]["holds"][0]["reason"] == "a job left its disk full"
        assert raw.got["77e0-op"][0]["code"] == "not-found"
        raw.dealer.close()
