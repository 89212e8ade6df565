"""The commands that an admin and an author of reporters type, against real agents and without them."""

import importlib
import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.linux.hangfs import HangingMount
from tests.system.harness import AgentProgram, Site, python
from xce.model import VERSION

pytestmark = [pytest.mark.system, pytest.mark.root]

TYPES = [
    {
        "name": "scratch_gb",
        "kind": "numeric",
        "unit": "GB",
        "minimum": 0,
        "description": "free scratch space",
    },
    {"name": "rack", "kind": "string"},
]


def alone(site: Site) -> AgentProgram:
    """An agent's files, not started and without a broker."""
    agent = site.agent("node1")
    agent.settings["broker"] = ""
    agent.configure()
    return agent


def command(agent: AgentProgram, *argv: str) -> subprocess.CompletedProcess[str]:
    return agent.command(*argv, "--config", str(agent.folder / "agent.yaml"))


def test_test_refuses_what_belongs_to_another_reporter_as_the_agent_does(site: Site) -> None:
    agent = alone(site)
    agent.settings["reporters"]["load_indices"] = True
    agent.script("first", "#!/bin/sh\necho '{\"scratch_gb\": 5}'\n", types=TYPES)
    agent.script("second", '#!/bin/sh\necho \'{"scratch_gb": 6, "rack": "B4", "mem": 7}\'\n', types=TYPES)
    agent.start()
    site.until(lambda: agent.reporter("second").get("values", {}).get("value") == 1)
    for name, refused in (("second", {"scratch_gb: 'first'", "mem: 'builtin'"}), ("first", set())):
        shown = command(agent, "reporter", "test", name)
        found = set(re.findall(r"refused  (\w+: '\w+') reports it already and keeps it", shown.stdout))
        assert found == refused, shown.stdout
        assert shown.returncode == bool(refused)
    agent.stop()
    shown = command(agent, "reporter", "test", "second")
    assert "refused  mem: 'builtin' reports it already" in shown.stdout, "which is so whatever runs"
    assert "taken    scratch_gb = 6" in shown.stdout, "and of others nobody can be asked"


def test_test_compares_a_value_with_that_of_the_run_before_as_the_agent_does(site: Site) -> None:
    """Of two lines of one run the last one counts, and neither is the reading before the other."""
    agent = alone(site)
    agent.script(
        "steps",
        "#!/bin/sh\nn=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) >n\n"
        'echo \'{"s": 100}\'; echo "{\\"s\\": $((n * 7))}"\n',
        types=[{"name": "s", "kind": "numeric", "max_step": 10}],
        interval=0.2,
    )
    shown = command(agent, "reporter", "test", "--runs", "3", "steps").stdout
    assert shown.splitlines()[:3] == [
        "line 1: taken    s = 100",
        "line 2: taken    s = 0",
        "run 1: exit status 0 after " + shown.splitlines()[2].rpartition(" after ")[2],
    ]
    assert "note: given by several lines, the last one counts: s" in shown
    assert shown.count("line 1: refused  s: changed by 100 at once") == 1, "of run 2 alone: then 7 was before"
    assert "line 2: taken    s = 7" in shown
    assert "line 2: taken    s = 14" in shown


def test_test_runs_a_reporter_as_the_agent_would_and_judges_every_line(site: Site) -> None:
    agent = alone(site)
    agent.script(
        "mixed",
        '#!/bin/sh\nid -un\necho \'{"scratch_gb": 5, "rack": "B4"}\'\necho \'{"scratch_gb": -1}\'\n'
        'echo \'{"scratch_gb": null}\'\necho "{\\"rack\\": \\"$XCE_NODE $LC_ALL\\"}"\necho fine >&2\n',
        types=TYPES,
    )
    shown = command(agent, "reporter", "test", "mixed")
    assert shown.returncode == 1
    assert "line 1: refused" in shown.stdout
    assert ": nobody" in shown.stdout
    assert "line 2: taken    scratch_gb = 5" in shown.stdout
    assert 'line 2: taken    rack = "B4"' in shown.stdout
    assert "line 3: refused  scratch_gb: below the minimum 0: -1" in shown.stdout
    assert "line 4: taken    scratch_gb = unknown" in shown.stdout
    assert 'line 5: taken    rack = "node1 C.UTF-8"' in shown.stdout
    assert "stderr: fine" in shown.stdout
    assert "run 1: exit status 0" in shown.stdout
    assert list(Path("/tmp").glob("xce-trial-*")) == []
    assert site.cgroup is not None
    assert site.cgroup.children() == []


