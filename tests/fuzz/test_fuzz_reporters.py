"""Whatever a reporter prints: nothing but frames and refusals comes out, and nothing odd gets further."""

from pathlib import Path
from typing import Any

import msgspec

from tests.fuzz.chance import Chance, run
from xce.model.instance import Inventory
from xce.model.message import FeedTick, Report
from xce.model.resource import Kind, ResourceType, name_problem, normalise, value_problem
from xce.model.value import Absent, Value
from xce.reporters.contract import Context, Outcome, Verdict, finish_run, take_frame
from xce.reporters.elim import Stream
from xce.reporters.frame import LIMITS, Frame, Lines, Refusal, TooLong, parse_line
from xce.wire import codec

CASES = sorted((Path(__file__).parent.parent / "cases" / "reporters").glob("*.jsonl"))
ELIMS = sorted((Path(__file__).parent.parent / "cases" / "reporters").glob("*.elim"))
GOOD = [
    *(path.read_bytes() for path in CASES),
    b'{"num": 412.5, "tags": ["imagenet", "laion"], "word": "Active", "ok": true, "count": null}\n',
    b'{"xce": 1, "values": {"ok": false}, "conditions": [{"name": "full", "reason": "3 MB", "hold": true}]}\n'
    b'{"xce":1,"complete":false,"instances":[{"id":"0000:3b:00.0","kind":"nic","capacity":{"vf":7}}]}\n',
    b'{"xce": 1, "instances": [{"id": "GPU-5b1e", "kind": "gpu", "health": "lost", "reason": "Xid 79", '
    b'"attributes": {"model": "H200", "memory_gib": 139}}, {"id": "MIG-77aa", "kind": "mig", '
    b'"parent": "GPU-5b1e"}], "complete": true}\n',
    b'\n{"num": 1, "num": 2}\n{"far": 3, "tenth": 0.1, "d01": 1e3}\n',
]
GOOD_ELIMS = [
    *(path.read_bytes() for path in ELIMS),
    b"3 num 12.5 word Active ok 1\n2 count - num\n 7\n",
    b"1 num 5 2 word a ok 0\n",
]
TYPES = {
    kind.name: kind
    for kind in (
        *(ResourceType(name=name, kind=Kind.NUMERIC) for name in ("num", "free_a", "free_b", "free_c")),
        *(ResourceType(name=f"d{number:02}", kind=Kind.NUMERIC) for number in range(1, 21)),
        ResourceType(name="scratch_free_gb", kind=Kind.NUMERIC, minimum=0, maximum=1e6),
        ResourceType(name="count", kind=Kind.NUMERIC, max_step=10),
        ResourceType(name="word", kind=Kind.STRING),
        ResourceType(name="ib_state", kind=Kind.STRING),
        ResourceType(name="tags", kind=Kind.STRING_SET),
        ResourceType(name="ok", kind=Kind.BOOLEAN),
        ResourceType(name="far", kind=Kind.NUMERIC, reporter="another"),
        ResourceType(name="tenth", kind=Kind.NUMERIC, reporter="static"),
    )
}
PREVIOUS: dict[str, Value] = {"count": 5, "num": 1, "tags": ["a"]}
CONTEXT = Context(reporter="fuzz", types=TYPES, previous=PREVIOUS)


def test_no_output_of_a_one_shot_run_gets_past_the_contract() -> None:
    run(_one_shot)


def test_no_output_of_an_elim_or_a_persistent_reporter_gets_past_the_contract() -> None:
    run(_streamed)


def test_a_line_is_the_same_in_whatever_pieces_it_comes() -> None:
    run(_in_pieces)


def _one_shot(chance: Chance) -> None:
    lines = _cut(chance, _output(chance))
    fault = chance.choice(("", "", "exit status 3"))
    names = chance.sample(sorted(TYPES), 3)
    outcome = finish_run(lines, CONTEXT, fault=fault, names=names, promised=names[:1])
    assert (outcome.verdict is Verdict.FAILED) == bool(fault)
    if fault:
        assert not outcome.values
        assert not outcome.silent
    else:
        assert set(names) <= set(outcome.values) | set(outcome.silent)
    _check(outcome)
    assert finish_run(lines, CONTEXT, fault=fault, names=names, promised=names[:1]) == outcome


def _streamed(chance: Chance) -> None:
    stream = Stream()
    elim = chance.random() < 0.5
    data = chance.damaged(chance.choice(GOOD_ELIMS), rounds=3) if elim else _output(chance)
    for number, line in enumerate(_cut(chance, data), 1):
        for frame in stream.feed(line) if elim else [parse_line(line, number)]:
            assert frame is None or isinstance(frame, Frame | Refusal)
            if isinstance(frame, Refusal):
                _check_refusal(frame)
            if frame is not None:
                _check(take_frame(frame, CONTEXT))
    for refusal in stream.drop("the end"):
        _check_refusal(refusal)
    assert stream.drop("the end") == []


