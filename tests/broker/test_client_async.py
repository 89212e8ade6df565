"""The asyncio client: the same conversations, in other people's loops."""

import asyncio
from pathlib import Path

import pytest

from tests.broker.test_client import at, change, heard, obedient, silence
from tests.fakes.scripted_broker import ScriptedBroker
from xce.broker.client import Broker, BrokerUnreachable, Changed, Fresh
from xce.broker.client_async import AsyncClient
from xce.model.message import HostDrain, StatusRequest, WatchRequest
from xce.model.role import Role
from xce.wire import keys


def test_many_tasks_share_one_client(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncClient(at(tmp_path / "b")) as client:
            orders = [client.ask(HostDrain(id="", host=f"node{n}", reason="fan")) for n in range(50)]
            answers, mirror = await asyncio.gather(asyncio.gather(*orders), client.snapshot())
            assert [answer.revision for answer in answers] == [4] * 50
            assert mirror.revision == 3

    with ScriptedBroker(obedient, local=tmp_path / "b"):
        asyncio.run(main())


def test_changes_come_while_another_task_works(tmp_path: Path) -> None:
    async def main(broker: ScriptedBroker) -> None:
        async with AsyncClient(at(tmp_path / "b")) as client:
            watch = client.watch()
            while not isinstance(await watch.next(10), Fresh):
                pass
            (begun,) = await asyncio.to_thread(heard, broker, WatchRequest)
            assert isinstance(begun, WatchRequest)
            for sequence in range(6, 200):
                broker.say(change(begun.id, sequence))
            seen = 0
            async for event in watch:
                assert isinstance(event, Changed)
                seen += 1
                if seen == 50:
                    assert (await client.ask(HostDrain(id="", host="a", reason="b"))).revision == 4
                if event.delta.position.sequence == 199:
                    break
            assert watch.mirror is not None
            assert watch.mirror.locations["host:node1"].values == {"mem": 199}

    with ScriptedBroker(obedient, local=tmp_path / "b") as broker:
        asyncio.run(main(broker))


def test_silence_and_a_wrong_key_are_told_as_by_the_other_client(tmp_path: Path) -> None:
    mine, theirs = keys.new("me", Role.ADMIN), keys.new("broker", "broker")

    async def main(local: Broker, remote: Broker) -> None:
        async with AsyncClient(local, timeout=0.2) as client:
            with pytest.raises(BrokerUnreachable, match=r"has not answered within 0\.2 s"):
                await client.ask(StatusRequest(id=""))
        async with AsyncClient(remote, timeout=30) as client:
            with pytest.raises(BrokerUnreachable, match="rejected by broker"):
                await client.ask(StatusRequest(id=""))

    with ScriptedBroker(silence, local=tmp_path / "b", key=theirs) as broker:
        local, remote = broker.endpoints
        asyncio.run(main(Broker(local), Broker(remote, mine, theirs.public)))


def test_closing_the_client_ends_what_waits(tmp_path: Path) -> None:
    async def main() -> None:
        client = AsyncClient(at(tmp_path / "b"))
        waiting = asyncio.create_task(client.snapshot())
        await asyncio.sleep(0.1)
        client.close()
        client.close()
        with pytest.raises(BrokerUnreachable, match="closed"):
            await waiting

    with ScriptedBroker(silence, local=tmp_path / "b"):
        asyncio.run(main())
