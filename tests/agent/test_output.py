"""How the agent's commands print on a terminal."""

import pytest

from xce.agent.cli import output
from xce.agent.cli.reporter.test import Report
from xce.reporters.result import RunResult


def test_on_a_narrow_terminal_sentences_are_folded_and_nothing_is_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    path, command = "/etc/xce/reporters.d/a_reporter", "--args=systemd.unified_cgroup_hierarchy=1"
    output.table(("PATH", "TROUBLE"), [(path, f"a sentence of many words: {command}"), ("/b", "")])
    shown = capsys.readouterr().out
    assert path in shown
    assert "…" not in shown
    assert command in "".join(line.strip() for line in shown.replace(path, "").splitlines())
    output.table((), [("broker", "synced " * 20)])
    assert capsys.readouterr().out.count("synced") == 20


def test_a_try_of_what_could_not_begin_tells_of_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report()
    report.end(RunResult(run=0, script="", fault="cannot start it"))
    assert (capsys.readouterr().out, report.bad) == ("", False)
    report.end(RunResult(run=1, script="", fault="cannot be killed"))
    assert capsys.readouterr().out == (
        "run 1: not ended after 0 ms\nnothing of this run is taken: cannot be killed\n"
    )
