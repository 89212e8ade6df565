"""C-DIR-04: names from outside as path elements."""

import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xce.prepare import names

NAMES = json.loads((Path(__file__).parent.parent / "cases/dir/names.json").read_text())
REFUSED = {"", "x\0y"}


def refused(name: str) -> bool:
    return name in REFUSED or len(name) > names.MOST_BYTES


def test_c_dir_04_every_name_is_one_element_and_two_names_never_the_same(tmp_path: Path) -> None:
    elements = {}
    for name in NAMES:
        if refused(name):
            with pytest.raises(names.NameRefused):
                names.encode(name)
            continue
        element = names.encode(name)
        assert "/" not in element
        assert not element.startswith((".", "-", "~"))
        assert len(os.fsencode(element)) <= 255
        assert names.decode(element) == name
        elements[element] = name
        (tmp_path / element).mkdir()
    assert len(elements) == len({name for name in NAMES if not refused(name)})
    assert sorted(os.listdir(tmp_path)) == sorted(elements)


def test_c_dir_04_what_a_name_looks_like_is_plain() -> None:
    assert names.encode("1042") == "1042"
    assert names.encode("1042[7]") == "1042%5B7%5D"
    assert names.encode("1042_7") == "1042_7"
    assert names.encode("1042%5B7%5D") == "1042%255B7%255D"
    assert names.encode("..") == "%2E."
    assert names.encode("café") == "caf%C3%A9"


@given(st.text())
def test_any_name_is_refused_or_comes_back(name: str) -> None:
    try:
        element = names.encode(name)
    except names.NameRefused:
        return
    assert names.decode(element) == name
    assert re.fullmatch(r"[A-Za-z0-9%+,.=@_-]+", element)


@pytest.mark.parametrize("element", ["", "a b", "%zz", "%41", "..", "%C3", "a/b", "caf\u00e9"])
def test_what_encode_never_gives_is_no_name(element: str) -> None:
    with pytest.raises(names.NameRefused):
        names.decode(element)
