"""Following the map, driven message by message: whatever the broker and the link do, the mirror is right."""

import msgspec
import pytest

from xce.broker.follow import BUSY_S, PATIENCE_S, Follow
from xce.broker.session import BrokerRefused, Changed, Fresh, LinkNews, Request
from xce.model.instance import Instance, Inventory, reference
from xce.model.message import (
    Credit,
    Delta,
    Failed,
    InventoriesRequest,
    InventoryBodies,
    LocationChange,
    LocationView,
    Lost,
    Position,
    Quality,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotPart,
    SnapshotRequest,
    Unwatch,
    WatchBegin,
    WatchRequest,
)
from xce.model.supply import Source

UP, DOWN = LinkNews(True, "up"), LinkNews(False, "down")
HOST = LocationView(source=Source.CONFIG, state="available", values={"mem": 0})


def place(sequence: int, incarnation: str = "abcd") -> Position:
    return Position(epoch=3, incarnation=incarnation, sequence=sequence)


def sent(follow: Follow) -> list[Request]:
    requests = list(follow.to_send)
    follow.to_send.clear()
    return requests


def snapshot(
    follow: Follow, request: Request, sequence: int, view: LocationView = HOST, where: Position | None = None
) -> None:
    assert isinstance(request, SnapshotRequest)
    follow.take(
        SnapshotBegin(
            id=request.id,
            revision=1,
            position=where or place(sequence),
            broker_ms=1,
            taken_at="",
            parts=1,
            quality=Quality(),
            types=[],
        )
    )
    follow.take(SnapshotPart(id=request.id, part=0, locations={"host:node1": view}))
    follow.take(SnapshotEnd(id=request.id))


def delta(watch: Request, sequence: int, change: LocationChange | None = None) -> Delta:
    change = change or LocationChange(values={"mem": sequence})
    return Delta(
        id=watch.id, position=place(sequence), revision=1, broker_ms=1, locations={"host:node1": change}
    )


def watching(follow: Follow, sequence: int = 10) -> WatchRequest:
    """Bring a new follower to where its stream has begun."""
    follow.link(UP)
    (request,) = sent(follow)
    snapshot(follow, request, sequence)
    (watch,) = sent(follow)
    assert isinstance(watch, WatchRequest)
    follow.take(WatchBegin(id=watch.id, since=watch.since))
    assert follow.next() == UP
    assert isinstance(follow.next(), Fresh)
    return watch


def memory(follow: Follow) -> object:
    assert follow.mirror is not None
    return follow.mirror.locations["host:node1"].values["mem"]


def test_the_stream_starts_where_the_snapshot_was_taken() -> None:
    follow = Follow()
    watch = watching(follow, 10)
    assert watch.since == place(10)
    follow.take(delta(watch, 11))
    assert isinstance(follow.next(), Changed)
    assert memory(follow) == 11
    assert follow.next() is None


def test_the_mirror_is_as_new_as_the_last_event_that_was_taken() -> None:
    follow = Follow()
    watch = watching(follow, 10)
    follow.take(delta(watch, 11))
    follow.take(delta(watch, 12))
    assert memory(follow) == 0
    follow.next()
    assert memory(follow) == 11


def test_credit_is_returned_as_events_are_taken_and_not_as_they_come() -> None:
    follow = Follow(credit=4)
    watch = watching(follow, 10)
    assert watch.credit == 4
    for sequence in range(11, 15):
        follow.take(delta(watch, sequence))
    assert sent(follow) == []
    follow.next()
    assert sent(follow) == []
    follow.next()
    assert sent(follow) == [Credit(id=watch.id, more=2)]


def test_a_lost_stream_gives_what_came_before_and_then_a_new_snapshot_with_the_reason() -> None:
    follow = Follow()
    watch = watching(follow, 10)
    follow.take(delta(watch, 11))
    follow.take(Lost(id=watch.id, reason="you are too slow"))
    assert sent(follow) == [], "a snapshot that nobody takes would be old when it is taken"
    assert isinstance(follow.next(), Changed)
    assert follow.next() is None
    (request,) = sent(follow)
    snapshot(follow, request, 90, msgspec.structs.replace(HOST, values={"mem": 90}))
    fresh = follow.next()
    assert isinstance(fresh, Fresh)
    assert fresh.reason == "you are too slow"
    assert memory(follow) == 90


def test_a_new_link_goes_on_after_the_last_delta_that_was_received() -> None:
    follow = Follow()
    first = watching(follow, 10)
    follow.take(delta(first, 11))
    follow.take(delta(first, 12))
    follow.next()
    follow.link(DOWN)
    follow.link(UP)
    (second,) = sent(follow)
    assert isinstance(second, WatchRequest)
    assert second.since == place(12)
    assert second.id != first.id
    assert first.id not in follow.waits_for(), "what is left of the old stream would be taken twice"
    follow.take(WatchBegin(id=second.id, since=second.since))
    follow.take(delta(second, 13))
    events = [follow.next() for _ in range(4)]
    assert [type(event) for event in events] == [Changed, LinkNews, Changed, type(None)]
    assert memory(follow) == 13


