"""Names and types of what is told of CSI plugins."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xce.model import csi_values
from xce.model.resource import Layer


@given(st.text(min_size=1))
def test_whatever_a_plugin_or_volume_is_called_its_values_have_names(name: str) -> None:
    """A type with a bad name cannot be made."""
    kinds = [*csi_values.plugin_types(name).values(), *csi_values.volume_types(name).values()]
    assert len({kind.name for kind in kinds}) == 12


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("nfs", "nfs"),
        ("san.example-2", "san_example_2"),
        ("a" * 24, "a" * 24),
        ("a" * 25, "a" * 17 + "_" + "6e99c2"),
    ],
)
def test_names_stay_readable_and_long_ones_are_cut(name: str, part: str) -> None:
    assert csi_values.element(name)[:18] == part[:18]
    assert len(csi_values.element(name)) <= 24


def test_long_names_that_begin_alike_stay_apart() -> None:
    assert csi_values.element("a" * 30 + "1") != csi_values.element("a" * 30 + "2")


def test_volumes_that_are_left_are_a_counter_that_jobs_draw_from() -> None:
    kind = csi_values.plugin_types("san.example")["volumes_free"]
    assert kind.name == "csi.san_example.volumes_free"
    assert (kind.layer, kind.consumable) == (Layer.COUNTER, True)
