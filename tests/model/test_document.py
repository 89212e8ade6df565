"""Configuration text: what is read, what is refused, and whether the place of every error is right."""

import string

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xce.model import refusal
from xce.model.configuration import AgentFile, BrokerFile, HostsFile, ReporterSettings, ResourcesFile
from xce.model.document import load
from xce.model.resource import Kind, Order, ResourceType


def refused(text: str, kind: type = AgentFile) -> list[str]:
    with pytest.raises(refusal.ConfigRefused) as caught:
        load(text, "/etc/xce/agent.yaml", kind)
    return [str(error) for error in caught.value.errors]


@pytest.mark.parametrize("kind", [AgentFile, BrokerFile, HostsFile, ResourcesFile, ReporterSettings])
@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "\ufeff", "---\n"])
def test_an_empty_file_is_all_defaults(kind: type, text: str) -> None:
    assert load(text, "x.yaml", kind) == kind()


def test_every_field_reaches_its_struct() -> None:
    text = """
        mode: persistent
        interval: 5
        arguments: [--fast, "no"]
        environment: {A: b}
        limits: {processes: 3}
        types:
          - {name: scratch_gb, kind: numeric, unit: GB, order: decreasing, minimum: 0}
        """
    settings = load(text, "x.yaml", ReporterSettings)
    assert (settings.mode, settings.interval, settings.arguments) == ("persistent", 5, ["--fast", "no"])
    assert settings.limits.processes == 3
    assert settings.types[0] == ResourceType(
        name="scratch_gb", kind=Kind.NUMERIC, unit="GB", order=Order.DECREASING, minimum=0
    )


def test_all_errors_come_at_once_each_with_its_line() -> None:
    text = "broker: tcp://x:1\nreporters:\n  intervall: 5\n  timeout: ten\n  budget: 0\nnaem: x\n"
    assert refused(text) == [
        "/etc/xce/agent.yaml:3: reporters.intervall: unknown key; did you mean 'interval'?",
        "/etc/xce/agent.yaml:4: reporters.timeout: "
        "expected a number of seconds of at least 0.01, at most 2678400, got 'ten'",
        "/etc/xce/agent.yaml:5: reporters.budget: expected a whole number of at least 1, got the number 0",
        "/etc/xce/agent.yaml:6: naem: unknown key; did you mean 'name'?",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: x\nname: y", "2: name: is written twice, first in line 1"),
        ("name: no", "1: name: no can be read in two ways; write false, or 'no' for the word"),
        ("reporters: {load_indices: on}", "on can be read in two ways; write true"),
        ("reporters: {load_indices: True}", "True can be read in two ways; write true"),
        ("reporters: {load_indices: 1}", "expected true or false, got the number 1"),
        ("name: 007", "007 can be read in two ways; write 7, or '007' for the text"),
        ("name: 5", "expected text, got the number 5; put it in quotes"),
        ("timeout: 5", "timeout: unknown key; it belongs below 'reporters'"),
        ("reporters: {interval: '5'}", "got '5'; without quotes"),
        ("reporters: {interval: '2,5'}", "got '2,5'; with a point: 2.5"),
        ("reporters: {interval: 30s}", "got '30s'; give the number alone, without a unit"),
        ("reporters: {interval: .inf}", "got '.inf'"),
        ("reporters: {interval: 2678401}", "at most 2678400, got the number 2678401"),
        ("reporters: {interval: 0}", "of at least 0.01, at most 2678400, got the number 0"),
        ("reporters: {budget: 1.5}", "expected a whole number of at least 1, got the number 1.5"),
        ("reporters: {budget: 99999999999999999999}", "does not fit in 64 bits"),
        ("reporters: {allow_root: gpu}", "expected a list, got 'gpu'; write [gpu]"),
        ("reporters:\n  interval:\n", "2: reporters.interval: expected a number of seconds"),
        ("reporters: 5", "reporters: expected keys and values, got the number 5; known here: directory, "),
        ("- a\n- b", "expected keys and values, got a list; known here: broker, broker_key, "),
        ("name: !!python/object:os.system x", "the tag"),
        ("<<: {a: 1}", "merge keys are not read"),
        ("reporters:\n\tinterval: 5", "2: cannot be read as YAML: a tab in the indentation; use spaces"),
        ("a: 1\n---\nb: 2", "2: cannot be read as YAML: a second document starts here"),
        ("name: [", "cannot be read as YAML"),
        ("name: [node[1-3]]", "a range inside [ ] or { } needs quotes: 'node[1-3]'"),
        ("name: a\x00b", "1: the character '\\x00' is not allowed"),
        ("? [a]\n: b", "a key must be text"),
        ("&a [*a]", "nested deeper than"),
        ("[" * 5000, "cannot be read as YAML"),
    ],
)
def test_an_error_says_where_and_what_would_be_right(text: str, words: str) -> None:
    assert words in "\n".join(refused(text))


