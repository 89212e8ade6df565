"""What counts as a reporter, and why not."""

import os
import stat
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.linux.hangfs import HangingMount
from tests.reporters.node import ROOT, Node
from xce.model.configuration import Mode, ReporterSettings
from xce.reporters import directory, remote
from xce.reporters.directory import Candidate, scan

GOOD = "#!/bin/sh\necho '{\"free\": 5}'\n"
TRUSTED = {0, os.geteuid()}


def put(path: Path, text: str | bytes = GOOD, mode: int = 0o755) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(mode)
    return path


def one(place: Path, name: str = "free", before: dict[str, Candidate] | None = None) -> Candidate:
    return scan(str(place), TRUSTED, before=before)[name]


def test_a_script_with_settings_is_a_candidate(place: Path) -> None:
    put(place / "free")
    put(place / "free.yaml", "mode: persistent\ninterval: 7\n", 0o644)
    found = one(place)
    assert found.problem == ""
    assert found.settings.mode is Mode.PERSISTENT
    assert found.settings.interval == 7
    assert len(found.digest) == 64
    assert found.interpreter == "/bin/sh"
    assert list(scan(str(place), TRUSTED)) == ["free"]


def test_the_first_file_past_as_many_as_are_looked_at_is_named(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "ENTRIES", 2)
    for name in ("a", "b", "c", "d", "b~", ".hidden"):
        put(place / name)
    found = scan(str(place), TRUSTED)
    assert {name: one.problem for name, one in found.items()} == {
        "a": "",
        "b": "",
        "c": "of the 4 files here the first 2 are looked at: this one is not",
    }


def test_a_compiled_program_is_one_too(place: Path) -> None:
    put(place / "free", Path("/bin/true").read_bytes())
    assert one(place).problem == ""
    assert one(place).interpreter == ""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('echo "{}"\n', "no #! on the first line"),
        ('\n#!/bin/sh\necho "{}"\n', "no #! on the first line"),
        ("", "is empty"),
        ("\ufeff#!/bin/sh\n", "byte-order mark"),
        ("#!/bin/sh\r\necho\r\n", "carriage return"),
        ("#! \n", "no interpreter"),
        ("#!sh\n", "absolute path, not 'sh'"),
    ],
)
def test_what_the_kernel_could_not_execute_is_said_before_it_is_tried(
    place: Path, text: str, problem: str
) -> None:
    """C-REP-06: a shell would run some of these by hand."""
    put(place / "free", text)
    assert problem in one(place).problem


def test_a_script_without_the_executable_bit_and_a_link_are_shown_other_files_are_not(place: Path) -> None:
    put(place / "forgot", mode=0o644)
    put(place / "README", "read me", 0o644)
    (place / "link").symlink_to("/bin/true")
    found = scan(str(place), TRUSTED)
    assert found.keys() == {"forgot", "link"}
    assert found["forgot"].problem == f"is not executable: chmod 755 {place}/forgot"
    assert "symbolic link" in found["link"].problem


def test_settings_of_no_script_are_shown(place: Path) -> None:
    put(place / "free.sh")
    put(place / "free.yaml", "interval: 7\n", 0o644)
    assert one(place, "free.yaml").problem == "settings of no reporter: there is no 'free' beside it"


def test_settings_under_the_other_usual_name_are_shown_and_not_read(place: Path) -> None:
    put(place / "free")
    put(place / "free.yml", "interval: 7\n", 0o644)
    put(place / "other.yml", "of nobody here\n", 0o644)
    assert one(place).settings.interval is None
    assert one(place, "free.yml").problem == "settings are read from 'free.yaml': rename it"
    assert set(scan(str(place), TRUSTED)) == {"free", "free.yml"}


def test_settings_that_are_suddenly_empty_are_taken_for_an_accident(place: Path) -> None:
    """A full disk, or an editor that is not done yet; a file that says {} means it."""
    put(place / "free")
    put(place / "free.yaml", "interval: 7\n", 0o644)
    good = one(place)
    put(place / "free.yaml", "\n", 0o644)
    emptied = one(place, before={"free": good})
    assert (emptied.settings.interval, emptied.problem) == (7, "")
    assert "is empty; write {} if the defaults are meant; the settings before it stay" in emptied.warning
    assert one(place, before={"free": emptied}).settings.interval == 7
    put(place / "free.yaml", "{}\n", 0o644)
    meant = one(place, before={"free": emptied})
    assert (meant.settings.interval, meant.warning) == (None, "")
    put(place / "free.yaml", "", 0o644)
    assert one(place).problem == "", "of a new one that is nothing to wonder at"


