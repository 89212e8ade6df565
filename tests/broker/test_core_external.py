"""Reporters off the hosts: values of pools, and who may say them."""

from typing import Any

from tests.broker.world import Agent, World, key_of, pools_site
from xce.model import message as m
from xce.model.supply import PoolAmount, Source
from xce.model.value import Absent, Presence, digest


class Reporter(Agent):
    """An external reporter's half of the link."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        world.peer(name, "reporter")

    def hello(self, **changes: Any) -> Any:
        return super().hello(role="reporter", **changes)


def test_a_pools_value_comes_from_the_identity_that_its_type_names() -> None:
    world = World(files=pools_site())
    waiting = world.see("pool:matlab").values["lic"]
    assert isinstance(waiting, Absent)
    assert (waiting.presence, waiting.cause) == (
        Presence.NEVER_SEEN,
        "nothing heard from reporter lic1 yet",
    )
    reporter = Reporter(world, "lic1")
    reporter.join(lic=7)
    reporter.state(ttl_ms=20_000)
    seen = world.see("pool:matlab")
    assert (seen.values, list(seen.reporters)) == ({"lic": 7}, ["lic1/probe"])
    world.wait(22)
    assert isinstance(world.see("pool:matlab").values["lic"], Absent)
    reporter.heartbeat(probe=0)
    assert world.see("pool:matlab").values == {"lic": 7}
    reporter.report(lic=None)
    assert world.see("pool:matlab").values == {
        "lic": waiting.__class__(waiting.presence, waiting.cause, None, 1_022_000)
    }


def test_a_place_that_is_called_by_its_other_name_from_now_on_keeps_its_value() -> None:
    """A name that a run lacks stays behind as unknown; it must not speak against the one in its place."""
    world = World(files=pools_site())
    reporter = Reporter(world, "lic1")
    reporter.join(lic=7)
    missing = Absent(Presence.UNKNOWN, cause="not in the last run")
    for said, seen in (
        ({"lic": missing, "lic@pool:matlab": 8}, 8),
        ({"lic": 9, "lic@pool:matlab": missing}, 9),
    ):
        news: dict[str, Any] = said
        reporter.report(**news)
        assert world.see("pool:matlab").values == {"lic": seen}
    reporter.report(lic=missing)
    assert isinstance(world.see("pool:matlab").values["lic"], Absent)


def test_a_mistyped_name_that_is_no_longer_given_is_no_trouble_any_more() -> None:
    world = World(files=pools_site())
    reporter = Reporter(world, "lic1")
    news: dict[str, Any] = {"lic@pool:typo": 7}
    reporter.join(**news)
    assert "refused lic@pool:typo" in world.ask("lic1", m.MineRequest(id="1")).location.about
    news = {"lic@pool:typo": Absent(Presence.UNKNOWN, cause="not in the last run"), "lic": 7}
    reporter.report(**news)
    assert list(world.ask("lic1", m.MineRequest(id="2")).location.about) == ["address"]
    assert world.see("pool:matlab").values == {"lic": 7}


def test_a_server_that_is_down_is_unknown_and_not_zero() -> None:
    """C-DIR-02, the broker's half."""
    world = World(files=pools_site())
    reporter = Reporter(world, "lic1")
    reporter.join(lic=12)
    reporter.state(ttl_ms=20_000)
    reporter.state(state="backoff", cause="exit status 3: cannot connect", ttl_ms=20_000)
    world.wait(22)
    reading = world.see("pool:matlab").values["lic"]
    assert isinstance(reading, Absent)
    assert (reading.presence, reading.cause, reading.last) == (
        Presence.UNKNOWN,
        "exit status 3: cannot connect",
        12,
    )
    reporter.report(lic=12)
    assert world.see("pool:matlab").values == {"lic": 12}