def _in_pieces(chance: Chance) -> None:
    data = _output(chance) * chance.choice((1, 1, 30))
    limit = chance.choice((10, 100, LIMITS.frame_bytes))
    whole, pieces = Lines(limit), Lines(limit)
    together = whole.feed(data) + whole.end()
    apart = [line for piece in chance.pieces(data) for line in pieces.feed(piece)] + pieces.end()
    assert apart == together
    assert all(isinstance(line, TooLong) or len(line) <= limit for line in together)
    if not any(isinstance(line, TooLong) for line in together):
        assert b"\n".join(line for line in together if isinstance(line, bytes)) == data.removesuffix(b"\n")


def _output(chance: Chance) -> bytes:
    """What a run prints: recorded output with damage, or a document with odd values."""
    if chance.random() < 0.5:
        return chance.damaged(chance.choice(GOOD))
    names = [*TYPES, "undeclared", "num@host:node1", "9lives", ""]
    values: dict[str, Any] = {chance.choice(names): chance.value() for _ in range(chance.randrange(5))}
    frame: dict[str, Any] = values
    if chance.random() < 0.6:
        frame = {"xce": 1, "values": values}
        for key in ("instances", "conditions", "complete", "xce"):
            if chance.random() < 0.2:
                frame[key] = chance.value()
        if chance.random() < 0.6:
            frame["instances"] = [_unit(chance) for _ in range(chance.randrange(4))]
        if chance.random() < 0.6:
            frame["conditions"] = [_condition(chance) for _ in range(chance.randrange(4))]
    try:
        return chance.damaged(msgspec.json.encode(frame) + b"\n", rounds=1)
    except UnicodeEncodeError:
        return b"{}"


def _unit(chance: Chance) -> Any:
    unit: dict[str, Any] = {"id": chance.choice(("a", "b", "c")), "kind": "gpu"}
    for key in ("parent", "health", "reason", "attributes", "capacity", "id", "kind", "odd"):
        if chance.random() < 0.2:
            unit[key] = chance.choice((chance.value(), "a", "lost", {"n": chance.value()}))
    return unit if chance.random() < 0.9 else chance.value()


def _condition(chance: Chance) -> Any:
    condition: dict[str, Any] = {"name": chance.choice(("full", "hot")), "hold": chance.random() < 0.5}
    for key in ("name", "reason", "hold"):
        if chance.random() < 0.2:
            condition[key] = chance.value()
    return condition if chance.random() < 0.9 else chance.value()


def _cut(chance: Chance, data: bytes) -> list[bytes | TooLong]:
    lines = Lines(chance.choice((50, LIMITS.frame_bytes)))
    return [line for piece in chance.pieces(data) for line in lines.feed(piece)] + lines.end()


def _check(outcome: Outcome) -> None:
    """What is taken is what its type allows, can travel, and can be shown."""
    assert not outcome.values.keys() & outcome.silent.keys()
    for name, reading in outcome.values.items():
        kind = TYPES[name]
        assert kind.reporter in {"", "fuzz"}
        if isinstance(reading, Absent):
            assert reading.cause == "the reporter says null"
        else:
            assert value_problem(kind, reading, PREVIOUS.get(name)) == ""
            assert normalise(kind, reading) == reading
    for name, absent in outcome.silent.items():
        assert name in TYPES
        assert absent.cause.isprintable()
    feed = FeedTick("fuzz", 1, 0, {**outcome.values, **outcome.silent})
    report = Report(1, [feed])
    data = codec.encode(report)
    decoded = codec.decode_for_broker(data)
    assert isinstance(decoded, Report)  # perhaps the codec's own kind of it
    assert codec.encode(decoded) == data
    if outcome.instances is not None:
        inventory = outcome.instances.numbered("fuzz", 1)
        assert msgspec.msgpack.decode(codec.encode(inventory), type=Inventory) == inventory
    for condition in outcome.conditions or ():
        assert name_problem(condition.name) == ""
        assert condition.reason.isprintable()
        codec.encode(condition)
    assert len(outcome.refusals) <= min(LIMITS.refusals, outcome.refused)
    for refusal in outcome.refusals:
        _check_refusal(refusal)
    assert all(note.isprintable() for note in outcome.notes), outcome.notes


def _check_refusal(refusal: Refusal) -> None:
    assert refusal.reason
    assert str(refusal).isprintable(), refusal
    assert len(refusal.text) <= 400
    codec.encode(refusal)
