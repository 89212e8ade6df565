"""Every snippet of the author's guide is a reporter that the contract takes; every link leads somewhere."""

import re
import subprocess
from pathlib import Path

import pytest

from xce.model import document
from xce.model.configuration import ReporterSettings
from xce.reporters.contract import Context, Outcome, finish_run

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "guide-reporters.md").read_text()
BLOCKS = re.findall(r"```(sh|yaml) reporter=(\w+)\n(.*?)```", PAGE, re.DOTALL)
SCRIPTS = {name: text for language, name, text in BLOCKS if language == "sh"}
SETTINGS = {name: text for language, name, text in BLOCKS if language == "yaml"}
GUIDES = sorted(DOCS.glob("guide-*.md"))


def run(name: str, folder: Path, **environment: str) -> tuple[int, Outcome, str]:
    script = folder / name
    script.write_text(SCRIPTS[name])
    script.chmod(0o755)
    own = document.load(SETTINGS.get(name, "{}"), f"{name}.yaml", ReporterSettings)
    env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", **own.environment, **environment}
    done = subprocess.run([script], env=env, capture_output=True, check=False, timeout=30)
    types = {kind.name: kind for kind in own.types}
    outcome = finish_run(done.stdout.splitlines(), Context(reporter=name, types=types))
    return done.returncode, outcome, done.stderr.decode()


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_a_snippet_is_taken_as_it_stands(name: str, tmp_path: Path) -> None:
    code, outcome, _ = run(name, tmp_path)
    assert code in ({0} if name != "quota" else {78})
    assert not outcome.refusals
    if name == "fpga":
        assert outcome.instances is not None
    elif name != "quota":
        assert outcome.values


def test_not_known_is_not_zero(tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    for answer, code, values in (("echo 7", 0, {"quota_free_mb": 7}), ("exit 3", 1, {})):
        tool.write_text(f"#!/bin/sh\n{answer}\n")
        tool.chmod(0o755)
        found = run("quota", tmp_path, TOOL=str(tool))
        assert (found[0], found[1].values) == (code, values)
    assert "failed with status 3" in found[2]


def test_a_full_disk_holds_the_host(tmp_path: Path) -> None:
    _, outcome, _ = run("health", tmp_path, LOW_MB="999999999")
    (condition,) = outcome.conditions or []
    assert condition.hold
    assert outcome.values == {"healthy": False}


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_links_of_a_guide_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]*)(?:#[^)]*)?\)", page.read_text()):
        assert not target or (page.parent / target).exists(), target
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]*)\)", page.read_text()):
        text = ((page.parent / target) if target else page).read_text()
        assert anchor in {_anchor(line) for line in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}, anchor
