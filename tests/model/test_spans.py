"""Spans of time in files of configuration: none is so short that a program would do nothing else."""

from collections.abc import Iterator

import pytest
from msgspec import inspect

from xce.model import document
from xce.model.configuration import AgentFile, BrokerFile, ExternalFile, ReporterSettings
from xce.model.refusal import ConfigRefused

AT_ONCE = {
    "discovery.health.event_probation",
    "discovery.health.settle",
}
"""Spans that may be none at all: nothing is repeated after them."""


def spans(kind: type, above: tuple[str, ...] = ()) -> Iterator[str]:
    """Every key of a file whose value is a number that need not be whole."""
    for field in inspect.type_info(kind).fields:  # type: ignore[attr-defined]
        forms = field.type.types if isinstance(field.type, inspect.UnionType) else [field.type]
        for form in (one.type if isinstance(one, inspect.Metadata) else one for one in forms):
            if isinstance(form, inspect.FloatType):
                yield ".".join((*above, field.encode_name))
            elif isinstance(form, inspect.StructType):
                yield from spans(form.cls, (*above, field.encode_name))


FILES = (AgentFile, BrokerFile, ExternalFile, ReporterSettings)
KEYS = [(kind, key) for kind in FILES for key in spans(kind) if key not in AT_ONCE]


def read(kind: type, key: str, value: str) -> None:
    *above, name = key.split(".")
    lines = [f"{'  ' * depth}{one}:" for depth, one in enumerate(above)]
    document.load("\n".join([*lines, f"{'  ' * len(above)}{name}: {value}\n"]), "own.yaml", kind)


def test_the_keys_are_found() -> None:
    assert {"heartbeat", "reporters.interval", "claims.check_s"} <= {key for _, key in KEYS}


@pytest.mark.parametrize(("kind", "key"), KEYS, ids=lambda one: one if isinstance(one, str) else one.__name__)
@pytest.mark.parametrize("value", ["0.000005", "0", "-1", ".nan", ".inf"])
def test_a_span_that_would_never_rest_is_refused_with_its_place(kind: type, key: str, value: str) -> None:
    with pytest.raises(ConfigRefused) as refused:
        read(kind, key, value)
    (error,) = refused.value.errors
    assert (error.path, error.line, error.key) == ("own.yaml", key.count(".") + 1, key)


@pytest.mark.parametrize("key", ["grace_s", "dirty_after_s"])
@pytest.mark.parametrize("value", ["-1", ".nan", "1e9"])
def test_a_wait_of_a_profile_may_be_none_and_is_otherwise_one(key: str, value: str) -> None:
    read(AgentFile, f"claims.profiles.default.{key}", "0")
    with pytest.raises(ConfigRefused, match=rf"own.yaml:4: claims.profiles.default.{key}"):
        read(AgentFile, f"claims.profiles.default.{key}", value)
