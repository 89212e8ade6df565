"""What went wrong for people with state, clocks and restarts, tried with claims and the real programs: the
halves of C-STA-01, C-STA-02 and C-MSG-05 that are about claims.
"""

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from tests.fakes.damage import Damage, to_each
from tests.system.harness import AgentProgram, Site
from tests.system.test_claims import (
    ASK,
    OTHER,
    OWN,
    REFUSED,
    alone,
    bindings_of,
    ended,
    node,
    place,
    ready,
    run_in,
    until_there,
)
from tests.system.test_clock import BACK_S, shifted
from xce.broker.client import BrokerRefused, Client, Fresh
from xce.model import message as m
from xce.model.claim import BindingState, Claim, Consumer, PortsAsk
from xce.prepare.ports import is_free

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="cgroups and device filters need root"),
]
assert shifted, "the fixture"


def two_ready(client: Client) -> list[str]:
    for claim in ("one", "two"):
        client.ask(m.ClaimCreate(id="", claim=Claim(id=claim, ask=ASK)))
    first = ready(client, place(client, "one", "node1", "card-own", "one"))
    return [*first, *ready(client, place(client, "two", "node1", "card-other", "two"))]


def confined(agent: AgentProgram) -> None:
    """Each consumer can open its own device and not the other's."""
    assert run_in(agent, "one", OWN, OTHER) == ["open", REFUSED]
    assert run_in(agent, "two", OWN, OTHER) == [REFUSED, "open"]


def free_port_of_claims() -> int:
    """One that claims may ask for, and nobody has."""
    return next(port for port in range(28000, 29000) if is_free(port))


