"""The agent as a service: what it tells the service manager, and that it costs little at rest."""

import errno
import os
import signal
import socket
import time
import urllib.request
from pathlib import Path

import pytest

from tests.fakes.readable import skip_unless_readable
from tests.linux.hangfs import HangingMount
from tests.system.harness import Site, free_port
from xce.linux import proc

pytestmark = [pytest.mark.system, pytest.mark.root]


WHO = [{"name": "who", "kind": "string"}]


class Manager:
    """The datagram socket that systemd would listen on (sd_notify(3))."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        self._socket.settimeout(10)
        self.heard: list[str] = []

    def until(self, word: str) -> str:
        """The next message that holds `word`; fails after ten seconds without one."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            message = self._socket.recv(4096).decode()
            self.heard.append(message)
            if word in message:
                return message
        raise AssertionError(f"{word} was not told: {self.heard}")

    def close(self) -> None:
        self._socket.close()


def test_the_service_manager_is_told_of_start_state_life_reload_and_stop(site: Site) -> None:
    manager = Manager(site.folder)
    agent = site.agent("node1")
    agent.environment |= {"NOTIFY_SOCKET": manager.path, "WATCHDOG_USEC": "400000"}
    site.broker.start()
    agent.start()
    manager.until("READY=1")
    manager.until("STATUS=synced, host available")
    manager.until("WATCHDOG=1")
    manager.until("WATCHDOG=1")
    agent.signal(signal.SIGHUP)
    assert "MONOTONIC_USEC=" in manager.until("RELOADING=1")
    manager.until("READY=1")
    agent.signal(signal.SIGTERM)
    manager.until("STOPPING=1")
    assert agent.ended() == 0
    manager.close()


def test_a_stop_ends_stubborn_reporters_within_five_seconds(site: Site) -> None:
    agent = site.agent("node1")
    agent.settings["broker"] = ""
    agent.script("deaf", "#!/bin/sh\ntrap '' TERM\nwhile :; do sleep 1; done\n", timeout=60, grace=30)
    agent.start()
    site.until(lambda: agent.reporter("deaf").get("state") == "running")
    began = time.monotonic()
    assert agent.stop(within_s=5) == 0
    assert time.monotonic() - began < 5
    assert site.cgroup is not None
    assert site.cgroup.pids() == []
    assert not Path(str(agent.settings["cgroup"])).exists()


def test_an_interrupt_twice_ends_it_at_once(site: Site) -> None:
    agent = site.agent("node1")
    agent.settings["broker"] = ""
    agent.script("deaf", "#!/bin/sh\ntrap '' TERM\nwhile :; do sleep 1; done\n", timeout=60, grace=30)
    agent.start()
    site.until(lambda: agent.reporter("deaf").get("state") == "running")
    agent.signal(signal.SIGINT)
    time.sleep(0.1)
    agent.signal(signal.SIGINT)
    assert agent.ended(within_s=2) == 0
    assert site.cgroup is not None
    pids = site.cgroup.pids
    site.until(lambda: not pids())


def test_at_rest_the_agent_is_small_and_sleeps(site: Site) -> None:
    agent = site.agent("node1")
    agent.settings["reporters"]["load_indices"] = True
    site.broker.settings["heartbeat"] = 10
    site.broker.start()
    agent.start()
    site.until(lambda: "mem" in site.values("node1"))
    agent.stop()
    agent.start()  # YAML files are remembered from the second start on
    site.until(lambda: agent.status()["link"]["phase"] == "synced")
    time.sleep(1)
    before, began = cpu_s(agent.pid), time.monotonic()
    time.sleep(3)
    share = (cpu_s(agent.pid) - before) / (time.monotonic() - began)
    assert proc.resident_bytes(agent.pid) < 30 << 20
    assert share < 0.002 * 5
    assert len(os.listdir(f"/proc/{agent.pid}/task")) <= 4, "one thread of ours and ZeroMQ's"


def test_metrics_are_served_when_they_are_asked_for(site: Site) -> None:
    agent = site.agent("node1")
    agent.settings["broker"] = ""
    port = free_port()
    agent.settings["metrics"] = f"127.0.0.1:{port}"
    agent.start()
    page = site.until(lambda: urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read())
    assert b'xce_agent{name="node1"' in page
    assert page.endswith(b"# EOF\n")
    del agent.settings["metrics"]
    agent.configure()
    agent.signal(signal.SIGHUP)
    site.until(lambda: connected(port) == errno.ECONNREFUSED)


def test_without_root_the_agent_runs_reporters_as_itself_and_says_so(site: Site) -> None:
    skip_unless_readable()
    agent = site.agent("node1")
    agent.settings |= {"broker": "", "cgroup": ""}
    agent.script("whoami", '#!/bin/sh\necho "{\\"who\\": \\"$(id -un)\\"}"\n', types=WHO, interval=1)
    for path in (agent.folder, *agent.folder.parents[:-2]):
        path.chmod(0o755)
    for path in (agent.folder / "state", agent.folder / "run", agent.folder / "agent.key"):
        os.chown(path, 65534, 65534)
    agent.prefix = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]
    agent.start()
    site.until(lambda: agent.reporter("whoami").get("values", {}).get("value") == 1)
    assert "the agent is not root" in agent.reporter("whoami")["note"]
    assert agent.command("explain", "who").stdout.startswith('who        = "nobody"')
    assert agent.stop(within_s=5) == 0


def connected(port: int) -> int:
    """What comes of connecting to a port of this host, as an errno."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port))


def cpu_s(pid: int) -> float:
    """CPU time of a process in seconds, by the scheduler's own account."""
    return sum(
        int((task / "schedstat").read_text().split()[0]) / 1e9 for task in Path(f"/proc/{pid}/task").iterdir()
    )