def test_test_of_a_good_reporter_ends_with_0_and_of_a_failing_one_with_its_status(site: Site) -> None:
    agent = alone(site)
    agent.script("good", "#!/bin/sh\necho '{\"scratch_gb\": 5}'\n", types=TYPES)
    assert command(agent, "reporter", "test", "good").returncode == 0
    agent.script("less", "#!/bin/sh\necho '{\"scratch_gb\": 5}'\n", types=TYPES, reports=["zz", "scratch_gb"])
    shown = command(agent, "reporter", "test", "less")
    assert (shown.returncode, "note: promised in less.yaml and not given: rack, zz\n" in shown.stdout) == (
        0,
        True,
    )
    agent.script("bad", "#!/bin/sh\necho '{\"scratch_gb\": 5}'\necho no server >&2\nexit 3\n", types=TYPES)
    shown = command(agent, "reporter", "test", "bad")
    assert shown.returncode == 1
    assert "nothing of this run is taken: exit status 3: no server" in shown.stdout


def test_test_counts_instances_by_kind_and_says_when_the_clusters_types_are_not_known_here(
    site: Site,
) -> None:
    agent = alone(site)
    units = '[{"id": "a", "kind": "seat"}, {"id": "b", "kind": "seat"}, {"id": "c", "kind": "card"}]'
    agent.script("units", f'#!/bin/sh\necho \'{{"xce": 1, "instances": {units}}}\'\n')
    shown = command(agent, "reporter", "test", "units").stdout
    assert "line 1: taken    3 instances (1 card, 2 seat), complete" in shown
    assert "note:" not in shown
    agent.script("new", "#!/bin/sh\necho '{\"scratch_gb\": 5}'\n")
    shown = command(agent, "reporter", "test", "new").stdout
    assert "line 1: refused  scratch_gb: no such resource type" in shown
    assert "note: no types but the built-in ones are known here (" in shown


def test_test_ends_a_reporter_that_hangs_at_its_deadline(site: Site) -> None:
    agent = alone(site)
    agent.script("hangs", "#!/bin/sh\nsleep 1000\n", timeout=0.3, grace=0.1)
    shown = command(agent, "reporter", "test", "hangs")
    assert shown.returncode == 1
    assert "nothing of this run is taken" in shown.stdout
    assert site.cgroup is not None
    assert site.cgroup.pids() == []


def test_test_of_a_persistent_reporter_shows_its_first_frames(site: Site) -> None:
    agent = alone(site)
    text = '#!/bin/sh\nn=0\nwhile :; do n=$((n + 1)); echo "{\\"scratch_gb\\": $n}"; sleep 0.1; done\n'
    agent.script("stream", text, types=TYPES, mode="persistent")
    shown = command(agent, "reporter", "test", "--runs", "2", "stream")
    assert shown.returncode == 0, shown.stdout
    assert "line 1: taken    scratch_gb = 1" in shown.stdout
    assert "line 2: taken    scratch_gb = 2" in shown.stdout


def test_a_script_that_may_not_run_is_not_run_and_lint_says_the_same(site: Site) -> None:
    agent = alone(site)
    path = agent.script("open", "#!/bin/sh\ntouch /tmp/xce-was-run\n")
    path.chmod(0o777)
    tried = command(agent, "reporter", "test", "open")
    checked = command(agent, "reporter", "lint", "open")
    assert (tried.returncode, checked.returncode) == (1, 1)
    assert "writable by everybody" in tried.stdout
    assert "problem: " in checked.stdout
    assert "writable by everybody" in checked.stdout
    assert not Path("/tmp/xce-was-run").exists()