@contextmanager
def job_in(agent: AgentProgram, consumer: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A job of a consumer, which listens on a port."""
    group = f"{agent.settings['claims']['cgroup']}/xce-consumer-{consumer}"
    serve = f"s = socket.create_server(('', {port})); print('runs', flush=True)"
    code = f"import socket, time; {serve}; time.sleep(300)"
    enter = f'echo $$ > {group}/cgroup.procs && exec {sys.executable} -ISc "$0"'
    with subprocess.Popen(["sh", "-c", enter, code], stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == b"runs\n"
        try:
            yield job
        finally:
            job.kill()


def settled(client: Client, made: list[str]) -> bool:
    views = client.ask(m.ClaimsRequest(id="")).bindings
    return all(views[one].binding.state is BindingState.READY and not views[one].conditions for one in made)


def test_c_sta_01_whichever_file_of_an_agent_is_damaged_both_claims_stay(site: Site, tmp_path: Path) -> None:
    """Nothing is given away, nothing released, nobody unconfined; what is damaged is set aside.

    Each file in one way, emptied, torn, scribbled on or lost; with `XCE_TEST_FULL=1` in all of them.
    """
    agent = alone(site)
    wrong = {}
    with site.client() as client:
        made = two_ready(client)
        client.ask(m.ClaimCreate(id="", claim=Claim(id="greedy", ask=ASK)))
        files = [
            path for path in agent.folder.rglob("*") if path.is_file() and path.suffix in {".key", ".pub"}
        ]
        files += [path for path in (agent.folder / "state").rglob("*") if path.is_file()]
        names = sorted(str(path.relative_to(agent.folder)) for path in files)
        assert {"agent.key", "broker.pub", "state/claims.sqlite", "state/claims.sqlite-wal"} <= set(names)
        for damage in to_each(names):
            agent.kill()
            path, saved = agent.folder / damage.path, tmp_path / "saved"
            if not damage.path.startswith("state/"):
                shutil.copy2(path, saved)
            damage.to(agent.folder)
            agent.start()
            try:
                stays(site, agent, client, made, damage)
            except AssertionError as error:
                wrong[damage] = str(error)[:1000]
            if not damage.path.startswith("state/"):
                shutil.copy2(saved, path)
        assert not wrong, "\n".join(f"{where}: {what}" for where, what in wrong.items())
        assert list((agent.folder / "state").glob("claims.sqlite.damaged-*")), "kept aside"
        for claim in ("one", "two"):
            client.ask(m.ClaimRelease(id="", claim=claim))
        ended(site, client, *made)


def stays(site: Site, agent: AgentProgram, client: Client, made: list[str], damage: Damage) -> None:
    """Both claims are as they were, also where the agent cannot reach the broker any more, and says so."""
    held = dict.fromkeys(made, "ready")
    site.until(lambda: agent.status().get("agent", {}).get("pid") == agent.pid)
    site.until(lambda: {name: one["state"] for name, one in bindings_of(agent).items()} == held)
    if damage.path.startswith("state/"):
        site.until(lambda: agent.status()["link"]["phase"] == "synced")
        until_there(site, "node1")
        site.until(lambda: settled(client, made))
    else:
        words = site.until(lambda: " ".join(map(str, agent.status().get("trouble", []))) or None)
        assert str(agent.folder / damage.path) in words, words
        views = client.ask(m.ClaimsRequest(id="")).bindings
        assert {views[one].binding.state for one in made} == {BindingState.READY}
    confined(agent)
    with pytest.raises(BrokerRefused):
        client.ask(m.ClaimBind(id="", places=[greedy(client)]))


def greedy(client: Client) -> m.Place:
    return place(client, "greedy", "node1", "card-own", "g")


@pytest.mark.parametrize("how", ["emptied", "deleted"])
def test_c_sta_01_without_its_journal_a_node_ends_what_was_released_meanwhile_and_nothing_else(
    site: Site, how: str
) -> None:
    """Both jobs run, one listens on its port. RELEASED is not said before the processes are gone."""
    agent = node(site, "node1")
    agent.settings["claims"]["orphans"] = "clean"
    port = free_port_of_claims()
    asks = {"one": ASK, "two": msgspec.structs.replace(ASK, ports=[PortsAsk(name="http", exact=[port])])}
    site.broker.start()
    agent.start()
    until_there(site, "node1")
    with site.client() as client:
        for claim, ask in asks.items():
            client.ask(m.ClaimCreate(id="", claim=Claim(id=claim, ask=ask)))
        (one,) = ready(client, place(client, "one", "node1", "card-own", "one"))
        (two,) = ready(client, place(client, "two", "node1", "card-other", "two"))
        with job_in(agent, "one", 0) as ending, job_in(agent, "two", port) as staying:
            agent.kill()
            state = Path(agent.settings["state_directory"])
            for path in state.glob("claims.sqlite*"):
                path.write_bytes(b"")
                if how == "deleted":
                    path.unlink()
            client.ask(m.ClaimRelease(id="", claim="one"))
            agent.start()
            ended(site, client, one)
            assert ending.poll() is not None, "released, and it runs"
            site.until(lambda: settled(client, [two]))
            assert client.ask(m.ClaimsRequest(id="")).bindings[two].binding.ports == {"http": [port]}
            assert staying.poll() is None
            confined_group = Path(agent.settings["claims"]["cgroup"]).glob("xce-consumer-*")
            assert [path.name for path in confined_group] == ["xce-consumer-two"]
            client.ask(m.ClaimRelease(id="", claim="two"))
            ended(site, client, two)


def test_c_sta_01_a_broker_that_lost_its_store_gives_away_no_device_that_is_in_use(site: Site) -> None:
    agent = alone(site)
    with site.client() as client:
        two_ready(client)
    site.broker.stop()
    state = Path(site.broker.settings["state_directory"])
    for path in sorted(state.rglob("*")):
        if path.is_file():
            path.write_bytes(b"")
    site.broker.begin()
    assert site.broker.ended() == 1
    assert "is damaged: is empty, and facts were recorded" in site.broker.tail()
    site.broker.argv.append("--start-empty")
    site.broker.start()
    until_there(site, "node1")
    confined(agent)
    kept = site.until(lambda: site.snapshot().locations["host:node1"].quarantined)
    assert set(kept) == {"card-own", "card-other"}
    with site.client() as client:
        client.ask(m.ClaimCreate(id="", claim=Claim(id="greedy", ask=ASK)))
        with pytest.raises(BrokerRefused, match="quarantine"):
            client.ask(m.ClaimBind(id="", places=[place(client, "greedy", "node1", "card-own", "g")]))


def test_c_sta_02_a_clock_set_back_neither_ends_nor_doubles_a_claim(
    site: Site,
    shifted: Callable[[str], dict[str, str]],
    tmp_path: Path,
) -> None:
    site.broker.environment |= shifted("broker")
    agent = node(site, "node1")
    agent.environment |= shifted("agent")
    site.broker.start()
    agent.start()
    until_there(site, "node1")
    with site.client() as client:
        made = two_ready(client)
        before = client.ask(m.ClaimsRequest(id="")).bindings
        for name in ("agent", "broker"):
            (tmp_path / f"{name}.clock").write_text(str(BACK_S))
        end = time.monotonic() + 2
        while time.monotonic() < end:
            assert client.ask(m.ClaimsRequest(id="")).bindings == before
            time.sleep(0.2)
        confined(agent)
        client.ask(m.ClaimRelease(id="", claim="one"))
        ended(site, client, made[0])
        client.ask(m.ClaimCreate(id="", claim=Claim(id="next", ask=ASK)))
        ready(client, place(client, "next", "node1", "card-own", "next"))
        with pytest.raises(BrokerRefused, match="has it"):
            client.ask(m.ClaimBind(id="", places=[place(client, "next", "node1", "card-other", "n")]))


@contextmanager
def coming_and_going(site: Site) -> Iterator[None]:
    """Claims are made, bound, released, all the time."""
    stop = threading.Event()

    def work() -> None:
        with site.client() as client:
            number = 0
            while not stop.is_set():
                number += 1
                client.ask(m.ClaimCreate(id="", claim=Claim(id=f"c{number}")))
                places = [
                    m.Place(claim=f"c{number}", host="sim1", consumer=Consumer(name=f"j{number}-{one}"))
                    for one in range(3)
                ]
                client.ask(m.ClaimBind(id="", places=places))
                if number > 5:
                    client.ask(m.ClaimRelease(id="", claim=f"c{number - 5}"))
                time.sleep(0.01)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(20)
        assert not thread.is_alive()


def test_c_msg_05_a_late_listener_sees_claims_as_the_broker_holds_them(site: Site, tmp_path: Path) -> None:
    """Twenty times in the middle of claims that come and go; a simulated host does what it is told."""
    rules = tmp_path / "claims.yaml"
    rules.write_text("bindings: [{prepare_s: [0, 0.1], release_s: [0, 0.1]}]\n")
    fleet = site.fleet(1, claims=str(rules))
    site.broker.start()
    fleet.start()
    site.until(lambda: site.snapshot().locations["host:sim1"].state == "available")
    followers = []
    with coming_and_going(site):
        for _ in range(20):
            client = site.client()
            watch = client.watch()
            while not isinstance(watch.next(5), Fresh):
                pass
            followers.append((client, watch))

    def own() -> bool:
        held = site.snapshot()
        for _, watch in followers:
            while watch.next(0) is not None:
                pass
        seen = [watch.mirror for _, watch in followers if watch.mirror is not None]
        assert len(seen) == len(followers)
        return bool(held.claims) and all(
            (one.claims, one.bindings) == (held.claims, held.bindings) for one in seen
        )

    site.until(own, within_s=20, every_s=0.3)
    for client, _ in followers:
        client.close()


def test_a_host_that_is_told_to_take_no_claims_keeps_those_that_it_has(site: Site) -> None:
    agent = alone(site)
    with site.client() as client:
        made = two_ready(client)
        agent.stop()
        agent.settings["claims"]["enabled"] = False
        agent.start()
        until_there(site, "node1")
        site.until(lambda: settled(client, made))
        confined(agent)
        for claim in ("one", "two"):
            client.ask(m.ClaimRelease(id="", claim=claim))
        ended(site, client, *made)
        agent.stop()
        agent.start()
        site.until(lambda: site.snapshot().locations["host:node1"].about.get("claims") == "no")
        client.ask(m.ClaimCreate(id="", claim=Claim(id="next", ask=ASK)))
        until_there(site, "node1")
        with pytest.raises(BrokerRefused, match="host node1 takes no claims"):
            client.ask(m.ClaimBind(id="", places=[place(client, "next", "node1", "card-own", "n")]))
