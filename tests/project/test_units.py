"""What the units allow is explained, and what they must not have is not in them."""

import re
from pathlib import Path

import pytest

from tests.project import tree
from xce.agent.host_checks import HIDING

UNITS = tree.ROOT / "packaging/systemd"
PAGE = (tree.ROOT / "docs/packaging.md").read_text()


def options(unit: str) -> list[tuple[str, str]]:
    lines = (UNITS / unit).read_text().splitlines()
    return [line.partition("=")[::2] for line in lines if "=" in line and not line.startswith("#")]


def names(cells: list[str]) -> set[str]:
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def rows(heading: str) -> set[str]:
    section = PAGE.split(f"\n{heading}\n")[1].split("\n#")[0]
    return names([line.split("|")[1] for line in section.splitlines() if line.startswith("| `")])


def test_every_capability_of_the_agent_has_a_row_that_says_why_and_no_other_has() -> None:
    (allowed,) = [
        value.split() for name, value in options("xce-agent.service") if name == "CapabilityBoundingSet"
    ]
    assert rows("### What the agent may do") == set(allowed)


def test_every_option_of_hardening_has_a_row_for_each_unit() -> None:
    for unit in ("xce-agent.service", "xce-broker.service", "xce-jobs.service"):
        hardening = {
            name
            for name, _ in options(unit)
            if re.match(
                r"Protect|Private|Restrict|SystemCall|Memory|Lock|NoNew|Capab|Ambient|Remove|ProcSubset|UMask",
                name,
            )
        }
        assert hardening <= rows("### What each option is for"), unit


def test_no_option_of_the_agents_unit_hides_its_mounts() -> None:
    """C-PKG-04: also not in the unit that holds jobs."""
    for unit in ("xce-agent.service", "xce-jobs.service"):
        assert HIDING.findall((UNITS / unit).read_text()) == []


@pytest.mark.parametrize("unit", ["xce-agent.service", "xce-broker.service", "xce-jobs.service", "xce.slice"])
def test_a_page_that_a_unit_names_is_there(unit: str) -> None:
    text = (UNITS / unit).read_text()
    for page in re.findall(r"docs/[\w.-]+\.md", text):
        assert Path(tree.ROOT / page).exists(), page
    for page, section in re.findall(r"man:([\w.-]+)\((\d)\)", text):
        assert Path(tree.ROOT / f"docs/man/{page}.{section}").exists(), page