def test_lint_finds_what_is_wrong_in_settings_and_types(site: Site) -> None:
    agent = alone(site)
    agent.script("good", "#!/bin/sh\n:\n", types=TYPES, reports=["rack"])
    agent.script("bad", "#!/bin/sh\n:\n", reports=["nope"], interval="soon")
    agent.script("unknown", "#!/bin/sh\n:\n", reports=["nope"])
    agent.script("elsewhere", "#!/opt/none/perl\n")
    pooled = [{"name": "seats", "kind": "numeric", "scope": "pool"}]
    agent.script("pooled", "#!/bin/sh\n:\n", types=pooled)
    shown = command(agent, "reporter", "lint", "good", "bad", "unknown", "absent", "pooled", "elsewhere", "/")
    assert shown.returncode == 1
    lines = {line.partition(":")[0]: line for line in shown.stdout.splitlines()}
    assert lines["good"] == "good: ok: one-shot, every 30 s, as nobody"
    assert "interval" in lines["bad"]
    assert "unknown.yaml: reports: no such resource type 'nope'" in lines["unknown"]
    assert "pooled.yaml: types[seats]: has scope pool" in lines["pooled"]
    assert "cannot find absent" in lines["absent"]
    assert "the interpreter on its first line, /opt/none/perl, is not there" in lines["elsewhere"]
    assert lines["/"] == "/: problem: cannot use /: it is a directory"


def test_a_recording_can_be_played_again_as_a_reporter(site: Site) -> None:
    agent = alone(site)
    agent.script("source", "#!/bin/sh\necho '{\"scratch_gb\": 4}'\n", types=TYPES)
    recording = agent.folder / "recording"
    assert command(agent, "reporter", "record", "--runs", "1", "source", str(recording)).returncode == 0
    replay = subprocess.run(
        [*python("xce.agent.reporter_cli"), "replay", str(recording)],
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.getcwd()},
    )
    assert json.loads(replay.stdout) == {"scratch_gb": 4}
    again = command(agent, "reporter", "record", "source", str(recording))
    assert again.returncode == 2
    assert "cannot write" in again.stderr


def test_list_and_reset_speak_with_the_agent_and_list_works_without_it(site: Site) -> None:
    agent = alone(site)
    agent.script("works", "#!/bin/sh\necho '{\"scratch_gb\": 5}'\n", types=TYPES, interval=60)
    agent.script("fails", "#!/bin/sh\nexit 4\n", interval=60)
    without = command(agent, "reporter", "list")
    assert "the agent is not running" in without.stderr
    assert "works" in without.stdout
    agent.start()
    site.until(lambda: agent.reporter("fails").get("runs") == 1)
    listed = agent.command("reporter", "list")
    assert listed.returncode == 1
    assert "exit status 4" in listed.stdout
    assert "none is configured (`broker:` in agent.yaml)" in agent.command("explain", "scratch_gb").stdout
    as_json: list[dict[str, Any]] = json.loads(agent.command("reporter", "list", "--json").stdout)
    assert [one["name"] for one in as_json] == ["fails", "works"]
    assert agent.command("reporter", "reset", "fails").returncode == 0
    site.until(lambda: agent.reporter("fails")["runs"] == 2)
    agent.script("barred", "#!/bin/sh\n", user="root")
    site.until(lambda: agent.reporter("barred").get("state") == "refused")
    kept = agent.command("reporter", "reset", "fails", "barred")
    assert kept.returncode == 1
    assert "fails: will run again soon\n" in kept.stdout
    assert "barred: is refused: asks for user 'root'" in kept.stdout
    unknown = agent.command("reporter", "reset", "nope")
    assert unknown.returncode == 1
    assert "there are: barred, fails, works" in unknown.stderr