def test_settings_that_do_not_fit_refuse_a_new_reporter_with_file_line_and_key(place: Path) -> None:
    put(place / "free")
    put(place / "free.yaml", "interval: 7\ntimeot: 3\n", 0o644)
    assert f"{place}/free.yaml:2: timeot:" in one(place).problem
    put(place / "free.yaml", b"\xff\xfe", 0o644)
    assert one(place).problem.endswith("free.yaml: not UTF-8 at byte 1")
    put(place / "free.yaml", "#" * 300_000, 0o644)
    assert one(place).problem.endswith("larger than 256 KiB")


def test_settings_that_do_not_fit_any_more_leave_the_good_ones_in_force(place: Path) -> None:
    put(place / "free")
    put(place / "free.yaml", "interval: 7\n", 0o644)
    before = scan(str(place), TRUSTED)
    put(place / "free.yaml", "interval: -7\n", 0o644)
    after = scan(str(place), TRUSTED, before=before)
    assert after["free"].problem == ""
    assert after["free"].settings.interval == 7
    assert after["free"].warning.endswith("the settings before it stay in force")
    put(place / "free", GOOD + "# changed\n")
    assert one(place, before=after).settings.interval == 7
    put(place / "free.yaml", "interval: 8\n", 0o644)
    repaired = one(place, before=after)
    assert (repaired.warning, repaired.settings.interval) == ("", 8)


@pytest.mark.parametrize("victim", ["free", "free.yaml", "."])
def test_what_others_may_write_is_refused_with_the_element_at_fault(place: Path, victim: str) -> None:
    """C-REP-10."""
    put(place / "free")
    put(place / "free.yaml", "interval: 7\n", 0o644)
    (place / victim).chmod(0o777)
    problem = one(place).problem
    at_fault = (place / victim).resolve()
    assert problem == f"{at_fault} is writable by everybody (mode 0777): chmod go-w it"


@pytest.mark.skipif(not ROOT, reason="needs root to give files away")
def test_what_belongs_to_somebody_else_is_refused(place: Path) -> None:
    """C-REP-10."""
    os.chown(put(place / "free"), 1000, 1000)
    free = place / "free"
    assert one(place).problem == f"{free} is owned by uid 1000, not by 0: chown it"
    os.chown(place / "free", 0, 0)
    os.chown(put(place / "free.yaml", "interval: 7\n", 0o644), 1000, 1000)
    assert one(place).problem == f"{free}.yaml is owned by uid 1000, not by 0: chown it"


def test_an_unchanged_file_is_not_read_again_and_a_touch_changes_nothing(place: Path) -> None:
    script = put(place / "free")
    before = one(place)
    os.utime(script)
    after = one(place, before={"free": before})
    assert after.signature != before.signature
    assert after.same_as(before)
    put(script, GOOD + "#\n")
    assert not one(place, before={"free": after}).same_as(before)


def test_a_broken_script_is_tried_no_more_and_taken_up_when_it_is_repaired(node: Node) -> None:
    """C-REP-06, from file to run."""
    node.script("free", 'echo "{\\"free\\": 5}"\n')
    node.start()
    told = node.reaches("free", "refused")
    assert (
        told.cause
        == f"cannot run {node.directory}/free: no #! on the first line (begin it with #!/bin/sh, or the like)"
    )
    assert told.failures == 1
    (node.directory / "free").write_text(GOOD)
    assert node.ran("free").lines == [b'{"free": 5}']
    assert node.now("free").state == "waiting"


def test_a_missing_interpreter_is_named(node: Node) -> None:
    node.script("free", "#!/opt/no/such/python3 -u\nprint()\n", "interval: 0.1\n")
    node.start()
    result = node.ran("free")
    reason = "the interpreter on its first line, /opt/no/such/python3, is not there"
    assert result.fault == f"cannot start {node.directory}/free: {reason}"
    assert node.reaches("free", "backoff").cause == result.fault


def test_a_script_that_is_still_being_written_is_not_run_half(node: Node) -> None:
    """The kernel does not execute a file that is open for writing."""
    path = node.directory / "free"
    with path.open("w") as file:
        path.chmod(0o755)
        file.write("#!/bin/sh\n")
        file.flush()
        node.start()
        node.kernel.during(0.6)
        file.write("echo whole\n")
    node.until(lambda: any(result.lines for result in node.runs("free")))
    assert {tuple(result.lines) for result in node.runs("free") if not result.fault} == {(b"whole",)}


def test_names_of_files_become_names_that_can_be_shown() -> None:
    assert directory._shown("plain") == "plain"
    assert directory._shown("new\nline") == "new\\nline"
    assert directory._shown("bad\udcff").isprintable()
    assert len(directory._shown("x" * 255)) == 64


def test_the_name_of_the_agents_own_source_is_not_to_be_had(place: Path) -> None:
    """It is shown under another name: what is told of its end must not be told of the load indices."""
    put(place / "builtin")
    assert "a source of the agent's own is called so" in one(place, "builtin (file)").problem
    assert "builtin" not in scan(str(place), TRUSTED)


