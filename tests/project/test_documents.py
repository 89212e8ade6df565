"""What the documents point at exists: files, headings, commands, words."""

import importlib
import re
from enum import StrEnum
from pathlib import Path

import pytest

from tests.project import tree
from xce.model.link import Phase
from xce.model.reporter import ReporterState
from xce.model.supply import Condition, HostState
from xce.model.value import Presence

DOCUMENTS = tree.tracked("*.md")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def slug(heading: str) -> str:
    """The anchor that renderers give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(path: Path) -> set[str]:
    return {slug(line.lstrip("#")) for line in path.read_text().splitlines() if line.startswith("#")}


def broken_links(document: Path) -> list[str]:
    """Links of a document whose file or heading is not there; addresses of the web are not looked at."""
    found = []
    for link in LINK.findall(document.read_text()):
        target, _, anchor = link.partition("#")
        path = document.parent / target if target else document
        if re.match(r"\w+:", link):
            continue
        if not path.exists() or (anchor and anchor not in anchors(path)):
            found.append(link)
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_every_link_leads_somewhere(document: Path) -> None:
    assert broken_links(tree.ROOT / document) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    document = tmp_path / "a.md"
    document.write_text("# One two\n[x](a.md#one-two) [y](b.md) [z](#three) [w](https://example.org/x)\n")
    assert broken_links(document) == ["b.md", "#three"]


def test_every_decision_is_in_the_index_under_its_title_and_in_its_place() -> None:
    folder = tree.ROOT / "docs/decisions"
    wanted = {
        f"- [{path.name[:4]}]({path.name}) {path.read_text().splitlines()[0].removeprefix('# ')}"
        for path in folder.glob("[0-9]*.md")
    }
    listed = [line for line in (folder / "README.md").read_text().splitlines() if line.startswith("- ")]
    assert listed == sorted(wanted)


COMMAND = re.compile(
    r"(?:^ *|[`$|] ?|sudo |usage: )(xce-agent|xce-broker|xce-reporter|\./dev) ([a-z-]+)(?: ([a-z-]+))?",
    re.MULTILINE,
)


def missing(text: str) -> list[str]:
    """Command lines of ours in a document that there are no commands for."""
    help_of_dev = (tree.ROOT / "dev").read_text()
    scripts = tree.pyproject()["project"]["scripts"]
    found = []
    for program, word, below in sorted(set(COMMAND.findall(text))):
        if program == "./dev":
            known = re.search(rf"^  {word} ", help_of_dev, re.MULTILINE) is not None
        else:
            package = importlib.import_module(scripts[program].partition(":")[0])
            known = word in package.COMMANDS
            if known and below and (program, word) == ("xce-agent", "reporter"):
                known = below in importlib.import_module("xce.agent.cli.reporter").COMMANDS
        if not known:
            found.append(f"{program} {word} {below}".strip())
    return found


@pytest.mark.parametrize("document", [*DOCUMENTS, *tree.tracked("docs/man/*")], ids=str)
def test_every_command_that_a_document_names_exists(document: Path) -> None:
    assert missing((tree.ROOT / document).read_text()) == []


def test_a_command_that_is_not_there_is_found() -> None:
    text = "`xce-agent status`\n  sudo xce-agent reporter tell x\n$ xce-broker new\n`./dev lint`, `./dev li`"
    assert missing(text) == ["./dev li", "xce-agent reporter tell", "xce-broker new"]


@pytest.mark.parametrize(
    "words", [HostState, Condition, Presence, ReporterState, Phase], ids=lambda kind: kind.__name__
)
def test_operations_explains_every_word_that_a_screen_can_show(words: type[StrEnum]) -> None:
    explained = re.findall(r"^\| ([a-z-]+) \|", (tree.ROOT / "docs/operations.md").read_text(), re.MULTILINE)
    assert {str(word) for word in words} - set(explained) == set()