def test_explain_says_where_a_value_comes_from_and_what_the_broker_has_of_it(site: Site) -> None:
    agent = site.agent("node1")
    site.broker.hosts = {"hosts": [{"name": "node1", "values": {"rack": "B4"}}]}
    site.broker.resources = {"types": TYPES}
    agent.script("scratch", '#!/bin/sh\necho \'{"scratch_gb": 5, "rack": "C1"}\'\n', interval=60)
    agent.script("zother", "#!/bin/sh\nsleep 1.5; echo '{\"scratch_gb\": 6}'\n", interval=60)
    site.broker.start()
    agent.start()
    site.until(lambda: site.value("node1", "scratch_gb") == 5)
    site.until(lambda: agent.reporter("zother").get("refused"))
    good = agent.command("explain", "scratch_gb")
    assert good.returncode == 0, good.stdout
    for text in (
        "= 5 GB",
        "free scratch space",
        "reporter   scratch",
        "exit status 0, as nobody",
        "of zother",
        "broker     holds 5",
    ):
        assert text in good.stdout, good.stdout
    static = agent.command("explain", "rack")
    assert static.returncode == 1
    assert 'broker     holds "B4"' in static.stdout
    assert "static value in hosts.yaml" in static.stdout
    words = "broker: refuses rack: has a static value in hosts.yaml, which wins"
    site.until(lambda: words in agent.status()["trouble"])
    agent.script("scratch", "#!/bin/sh\necho '{\"scratch_gb\": 5}'\n")
    site.until(lambda: words not in agent.status()["trouble"])
    nothing = agent.command("explain", "nope")
    assert nothing.returncode == 1
    assert "no such resource type" in nothing.stderr
    assert "it is a reporter, and no resource" in agent.command("explain", "scratch").stderr
    document = json.loads(agent.command("explain", "--json", "scratch_gb").stdout)
    assert document["broker"]["known"]
    site.broker.kill()
    site.until(lambda: agent.status()["link"]["phase"] != "synced")
    away = agent.command("explain", "scratch_gb")
    assert away.returncode == 1
    assert "cannot be asked" in away.stdout


def test_doctor_finds_nothing_on_a_sound_host_and_names_what_is_wrong_on_another(site: Site) -> None:
    agent = site.agent("node1")
    site.broker.start()
    agent.start()
    site.until(lambda: agent.status()["link"]["phase"] == "synced")
    sound = command(agent, "doctor", "--json")
    # These tests run in a mount namespace of their own, and the doctor says so where it can look at PID 1's.
    found = [one for one in json.loads(sound.stdout) if one["what"] != "mounts"]
    assert [one for one in found if one["level"] == "problem"] == []
    assert any("answers and takes our key" in one["text"] for one in found)
    agent.stop()
    site.broker.stop()
    (agent.folder / "agent.key").chmod(0o644)
    agent.settings["reporters"]["user"] = "nobody-of-that-name"
    agent.settings["reporters"]["directory"] = "/nonexistent"
    agent.configure()
    sick = json.loads(command(agent, "doctor", "--json").stdout)
    problems = {one["what"] for one in sick if one["level"] == "problem"}
    assert {"keys", "reporters' user", "reporters", "broker"} <= problems
    assert all(one["advice"] for one in sick if one["level"] == "problem")
    (agent.folder / "agent.yaml").write_text("brokr: x\n")
    broken = command(agent, "doctor")
    assert broken.returncode == 1
    assert "brokr" in broken.stdout
    assert "reporters' user" not in broken.stdout, "what a file that cannot be used names is not looked for"


def test_doctor_does_not_hang_with_the_host(site: Site) -> None:
    agent = alone(site)
    point = agent.folder / "hung"
    point.mkdir()
    mount = HangingMount(point)
    try:
        agent.settings["state_directory"] = str(point / "state")
        agent.configure()
        findings = json.loads(command(agent, "doctor", "--json").stdout)
    finally:
        mount.release()
    last = findings[-1]
    assert (last["level"], last["what"]) == ("problem", "state")
    assert "hangs" in last["text"]