def test_a_broker_that_was_restarted_refuses_the_old_place_and_is_asked_for_everything() -> None:
    follow = Follow()
    watching(follow, 10)
    follow.link(DOWN)
    follow.link(UP)
    (second,) = sent(follow)
    follow.take(Lost(id=second.id, reason="another incarnation"))
    while follow.next() is not None:
        pass
    (request,) = sent(follow)
    snapshot(follow, request, 0, where=place(1, "efgh"))
    assert isinstance(follow.next(), Fresh)
    (third,) = sent(follow)
    assert isinstance(third, WatchRequest)
    assert third.since == place(1, "efgh")


def test_a_gap_is_not_believed() -> None:
    follow = Follow()
    watch = watching(follow, 10)
    follow.take(delta(watch, 12))
    assert sent(follow) == [Unwatch(id=watch.id)]
    assert follow.next() is None
    (request,) = sent(follow)
    assert isinstance(request, SnapshotRequest)


def test_a_delta_that_does_not_fit_the_map_leads_to_a_new_map() -> None:
    follow = Follow()
    watch = watching(follow, 10)
    follow.take(
        Delta(
            id=watch.id,
            position=place(11),
            revision=1,
            broker_ms=1,
            locations={"host:unheard": LocationChange(state="lost")},
        )
    )
    assert follow.next() is None
    unwatch, request = sent(follow)
    assert unwatch == Unwatch(id=watch.id)
    assert isinstance(request, SnapshotRequest)


def test_a_link_that_breaks_during_a_snapshot_starts_it_anew_and_mixes_nothing() -> None:
    follow = Follow()
    follow.link(UP)
    (first,) = sent(follow)
    follow.take(
        SnapshotBegin(
            id=first.id,
            revision=1,
            position=place(1),
            broker_ms=1,
            taken_at="",
            parts=2,
            quality=Quality(),
            types=[],
        )
    )
    follow.link(DOWN)
    follow.link(UP)
    (second,) = sent(follow)
    assert first.id not in follow.waits_for()
    snapshot(follow, second, 20)
    (watch,) = sent(follow)
    assert isinstance(watch, WatchRequest)
    assert watch.since == place(20)


def test_link_news_do_not_pile_up_while_nobody_looks() -> None:
    follow = Follow()
    watching(follow)
    for number in range(100):
        follow.link(LinkNews(False, f"down {number}"))
    assert follow.next() == LinkNews(False, "down 99")
    assert follow.next() is None


def test_a_refusal_is_raised_where_the_user_is() -> None:
    follow = Follow()
    follow.link(UP)
    (request,) = sent(follow)
    follow.take(Failed(id=request.id, code="forbidden", message="agents may not", hint="use another key"))
    follow.next()
    with pytest.raises(BrokerRefused, match="agents may not") as caught:
        follow.next()
    assert (caught.value.code, caught.value.hint) == ("forbidden", "use another key")


@pytest.mark.parametrize(("busy", "patience"), [(True, BUSY_S), (False, PATIENCE_S)])
def test_a_busy_broker_is_asked_again_soon_and_a_silent_one_later(busy: bool, patience: float) -> None:
    follow = Follow()
    follow.link(UP)
    (request,) = sent(follow)
    if busy:
        follow.take(Failed(id=request.id, code="busy", message="too many snapshots"))
    follow.tick(100.0)
    follow.tick(100.0 + patience * 0.9)
    assert sent(follow) == []
    follow.tick(100.0 + patience * 1.1)
    (again,) = sent(follow)
    assert isinstance(again, SnapshotRequest)
    assert again.id != request.id


def test_nothing_is_asked_again_while_the_stream_is_only_quiet() -> None:
    follow = Follow()
    watching(follow)
    for now in range(0, 1000, 10):
        follow.tick(float(now))
    assert sent(follow) == []


def test_bodies_are_fetched_when_their_digest_is_new_and_only_then() -> None:
    body = Inventory(reporter="gpu", generation=1, complete=True)
    again = Inventory(reporter="gpu", generation=2, complete=False)
    newer = Inventory(reporter="gpu", generation=3, complete=True, instances=[Instance(id="a", kind="gpu")])
    follow = Follow(inventories=True)
    follow.link(UP)
    (request,) = sent(follow)
    snapshot(follow, request, 10, msgspec.structs.replace(HOST, inventories={"gpu": reference(body)}))
    (watch,) = sent(follow)
    follow.next()
    follow.next()
    (wanted,) = sent(follow)
    assert isinstance(wanted, InventoriesRequest)
    assert wanted.wanted == {"host:node1": ["gpu"]}
    follow.take(InventoryBodies(id=wanted.id, bodies={"host:node1": {"gpu": body}}))
    follow.next()
    assert follow.mirror is not None
    assert follow.mirror.inventory("host:node1", "gpu") == body
    follow.take(delta(watch, 11, LocationChange(inventories={"gpu": reference(again)})))
    follow.next()
    assert sent(follow) == [], "the same body is not fetched twice"
    assert follow.mirror.inventory("host:node1", "gpu") == again
    follow.take(delta(watch, 12, LocationChange(inventories={"gpu": reference(newer)})))
    follow.next()
    (more,) = sent(follow)
    assert isinstance(more, InventoriesRequest)
