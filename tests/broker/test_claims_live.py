"""Claims with the real broker, its commands and its clients, and agents that speak the real link."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from tests.broker.nodes import gpus, pick
from tests.broker.test_cli_live import call, call_json
from tests.fakes.claim_agent import ClaimAgent
from tests.fakes.live_broker import LiveBroker
from xce.broker.cli import main
from xce.broker.client import BrokerError, BrokerRefused, BrokerUnreachable, Client
from xce.broker.client_async import AsyncClient
from xce.model import message as m
from xce.model.claim import Ask, BindingState, Claim, Consumer, InstanceAsk

pytestmark = pytest.mark.system
Output = pytest.CaptureFixture[str]
T = TypeVar("T")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path) as broker:
        yield broker


def agent(broker: LiveBroker, host: str) -> ClaimAgent:
    """An agent with three GPUs; to be entered."""
    return ClaimAgent(broker.local, host, {"level": 1}, inventory=gpus())


def until(broker: LiveBroker, *hosts: str) -> None:
    """Until these hosts may be chosen, with their inventories."""
    with Client(broker.local) as client:
        watch = client.watch()
        while True:
            watch.next(5)
            seen = watch.mirror.locations if watch.mirror else {}
            if all(
                (view := seen.get(f"host:{host}")) and view.state == "available" and view.inventories
                for host in hosts
            ):
                return


def failing(broker: LiveBroker, capsys: Output, *arguments: str, code: int) -> str:
    """Standard error of a command that ends with `code`."""
    assert main([*arguments, "--broker", broker.local.endpoint]) == code
    return capsys.readouterr().err


def test_instances_shows_what_a_host_has_with_holders_and_quarantine(
    broker: LiveBroker, capsys: Output
) -> None:
    with agent(broker, "node1"):
        until(broker, "node1")
        call(broker, capsys, "claim", "create", "job-7", "--instances", "gpu=1")
        bind = ("claim", "bind", "job-7", "node1=GPU-b", "--consumer", "7", "--wait", "20")
        binding = call(broker, capsys, *bind).split()[0]
        call(broker, capsys, "quarantine", "set", "node1", "GPU-c", "--reason", "fails under load")
        lines = call(broker, capsys, "instances", "node1").splitlines()
        assert lines[1].split() == ["node1", "nvidia", "1", "yes", "3"]
        a, b, c = lines[-3:]
        assert a.split()[:3] == ["node1", "GPU-a", "gpu"]
        assert b.split()[-4:] == ["available", binding, "(job-7)", "-"]
        assert c.split(maxsplit=8)[-1].split() == ["quarantined", "-", "fails", "under", "load"]
        (row,) = call_json(broker, capsys, "instances", "node*", "--problems", code=1)["instances"]
        assert row["instance"]["id"] == "GPU-c"
        assert call_json(broker, capsys, "instances", "--kind", "nic")["instances"] == []


def test_a_claim_from_its_file_to_its_end_by_commands(
    broker: LiveBroker, capsys: Output, tmp_path: Path
) -> None:
    file = tmp_path / "job-7.yaml"
    file.write_text("id: job-7\nowner: alice\nask:\n  instances:\n    - {kind: gpu, count: 2}\n")
    with agent(broker, "node1") as node:
        until(broker, "node1")
        assert "claim job-7 created, revision" in call(broker, capsys, "claim", "create", "-f", str(file))
        bind = ("claim", "bind", "job-7", "node1=GPU-a,GPU-b", "--consumer", "7", "--wait", "20")
        line = call(broker, capsys, *bind)
        binding = line.split()[0]
        assert line.split() == [binding, "node1", "ready"]
        (row,) = call_json(broker, capsys, "claim", "list")
        assert (row["claim"], row["owner"], row["state"], row["hosts"]) == (
            "job-7",
            "alice",
            "ready",
            ["node1"],
        )
        waited = call(broker, capsys, "claim", "wait", "job-7", binding)
        assert waited.splitlines() == ["job-7 ready", f"{binding} node1 ready"]
        defined = call_json(broker, capsys, "claim", "show", "job-7", "--definition")
        assert defined["ask"]["instances"] == [{"kind": "gpu", "count": 2}]
        file.write_text(json.dumps(defined).replace("job-7", "job-8"))
        call(broker, capsys, "claim", "create", "-f", str(file))
        call(broker, capsys, "claim", "wait", "job-8", "--wait", "0.3", code=1)
        call(broker, capsys, "claim", "release", "job-8")
        shown = call(broker, capsys, "claim", "show", "job-7")
        assert "asks for    2 gpu" in shown
        assert "GPU-a,GPU-b" in shown
        again = failing(broker, capsys, *bind[:-2], code=1)
        assert "7 has it already" in again
        call(broker, capsys, "claim", "release", "job-7")
        with Client(broker.local) as client:
            assert client.wait_bindings([binding], timeout=20) == {}, "forgotten with its claim"
        assert call(broker, capsys, "claim", "list") == ""
        assert node.prepared == {binding: 1}


def test_a_file_that_does_not_fit_is_refused_with_its_place(
    broker: LiveBroker, capsys: Output, tmp_path: Path
) -> None:
    file = tmp_path / "c.yaml"
    for text, words in (
        ("id: x\nsize: 7\n", "c.yaml:2: size: unknown key"),
        (
            "id: x\nask:\n  ports:\n    - {name: a, count: 0}\n",
            "c.yaml:4: ask.ports[0].count: must be 1 to 1024",
        ),
        ("id: x\naccess: RWP\n", "c.yaml:2: access"),
    ):
        file.write_text(text)
        assert words in failing(broker, capsys, "claim", "create", "-f", str(file), code=2)
    assert "--owner beside -f" in failing(
        broker, capsys, "claim", "create", "-f", str(file), "--owner", "bob", code=2
    )


def test_options_make_the_claim_that_they_say(broker: LiveBroker, capsys: Output) -> None:
    options = (
        *(
            "--instances",
            "gpu=2",
            "--instances",
            "nic",
            "--mount",
            "data=datasets:ro",
            "--mount",
            "home:ro",
            "--scratch",
            "2G",
        ),
        *("--ports", "http=2", "--ports", "peer=30000-30009", "--shared", "homes", "--env", "A=b=c"),
        *("--form", "standalone", "--access", "RWO", "--owner", "bob", "--project", "p1"),
    )
    call(broker, capsys, "claim", "create", "big", *options)
    claim = call_json(broker, capsys, "claim", "show", "big")["claims"]["big"]["claim"]
    assert claim["ask"]["scratch_bytes"] == 2 << 30
    assert [(one["kind"], one.get("count", 1)) for one in claim["ask"]["instances"]] == [
        ("gpu", 2),
        ("nic", 1),
    ]
    assert claim["ask"]["mounts"] == [
        {"name": "data", "source": "datasets", "read_only": True},
        {"name": "home", "source": "home", "read_only": True},
    ]
    assert claim["ask"]["environment"] == {"A": "b=c"}
    assert (claim["form"], claim["access"], claim["project"]) == ("standalone", "RWO", "p1")
    shown = call(broker, capsys, "claim", "show", "big")
    assert "2 gpu, 1 nic, mount data of datasets read only, mount home of home read only, 2 GiB" in shown
    call(broker, capsys, "claim", "delete", "big")


def test_a_gang_by_commands_one_that_fails_releases_all(broker: LiveBroker, capsys: Output) -> None:
    with agent(broker, "node1") as first, agent(broker, "node2") as second:
        until(broker, "node1", "node2")
        call(broker, capsys, "claim", "create", "train", "--instances", "gpu=1")
        places = ("node1=GPU-a", "node2=GPU-b")
        out = call(broker, capsys, "claim", "bind", "train", *places, "--consumer", "9", "--wait", "20")
        assert [line.split()[1:] for line in out.splitlines()] == [["node1", "ready"], ["node2", "ready"]]
        gang = call_json(broker, capsys, "claim", "show", "train")["bindings"]
        name = {view["binding"]["gang"] for view in gang.values()}.pop()
        call(broker, capsys, "claim", "release", "--gang", name)
        second.broken.add("train")
        with Client(broker.local) as client:
            client.wait_bindings(list(gang), timeout=20)
            wait_ended(client, list(gang))
        out = call(
            broker, capsys, "claim", "bind", "train", *places, "--consumer", "9", "--wait", "20", code=4
        )
        assert "failed cannot mount for train" in out
        began = time.monotonic()
        waited = call(broker, capsys, "claim", "wait", "train", out.split()[0], "--wait", "30", code=4)
        assert time.monotonic() - began < 10, "it is told at once"
        assert "train failed" in waited
        problems = call(broker, capsys, "claim", "list", "--problems", code=1)
        assert "cannot mount for train" in problems
        assert first.standing


def wait_ended(client: Client, names: list[str]) -> None:
    watch = client.watch()
    while watch.mirror is None or any(
        name in watch.mirror.bindings
        and watch.mirror.bindings[name].binding.state not in {BindingState.RELEASED, BindingState.FAILED}
        for name in names
    ):
        watch.next(5)
    watch.close()


def test_quarantine_by_commands(broker: LiveBroker, capsys: Output) -> None:
    with agent(broker, "node1"):
        until(broker, "node1")
        call(broker, capsys, "quarantine", "set", "node1", "GPU-c", "--reason", "smells")
        (row,) = call_json(broker, capsys, "quarantine", "list", "--host", "node1")
        assert (row["instance"], row["reason"], row["kind"]) == ("GPU-c", "smells", "gpu")
        call(broker, capsys, "claim", "create", "j", "--instances", "gpu")
        words = failing(broker, capsys, "claim", "bind", "j", "node1=GPU-c", "--consumer", "1", code=1)
        assert "it is quarantined: smells" in words
        call(broker, capsys, "quarantine", "clear", "node1", "GPU-c", "--reason", "aired")
        assert call(broker, capsys, "quarantine", "list") == ""


def test_watch_tells_each_change_of_a_claim_with_its_revision(broker: LiveBroker, capsys: Output) -> None:
    with agent(broker, "node1"):
        until(broker, "node1")
        call(broker, capsys, "claim", "create", "seen", "--instances", "gpu")
        acting = threading.Thread(target=_bind_later, args=(broker,))
        acting.start()
        out = call(broker, capsys, "claim", "watch", "seen", "--seconds", "2")
        acting.join()
    words = [line.split(" ", 1)[1] for line in out.splitlines()]
    assert any("on node1 new → " in line for line in words), out
    assert words[-1].endswith("ready"), out
    assert all(line.startswith("@") for line in out.splitlines())


def _bind_later(broker: LiveBroker) -> None:
    time.sleep(0.5)
    with Client(broker.local) as client:
        client.ask(bind_order("seen", "node1", "GPU-a"))


def bind_order(claim: str, host: str, gpu: str, op: str = "") -> m.ClaimBind:
    place = m.Place(claim=claim, host=host, consumer=Consumer(name=claim), instances=pick(gpu))
    return m.ClaimBind(id=op, places=[place])


def test_both_clients_wait_for_readiness_and_say_what_is_not_ready(broker: LiveBroker) -> None:
    ask = Ask(instances=[InstanceAsk(kind="gpu")])
    with agent(broker, "node1") as node, Client(broker.local) as client:
        until(broker, "node1")
        for name in ("a", "b", "c"):
            client.ask(m.ClaimCreate(id="", claim=Claim(id=name, ask=ask)))
        (binding,) = client.ask(bind_order("a", "node1", "GPU-a")).made
        assert client.wait_bindings([binding], timeout=20)[binding].binding.state is BindingState.READY
        node.works = False
        (stuck,) = client.ask(bind_order("b", "node1", "GPU-b")).made
        with pytest.raises(BrokerUnreachable, match=f"{stuck} not ready within 0.5 s"):
            client.wait_bindings([binding, stuck], timeout=0.5)

        async def both() -> None:
            async with AsyncClient(broker.local) as other:
                found = await other.wait_bindings([binding], timeout=20)
                assert found[binding].binding.evidence == "e"
                with pytest.raises(BrokerUnreachable, match="not ready"):
                    await other.wait_bindings([stuck], timeout=0.3)
                assert (await other.ask(m.ClaimsRequest(id="", claim="a"))).claims["a"].state == "ready"

        asyncio.run(both())
        with pytest.raises(BrokerRefused, match="has it"):
            client.ask(bind_order("c", "node1", "GPU-a"))


def test_a_broker_that_is_killed_at_any_moment_loses_no_claim_and_prepares_nothing_twice(
    broker: LiveBroker,
) -> None:
    """kill -9 between and in the middle of orders; each is given again with its id until it is answered."""
    ask = Ask(instances=[InstanceAsk(kind="gpu")])
    stop = threading.Event()
    kills = 0

    def killer() -> None:
        nonlocal kills
        while not stop.wait(0.5):
            broker.kill()
            broker.start()
            kills += 1

    node = agent(broker, "node1")
    with node:
        until(broker, "node1")
        thread = threading.Thread(target=killer)
        thread.start()
        made: list[str] = []
        while kills < 4:
            made.append(work(broker, f"j{len(made)}", "GPU-a", ask))
        stop.set()
        thread.join()
        with Client(broker.local) as client:
            wait_ended(client, made)
            answer = client.ask(m.ClaimsRequest(id=""))
        assert (answer.claims, answer.quarantined) == ({}, {})
        assert len(set(made)) == len(made)
        assert set(made) <= set(node.prepared)
        assert set(node.prepared.values()) == {1}
        deadline = time.monotonic() + 10
        while node.holds and time.monotonic() < deadline:
            time.sleep(0.05)
        assert node.holds == {}


def work(broker: LiveBroker, name: str, gpu: str, ask: Ask) -> str:
    """Create, bind, wait, release, with the same ids until each is answered; the binding."""
    persist(broker, m.ClaimCreate(id=f"{name}-create", claim=Claim(id=name, ask=ask)))
    (binding,) = persist(broker, bind_order(name, "node1", gpu, f"{name}-bind")).made
    view = again(broker, lambda client: client.wait_bindings([binding], timeout=20)[binding])
    assert view.binding.state is BindingState.READY
    persist(broker, m.ClaimRelease(id=f"{name}-release", claim=name))
    again(broker, lambda client: wait_ended(client, [binding]))
    return binding


def again(broker: LiveBroker, call: Callable[[Client], T]) -> T:
    """What a call gives, tried until the broker is there for the whole of it."""
    deadline = time.monotonic() + 60
    while True:
        try:
            with Client(broker.local, timeout=2) as client:
                return call(client)
        except BrokerError as error:
            away = "host" in error.message or "inventory" in error.message
            if time.monotonic() > deadline or (isinstance(error, BrokerRefused) and not away):
                raise
            time.sleep(0.05)


def persist(broker: LiveBroker, order: m.Order) -> m.Done:
    """Give an order until it is answered. While the node is away nothing can be bound: asked again."""
    return again(broker, lambda client: client.ask(order))