def test_on_a_terminal_the_status_has_colours_and_says_the_same(site: Site) -> None:
    agent = alone(site)
    agent.script("fails", "#!/bin/sh\nprintf '\\033[2Jboo' >&2\nexit 4\n", interval=60)
    agent.start()
    site.until(lambda: agent.reporter("fails").get("runs") == 1)
    ours, theirs = os.openpty()
    argv = [*python("xce.agent.cli"), "status", "--socket", agent.socket]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.getcwd(), "TERM": "xterm", "COLUMNS": "120"}
    code = subprocess.run(argv, stdout=theirs, env=environment, check=False, timeout=20).returncode
    os.close(theirs)
    text = os.read(ours, 65536).decode()
    os.close(ours)
    assert code == 1
    assert "\x1b[33mbackoff" in text
    assert "\x1b[2J" not in text, "a script cannot clear the screen"
    assert "\\x1b[2Jboo" in text


def test_a_command_that_is_used_wrongly_says_so_and_ends_with_2(site: Site) -> None:
    agent = alone(site)
    for argv in (
        [],
        ["nope"],
        ["status", "--nope"],
        ["explain"],
        ["reporter", "test"],
        ["reporter", "reset"],
        ["run", "x"],
        ["doctor", "x"],
        ["reporter", "test", "--runs", "0", "x"],
    ):
        result = agent.command(*argv)
        assert result.returncode == 2, (argv, result)
        assert result.stderr, argv
    for argv in (
        ["--help"],
        ["status", "--help"],
        ["run", "--help"],
        ["explain", "--help"],
        ["doctor", "--help"],
        ["reporter", "--help"],
        *(["reporter", name, "--help"] for name in ("list", "test", "lint", "explain", "reset", "record")),
    ):
        result = agent.command(*argv)
        assert (result.returncode, result.stderr) == (0, ""), argv
        assert "usage: xce-agent" in result.stdout


def test_a_configuration_that_does_not_fit_is_refused_with_its_place(site: Site) -> None:
    agent = alone(site)
    (agent.folder / "agent.yaml").write_text("broker: tcp://b:7400\nname: -x\nreporters:\n  intervall: 3\n")
    result = agent.command("run", "--config", str(agent.folder / "agent.yaml"))
    assert result.returncode == 1
    assert "agent.yaml:4: reporters.intervall" in result.stderr
    (agent.folder / "agent.yaml").write_text("broker: b\nname: -x\nrun_directory: here\n")
    result = agent.command("run", "--config", str(agent.folder / "agent.yaml"))
    assert "agent.yaml:1: broker: 'b' is no endpoint" in result.stderr
    assert "agent.yaml:2: name: " in result.stderr
    assert "agent.yaml:3: run_directory: must be an absolute path" in result.stderr


def test_an_agent_that_runs_is_asked_though_its_file_was_broken_since(site: Site) -> None:
    """At night, after an edit: what runs goes on by the file of before, and says so."""
    agent = alone(site)
    agent.start()
    site.until(lambda: command(agent, "status").stdout)
    file = agent.folder / "agent.yaml"
    there = f"run_directory: {agent.settings['run_directory']}\n"
    for broken in (f"{there}intervall: 3\n", f"a: [\n{there}"):
        file.write_text(broken)
        shown = command(agent, "status")
        assert "agent   node1" in shown.stdout, shown
    agent.signal(signal.SIGHUP)
    site.until(lambda: "configuration: not taken" in command(agent, "status").stdout)
    assert "cannot be read as YAML" in command(agent, "status").stdout
    agent.stop()
    stopped = command(agent, "status")
    assert (stopped.returncode, "cannot be read as YAML" in stopped.stderr) == (2, True)


ENTRIES = {
    "xce-agent": "xce.agent.cli",
    "xce-broker": "xce.broker.cli",
    "xce-reporter": "xce.agent.reporter_cli",
}


def run(program: str, *argv: str) -> subprocess.CompletedProcess[str]:
    """A program as it is installed, without anything of a site."""
    return subprocess.run(
        [*python(ENTRIES[program]), *argv], capture_output=True, text=True, check=False, timeout=20
    )


