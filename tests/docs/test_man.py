"""The man pages lead to each other, and the one that is written by hand says what the contract says."""

import re
from pathlib import Path

import pytest

from docs.generators.man import PROGRAMS, helps
from xce.model.instance import Instance
from xce.reporters.frame import LIMITS

MAN = Path(__file__).parents[2] / "docs" / "man"
PAGES = sorted(MAN.glob("*.[1-9]"))
CONTRACT = (MAN / "xce-reporter.7").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_page_that_is_named_exists(page: Path) -> None:
    named = re.findall(r"^\.Xr (\S+) (\d)", page.read_text(), re.MULTILINE)
    assert named
    assert [f"{name}.{section}" for name, section in named if not (MAN / f"{name}.{section}").exists()] == []


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_help_begins_with_the_command_as_it_was_typed(program: str) -> None:
    package, _, names, _, _ = PROGRAMS[program]
    for command in names:
        for below, text in helps(package, command):
            assert re.match(rf"usage: {program} {below or command}(\s|$)", text), text.partition("\n")[0]


def test_the_contracts_page_names_what_an_instance_may_say() -> None:
    for field in Instance.__struct_fields__:
        assert re.search(rf"^\.Ic {field}\b", CONTRACT, re.MULTILINE), field


def test_the_contracts_page_has_its_limits() -> None:
    for limit in (LIMITS.frame_bytes, LIMITS.values, LIMITS.elim_bytes, LIMITS.names):
        assert str(limit) in CONTRACT