def test_others_may_not_report_a_pools_value() -> None:
    world = World(files=pools_site())
    Reporter(world, "lic2").join(lic=7)
    assert isinstance(world.see("pool:matlab").values["lic"], Absent)
    mine = world.ask("lic2", m.MineRequest(id="1")).location
    assert mine.about["refused lic"] == "reporter lic1 is assigned to it (reporter: in its type)"
    agent = Agent(world, "node1")
    agent.join(lic=7)
    assert world.see("host:node1").values == {}


def test_a_name_with_a_location_goes_there_and_may_bring_a_storage() -> None:
    world = World(files=pools_site(pools={}))
    reporter = Reporter(world, "lic1")
    reporter.join(**{"lic": 4, "lic@storage:nas": 3, "lic@host:node1": 5, "lic@nonsense": 6})
    seen = world.see("storage:nas")
    assert (seen.source, seen.values) == (Source.REPORTER, {"lic": 3})
    refused = world.ask("lic1", m.MineRequest(id="1")).location.about
    assert refused["refused lic"] == "say lic@LOCATION: no location has it"
    assert "does not belong at host:node1" in refused["refused lic@host:node1"]
    assert "expected host:NAME" in refused["refused lic@nonsense"]
    reporter.report(full=True, lic=4)
    assert "storage:nas" not in world.snapshot().locations, "it goes with its last value"


def test_a_mistyped_pool_is_refused_and_its_reporter_told_what_would_be_right() -> None:
    world = World(files=pools_site())
    reporter = Reporter(world, "lic1")
    reporter.join(**{"lic@pool:matlab": 7, "lic@pool:matlap": 3, "lic@pool:cfd": 1})
    assert [key for key in world.snapshot().locations if key.startswith("pool:")] == ["pool:matlab"]
    assert world.see("pool:matlab").values == {"lic": 7}
    (told,) = world.got("lic1", m.Standing)
    nearly = "lic@pool:matlap: there is no pool:matlap; did you mean 'matlab'?"
    assert told.refused == [
        nearly,
        "lic@pool:cfd: there is no pool:cfd; declare it under 'pools:' in resources.yaml",
    ]
    assert f"reporter lic1: {nearly}" in world.notes()
    reporter.heartbeat(probe=0)
    assert len(world.got("lic1", m.Standing)) == 1, "said once"
    pools = {name: {"lic": PoolAmount(base=1)} for name in ("matlab", "matlap", "cfd")}
    world._take(world.broker.reload(pools_site(pools=pools), world.now))
    reporter.heartbeat(probe=0)
    assert world.got("lic1", m.Standing)[-1].refused == []
    assert world.see("pool:cfd").values == {"lic": 1}
    world._take(world.broker.reload(pools_site(), world.now))
    world.turn()
    assert [key for key in world.snapshot().locations if key.startswith("pool:")] == ["pool:matlab"]
    reporter.heartbeat(probe=0)
    assert nearly in world.got("lic1", m.Standing)[-1].refused


def test_a_reporter_is_told_what_is_held_of_it_and_why_the_rest_is_not() -> None:
    world = World(files=pools_site())
    Reporter(world, "lic1").join(**{"lic@pool:matlab": -1, "lic@host:node1": 5})
    mine = world.ask("lic1", m.MineRequest(id="1")).location
    assert mine.values == {}
    assert mine.about["refused lic@pool:matlab"] == "below the minimum 0"
    assert "does not belong at host:node1" in mine.about["refused lic@host:node1"]


def test_an_external_reporters_digest_covers_what_it_said() -> None:
    world = World(files=pools_site())
    reporter = Reporter(world, "lic1")
    reporter.join(lic=4, nonsense=1)
    replies = reporter.heartbeat(digest=digest({"probe": {"lic": 4, "nonsense": 1}}))
    assert [type(reply) for reply in replies] == [m.Pulse]


def test_a_second_external_reporter_of_an_identity_is_refused() -> None:
    world = World(files=pools_site())
    Reporter(world, "lic1").join(lic=4)
    world.connect("other", key_of("reporter-lic1"))
    hello = m.Hello(protocol=m.PROTOCOL, role="reporter", name="lic1", nonce="n2")
    assert world.ask("other", hello).code == "duplicate"
