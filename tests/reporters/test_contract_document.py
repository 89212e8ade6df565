"""What the documents for script authors say is what the code does."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from xce.model import document, instance, resource
from xce.model.configuration import ReporterSettings
from xce.model.value import Presence
from xce.reporters import contract, frame, inventory

DOCS = Path(__file__).resolve().parents[2] / "docs"
CONTRACT = (DOCS / "reporter-contract.md").read_text()
MAN = DOCS / "man" / "xce-reporter.7"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^ *```{language}\n(.*?)^ *```", CONTRACT, re.MULTILINE | re.DOTALL)


def section(title: str) -> str:
    return CONTRACT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def numbers(text: str, row: str) -> list[int]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {row} |")]
    return [int(number) for number in re.findall(r"\d+", line)]


@pytest.mark.parametrize("text", blocks("json"))
def test_every_frame_that_is_shown_is_a_frame(text: str) -> None:
    parsed = frame.parse_line(text.encode())
    assert isinstance(parsed, frame.Frame)
    assert not parsed.refusals
    assert not parsed.notes
    if parsed.instances is not None:
        assert inventory.check(parsed.instances, complete=True)[1] == []
    if parsed.conditions is not None:
        outcome = contract.take_frame(parsed, contract.Context(reporter="x", types={}))
        assert len(outcome.conditions or []) == len(parsed.conditions)


@pytest.mark.parametrize("text", blocks("yaml"))
def test_every_settings_file_that_is_shown_is_valid(text: str) -> None:
    lines = text.splitlines()
    margin = len(lines[0]) - len(lines[0].lstrip())
    assert document.load("\n".join(line[margin:] for line in lines), "x.yaml", ReporterSettings).types


def test_the_limits_are_the_codes() -> None:
    limits = section("Limits")
    assert numbers(limits, "a frame") == [frame.LIMITS.frame_bytes]
    assert numbers(limits, "a line of an elim") == [frame.LIMITS.elim_bytes]
    assert numbers(limits, "values in one frame") == [frame.LIMITS.values]
    assert numbers(limits, "names in one run") == [frame.LIMITS.names]
    assert numbers(limits, "a name") == [resource.NAME_BYTES]
    assert numbers(limits, "a string") == [resource.STRING_BYTES]
    assert numbers(limits, "a set") == [resource.SET_ITEMS, resource.SET_ITEM_BYTES]
    assert numbers(limits, "instances") == [instance.INSTANCES, instance.ATTRIBUTES, instance.ID_BYTES]
    assert numbers(limits, "conditions") == [frame.LIMITS.conditions, contract.REASON]
    assert numbers(limits, "refusals kept with their text") == [frame.LIMITS.refusals, frame.TEXT]
    manual = MAN.read_text().replace("\n", " ")
    for limit in (frame.LIMITS.frame_bytes, frame.LIMITS.elim_bytes, instance.INSTANCES):
        assert f" {limit} " in manual


def test_all_kinds_presences_and_healths_are_explained() -> None:
    values = section("Values")
    assert re.findall(r"^\| `([a-z-]+)` \|", values, re.MULTILINE) == [kind.value for kind in resource.Kind]
    told = values.split("| presence | when |\n|---|---|\n")[1]
    assert re.findall(r"^\| ([a-z ]+) \|", told, re.MULTILINE) == [
        presence.value.replace("-", " ") for presence in Presence
    ]
    assert all(f"`{health.value}`" in section("Instances") for health in instance.Health)
    assert str(contract.NOT_APPLICABLE) in section("One-shot")


def test_links_inside_the_document_lead_somewhere() -> None:
    titles = re.findall(r"^##+ (.*)$", CONTRACT, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    assert set(re.findall(r"\]\(#([^)]+)\)", CONTRACT)) <= anchors
    settings = (DOCS / "configuration.md").read_text()
    titles = re.findall(r"^##+ (.*)$", settings, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    assert set(re.findall(r"\]\(configuration\.md#([^)]+)\)", CONTRACT)) <= anchors
    assert set(re.findall(r"\]\(#([^)]+)\)", settings)) <= anchors


@pytest.mark.skipif(not shutil.which("mandoc"), reason="mandoc is not installed")
def test_the_manual_page_is_clean() -> None:
    result = subprocess.run(
        ["mandoc", "-Tlint", "-Wwarning", MAN], capture_output=True, text=True, timeout=20, check=False
    )
    assert result.stdout == ""
    assert result.returncode == 0