@pytest.mark.parametrize(
    "words", ["explain", "claim", "reporter reset", "inventory clear", "run", "reporter"]
)
def test_dash_h_is_help_for_every_command(words: str) -> None:
    done = run("xce-agent", *words.split(), "-h")
    assert done.stdout.startswith(f"usage: xce-agent {words} ")
    assert done.returncode == 0


@pytest.mark.parametrize("words", ["run --claim 7", "run --wait=5 --claim=7"])
def test_help_behind_two_dashes_is_asked_of_the_command_in_the_claim(words: str, tmp_path: Path) -> None:
    argv = [*words.split(), "--socket", str(tmp_path / "none"), "--", "train", "--help", "-h"]
    done = run("xce-agent", *argv)
    assert done.stdout == ""
    assert "the agent is not running" in done.stderr
    assert done.returncode == 3


@pytest.mark.parametrize("words", ["status", "claim list", "explain x", "discovery read", "reporter list"])
def test_a_configuration_that_is_named_and_not_there_is_wrong_usage(words: str, tmp_path: Path) -> None:
    done = run("xce-agent", *words.split(), "--config", str(tmp_path / "none.yaml"))
    assert "none.yaml: cannot read it: No such file or directory" in done.stderr
    assert done.returncode == 2


@pytest.mark.parametrize("program", ENTRIES)
def test_help_lists_every_command_apart_from_its_summary(program: str) -> None:
    listed = re.findall(r"^  (\S+) +\S", run(program, "--help").stdout, re.MULTILINE)
    assert listed == list(importlib.import_module(ENTRIES[program]).COMMANDS)


@pytest.mark.parametrize("program", ENTRIES)
def test_every_program_says_its_version(program: str) -> None:
    done = run(program, "--version")
    assert (done.stdout, done.returncode) == (f"{program} {VERSION}\n", 0)


@pytest.mark.parametrize("words", ["status", "reporter list", "explain type", "--help"])
def test_an_output_that_cannot_be_written_is_told_in_words(site: Site, words: str) -> None:
    agent = alone(site).start()
    site.until(agent.status)
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*python(ENTRIES["xce-agent"]), *words.split()],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": os.getcwd(), "XCE_AGENT_SOCKET": agent.socket},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=20,
        )
    assert (done.returncode, "No space left on device" in done.stderr) == (2, True), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("output", "status"), [("/dev/full", 2), ("a reader that left", 0)])
def test_a_trial_ends_when_nobody_can_be_told_of_it(site: Site, output: str, status: int) -> None:
    """It once ran the reporter again and again, for ever, with a traceback each time."""
    agent = alone(site)
    agent.script("good", "#!/bin/sh\necho '{\"scratch_gb\": 5}'\n", types=TYPES, interval=0.1)
    argv = [*python(ENTRIES["xce-agent"]), "reporter", "test", "good"]
    argv += ["--config", str(agent.folder / "agent.yaml")]
    if output.startswith("/"):
        descriptor = os.open(output, os.O_WRONLY)
    else:
        reader, descriptor = os.pipe()
        os.close(reader)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.getcwd()}
    try:
        done = subprocess.run(
            argv,
            stdout=descriptor,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=20,
            env=environment,
        )
    finally:
        os.close(descriptor)
    assert (done.returncode, "Traceback" in done.stderr) == (status, False), done.stderr


def test_a_status_that_is_watched_ends_when_its_reader_has_left_though_nothing_changes(site: Site) -> None:
    agent = alone(site)
    agent.settings["reporters"]["load_indices"] = False
    agent.start()
    site.until(agent.status)
    argv = [*python(ENTRIES["xce-agent"]), "status", "--watch", "--config", str(agent.folder / "agent.yaml")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        while not program.stdout.readline().startswith("host "):
            pass
        program.stdout.close()
        assert (program.wait(10), program.stderr.read()) == (0, "")
