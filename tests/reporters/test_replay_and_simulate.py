"""Recordings play as they were made; simulations are repeatable and make good frames."""

import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xce.model import document, refusal
from xce.reporters import replay, simulate


def record(*runs: tuple[list[bytes], bytes, int]) -> bytes:
    """A recording of runs that print a line each second."""
    clock = itertools.count(100).__next__
    written: list[bytes] = []
    recorder = replay.Recorder(written.append, clock)
    for lines, stderr, status in runs:
        for line in lines:
            recorder.line(line)
        if stderr:
            recorder.stderr(stderr)
        recorder.exited(status)
    return b"".join(written)


def played(recording: bytes, **options: float) -> tuple[bytes, bytes, list[float]]:
    out, err = bytearray(), bytearray()
    slept: list[float] = []
    replay.play(
        replay.read(recording.splitlines()), out=out.extend, err=err.extend, sleep=slept.append, **options
    )
    return bytes(out), bytes(err), slept


@given(st.lists(st.binary().filter(lambda line: b"\n" not in line)), st.binary())
def test_every_byte_comes_back_as_it_was_recorded(lines: list[bytes], stderr: bytes) -> None:
    out, err, _ = played(record((lines, stderr, 0)))
    private = [line for line in (*lines, stderr) if b"\xef\x9e" in line or b"\xef\x9f" in line]
    if not private:
        assert out == b"".join(line + b"\n" for line in lines)
        assert err == stderr


def test_a_run_that_failed_is_silent_but_its_complaint_is_kept() -> None:
    out, err, _ = played(
        record(([b'{"a": 1}'], b"", 0), ([b'{"a": 2}'], b"no answer\n", 3), ([b'{"a": 4}'], b"", 0))
    )
    assert out == b'{"a": 1}\n{"a": 4}\n'
    assert err == b"no answer\n"


def test_speed_shortens_the_waits_and_not_the_order() -> None:
    recording = record(([b"1", b"2", b"3"], b"", 0))
    assert sum(played(recording)[2]) == pytest.approx(4)
    assert sum(played(recording, speed=8)[2]) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "line", [b"not json", b'{"at": 1}', b'{"at": -1, "exit": 0}', b'{"at": 1, "exit": 0, "line": "x"}']
)
def test_a_line_that_is_no_event_is_named(line: bytes) -> None:
    with pytest.raises(replay.RecordingError, match="line 2"):
        list(replay.read([b'{"at": 0, "exit": 0}', line]))


RULES = """
interval: 2
seed: 7
values:
  free: {walk: {low: 0, high: 100, step: 5}}
  load: {wave: {low: 0, high: 8, period: 8}}
  site: {constant: north}
  state: {choice: [Active, Down], missing: 0.5}
instances:
  - {kind: gpu, count: 3, attributes: {model: imagined}}
"""


def some(text: str, count: int) -> list[bytes | None]:
    frames: Iterator[bytes | None] = simulate.frames(document.load(text, "sim.yaml", simulate.Simulation))
    return list(itertools.islice(frames, count))


def test_the_same_rules_give_the_same_values() -> None:
    assert some(RULES, 50) == some(RULES, 50)
    assert some(RULES, 50) != some(RULES.replace("seed: 7", "seed: 8"), 50)


def test_values_stay_in_their_bounds_and_move() -> None:
    values = [msgspec.json.decode(frame or b"")["values"] for frame in some(RULES, 200)]
    assert all(0 <= value["free"] <= 100 and 0 <= value["load"] <= 8 for value in values)
    assert len({value["free"] for value in values}) > 100
    assert {value["state"] for value in values} == {"Active", "Down", None}
    assert [value["load"] for value in values[:4]] == [4, 8, 4, 0]


def test_failing_frames_come_in_their_share() -> None:
    failed = some(RULES + "fails: 0.25\n", 400).count(None)
    assert 50 < failed < 150


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("values: {a: {}}", "one of: constant, walk, wave, choice"),
        ("values: {a: {walk: {low: 2, high: 1, step: 1}}}", "low below high"),
        ("intervall: 3", "interval"),
    ],
)
def test_rules_that_do_not_fit_are_refused_in_words(text: str, told: str) -> None:
    with pytest.raises(refusal.ConfigRefused, match=told):
        document.load(text, "sim.yaml", simulate.Simulation)


def test_the_page_has_a_file_that_works_and_names_every_key() -> None:
    page = Path("docs/simulation.md").read_text()
    (text,) = re.findall(r"```yaml simulation\n(.*?)```", page, re.DOTALL)
    told = document.load(text, "page", simulate.Simulation)
    for kind in (simulate.Simulation, simulate.Rule, simulate.Walk, simulate.Wave, simulate.Units):
        for key in kind.__struct_fields__:
            assert re.search(rf"`[^`]*\b{key}\b[^`]*`", page), key
    frame = msgspec.json.decode(next(filter(None, simulate.frames(told))))
    assert set(frame["values"]) == {"load", "scratch_free_gb", "fabric", "rack"}
    assert [one["id"] for one in frame["instances"]] == ["fpga-0", "fpga-1"]


def test_the_program_prints_one_frame_and_ends(tmp_path: Path) -> None:
    rules = tmp_path / "sim.yaml"
    rules.write_text(RULES)
    code = "import sys; from xce.reporters import simulate; sys.exit(simulate.main(sys.argv[1:]))"
    run = subprocess.run(
        [sys.executable, "-c", code, str(rules), "--once"], check=False, capture_output=True, timeout=30
    )
    assert run.returncode == 0
    assert msgspec.json.decode(run.stdout)["values"]["site"] == "north"
