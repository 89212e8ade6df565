"""Claims on simulated hosts at a real broker: delays, faults, gangs, and what a controller sees of them."""

import time
from pathlib import Path

import pytest

from tests.system.harness import Site
from tests.system.test_fleet import linked
from xce.broker.client import Changed, Fresh
from xce.model.claim import Ask, BindingState, Claim, ClaimForm, Consumer, InstanceAsk, Reclaim
from xce.model.message import (
    BindingView,
    ClaimBind,
    ClaimCreate,
    ClaimDelete,
    ClaimRelease,
    ClaimView,
    Done,
    Pick,
    Place,
)

pytestmark = [pytest.mark.system]

MACHINE = "docs/examples/machine-h100.yaml"
RULES = """\
bindings:
  - {hosts: [sim1], prepare_s: 0.3, release_s: 0.2}
  - {hosts: [sim2], fail: 'scratch: no space left on device'}
  - {hosts: [sim3], hang: true}
  - {hosts: [sim4], block: {note: 'pid 4711 (python3): fd 3 on 195:2', for_s: 1}, quarantine: still in use}
  - {hosts: [sim5], degrade: {note: the filter was replaced, after_s: 0.2}}
  - {hosts: [sim6], lose: {after_s: 0.5, for_s: 3, reboot: true}}
  - {hosts: [sim7], answer_s: 0.5}
  - {hosts: [sim8], refuse: {note: no inventory yet, for_s: 1}}
"""


@pytest.fixture
def simulated(site: Site, tmp_path: Path) -> Site:
    """Nine hosts with devices, each with a fate of its own but the last."""
    rules = tmp_path / "claims.yaml"
    rules.write_text(RULES)
    fleet = site.fleet(9, machine=MACHINE, claims=str(rules))
    site.broker.settings["heartbeat"] = 0.5
    site.broker.start()
    fleet.start()
    site.until(lambda: linked(fleet) == 9)
    site.until(lambda: all(ready_for_claims(site, number) for number in range(1, 10)))
    return site


def ready_for_claims(site: Site, number: int) -> bool:
    place = site.snapshot().locations[f"host:sim{number}"]
    return place.state == "available" and bool(place.inventories)


def a_gpu(site: Site, host: str) -> Pick:
    with site.client() as client:
        inventory = client.inventories({f"host:{host}": ["discovery"]})[f"host:{host}"]["discovery"]
    one = next(one for one in inventory.instances if one.kind == "gpu")
    return Pick(id=one.id, reporter="discovery", generation=inventory.generation)


def bound(site: Site, claim: str, *hosts: str) -> dict[str, str]:
    """Create a claim of a GPU and bind it to hosts; host to binding."""
    ask = Ask(instances=[InstanceAsk(kind="gpu", count=1)])
    places = [
        Place(claim=claim, host=host, consumer=Consumer(name=claim), instances=[a_gpu(site, host)])
        for host in hosts
    ]
    with site.client() as client:
        client.ask(ClaimCreate(id=f"{claim}-c", claim=Claim(id=claim, ask=ask)))
        done = client.ask(ClaimBind(id=f"{claim}-b", places=places))
    assert isinstance(done, Done)
    return dict(zip(hosts, done.made, strict=True))


def view(site: Site, binding: str) -> BindingView | None:
    return site.snapshot().bindings.get(binding)


def state(site: Site, binding: str) -> str:
    one = view(site, binding)
    return one.binding.state.value if one else "gone"


def release(site: Site, claim: str) -> None:
    with site.client() as client:
        client.ask(ClaimRelease(id=f"{claim}-r", claim=claim))


def test_a_controller_sees_each_state_as_an_event(simulated: Site) -> None:
    site = simulated
    seen: list[str] = []
    with site.client() as client:
        watch = client.watch()
        while not isinstance(watch.next(5), Fresh):
            pass
        began = time.monotonic()
        (binding,) = bound(site, "job", "sim1").values()
        while time.monotonic() < began + 15 and (not seen or seen[-1] != "gone"):
            event = watch.next(1)
            if isinstance(event, Changed) and binding in event.delta.bindings:
                now = event.delta.bindings[binding]
                seen.append(now.binding.state.value if now else "gone")
                if seen[-1] == BindingState.READY:
                    assert time.monotonic() - began >= 0.3
                    release(site, "job")
        watch.close()
    assert list(dict.fromkeys(seen)) == ["pending", "preparing", "ready", "releasing", "gone"]


def test_faults_are_told_as_real_nodes_tell_them(simulated: Site) -> None:
    site = simulated
    ids = {number: bound(site, f"c{number}", f"sim{number}")[f"sim{number}"] for number in range(2, 9)}
    site.until(lambda: state(site, ids[2]) == "failed")
    failed = view(site, ids[2])
    assert failed is not None
    assert failed.binding.reason == "scratch: no space left on device"

    def conditions(number: int) -> list[str]:
        found = view(site, ids[number])
        return list(found.conditions) if found else []

    site.until(lambda: conditions(5) == ["degraded"])
    site.until(lambda: conditions(6) == ["unreachable"])
    site.until(lambda: state(site, ids[6]) == "ready" and not conditions(6), within_s=20)
    assert site.snapshot().locations["host:sim6"].about["boot_id"] == "simulated-2"
    site.until(lambda: state(site, ids[7]) == "ready")
    site.until(lambda: state(site, ids[8]) == "ready")
    assert state(site, ids[3]) == "preparing", "it hangs"
    release(site, "c3")
    site.until(lambda: state(site, ids[3]) == "gone")
    site.until(lambda: state(site, ids[4]) == "ready")
    release(site, "c4")
    site.until(lambda: conditions(4) == ["blocked"])
    blocked = view(site, ids[4])
    assert blocked is not None
    assert blocked.note == "pid 4711 (python3): fd 3 on 195:2"
    site.until(lambda: state(site, ids[4]) == "gone")
    kept = site.snapshot().locations["host:sim4"].quarantined
    assert [one.reason for one in kept.values()] == ["still in use"]