def test_an_error_in_a_list_names_the_item() -> None:
    text = "types:\n- name: a\n  kind: numeric\n- name: b\n  kind: numerc\n"
    text += "- name: c\n  kind: string\n  minimum: 1\n"
    first, second = refused(text, ResourcesFile)
    assert "agent.yaml:5: types[b].kind: expected one of numeric, boolean" in first
    assert "did you mean 'numeric'?" in first
    assert "agent.yaml:6: types[c]: c: minimum, maximum and max_step are for numeric types only" in second


def test_an_alias_is_read_and_a_bomb_of_them_is_not() -> None:
    hosts = load("hosts:\n- {name: a, values: &v {x: 1}}\n- {name: b, values: *v}\n", "x", HostsFile).hosts
    assert hosts[0].values == hosts[1].values == {"x": 1}
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 8)}]\n" for n in range(1, 12)
    )
    assert "more than 1000000 values" in "\n".join(refused(bomb))


def test_crlf_and_a_byte_order_mark_do_not_matter() -> None:
    assert load("\ufeffname: node1\r\nreporters:\r\n  interval: 5\r\n", "x", AgentFile).name == "node1"


@given(st.text(max_size=200))
def test_no_text_gets_an_unexpected_exception(text: str) -> None:
    try:
        load(text, "x.yaml", AgentFile)
        errors = []
    except refusal.ConfigRefused as refused:
        errors = refused.errors or [refusal.ConfigError("", -1, "", "refused without an error")]
    assert all(0 <= error.line <= len(text.splitlines()) + 1 for error in errors)


WORDS = st.text(alphabet=string.ascii_lowercase, min_size=1, max_size=12)


@given(st.lists(WORDS, unique=True, max_size=8), WORDS, st.integers(0, 8))
def test_the_line_of_a_wrong_key_is_the_line_where_it_stands(names: list[str], wrong: str, at: int) -> None:
    lines = [f"    k{name}: text" for name in names]
    place = min(at, len(lines))
    lines.insert(place, f"    K{wrong}: 5")
    text = "environment:\n" + "\n".join(lines)
    (error,) = refused(text, ReporterSettings)
    assert error.startswith(f"/etc/xce/agent.yaml:{place + 2}: environment.K{wrong}: expected text")


class Shelf(msgspec.Struct):
    """What tuples are tried on."""

    slots: tuple[str, ...] = ()
    place: tuple[int, int] | None = None


def test_tuples_are_lists_of_a_kind_or_of_a_length() -> None:
    assert load("slots: [a, b]\nplace: [4, 2]", "f.yaml", Shelf) == Shelf(slots=("a", "b"), place=(4, 2))
    with pytest.raises(refusal.ConfigRefused) as refused:
        load("slots: [a,\n  5]\nplace: [4]", "f.yaml", Shelf)
    assert str(refused.value) == (
        "f.yaml:2: slots[1]: expected text, got the number 5; put it in quotes\n"
        "f.yaml:3: place: expected a list of 2, got a list"
    )


def test_what_a_check_of_the_value_finds_has_its_line_too() -> None:
    profiles = "    a.b:\n      devices: []\n    a:\n      ports: {low: 5}\n"
    text = f"name: x\nclaims:\n  profiles:\n{profiles}broker: y\n"
    found = {
        "broker": "is bad",
        "claims.profiles.a.b.devices": "is bad",
        "claims.profiles.a.ports.low": "is bad",
        "claims.profiles.a.b.volumes.d.path": "is bad",
        "metrics": "is bad",
    }
    with pytest.raises(refusal.ConfigRefused) as caught:
        load(text, "a.yaml", AgentFile, check=lambda _: found)
    assert [str(error) for error in caught.value.errors] == [
        "a.yaml:1: metrics: is bad",  # not written: the place where it belongs
        "a.yaml:4: claims.profiles.a.b.volumes.d.path: is bad",
        "a.yaml:5: claims.profiles.a.b.devices: is bad",
        "a.yaml:7: claims.profiles.a.ports.low: is bad",
        "a.yaml:8: broker: is bad",
    ]
    types = "types:\n  - {name: a, kind: string}\n  - kind: string\n    name: b\n"
    with pytest.raises(refusal.ConfigRefused, match=r"r.yaml:4: types\[b\].name: is bad"):
        load(types, "r.yaml", ResourcesFile, check=lambda _: {"types[1].name": "is bad"})


def test_a_bare_name_where_a_section_belongs_is_told_how_to_write_it() -> None:
    assert refused("hosts:\n  - node1\n", HostsFile) == [
        "/etc/xce/agent.yaml:2: hosts[0]: expected keys and values, got 'node1'; write {name: node1}"
    ]
