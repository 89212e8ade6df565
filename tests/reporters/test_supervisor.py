"""Reporters as real processes: runs, results, states."""

import os
import time
from pathlib import Path

import pytest

from tests.reporters.node import ROOT, Node
from xce.linux.reaper import Exit
from xce.reporters import cage, directory, supervisor
from xce.reporters.oneshot import UNWATCHED

GOOD = "#!/bin/sh\necho '{\"free\": 5}'\n"


def test_a_script_is_run_at_once_and_then_at_its_interval(node: Node) -> None:
    node.script("free", GOOD)
    node.start()
    result = node.ran("free", 3)
    assert result.lines == [b'{"free": 5}']
    assert result.exit == Exit(status=0)
    assert (result.fault, result.stderr, result.notes) == ("", "", [])
    starts = [one.started_at for one in node.runs("free")]
    assert 0.3 < starts[2] - starts[1] < 10
    assert [told.state for told in node.told["free"]] == ["waiting"]  # single runs are no news


def test_the_environment_is_fixed_and_the_descriptors_are_few(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("SECRET", "hidden")
    script = "#!/bin/sh\nenv | sort\nls /proc/self/fd | wc -l\npwd\nid -un\n"
    path = node.script("env", script, "interval: 7\nenvironment: {SITE: here}\nreports: [b, a]\n")
    node.start()
    lines = [line.decode() for line in node.ran("env").lines if isinstance(line, bytes)]
    home = str(node.base / "state/reporters/env")
    wanted = {
        "HOME": home,
        "LC_ALL": "C.UTF-8",
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
        "PWD": home,
        "SITE": "here",
        "XCE_DEADLINE_MS": "5000",
        "XCE_EXPECT": "b a",
        "XCE_INTERVAL": "7",
        "XCE_NODE": "node17",
        "XCE_PROTO": "1",
        "XCE_REPORTER": str(path),
        "XCE_STATE_DIR": home,
    }
    if ROOT:
        wanted |= {"USER": "nobody", "LOGNAME": "nobody"}
    environment = dict(line.split("=", 1) for line in lines[:-3])
    assert {name: value for name, value in environment.items() if name not in ("_", "SHLVL")} == wanted
    assert lines[-3:-1] == ["5", home]  # 0, 1, 2, 9 and that of ls


@pytest.mark.skipif(not ROOT, reason="needs root: only it can become another user")
def test_the_cage_takes_user_groups_and_privileges_away_and_sets_the_limits(node: Node) -> None:
    script = """#!/bin/sh
grep -E '^(Uid|Gid|Groups|CapEff|CapBnd|CapInh|CapAmb|NoNewPrivs):' /proc/self/status | tr -s '\\t ' ' '
ulimit -c; ulimit -n; ulimit -f; ulimit -t; ulimit -d
cut -d' ' -f6 /proc/$$/stat; echo $$
grep ^0:: /proc/self/cgroup
touch mine && stat -c '%U %a' "$XCE_STATE_DIR"
"""
    limits = "limits: {open_files: 99, file_size_mb: 3, cpu_s: 77, memory_mb: 400}\n"
    node.script("cage", script, limits)
    node.start()
    result = node.ran("cage")
    status = dict(line.decode().split(":", 1) for line in result.lines[:8] if isinstance(line, bytes))
    nobody = "65534 65534 65534 65534"
    assert {name: value.strip() for name, value in status.items()} == {
        "Uid": nobody,
        "Gid": nobody,
        "Groups": "",
        "CapEff": "0" * 16,
        "CapBnd": "0" * 16,
        "CapInh": "0" * 16,
        "CapAmb": "0" * 16,
        "NoNewPrivs": "1",
    }
    rest = [line.decode() for line in result.lines[8:] if isinstance(line, bytes)]
    assert rest[:4] == ["0", "99", "6144", "77"]
    assert rest[4] in ("409600", "unlimited")  # by the control group where it has memory.max
    assert rest[5] == rest[6]  # its own session
    if node.group is not None:
        assert rest[7].endswith(f"{node.group.name}/reporter-cage")
    assert rest[8] == "nobody 700"


@pytest.mark.skipif(not ROOT, reason="needs root: only it can become another user")
def test_root_is_had_only_where_script_and_agent_agree(node: Node) -> None:
    for name in ("asks", "allowed"):
        node.script(name, "#!/bin/sh\nid -u\n", "user: root\n")
    node.start(allow_root=["allowed", "silent"])
    assert node.ran("allowed").lines == [b"0"]
    refused = node.reaches("asks", "refused")
    assert "name 'asks' under reporters.allow_root in agent.yaml" in refused.cause
    assert node.runs("asks") == []


@pytest.mark.skipif(not ROOT, reason="needs root: only it can become another user")
def test_an_unknown_user_and_an_unreadable_script_are_named(node: Node) -> None:
    node.script("who", GOOD, "user: no-such-user\n")
    node.script("closed", GOOD, mode=0o700)
    node.start()
    assert "cannot find user 'no-such-user'" in node.reaches("who", "refused").cause
    cause = node.reaches("closed", "refused").cause
    assert cause.startswith("user 'nobody' cannot read and execute")
    assert "chmod 755" in cause


@pytest.mark.skipif(not ROOT, reason="needs root: only it can become another user")
def test_a_user_that_is_made_after_the_reporter_is_found_without_a_reset(node: Node) -> None:
    passwd = node.base / "passwd"
    passwd.write_text("root:x:0:0::/:/bin/sh\n")
    node.passwd = str(passwd)
    node.script("who", GOOD, "user: late\n")
    node.start()
    refused = node.reaches("who", "refused")
    node.watch.look()
    assert node.now("who") is refused, "nothing is new"
    passwd.write_text("late:x:65534:65534::/:/bin/sh\n")
    node.watch.look()  # which it does every ten seconds
    assert node.ran("who").fault == ""
    assert node.now("who").failures == 1


@pytest.mark.skipif(not ROOT, reason="needs root: only it can become another user")
def test_without_root_it_runs_as_the_agent_and_says_so(node: Node) -> None:
    """The supervisor believes that it is uid 65533; what differs is that it changes no user."""
    node.script("free", GOOD)
    node.start()
    node.supervisor.policy = type(node.supervisor.policy)(uid=65533, user="nobody")
    node.script("other", "#!/bin/sh\nid -u\n")
    assert node.ran("other").lines == [str(os.geteuid()).encode()]
    assert node.now("other").note == "runs as uid 65533, not as 'nobody': the agent is not root"
    assert node.now("other").cause == ""


def test_a_bad_status_gives_nothing_and_shows_status_and_first_complaint(node: Node) -> None:
    """C-REP-09."""
    script = "echo '{\"free\": 1}'\necho >&2\necho 'cannot read quota table' >&2\necho more >&2\nexit 37\n"
    node.script("quota", "#!/bin/sh\n" + script)
    node.start()
    result = node.ran("quota")
    assert result.exit == Exit(status=37)
    assert result.fault == "exit status 37: cannot read quota table"
    assert result.stderr == "\ncannot read quota table\nmore\n"
    told = node.reaches("quota", "backoff")
    assert (told.cause, told.failures) == ("exit status 37: cannot read quota table", 1)


def test_a_script_that_has_no_answer_for_long_is_asked_at_every_turn_and_good_again_at_once(
    node: Node,
) -> None:
    """C-DIR-02: not backed off, never quarantined."""
    flag = node.base / "up"
    node.script("lic", f"#!/bin/sh\ntest -e {flag} || exit 3\necho '{{\"lic\": 12}}'\n", "interval: 0.2\n")
    node.start(failures_to_quarantine=3)
    node.ran("lic", 6)
    assert node.now("lic").state == "backoff"
    starts = [one.started_at for one in node.runs("lic")[:6]]
    assert starts[5] - starts[0] < 4
    flag.touch()
    before = len(node.runs("lic"))
    node.until(lambda: node.now("lic").state == "waiting")
    assert len(node.runs("lic")) <= before + 2
    assert node.runs("lic")[-1].fault == ""


def test_status_78_means_not_applicable_and_is_not_asked_again(node: Node) -> None:
    node.script("gpu", "#!/bin/sh\necho no gpu here >&2\nexit 78\n", "interval: 0.1\n")
    node.start()
    result = node.ran("gpu")
    assert result.not_applicable
    assert result.fault == ""
    node.reaches("gpu", "not-applicable")
    node.kernel.during(0.5)
    assert len(node.runs("gpu")) == 1
    node.supervisor.reset("gpu")
    node.ran("gpu", 2)


def test_a_child_left_in_the_background_costs_nothing_and_is_ended(node: Node) -> None:
    """C-REP-01: it holds the output open; the value is there at the exit of the script."""
    node.script(
        "bg", "#!/bin/sh\necho '{\"free\": 12.5}'\nsleep 300 &\nexit 0\n", "interval: 0.3\ntimeout: 20\n"
    )
    node.start()
    for times in (1, 2, 3):
        result = node.ran("bg", times)
        assert result.lines == [b'{"free": 12.5}']
        assert result.fault == ""
        assert result.duration < 10
        assert "left 1 processes behind, which were ended: pid" in result.notes[0]
        sleeping = [one for one in node.children() if one.name == "sleep"]
        assert len(sleeping) <= 1
    node.until(lambda: not [one for one in node.children() if one.name == "sleep"])
    assert node.now("bg").state == "waiting"


def test_whatever_was_written_before_the_exit_is_read_and_what_a_child_writes_after_it_is_not_waited_for(
    node: Node,
) -> None:
    script = (
        "#!/bin/sh\nyes '{\"noise\": 1}' &\nsleep 0.05\nkill -STOP $!\nhead -c 30000 /dev/zero | tr '\\0' x\n"
    )
    node.script("late", script + "kill -CONT $!\nexit 0\n")
    node.start()
    assert node.ran("late").duration < 5


def test_what_hangs_is_told_to_end_and_then_killed_with_all_its_children(node: Node) -> None:
    script = (
        "trap '' TERM\nfor i in 1 2 3; do (trap '' TERM; setsid sleep 300) & done\nsleep 300\nsleep 300\n"
    )
    node.script("hang", "#!/bin/sh\n" + script, "timeout: 0.4\ngrace: 0.2\n")
    node.start()
    result = node.ran("hang")
    assert result.fault == "did not finish within 0.4 s"
    assert result.exit == Exit(signal=9)
    told = node.reaches("hang", "backoff")
    assert told.cause == "did not finish within 0.4 s"
    if node.group is not None:
        assert node.children() == []


def test_what_obeys_term_ends_in_peace(node: Node) -> None:
    script = "#!/bin/sh\ntrap 'echo bye >&2; exit 0' TERM\nwhile :; do sleep 0.05; done\n"
    node.script("polite", script, "timeout: 0.3\ngrace: 5\n")
    node.start()
    result = node.ran("polite")
    assert result.exit == Exit(status=0)
    assert result.stderr.endswith("bye\n")  # a shell may say "Terminated" of its sleep before
    assert result.fault == "did not finish within 0.3 s"


def test_misbehaviour_is_backed_off_and_quarantined_until_a_reset(node: Node) -> None:
    node.script("crash", "#!/bin/sh\nkill -SEGV $$\n", "interval: 0.05\n")
    node.start(failures_to_quarantine=3)
    told = node.reaches("crash", "quarantined")
    assert told.cause == "failed 3 times in a row: killed by SIGSEGV"
    assert told.failures == 3
    starts = [one.started_at for one in node.runs("crash")]
    assert starts[2] - starts[1] > starts[1] - starts[0]
    node.kernel.during(0.4)
    assert len(node.runs("crash")) == 3
    assert node.supervisor.reset("crash")
    node.ran("crash", 4)
    assert not node.supervisor.reset("no-such")


def test_an_unusable_output_counts_as_a_failed_run(node: Node) -> None:
    node.complaint = "line 1 is no frame"
    node.script("rubbish", "#!/bin/sh\necho rubbish\n")
    node.start()
    assert node.reaches("rubbish", "backoff").cause == "line 1 is no frame"


def test_a_run_that_is_slower_than_its_interval_is_never_doubled_and_its_missed_turns_are_counted(
    node: Node,
) -> None:
    """C-REP-08, in a tenth of the time: a quick one beside it keeps its turns."""
    node.script("slow", "#!/bin/sh\nsleep 1\necho '{\"free\": 1}'\n", "interval: 0.3\ntimeout: 9\n")
    node.script("quick", GOOD, "interval: 0.2\n")
    node.start()
    most = 0
    for _ in range(40):
        node.kernel.during(0.1)
        most = max(most, len([one for one in node.children() if one.name == "sleep"]))
    assert most == 1
    assert len(node.runs("slow")) in (2, 3, 4)
    assert node.now("slow").overruns >= 4
    assert node.now("slow").state == "waiting"
    assert len(node.runs("quick")) >= 15
    # No drift: the starts lie on one grid, but for those that a busy machine has made late.
    starts = [one.started_at for one in node.runs("quick")][1:]
    on_grid = max(sum((start - at + 0.02) % 0.2 < 0.04 for start in starts) for at in starts)
    assert on_grid > len(starts) / 2


def test_the_weights_of_runs_at_one_time_stay_within_the_budget(node: Node) -> None:
    busy = node.base / "busy"
    busy.mkdir(mode=0o777)
    busy.chmod(0o777)
    script = f"#!/bin/sh\nmkdir {busy}/$$; ls {busy} | wc -l; sleep 0.2; rmdir {busy}/$$\n"
    for number in range(5):
        node.script(f"one{number}", script, "interval: 60\n")
    node.script("heavy", script, "interval: 60\nweight: 9\n")
    node.start(budget=2)
    for name in ("heavy", *(f"one{number}" for number in range(5))):
        assert int(node.ran(name).lines[0]) <= 2  # type: ignore[arg-type]
    assert node.runs("heavy")[0].lines == [b"1"]


def test_a_removed_script_is_told_gone_and_its_run_is_ended(node: Node) -> None:
    path = node.script("free", "#!/bin/sh\ntrap '' TERM\nsleep 300\n", "grace: 0.1\ntimeout: 60\n")
    node.start()
    node.until(node.children)
    path.unlink()
    node.until(lambda: node.left == ["free"], within=10)
    node.until(lambda: not node.children())
    assert node.runs("free") == []
    if node.group is not None:
        node.until(lambda: not node.group.children())  # type: ignore[union-attr]
    told = node.reaches("free.yaml", "refused")  # its settings are still there
    assert "there is no 'free' beside it" in told.cause


def test_a_script_that_comes_back_while_its_last_run_is_being_ended_does_not_run_twice(node: Node) -> None:
    script = "#!/bin/sh\ntrap '' TERM\nsleep 300\n"
    path = node.script("free", script, "grace: 30\ntimeout: 60\n")
    node.start()
    node.until(lambda: [one for one in node.children() if one.name == "sleep"])
    path.unlink()
    node.until(lambda: node.left == ["free"])
    node.script("free", "#!/bin/sh\nsleep 0.2\necho '{\"free\": 5}'\n")
    while not node.runs("free"):
        node.kernel.during(0.02)
        assert len([one for one in node.children() if one.name == "sleep"]) <= 1
    assert node.runs("free")[0].lines == [b'{"free": 5}']


def test_a_changed_script_runs_at_once_but_not_before_the_run_in_progress_has_ended(node: Node) -> None:
    node.script("free", "#!/bin/sh\nsleep 0.8\necho old\n", "interval: 60\n")
    node.start()
    node.until(node.children)
    node.script("free", "#!/bin/sh\nsleep 0.2\necho new\n", "interval: 61\n")
    assert node.ran("free").lines == [b"old"]
    node.until(lambda: node.supervisor.reporters["free"].runs == 2)
    view, digest = node.supervisor.view("free"), node.supervisor.reporters["free"].candidate.digest
    assert view is not None
    assert view.last_script == node.runs("free")[0].script != digest
    result = node.ran("free", 2)
    assert (result.lines, result.script) == ([b"new"], digest)
    assert node.now("free").interval_ms == 61000


def test_stopping_ends_everything_at_once(node: Node) -> None:
    node.script("stubborn", "#!/bin/sh\ntrap '' TERM\nsetsid sleep 300 & sleep 300\n", "grace: 0.1\n")
    node.script("stream", "#!/bin/sh\nwhile :; do echo '{}'; sleep 0.1; done\n", "mode: persistent\n")
    node.start()
    node.until(lambda: len(node.children()) >= 4)
    node.stop()
    assert node.children() == []
    assert node.runs("stubborn") == []  # no fault of its own
    assert node.group is None or not node.group.exists()


def test_hostile_names_do_no_harm(node: Node) -> None:
    for name in ("a b", "new\nline", "-rf", "ü", "$(reboot)", "x" * 200, "bad\udcff"):
        (node.directory / name).write_text(GOOD)
        (node.directory / name).chmod(0o755)
    for name in ("free~", ".free", "free.bak", "free.rpmsave", "free.dpkg-old", "free.swp", "README"):
        (node.directory / name).write_text(GOOD if name != "README" else "read me")
        (node.directory / name).chmod(0o755 if name != "README" else 0o644)
    os.mkfifo(node.directory / "fifo", 0o755)
    (node.directory / "folder").mkdir()
    for name in ("good", "cgroup.procs", "pids.max", "CON", "a-b_c.d"):
        node.script(name, GOOD)
    node.start()
    for name in ("good", "cgroup.procs", "pids.max", "CON", "a-b_c.d"):
        assert node.ran(name).fault == ""
    assert len(node.results) == 5
    refused = {name: told[-1] for name, told in node.told.items() if told[-1].state == "refused"}
    assert set(refused) == {"a b", "new\\nline", "-rf", "ü", "$(reboot)", "x" * 61 + "...", "bad\\xff"}
    assert all("cannot be used as a name" in told.cause for told in refused.values())


def test_a_script_whose_path_is_swapped_between_check_and_start_is_not_run(node: Node) -> None:
    """What was hashed and checked is what runs, or nothing does."""
    path = node.script("free", GOOD, "interval: 0.2\n")
    node.start()
    node.ran("free")
    node.watch.close()
    node.supervisor.look_again = lambda: None  # nobody tells of the change
    before = len(node.runs("free"))
    node.script("free", "#!/bin/sh\necho evil\n")
    node.kernel.during(1)
    assert all(result.lines == [b'{"free": 5}'] for result in node.runs("free"))
    assert len(node.runs("free")) <= before + 1
    node.supervisor.update(directory.scan(str(node.directory), {0, os.geteuid()}))
    node.until(lambda: node.runs("free")[-1].lines == [b"evil"])
    assert node.now("free").script != node.told["free"][0].script
    assert path.exists()


def test_a_run_as_the_one_before_it_is_only_counted_and_one_that_differs_is_told(node: Node) -> None:
    counted = node.directory.parent / "count"
    counted.write_text("0\n")
    counted.chmod(0o666)
    node.script(
        "same",
        "#!/bin/sh\n"
        f"read n < {counted}; n=$((n + 1)); echo $n > {counted}; echo '{{\"x\": 1}}'\n"
        "case $n in 4) echo odd >&2;; 6) exit 3;; 8) sleep 300 & ;; esac\n",
    )
    node.knows = True
    node.start(interval=0.1)
    node.until(lambda: node.repeated.get("same", 0) >= 10)
    told = {result.run for result in node.results["same"]}
    # What is on standard error is told, and the run after it; so are one that fails and one that leaves
    # processes behind.
    odd = {1, 4, 5, 6, 7, 8, 9}
    assert odd <= told
    # On a busy machine one may take so long that its output is read as it comes: told, and the run after it.
    slow = {result.run for result in node.results["same"] if result.duration >= UNWATCHED}
    assert told <= odd | slow | {run + 1 for run in slow}
    # The newest run is shown, not the last one that was told.
    shown = node.supervisor.reporters["same"].result
    assert shown is not None
    assert shown.run == node.repeated["same"] > max(told)
    assert (str(shown.exit), shown.fault, shown.notes) == ("exit status 0", "", [])


def test_turns_that_were_missed_before_a_start_are_told_although_the_run_is_as_the_one_before(
    node: Node,
) -> None:
    node.script("same", GOOD)
    node.knows = True
    node.start(interval=0.1)
    node.until(lambda: node.repeated.get("same", 0) >= 3)
    before, runs = node.now("same").overruns, node.repeated["same"]
    time.sleep(0.35)  # the loop stands still
    node.until(lambda: node.repeated["same"] > runs)
    assert node.now("same").overruns >= before + 2


def test_what_is_made_once_is_made_anew_when_the_group_was_replaced(node: Node) -> None:
    """Seen without controllers by the mode of the reporter's directory, which is set with the limits."""
    if node.group is None:
        pytest.skip("needs a control group")
    node.script("same", GOOD)
    node.knows = True
    node.start(interval=0.2)
    node.until(lambda: node.repeated.get("same", 0) >= 2)
    home, group = node.base / "state/reporters/same", node.group.child("reporter-same")
    node.until(group.remove)
    group.create()
    home.chmod(0o755)
    node.until(lambda: home.stat().st_mode & 0o777 == 0o700, within=10)


@pytest.mark.skipif(not ROOT, reason="only root can replace it")
def test_a_link_in_place_of_a_reporters_own_directory_is_not_followed(node: Node) -> None:
    """The script would work in, and believe to own, whatever root's link points at."""
    elsewhere = node.base / "elsewhere"
    elsewhere.mkdir(mode=0o777)
    elsewhere.chmod(0o777)
    node.script("writes", "#!/bin/sh\n: > here\necho '{\"free\": 5}'\n")
    node.start(interval=0.2)
    node.ran("writes")
    home = node.base / "state/reporters/writes"
    home.rename(node.base / "away")
    home.symlink_to(elsewhere)
    node.until(lambda: node.told["writes"][-1].cause)
    assert "cannot enter its cage" in node.now("writes").cause
    assert f"cannot enter {home}: Not a directory" in node.now("writes").cause
    before = len(node.told["writes"])
    node.supervisor.reset("writes")
    node.until(lambda: len(node.told["writes"]) > before and "cannot start it" in node.now("writes").cause)
    assert f"{home}: is a symbolic link: remove it" in node.now("writes").cause
    assert not list(elsewhere.iterdir())
    home.unlink()
    node.supervisor.reset("writes")
    node.reaches("writes", "waiting")


@pytest.mark.parametrize("there", [False, True])
def test_without_its_cage_no_script_is_started_and_the_cause_names_the_way_out(
    node: Node, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    missing = node.base / "xce-cage"
    if there:
        missing.touch(mode=0o644)
    monkeypatch.setattr(cage, "PROGRAM", str(missing))
    node.script("free", GOOD)
    node.start(interval=0.2)
    node.reaches("free", "backoff")
    why = "Permission denied" if there else "No such file or directory"
    assert node.now("free").cause == f"cannot start it: {missing}: {why}: {cage.REMEDY}"
    monkeypatch.undo()
    node.supervisor.reset("free")
    node.reaches("free", "waiting")


def test_a_directory_that_is_no_control_group_is_not_used_as_one(tmp_path: Path) -> None:
    """On a hybrid host /sys/fs/cgroup is a tmpfs: a group made there is a directory, and every run failed."""
    with pytest.raises(OSError, match="is no control group of version 2"):
        supervisor.home("label", setting=f"{tmp_path}/agent/", own=None)
    assert list(tmp_path.iterdir()) == []
