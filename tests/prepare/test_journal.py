"""C-STA-01, C-STA-04: what is on disk is whole, or said not to be."""

import contextlib
import itertools
import os
import sqlite3
import time
from pathlib import Path

import msgspec
import pytest

from tests.prepare.world import DENIED, FULL_ASK, OTHER, OWN, World
from xce.linux import mountapi, syscalls
from xce.model.claim import Ask, Binding, BindingState, Claim, Consumer, MountAsk
from xce.prepare.execute import Known, Refused
from xce.prepare.journal import (
    TOMBSTONES,
    Journal,
    NotRecorded,
    Order,
    Tombstone,
    live,
)
from xce.prepare.journalfile import STEPS, TooNew, checksum_of

READY = BindingState.READY


def stone(number: int = 0) -> Tombstone:
    return Tombstone(state=BindingState.RELEASED, epoch=number, op_id=f"op-{number}")


def file_of(place: Path) -> Path:
    return place / "claims.sqlite"


def test_what_was_written_is_there_after_a_start(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path))
    journal.end("b1", stone(7))
    journal.close()
    again = Journal(str(tmp_path))
    ended = again.tombstone("b1")
    assert ended is not None
    assert (ended.epoch, ended.op_id) == (7, "op-7")
    assert (again.standing.epoch, again.standing.recovering) == (7, "")
    assert file_of(tmp_path).stat().st_mode & 0o777 == 0o600
    again.close()


def test_fields_of_a_newer_version_are_kept(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path))
    journal.settle()
    journal.close()
    key = ("standing", "", 0)
    body = msgspec.json.encode(msgspec.to_builtins(journal.standing) | {"from_the_future": [1, 2]})
    with contextlib.closing(sqlite3.connect(file_of(tmp_path))) as connection, connection:
        values = (body, checksum_of(key, body), *key)
        connection.execute(
            "UPDATE record SET body=?, checksum=? WHERE kind=? AND name=? AND number=?", values
        )
    again = Journal(str(tmp_path))
    for number in (3, 4):
        again.end(f"b{number}", stone(number))
    again.close()
    third = Journal(str(tmp_path))
    assert msgspec.json.decode(third._raw[key])["from_the_future"] == [1, 2]
    assert third.standing.epoch == 4
    third.close()


def test_the_highest_number_of_a_binding_is_known_whatever_became_of_it(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path))
    assert journal.newest() == 0
    for name in ("b9", "b12", "b3", "bx", "other77"):
        journal.end(name, stone(1))
    journal.close()
    again = Journal(str(tmp_path))
    assert again.newest() == 12
    again.close()


def test_a_file_that_is_gone_is_not_taken_for_one_that_never_was(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path))
    assert journal.standing.recovering == ""
    journal.end("b1", stone(1))
    journal.close()
    file_of(tmp_path).unlink()
    again = Journal(str(tmp_path))
    assert again.standing.recovering == "the journal was damaged (it is gone)"
    again.close()


def test_a_log_that_an_earlier_damage_has_left_is_in_nobodys_way(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path))
    journal.end("b1", stone(1))
    journal.close()
    file = file_of(tmp_path)
    file.write_bytes(b"")
    file.with_name(f"{file.name}-wal").write_bytes(b"a log")
    earlier = file.with_name(f"{file.name}.damaged-1-wal")
    earlier.write_bytes(b"of an earlier one")
    again = Journal(str(tmp_path))
    assert "the journal was damaged" in again.standing.recovering
    assert again.set_aside.endswith(".damaged-2")
    again.close()
    assert earlier.read_bytes() == b"of an earlier one"


@pytest.mark.parametrize("damage", ["empty", "cut", "scribbled", "one byte of a record"])
def test_c_sta_01_a_damaged_file_is_set_aside_and_the_node_is_recovering(tmp_path: Path, damage: str) -> None:
    journal = Journal(str(tmp_path))
    for number in range(50):
        journal.end(f"b{number}", stone(number))
    journal.close()
    path = file_of(tmp_path)
    data = path.read_bytes()
    place = data.index(b'"op-7"')
    path.write_bytes(
        {
            "empty": b"",
            "cut": data[:5000],
            "scribbled": os.urandom(4096) + data[4096:],
            "one byte of a record": data[: place + 4] + b"8" + data[place + 5 :],
        }[damage]
    )
    again = Journal(str(tmp_path))
    assert "the journal was damaged" in again.standing.recovering
    assert Path(again.set_aside).exists()
    if damage == "one byte of a record":
        assert again.tombstone("b6") is not None
        assert again.tombstone("b7") is None
    again.close()
    third = Journal(str(tmp_path))
    assert "the journal was damaged" in third.standing.recovering  # until somebody settles it
    third.settle()
    third.close()
    assert Journal(str(tmp_path)).standing.recovering == ""


