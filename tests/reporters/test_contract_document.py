"""What the documents for script authors say is what the code does."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from xce.linux.users import User
from xce.model import document, instance, resource
from xce.model.configuration import AgentReporters, Mode, ReporterSettings
from xce.model.value import Presence
from xce.reporters import cage, contract, directory, frame, inventory, oneshot, stream

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
    assert numbers(limits, "output of a one-shot run") == [oneshot.KEPT_BYTES >> 20, oneshot.KEPT_LINES]
    streaming = [stream.STREAM_PER_S >> 20, stream.FRAMES_PER_S]
    assert numbers(limits, "output of a persistent reporter") == streaming
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


def test_the_environment_is_the_cages() -> None:
    variables = cage.environment(
        directory.Candidate(name="x", path="/x", settings=ReporterSettings(mode=Mode.ELIM)),
        cage.Person(user=User(name="nobody", uid=1, gid=1)),
        cage.Node(name="node1"),
        directory="/d",
        interval=30,
        timeout=10,
        expected=["a"],
    )
    rows = re.findall(r"^\| (`.*`) \|", section("What a script finds"), re.MULTILINE)
    told = {name for row in rows for name in re.findall(r"`([A-Z_]+)`", row)}
    in_elims = set(re.findall(r"`(LSF_[A-Z]+|ELIM_[A-Z_]+)`", section("LSF elims")))
    assert told | in_elims == set(variables)
    assert f"`{variables['LC_ALL']}`" in section("What a script finds")
    assert f"`{variables['PATH']}`" in section("What a script finds")
    assert f"(`{cage.ELIM_ABORT}`)" in section("LSF elims")
    named = " ".join(re.findall(r"^\.(?:It )?Ev (.*)$", MAN.read_text(), re.MULTILINE))
    assert set(variables) <= set(re.findall(r"[A-Z_]+", named))


def test_the_leftovers_that_are_never_run_are_named() -> None:
    (row,) = re.findall(r"^\| never run, never shown \| (.*) \|$", CONTRACT, re.MULTILINE)
    assert set(re.findall(r"`([^`]+)`", row)) == set(directory.IGNORED)
    assert all(pattern in MAN.read_text() for pattern in directory.IGNORED)


def test_the_defaults_are_the_settings() -> None:
    times, settings, agent = section("Time"), ReporterSettings(), AgentReporters()
    assert f"agent.yaml's ({agent.interval:g} s)" in times
    assert f"`timeout` ({agent.timeout:g} s)" in times
    assert f"`grace` ({settings.grace:g} s)" in times
    assert f"{agent.failures_to_quarantine} times in a row" in section("When it goes wrong")
    assert f"default `{agent.user}`" in section("What a script finds")


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