def test_a_reporter_s_fault_is_logged_when_it_begins_and_when_it_ends(site: Site) -> None:
    agent = site.agent("node1")
    agent.settings["reporters"]["interval"] = 1
    site.broker.start()
    agent.script("sick", "#!/bin/sh\necho no disk >&2\nexit 3\n")
    agent.start()
    site.until(lambda: agent.reporter("sick").get("failures", 0) >= 2)
    agent.script("sick", "#!/bin/sh\necho '{}'\n")
    site.until(lambda: "all right again" in agent.log.read_text())
    told = [line for line in agent.log.read_text().splitlines() if "sick" in line]
    assert told[0] == "reporter sick: exit status 3: no disk"
    assert told[1].startswith("reporter sick: all right again after")
    assert len(told) == 2


def test_a_reporter_that_is_taken_away_with_its_fault_is_not_said_to_be_all_right(site: Site) -> None:
    agent = site.agent("node1")
    site.broker.start()
    agent.script("sick", "#!/bin/sh\nexit 3\n")
    agent.start()
    site.until(lambda: agent.reporter("sick").get("failures", 0) >= 1)
    (agent.folder / "reporters.d/sick").unlink()
    site.until(lambda: not agent.reporter("sick"))
    time.sleep(0.3)
    assert "all right again" not in agent.log.read_text()


def test_a_reporter_that_is_left_alone_is_logged_though_its_fault_was_known(site: Site) -> None:
    agent = site.agent("node1")
    agent.settings["reporters"] |= {"interval": 1, "failures_to_quarantine": 2}
    site.broker.start()
    agent.script("crash", "#!/bin/sh\nkill -9 $$\n")
    agent.start()
    site.until(lambda: agent.reporter("crash").get("state") == "quarantined")
    site.until(lambda: "failed 2 times" in agent.log.read_text())
    told = [line for line in agent.log.read_text().splitlines() if "reporter crash" in line]
    assert told == [
        "reporter crash: killed by SIGKILL",
        "reporter crash: failed 2 times in a row: killed by SIGKILL",
    ]


@pytest.mark.root
def test_a_scratch_root_that_others_can_write_to_is_trouble_while_it_is(site: Site) -> None:
    agent = site.agent("node1")
    root = agent.folder / "scratch"
    root.mkdir()
    root.chmod(0o777)
    profile = {"scratch": {"fast": {"path": str(root)}}}
    agent.settings["claims"] = {
        "enabled": True,
        "directory": str(agent.folder / "claims"),
        "cgroup": f"{site.cgroup_of(agent.folder.name)}-jobs",
        "profiles": {"default": profile},
    }
    site.broker.start()
    agent.start()
    trouble = site.until(lambda: [line for line in agent.status().get("trouble", []) if "scratch" in line])
    assert trouble[0].startswith(f"scratch: scratch fast: {root} can be written by others")
    assert trouble[0].endswith(f"chown root {root}; chmod 755 {root}")


def test_settings_that_are_not_taken_beside_a_running_reporter_are_trouble(site: Site) -> None:
    """`status` once ended with 0, and nobody learned that an edit had not been taken."""
    agent = site.agent("node1")
    site.broker.start()
    agent.script("fine", '#!/bin/sh\necho \'{"who": "me"}\'\n', interval=1, types=WHO)
    agent.start()
    site.until(lambda: agent.command("status").returncode == 0)
    settings = agent.reporters / "fine.yaml"
    settings.write_text("interval: 1\ntimeout: soon\n")
    shown = site.until(lambda: done if (done := agent.command("status")).returncode == 1 else None)
    assert f"fine: {settings}:2: timeout: " in shown.stdout
    assert "the settings before it stay in force" in shown.stdout
    assert "reporter fine: " in agent.log.read_text()
    assert agent.reporter("fine")["state"] in {"waiting", "running"}


def test_a_socket_that_was_removed_is_there_again_and_a_configuration_emptied_is_not_taken(
    site: Site,
) -> None:
    agent = site.agent("node1")
    site.broker.start()
    agent.start()
    site.until(lambda: agent.status()["link"]["phase"] == "synced")
    (agent.folder / "run" / "agent.sock").unlink()
    site.until(agent.status)
    (agent.folder / "agent.yaml").write_text("# all gone\n")
    agent.signal(signal.SIGHUP)
    (trouble,) = site.until(lambda: agent.status()["trouble"])
    assert trouble.startswith(f"configuration: not taken: {agent.folder}/agent.yaml: is empty; ")
    assert agent.status()["link"]["phase"] == "synced"
    agent.configure()
    agent.signal(signal.SIGHUP)
    site.until(lambda: not agent.status()["trouble"])


def test_with_all_its_directories_on_a_dead_file_server_the_agent_runs_and_says_so(site: Site) -> None:
    """It once hung in its first look, and neither `status` nor the broker heard of it."""
    agent = site.agent("node1")
    agent.settings["reporters"]["load_indices"] = True
    site.broker.start()
    mounts = [HangingMount(agent.reporters), HangingMount(agent.folder / "state")]
    try:
        agent.start()
        site.until(lambda: isinstance(site.value("node1", "mem"), int | float))
        look, state = site.until(lambda: told if len(told := agent.status()["trouble"]) == 2 else None)
        assert look.startswith(
            f"reporters' directory: cannot look at {agent.reporters}: no answer within 5 s"
        )
        assert state.startswith(f"state directory: nothing is remembered: {agent.folder}/state is on fuse")
        assert agent.stop() == 0
    finally:
        for mount in mounts:
            mount.release()