def test_a_file_of_a_newer_version_is_refused_in_words_and_left_as_it_is(tmp_path: Path) -> None:
    Journal(str(tmp_path)).close()
    connection = sqlite3.connect(file_of(tmp_path))
    connection.execute("PRAGMA user_version=99")
    connection.close()
    before = Path(file_of(tmp_path)).read_bytes()
    with pytest.raises(TooNew, match=r"claims\.sqlite is of version 99, this program knows up to 1: install"):
        Journal(str(tmp_path))
    assert Path(file_of(tmp_path)).read_bytes() == before
    assert not list(tmp_path.glob("*.damaged-*"))


def test_a_file_of_an_older_version_is_brought_up_with_all_that_is_in_it(tmp_path: Path) -> None:
    old = Journal(str(tmp_path))
    old.end("b7", stone(7))
    old.close()
    later = [*STEPS, "ALTER TABLE record ADD COLUMN note TEXT", "CREATE TABLE third (x)"]
    new = Journal(str(tmp_path), steps=later)
    assert (new.tombstone("b7"), new.standing.recovering) == (msgspec.structs.replace(stone(7), number=1), "")
    new.end("b8", stone(8))
    new.close()
    with contextlib.closing(sqlite3.connect(file_of(tmp_path))) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (3,)
        assert connection.execute("SELECT count(*) FROM third").fetchone() == (0,)
    again = Journal(str(tmp_path), steps=later)
    assert again.tombstone("b8") is not None
    again.close()
    with pytest.raises(TooNew, match="of version 3"):
        Journal(str(tmp_path))


def test_old_tombstones_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xce.prepare.journal.TOMBSTONES", 5)
    journal = Journal(str(tmp_path))
    for number in range(12):
        journal.end(f"b{number}", stone(number))
    left = [number for number in range(12) if journal.tombstone(f"b{number}")]
    assert left == [7, 8, 9, 10, 11]
    assert TOMBSTONES > 1000
    journal.close()


def as_killed(world: World) -> None:
    """Stop, with the state's files as an agent leaves them that is killed."""
    state = world.place / "state"
    files = {path: path.read_bytes() for path in state.iterdir()}
    world.stop()
    for path, data in files.items():
        path.write_bytes(data)


@pytest.mark.root
def test_c_sta_01_a_log_that_was_lost_brings_nothing_back_that_was_released(world: World) -> None:
    """The file alone is older than what is true: what is in it may have ended, and its card be another's."""
    old = world.bind(Ask(), cards=["full"])
    world.restart()  # the log is taken into the file
    world.release(old.binding)
    new = world.bind(Ask(), cards=["full"])
    as_killed(world)
    (world.place / "state/claims.sqlite-wal").unlink()
    world.start()
    assert "its log was lost" in world.executor.recovering
    world.executor.advance()
    assert world.executor.entries == {}
    order = world.order(Ask(), cards=["full"], binding=new.binding)
    world.take_up(Known("op", 1, *order, {}))
    assert world.settled(new.binding).state is READY
    world.release(new.binding)
    world.group.child(f"xce-consumer-job-{old.binding}").remove()


def test_a_log_of_another_file_is_not_taken_into_a_new_one(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path))
    journal.end("b1", stone(7))
    log = (tmp_path / "claims.sqlite-wal").read_bytes()
    journal.close()
    file_of(tmp_path).unlink()
    (tmp_path / "claims.head").unlink()
    (tmp_path / "claims.sqlite-wal").write_bytes(log)
    again = Journal(str(tmp_path))
    assert again.tombstone("b1") is None
    assert again.standing.recovering == ""
    again.close()


@pytest.mark.root
def test_what_is_done_for_a_binding_is_written_in_two_strokes_and_taken_back_in_two(world: World) -> None:
    """What will be done, and what was. What a volume has that is mounted first is a third."""
    before = world.journal.strokes
    mount = MountAsk(name="input", source="data", read_only=True)
    report = world.bind(msgspec.structs.replace(FULL_ASK, mounts=[mount]), cards=["full"])
    assert world.journal.strokes - before == 2
    world.release(report.binding)
    assert world.journal.strokes - before == 4


