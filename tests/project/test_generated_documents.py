"""The documents that are made from code are what the code would make today."""

from enum import StrEnum
from pathlib import Path

import pytest

from docs import generate
from docs.generators import states
from xce.model.transition import Machine


@pytest.mark.parametrize("name", generate.generators())
def test_a_committed_document_is_what_its_generator_makes(name: str) -> None:
    assert generate.differences(generate.generators()[name]()) == []


def test_an_edited_document_is_shown_as_a_difference(tmp_path: Path) -> None:
    rendered = states.render()
    generate.write(rendered, tmp_path)
    assert generate.differences(rendered, tmp_path) == []
    text = (tmp_path / "states.md").read_text()
    (tmp_path / "states.md").write_text(text.replace("never started a second time", "started again"))
    (difference,) = generate.differences(rendered, tmp_path)
    assert (
        "+| abandoned | A child of it cannot be killed; never started a second time meanwhile. |"
        in difference
    )


def test_a_missing_document_is_a_difference(tmp_path: Path) -> None:
    assert len(generate.differences({"new.md": "text\n"}, tmp_path)) == 1
    assert len(generate.differences({"empty.md": ""}, tmp_path)) == 0


def test_two_generators_cannot_own_one_document() -> None:
    known: dict[str, generate.Render] = {"one": lambda: {"a.md": "1"}, "two": lambda: {"a.md": "2"}}
    with pytest.raises(ValueError, match="two generators own it"):
        generate.rendered_by(known, known)


class Lamp(StrEnum):
    """A lamp."""

    OFF = "off"
    """Dark."""
    ON = "on"
    """Bright."""
    BROKEN = "broken"


class Switch(StrEnum):
    """What is done to it."""

    PRESS = "press"
    """A finger."""
    DROP = "drop"
    """Gravity."""


LAMP = Machine(
    "lamp",
    Lamp.OFF,
    {
        (Lamp.OFF, Switch.PRESS): Lamp.ON,
        (Lamp.ON, Switch.PRESS): Lamp.OFF,
        (Lamp.OFF, Switch.DROP): Lamp.BROKEN,
        (Lamp.ON, Switch.DROP): Lamp.BROKEN,
    },
    final=frozenset({Lamp.BROKEN}),
)


def test_a_diagram_draws_each_step_and_says_what_it_leaves_out() -> None:
    drawn = states.diagram(LAMP)
    assert "off --> on: press" in drawn
    assert "broken --> [*]" in drawn
    assert "--> broken" not in drawn
    assert "*drop* leads from every other state to *broken*" in drawn


def test_a_state_without_a_docstring_cannot_be_documented() -> None:
    with pytest.raises(ValueError, match=r"Lamp\.BROKEN: has no docstring"):
        states.docstrings(Lamp)


def test_every_machine_of_the_model_is_documented() -> None:
    assert {"host", "reporter"} <= {machine.name for machine in states.machines()}
