"""Every fact that can be made comes back from the store equal, field by field."""

import itertools
import select
import tempfile
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from xce.broker.store import Answer, Batch, Outcome
from xce.broker.store.sqlite import SqliteStore
from xce.model.fact import Change, Checkpoint, Fact
from xce.model.resource import Kind, Order, ResourceType, Scope, WhenStale

text = st.text(max_size=30)
number = st.floats(allow_nan=False, allow_infinity=False)
seconds = st.none() | st.floats(min_value=0.1, max_value=86400)

resource_types = st.builds(
    ResourceType,
    name=st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True),
    kind=st.just(Kind.NUMERIC),
    description=text,
    unit=text,
    order=st.sampled_from(Order),
    consumable=st.booleans(),
    scope=st.sampled_from(Scope),
    reporter=text,
    interval=seconds,
    ttl=seconds,
    minimum=st.none() | st.floats(min_value=-1e9, max_value=0),
    maximum=st.none() | st.floats(min_value=0, max_value=1e9),
    when_stale=st.sampled_from(WhenStale),
) | st.builds(
    ResourceType,
    name=st.just("set"),
    kind=st.sampled_from([Kind.BOOLEAN, Kind.STRING, Kind.STRING_SET]),
    reporter=text,
)

PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: text,
    int: st.integers(min_value=0, max_value=2**53),
    float: number,
    bool: st.booleans(),
    NoneType: st.none(),
    ResourceType: resource_types,
}


def any_of(hint: Any) -> st.SearchStrategy[Any]:
    """All values of a field; one of a kind that is not known here makes this fail, on purpose."""
    if hint in PLAIN:
        return PLAIN[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is list:
        return st.lists(any_of(*arguments), max_size=3)
    if origin is tuple:
        return st.tuples(*map(any_of, arguments))
    if origin is dict:
        return st.dictionaries(*map(any_of, arguments), max_size=2)
    if origin in {Union, UnionType}:
        return st.one_of([any_of(one) for one in arguments])
    if issubclass(hint, Enum):
        return st.sampled_from(hint)
    assert issubclass(hint, msgspec.Struct), hint
    return st.builds(hint, **{name: any_of(one) for name, one in get_type_hints(hint).items()})


changes = st.one_of([any_of(kind) for kind in get_args(Change) if kind is not Checkpoint])
said = st.tuples(changes, text, text, text)
answers = st.dictionaries(text, st.tuples(text, st.binary(max_size=40)), max_size=3)
histories = st.lists(st.tuples(st.lists(said, max_size=5), answers), max_size=8)


def batches_of(history: list[tuple[list[Any], dict[str, Answer]]]) -> list[Batch]:
    numbers = itertools.count(1)
    return [
        Batch(
            [Fact(revision=next(numbers), change=c, by=by, op_id=op, at=at) for c, by, op, at in group], kept
        )
        for group, kept in history
    ]


@settings(max_examples=60, deadline=None)
@given(histories)
def test_what_is_recorded_is_what_is_loaded(history: list[tuple[list[Any], dict[str, Answer]]]) -> None:
    batches = batches_of(history)
    with tempfile.TemporaryDirectory() as directory:
        store = SqliteStore(Path(directory))
        for token, batch in enumerate(batches):
            assert store.submit(batch, token)
        outcomes: list[Outcome] = []
        while len(outcomes) < len(batches):
            assert select.select([store.fileno()], [], [], 10)[0]
            outcomes += store.completed()
        assert [outcome.error for outcome in outcomes] == [None] * len(batches)
        loaded = store.load()
        assert store.close(10)
    assert loaded.facts == [fact for batch in batches for fact in batch.facts]
    assert loaded.answers == {op_id: kept for batch in batches for op_id, kept in batch.answers.items()}