@pytest.mark.root
def test_who_does_not_own_it_reads_what_is_under_way_beside_its_owner(world: World) -> None:
    report = world.bind(Ask())
    assert [order.binding.id for order in live(str(world.place / "state"))] == [report.binding]
    world.release(report.binding)
    assert live(str(world.place / "state")) == []


@pytest.mark.parametrize("also_damaged", ["nothing", "another record", "the count"])
def test_what_is_older_than_what_was_written_last_says_nothing_of_what_is_under_way(
    tmp_path: Path, also_damaged: str
) -> None:
    """The log is lost in which b1 has ended; that a record is damaged, too, may not hide that."""
    binding = Binding(id="b1", claim="c", host="h", consumer=Consumer(name="j"))
    order = Order(binding=binding, claim=Claim(id="c"), op_id="o", epoch=1, boot="b", phase="ready", steps=0)
    journal = Journal(str(tmp_path))
    for number in range(2, 40):
        journal.end(f"b{number}", stone(number))
    journal.begin(order, [], epoch=1)
    journal.close()
    whole = file_of(tmp_path).read_bytes()
    journal = Journal(str(tmp_path))
    journal.end("b1", stone(1))
    journal.close()
    wrong = {
        "nothing": (b"", b""),
        "another record": (b"op-7", b"op-x"),
        "the count": (b"strokes", b"strikes"),
    }
    file_of(tmp_path).write_bytes(whole.replace(*wrong[also_damaged]))
    again = Journal(str(tmp_path))
    assert again.standing.recovering
    assert again.orders() == {}
    assert again.tombstone("b20") is not None, "that has ended for ever"
    again.close()


@pytest.mark.root
@pytest.mark.parametrize(
    "name", ["claims.sqlite", "claims.sqlite-wal", "claims.sqlite-journal", "claims.head"]
)
def test_c_sta_01_with_an_emptied_state_file_ready_bindings_are_known_or_nothing_is_given_away(
    world: World, name: str
) -> None:
    one, two = world.bind(FULL_ASK, cards=["full"]), world.bind(FULL_ASK, cards=["zero"])
    as_killed(world)
    assert (world.place / "state/claims.sqlite-wal").stat().st_size
    (world.place / "state" / name).write_bytes(b"")
    world.start()
    assert bool(world.executor.recovering) is (name in {"claims.sqlite", "claims.sqlite-wal"})
    if not world.executor.recovering:
        assert {report.binding for report in world.executor.reports()} == {one.binding, two.binding}
        return
    for card in ("full", "zero"):
        with pytest.raises(Refused, match="recovering"):
            world.bind(Ask(), cards=[card])
    with pytest.raises(Refused, match="recovering"):
        world.release(one.binding)
    assert world.opened_in("job-b1", OWN, OTHER) == ["ok", DENIED]


@pytest.mark.root
def test_c_sta_01_what_the_cluster_knows_settles_a_node_that_lost_its_journal(world: World) -> None:
    """Nothing is done twice: mounts, filters and directories are taken as they are."""
    orders = [world.order(FULL_ASK, cards=["full"], binding="b1")]
    world.bind(FULL_ASK, cards=["full"], binding="b1")
    before = (world.evidence("b1", "filter")["program"], world.evidence("b1", "bind"))
    world.stop()
    (world.place / "state/claims.sqlite").write_bytes(b"")
    world.start()
    world.take_up(*(Known("op-b1", 1, *order, {}) for order in orders))
    assert world.settled("b1").state is READY
    assert (world.evidence("b1", "filter")["program"], world.evidence("b1", "bind")) == before
    assert not world.executor.recovering
    world.release("b1")
    assert world.leftovers() == []


