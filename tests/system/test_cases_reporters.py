"""C-REP-01 to C-REP-10 and C-DIR-02: what went wrong for people with reporter scripts, tried with the real
programs. Each is looked at from both ends: `status` on the node, and the broker's snapshot.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.system.harness import AgentProgram, Site
from xce.model.message import ReporterState
from xce.model.value import Absent, Presence, Reading

pytestmark = [pytest.mark.root, pytest.mark.system]

CASES = Path(__file__).parent.parent / "cases" / "reporters"
KINDS = json.loads((CASES / "resources.json").read_text()) | {f"d{n:02}": "numeric" for n in range(1, 21)}
QUICK = "#!/bin/sh\necho '{\"healthy\": true}'\n"
SLOW_S = 3


@pytest.fixture
def node(site: Site) -> AgentProgram:
    """An agent beside a broker that knows the cases' types, with a quick reporter as a neighbour."""
    site.broker.resources = {"types": [{"name": name, "kind": kind} for name, kind in KINDS.items()]}
    agent = site.agent("node1")
    agent.settings["reporters"] |= {"interval": 1, "timeout": 1}
    agent.script("quick", QUICK, interval=0.5, timeout=0.5)
    site.broker.start()
    agent.start()
    site.until(lambda: site.value("node1", "healthy") is True)
    return agent


def case(name: str) -> str:
    return (CASES / name).read_text()


def prints(file: str, *, mode: str = "one-shot") -> str:
    """A script that prints a file of the cases byte for byte, and goes on living if it is an elim."""
    octal = "".join(f"\\0{byte:03o}" for byte in (CASES / file).read_bytes())
    stay = "" if mode == "one-shot" else "\nexec sleep 300"
    return f"#!/bin/sh\nprintf '%b' '{octal}'{stay}\n"


def values(site: Site, *names: str) -> dict[str, Reading]:
    held = site.values("node1")
    return {name: held[name] for name in names if name in held}


def told(site: Site, reporter: str) -> ReporterState:
    """What the broker shows of a reporter."""
    return site.snapshot().locations["host:node1"].reporters[reporter]


def ran(site: Site, agent: AgentProgram, name: str, runs: int = 1) -> dict[str, Any]:
    """The reporter's status once it has had so many more runs."""
    before = agent.reporter(name).get("runs", 0)
    site.until(lambda: agent.reporter(name).get("runs", 0) >= before + runs and _rests(agent, name))
    return agent.reporter(name)


def _rests(agent: AgentProgram, name: str) -> bool:
    return agent.reporter(name)["state"] not in {"running", "stopping"}


def neighbour_is_well(site: Site, agent: AgentProgram) -> None:
    site.until(lambda: site.value("node1", "healthy") is True)
    assert agent.reporter("quick")["failures"] == 0


def test_c_rep_01_a_child_left_running_costs_neither_the_value_nor_a_process_each_round(
    site: Site, node: AgentProgram
) -> None:
    node.script("bgchild", case("bgchild.sh"), interval=1, timeout=1)
    site.until(lambda: site.value("node1", "scratch_free_gb") == 12.5)
    for _ in range(6):
        status = ran(site, node, "bgchild")
        assert site.value("node1", "scratch_free_gb") == 12.5
        assert status["failures"] == 0
        assert _sleepers(site) <= 1
    neighbour_is_well(site, node)
    assert node.stop() == 0
    assert _sleepers(site) == 0


