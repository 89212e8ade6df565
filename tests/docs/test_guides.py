"""Every snippet of the author's guide is a reporter that the contract takes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.live_broker import LiveBroker
from xce.broker.client import Client
from xce.model import document
from xce.model.configuration import ReporterSettings
from xce.model.message import HostDrain
from xce.reporters.contract import Context, Outcome, finish_run

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "guide-reporters.md").read_text()
BLOCKS = re.findall(r"```(sh|yaml) reporter=(\w+)\n(.*?)```", PAGE, re.DOTALL)
SCRIPTS = {name: text for language, name, text in BLOCKS if language == "sh"}
SETTINGS = {name: text for language, name, text in BLOCKS if language == "yaml"}
GUIDES = sorted(DOCS.glob("guide-*.md"))
PAGES = [DOCS.parent / "README.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("decisions/*.md"))]
SECTIONS = {
    (path.stem, text.partition("\n")[0].split()[-1]): text
    for path in (DOCS / "man").glob("*.8")
    for text in re.split(r"^\.S[sS] ", path.read_text(), flags=re.MULTILINE)
}
"""Of the man pages, by program and command."""


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


def test_the_python_of_the_controllers_guide_follows_a_real_broker(tmp_path: Path) -> None:
    page = (DOCS / "guide-controllers.md").read_text()
    (code,) = re.findall(r"```python example\n(.*?)```", page, re.DOTALL)
    (tmp_path / "guide.py").write_text(code)
    with LiveBroker(tmp_path) as broker:
        script = f"import guide\nguide.follow(guide.Broker({broker.local.endpoint!r}))"
        environment = {**os.environ, "PYTHONPATH": f"{os.getcwd()}:{tmp_path}", "PYTHONUNBUFFERED": "1"}
        follower = subprocess.Popen(
            [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True
        )
        try:
            assert follower.stdout is not None
            first = follower.stdout.readline()
            assert first == "anew: group:rack1 host:node1 host:node2 host:node3 pool:matlab\n"
            with Client(broker.local) as client:
                client.ask(HostDrain(id="", host="node2", reason="guide"))
            assert follower.stdout.readline() == "changed: host:node2\n"
        finally:
            follower.kill()
            follower.wait()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_exists_with_its_options(page: Path) -> None:
    """Those in lines of code and in backquotes; the admin's guide is run as it stands, elsewhere."""
    found = re.findall(
        r"(?:^(?: {4}|\w+# )?|`)(xce-(?:agent|broker|reporter)) ([a-z]+)([^`\n#]*)",
        page.read_text().replace("\\\n", ""),
        re.MULTILINE,
    )
    assert found or page not in GUIDES
    for program, command, rest in found:
        text = SECTIONS.get((program, command), "")
        assert text, (program, command)
        for option in re.findall(r"--[a-z-]+", rest.partition(" -- ")[0]):
            assert option in text.replace("\\-", "-"), (program, command, option)