def test_one_host_that_fails_takes_its_gang_along_and_a_whole_gang_is_one_event(simulated: Site) -> None:
    site = simulated
    gang = bound(site, "bad", "sim1", "sim2", "sim9")
    site.until(lambda: state(site, gang["sim1"]) == state(site, gang["sim9"]) == "released")
    other = bound(site, "good", "sim1", "sim7", "sim9")
    with site.client() as client:
        views = client.wait_bindings(list(other.values()), timeout=10)
    assert {one.binding.state for one in views.values()} == {BindingState.READY}
    assert len({one.binding.revision for one in views.values()}) == 1, "one fact, one event"


def test_a_file_that_does_not_fit_is_refused_with_line_and_key(site: Site, tmp_path: Path) -> None:
    rules = tmp_path / "wrong.yaml"
    rules.write_text("bindings:\n  - {prepare: 3}\n")
    fleet = site.fleet(1, prefix="wrong", claims=str(rules))
    fleet.start()
    assert fleet.ended() == 2
    assert "wrong.yaml:2: bindings[0].prepare" in fleet.log.read_text()


def test_a_simulated_provider_makes_claims_and_lets_go_of_them(site: Site, tmp_path: Path) -> None:
    rules = tmp_path / "claims.yaml"
    rules.write_text(
        "claims:\n"
        "  - {claims: [bad], fail: no space in pool fast}\n"
        "  - {create_s: 0.3, delete_s: 0.2, volume: {path: '/volumes/{claim}'}}\n"
    )
    fleet = site.fleet(1, claims=str(rules))
    store = site.provider("store", str(rules))
    site.broker.start()
    fleet.start()
    store.start()
    site.until(lambda: linked(fleet) == 1)

    site.until(lambda: "provider store follows" in store.log.read_text())
    site.broker.kill()
    site.broker.start()  # both come back by themselves

    def claim(name: str) -> ClaimView | None:
        return site.snapshot().claims.get(name)

    with site.client() as client:
        for name in ("vol", "bad"):
            made = Claim(
                id=name, form=ClaimForm.STANDALONE, provider="store", reclaim=Reclaim.DELETE, owner="alice"
            )
            client.ask(ClaimCreate(id="", claim=made))
        site.until(lambda: (one := claim("bad")) and one.state == "failed")
        site.until(lambda: (one := claim("vol")) and one.state == "ready")
        bad, vol = claim("bad"), claim("vol")
        assert bad is not None
        assert vol is not None
        assert (bad.reason, vol.volume) == ("no space in pool fast", {"path": "/volumes/vol"})
        place = Place(claim="vol", host="sim1", consumer=Consumer(name="j"))
        site.until(lambda: site.snapshot().locations["host:sim1"].state == "available")
        (binding,) = client.ask(ClaimBind(id="", places=[place])).made
        client.wait_bindings([binding], timeout=10)
        client.ask(ClaimRelease(id="", bindings=[binding]))
        site.until(lambda: state(site, binding) in {"released", "gone"})
        client.ask(ClaimDelete(id="", claim="vol"))
        assert claim("vol"), "it is gone when its provider says so"
        site.until(lambda: claim("vol") is None)
    assert "vol ready" in store.log.read_text()
    assert "vol released" in store.log.read_text()


@pytest.mark.slow
def test_c_msg_03_a_gang_over_a_thousand_hosts_is_one_event_and_outlives_the_brokers_restart(
    site: Site, tmp_path: Path
) -> None:
    rules = tmp_path / "claims.yaml"
    rules.write_text("bindings: [{prepare_s: [0.1, 2], release_s: [0.1, 1]}]\n")
    fleet = site.fleet(1000, interval=60, claims=str(rules))
    site.broker.settings["heartbeat"] = 10
    site.broker.start()
    fleet.start()
    site.until(lambda: linked(fleet) == 1000, within_s=90, every_s=0.5)
    places = [
        Place(claim="wide", host=f"sim{number}", consumer=Consumer(name="j")) for number in range(1, 1001)
    ]
    with site.client(timeout=30) as client:
        client.ask(ClaimCreate(id="", claim=Claim(id="wide")))
        began = time.monotonic()
        made = client.ask(ClaimBind(id="", places=places)).made
        views = client.wait_bindings(made, timeout=60)
        print(f"ready after {time.monotonic() - began:.1f} s")
        assert {one.binding.state for one in views.values()} == {BindingState.READY}
        assert len({one.binding.revision for one in views.values()}) == 1
    site.broker.kill()
    site.broker.start()
    began = time.monotonic()
    site.until(lambda: not any(one.conditions for one in site.snapshot().bindings.values()), within_s=60)
    print(f"all confirmed {time.monotonic() - began:.1f} s after the restart")
    again = site.snapshot().bindings
    assert {name: one.binding for name, one in again.items()} == {
        name: one.binding for name, one in views.items()
    }, "nothing was prepared a second time"
    with site.client(timeout=30) as client:
        client.ask(ClaimRelease(id="", claim="wide"))
        site.until(lambda: not site.snapshot().claims, within_s=60)