def _sleepers(site: Site) -> int:
    """Children of bgchild.sh that live."""
    assert site.cgroup is not None
    found = 0
    for pid in site.cgroup.pids():
        try:
            found += b"sleep\x00300" in Path(f"/proc/{pid}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def test_the_end_of_the_agent_mends_no_reporter_in_its_log(site: Site, node: AgentProgram) -> None:
    node.script("mute", "#!/bin/sh\nexec sleep 300\n", mode="persistent", interval=0.3, timeout=0.3)
    site.until(lambda: node.reporter("mute").get("failures") and node.reporter("mute")["state"] == "running")
    assert node.stop() == 0
    assert "mute: printed no frame for 0.6 s" in node.tail()
    assert "all right again" not in node.tail()


def test_c_rep_02_a_reporter_runs_in_one_fixed_locale(site: Site) -> None:
    agent = site.agent("node1")
    agent.environment |= {"LC_ALL": "de_DE.UTF-8", "LANG": "de_DE.UTF-8"}
    types = [{"name": "scratch_free_gb", "kind": "numeric"}]
    text = "#!/bin/bash\nprintf '{\"scratch_free_gb\": %.1f}\\n' 12.5; printenv LC_ALL >&2\n"
    agent.script("locale", text, types=types, interval=1)
    site.broker.start()
    agent.start()
    site.until(lambda: site.value("node1", "scratch_free_gb") == 12.5)
    assert agent.reporter("locale")["stderr"].strip() == "C.UTF-8"


@pytest.mark.parametrize("file", ["comma.jsonl", "comma.elim"])
def test_c_rep_02_a_decimal_comma_is_refused_and_never_another_number(
    site: Site, node: AgentProgram, file: str
) -> None:
    mode = "elim" if file.endswith(".elim") else "one-shot"
    node.script("comma", prints(file, mode=mode), mode=mode, interval=1)
    site.until(lambda: values(site, "free_a", "free_c") == {"free_a": 5, "free_c": 7})
    reading = site.value("node1", "scratch_free_gb")
    assert reading is None or isinstance(reading, Absent)
    (refusal,) = site.until(lambda: node.reporter("comma").get("refused"))
    assert "comma" in refusal["reason"]
    assert "12,5" in refusal["text"]
    site.until(lambda: "comma" in told(site, "comma").cause)


@pytest.mark.parametrize("file", ["missing.jsonl", "missing-empty.jsonl"])
def test_c_rep_03_what_is_not_there_is_unknown_and_its_neighbours_are_taken(
    site: Site, node: AgentProgram, file: str
) -> None:
    node.script("missing", '#!/bin/sh\necho \'{"free_a": 5, "free_b": 3, "free_c": 7}\'\n', interval=1)
    site.until(lambda: site.value("node1", "free_b") == 3)
    node.script("missing", prints(file))
    site.until(lambda: isinstance(site.value("node1", "free_b"), Absent))
    reading = site.value("node1", "free_b")
    assert isinstance(reading, Absent)
    assert reading.presence is Presence.UNKNOWN
    assert values(site, "free_a", "free_c") == {"free_a": 5, "free_c": 7}


def test_c_rep_03_an_elim_line_that_lacks_a_value_stores_nothing_under_a_wrong_name(
    site: Site, node: AgentProgram
) -> None:
    node.script("missing", prints("missing.elim", mode="elim"), mode="elim", interval=1)
    site.until(lambda: node.reporter("missing").get("refused"))
    assert values(site, "free_a", "free_b", "free_c") == {}
    site.until(lambda: "a value is missing" in told(site, "missing").cause)


def test_c_rep_04_one_bad_line_among_twenty_costs_one_value(site: Site, node: AgentProgram) -> None:
    node.script("poison", prints("poison.jsonl"), interval=1)
    good = {f"d{n:02}": n * 10 for n in range(1, 21) if n != 12}
    site.until(lambda: values(site, *good) == good)
    assert isinstance(site.value("node1", "d12"), Absent)
    (refusal,) = site.until(lambda: node.reporter("poison").get("refused"))
    assert (refusal["line"], refusal["name"]) == (12, "d12")
    site.until(lambda: "line 12: d12" in told(site, "poison").cause)
    size = node.log.stat().st_size
    ran(site, node, "poison", 3)
    assert node.log.stat().st_size - size < 300, node.tail()
    neighbour_is_well(site, node)


@pytest.mark.parametrize("file", ["crlf-bom.jsonl", "crlf.elim"])
def test_c_rep_05_carriage_returns_and_a_byte_order_mark_leave_no_trace(
    site: Site, node: AgentProgram, file: str
) -> None:
    mode = "elim" if file.endswith(".elim") else "one-shot"
    node.script("crlf", prints(file, mode=mode), mode=mode, interval=1)
    wanted = {"scratch_free_gb": 12.5, "ib_state": "Active"}
    site.until(lambda: values(site, *wanted) == wanted)
    assert all(name.isascii() for name in site.values("node1"))


@pytest.mark.parametrize("file", ["noshebang", "blankfirst"])
def test_c_rep_06_a_script_that_only_a_shell_would_run_says_so_and_is_taken_once_corrected(
    site: Site, node: AgentProgram, file: str
) -> None:
    node.script("handmade", case(file), interval=1)
    site.until(lambda: node.reporter("handmade").get("cause"))
    status = node.reporter("handmade")
    assert "#!" in status["cause"]
    assert status["path"].endswith("/handmade")
    site.until(lambda: "#!" in told(site, "handmade").cause)
    node.script("handmade", "#!/bin/sh\n" + case(file).strip() + "\n")
    site.until(lambda: site.value("node1", "scratch_free_gb") == 12.5)


def test_c_rep_07_a_very_long_line_costs_itself(site: Site, node: AgentProgram) -> None:
    text = case("longline.sh")
    before = node.status()["agent"]["memory_kb"]
    node.script("long", text, interval=1, timeout=5)
    site.until(lambda: site.value("node1", "scratch_free_gb") == 12.5)
    assert node.reporter("long")["refused"], "100 KiB is more than a text in a set may have"
    node.script("long", text.replace("102400", "500000000"))
    site.until(lambda: "limit" in node.reporter("long")["cause"] or "4 MiB" in node.reporter("long")["cause"])
    node.script("long", "#!/bin/sh\necho '{\"scratch_free_gb\": 13.5}'\n")
    site.until(lambda: site.value("node1", "scratch_free_gb") == 13.5)
    assert node.status()["agent"]["memory_kb"] - before < 50 << 10
    neighbour_is_well(site, node)


@pytest.mark.slow
def test_c_rep_08_a_slow_reporter_never_has_a_second_copy_and_slows_nobody(
    site: Site, node: AgentProgram
) -> None:
    """3 s on an interval of 1 s: the shape of 30 s on 10 s."""
    text = case("slow.sh").replace("sleep 30", f"sleep {SLOW_S}")
    node.script("slow", text, interval=1, timeout=SLOW_S * 3)
    site.until(lambda: node.reporter("slow").get("state") == "running")
    began = node.reporter("quick")["runs"]
    copies: list[int] = []

    def looked() -> bool:
        copies.append(_copies(site, f"sleep\x00{SLOW_S}"))
        return bool(node.reporter("slow")["runs"] >= 3)

    site.until(looked, within_s=SLOW_S * 6, every_s=0.2)
    assert max(copies) == 1
    status = node.reporter("slow")
    assert status["overruns"] >= 2
    assert told(site, "slow").overruns <= status["overruns"]
    assert site.value("node1", "scratch_free_gb") == 12.5
    assert status["age_s"] >= SLOW_S, "its age counts from the begin of the run"
    assert node.reporter("quick")["runs"] - began >= 2 * SLOW_S * 0.9
    neighbour_is_well(site, node)


def _copies(site: Site, command: str) -> int:
    assert site.cgroup is not None
    found = 0
    for pid in site.cgroup.pids():
        try:
            found += Path(f"/proc/{pid}/cmdline").read_bytes().startswith(command.encode())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def test_c_rep_09_nothing_is_taken_of_a_run_with_a_bad_status_and_both_ends_say_why(
    site: Site, node: AgentProgram
) -> None:
    node.script("nonzero", case("nonzero.sh"), interval=1)
    site.until(lambda: node.reporter("nonzero").get("cause"))
    status = node.reporter("nonzero")
    assert status["cause"] == "exit status 37: cannot read quota table, using df"
    assert "37" in status["exit"]
    site.until(lambda: told(site, "nonzero").cause == status["cause"])
    reading = site.value("node1", "scratch_free_gb")
    assert reading is None or isinstance(reading, Absent)


def test_c_rep_10_a_script_that_anybody_may_change_is_not_run_until_it_is_safe(
    site: Site, node: AgentProgram
) -> None:
    text = "#!/bin/sh\necho '{\"free_a\": 1}'\n"
    node.script("open", text).chmod(0o777)
    owned = node.script("owned", text.replace("free_a", "free_b"))
    os.chown(owned, 1000, 1000)
    for name, element in (("open", "reporters.d/open"), ("owned", "reporters.d/owned")):
        site.until(lambda name=name: node.reporter(name).get("state") == "refused")  # type: ignore[misc]
        assert element in node.reporter(name)["cause"]
        site.until(lambda name=name, element=element: element in told(site, name).cause)  # type: ignore[misc]
    node.reporters.chmod(0o777)
    node.script("third", text.replace("free_a", "free_c"))
    site.until(lambda: any("reporters.d" in line for line in node.status()["trouble"]))
    assert values(site, "free_b", "free_c") == {}
    node.reporters.chmod(0o755)
    (node.reporters / "open").chmod(0o755)
    os.chown(owned, 0, 0)
    wanted = {"free_a": 1, "free_b": 1, "free_c": 1}
    site.until(lambda: values(site, *wanted) == wanted, within_s=30)


def test_c_dir_02_a_licence_server_that_is_down_is_unknown_and_not_zero(
    site: Site, node: AgentProgram
) -> None:
    with tempfile.NamedTemporaryFile("w", prefix="xce-test-") as file:  # where a reporter's user can read
        state = Path(file.name)
        state.chmod(0o644)
        state.write_text("up")
        node.script("lic", case("lic.sh"), interval=1, timeout=1, environment={"LIC_STATE": str(state)})
        site.until(lambda: site.value("node1", "lic_free") == 12)
        state.write_text("down")
        site.until(lambda: isinstance(site.value("node1", "lic_free"), Absent))
        for _ in range(5):
            status = ran(site, node, "lic")
            reading = site.value("node1", "lic_free")
            assert isinstance(reading, Absent)
            assert reading.presence is Presence.UNKNOWN
            assert reading.cause == status["cause"] == "exit status 3: no answer from licence server"
        state.write_text("up")
        site.until(lambda: site.value("node1", "lic_free") == 12)