@pytest.mark.root
def test_c_sta_01_with_another_state_directory_what_is_there_is_no_free_node(world: World) -> None:
    """Without journal and head, only the things themselves show that there was one."""
    order = world.order(FULL_ASK, cards=["full"], binding="b1")
    world.bind(FULL_ASK, cards=["full"], binding="b1")
    world.stop()
    for path in (world.place / "state").iterdir():
        path.unlink()
    world.start()
    assert "there is no journal in" in world.executor.recovering
    with pytest.raises(Refused, match="this node is recovering"):
        world.executor.release(op_id="end", epoch=1, binding="b1")
    world.take_up(Known("op-b1", 1, *order, {}))
    assert world.settled("b1").state is READY
    world.release("b1")
    assert world.leftovers() == []
    world.stop()
    for path in (world.place / "state").iterdir():
        path.unlink()
    world.start()
    assert not world.executor.recovering, "nothing is there"


@pytest.mark.root
def test_c_sta_01_a_device_in_use_ends_nothing_that_is_taken_up_again(world: World) -> None:
    """Somebody looks at it in the moment when the agent is started without its journal."""
    order = world.order(FULL_ASK, cards=["full"], binding="b1")
    world.bind(FULL_ASK, cards=["full"], binding="b1")
    world.stop()
    (world.place / "state/claims.sqlite").write_bytes(b"")
    world.start()
    with open(OWN, "rb", buffering=0):
        world.take_up(Known("op-b1", 1, *order, {}))
        assert world.settled("b1").state is READY
        world.executor.release(op_id="end", epoch=1, binding="b1")
        assert "still in use" in world.settled("b1").note
    world.until(lambda: world.report("b1").state is BindingState.RELEASED)


@pytest.mark.root
def test_what_the_cluster_knows_is_taken_up_in_slices_and_gone_on_with_when_all_is_known(
    world: World,
) -> None:
    known = [Known(f"op-{n}", 1, *world.order(Ask(), binding=f"b{n}"), {}) for n in range(1, 6)]
    world.stop()
    (world.place / "state/claims.sqlite").write_bytes(b"")
    world.overrides["mark"] = lambda point: time.sleep(0.03) if point == "order.before-intent" else None
    world.start()
    world.executor.settle(known, world.instances)
    begun = [0]
    while world.executor.recovering:
        assert world.group.children() == [], "another may have the same group"
        world.executor.advance()
        begun.append(len(world.executor.entries))
    assert begun[-1] == 5
    assert max(after - before for before, after in itertools.pairwise(begun)) <= 2
    for one in known:
        assert world.settled(one.binding.id).state is READY
        world.release(one.binding.id)


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    """A file system of 1 MiB for the state."""
    place = tmp_path / "state"
    place.mkdir()
    tree, at = mountapi.make("tmpfs", {"size": "1m"}), os.open(place, os.O_PATH)
    mountapi.attach(tree, at)
    os.close(tree)
    os.close(at)
    return place


def fill(path: Path) -> None:
    """Until nothing more can be written."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):
        while os.write(fd, bytes(512)):
            pass
    os.close(fd)


@pytest.mark.root
def test_a_full_disk_while_a_node_is_taken_up_is_told_and_it_goes_on_with_room(
    small_disk: Path, world: World
) -> None:
    known = [Known(f"op-{n}", 1, *world.order(Ask(), binding=f"b{n}"), {}) for n in range(1, 4)]
    world.stop()
    (world.place / "state/claims.sqlite").write_bytes(b"")
    world.start()
    fill(small_disk / "ballast")
    world.executor.settle(known, world.instances)
    wait = world.executor.advance()
    assert wait is not None
    assert 0.5 < wait <= 1
    assert "no space" in world.executor.trouble
    assert world.executor.recovering
    (small_disk / "ballast").unlink()
    world.until(lambda: not world.executor.recovering)
    assert world.executor.trouble == ""
    for one in known:
        assert world.settled(one.binding.id).state is READY
        world.release(one.binding.id)


@pytest.mark.root
def test_c_sta_04_on_a_full_disk_nothing_is_done_and_it_works_again_with_room(
    small_disk: Path, world: World
) -> None:
    ready = world.bind(FULL_ASK, cards=["full"])
    ballast = small_disk / "ballast"
    fill(ballast)
    before = world.leftovers()
    with pytest.raises(NotRecorded, match="cannot record intent: no space"):
        world.bind(Ask(), cards=["zero"], binding="b99")
    assert list(world.executor.entries) == [ready.binding]
    assert world.leftovers() == before
    assert world.report(ready.binding).state is READY
    ballast.unlink()
    assert world.bind(Ask(), cards=["zero"], binding="b100").state is READY
    world.stop()
    syscalls.umount2(str(small_disk), syscalls.MNT_DETACH)
    world.start()