def test_of_thousands_of_mistakes_some_are_told(place: Path) -> None:
    put(place / "free")
    put(place / "free.yaml", "".join(f"key{number}: 1\n" for number in range(20_000)), 0o644)
    problem = one(place).problem
    assert problem.count("unknown key") == 5
    assert problem.endswith("(and 19995 more)")


def test_settings_that_do_not_fit_are_not_read_again_until_they_change(place: Path) -> None:
    read: list[str] = []

    def parse(text: str, path: str) -> ReporterSettings:
        read.append(text)
        return directory.parse_settings(text, path)

    def look(before: dict[str, Candidate]) -> dict[str, Candidate]:
        return scan(str(place), TRUSTED, before=before, parse=parse)

    put(place / "free")
    put(place / "free.yaml", "nonsense: 1\n", 0o644)
    first = look({})
    assert look(first) == first
    assert "nonsense" in first["free"].problem
    assert len(read) == 1
    put(place / "free.yaml", "interval: 7\n", 0o644)
    good = look(first)
    assert good["free"].settings.interval == 7
    put(place / "free.yaml", "interval: never\n", 0o644)
    bad = look(good)
    assert look(bad) == bad
    assert bad["free"].settings.interval == 7
    assert "the settings before it stay in force" in bad["free"].warning
    assert len(read) == 3


def test_a_bomb_of_aliases_is_refused_soon(place: Path) -> None:
    put(place / "free")
    rows = [f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]" for before, name in pairwise("abcdefghij")]
    put(place / "free.yaml", "\n".join(["a: &a [x]", *rows]), 0o644)
    began = time.thread_time()
    assert f"more than {directory.SETTINGS_NODES} values" in one(place).problem
    assert time.thread_time() - began < 1.5  # 0.15 s; with the limit of big files it was 2 s


def test_a_script_too_large_to_be_copied_is_refused_where_a_look_may_hang(place: Path) -> None:
    put(place / "free", GOOD + "#" * directory.COPY_BYTES)
    assert (
        scan(str(place), TRUSTED, copies=True)["free"].problem
        == "is larger than 1 MiB on a remote file system"
    )
    assert not scan(str(place), TRUSTED)["free"].problem


def test_a_run_opens_no_script_that_has_come_to_lie_where_opening_hangs(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was seen before the mount came has no copy to run from: the next run once hung the agent."""
    monkeypatch.setattr(remote, "PATIENCE", 0.5)
    node.script("free", GOOD)
    node.start(interval=0.3)
    node.ran("free")
    mount = HangingMount(node.directory)
    ended: list[bool] = []
    rescue = threading.Timer(40, mount.release)
    rescue.start()
    try:
        node.watch.soon()
        before = time.monotonic()
        node.until(lambda: node.watch.fault)
        node.kernel.loop.call_later(1, lambda: ended.append(True))
        node.until(lambda: ended)
        assert time.monotonic() - before < 20, "nothing waits but a child"
    finally:
        rescue.cancel()
        mount.release()
    ran = len(node.runs("free"))
    node.ran("free", ran + 1)
    node.until(lambda: not node.watch.fault)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\x7fELF\necho no program\n", "is a damaged program: its ELF header makes no sense"),
        (b"#!/bin/sh" + b" " * 250 + b"-x\necho long\n", "the first line is longer than 255 bytes"),
        (b"#!/bin/" + b"x" * 300, "the first line is longer than 255 bytes"),
    ],
)
def test_what_libc_would_give_to_a_shell_instead_is_refused(
    place: Path, content: bytes, problem: str
) -> None:
    """Many programs that start others run by /bin/sh whatever the kernel does not take for a program."""
    put(place / "odd", content)
    assert one(place, "odd").problem.startswith(problem)


def test_a_first_line_as_long_as_the_kernel_takes_is_good(place: Path) -> None:
    put(place / "long", b"#!/bin/sh" + b" " * 244 + b"-x\necho 1\n")
    assert one(place, "long").problem == ""


@pytest.mark.parametrize("kind", [0, stat.S_IFIFO, pytest.param(stat.S_IFCHR, marks=pytest.mark.root)])
def test_settings_that_are_no_file_are_refused_and_not_read_as_none(place: Path, kind: int) -> None:
    put(place / "free")
    odd = place / "free.yaml"
    if not kind:
        odd.mkdir()
        assert one(place).problem == f"cannot use {odd}: it is not a regular file"
        return
    os.mknod(odd, kind | 0o644, os.makedev(1, 5))
    before = one(place)
    assert before.problem == f"cannot use {odd}: it is not a regular file"
    odd.unlink()
    put(odd, "interval: 7\n", 0o644)
    good = one(place)
    odd.unlink()
    os.mknod(odd, kind | 0o644, os.makedev(1, 5))
    after = one(place, before={"free": good})
    assert (after.problem, after.settings.interval) == ("", 7)
    assert "not a regular file; the settings before it stay in force" in after.warning
