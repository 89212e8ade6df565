"""Three booted hosts with addresses of their own, joined into one cluster by the commands of the guide.

    with Cluster(folder, packages) as cluster:
        cluster.bind("node2", "full", "4711")       # a claim, and a process in its group
        cluster.lab.cut(2)                          # the network fails
        cluster.state("node2") == "lost"

`node1` has the broker and an agent, the others an agent each. What is done, is done by commands on the hosts;
what is asserted, is what they, systemd and the kernel say.
"""

import contextlib
import json
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.hosts.box import Host
from tests.system.netlab import Lab
from xce.prepare.group import PREFIX

NAMES = ("node1", "node2", "node3")
RPM = ("rpm", "--dbpath", "/var/lib/rpm")
CARDS = {
    "xce": 1,
    "instances": [
        {"id": f"card-{name}", "kind": "card", "attributes": {"device_files": [f"/dev/{name}"]}}
        for name in ("full", "zero")
    ],
}
AGENT = """
claims:
  enabled: true
  check_s: 0.2
  profiles:
    default:
      devices: ["c *:* m", "b *:* m", "c 1:3 rwm", "c 1:8 rwm", "c 1:9 rwm"]
      device_paths: [/dev/full, /dev/zero]
      grace_s: 0.3
      volumes:
        data: {path: /srv/data}
"""
BROKER = "heartbeat: 0.5\nmissed_heartbeats: 4\n"


class Cluster:
    """See the module; a context manager."""

    def __init__(self, folder: Path, packages: Path) -> None:
        self.lab = Lab(hosts=len(NAMES))
        self._folder, self._packages = folder, packages
        self._stack = contextlib.ExitStack()
        self.hosts: dict[str, Host] = {}

    def __enter__(self) -> Self:
        with self._stack:
            self._stack.enter_context(self.lab)
            for number, name in enumerate(NAMES, 1):
                place = f"/run/netns/{self.lab.namespace(number)}"
                binds = (f"{self._packages}:/packages",)
                host = Host(name, self._folder, namespace=place, binds=binds)
                self.hosts[name] = self._stack.enter_context(host)
            for host in self.hosts.values():
                rpm(host, "-i", "--nodeps", "/packages/*.rpm")
                self._configure(host)
            self._join()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _configure(self, host: Host) -> None:
        host.must("mkdir", "-p", "/srv/data")
        text = host.read("/etc/xce/agent.yaml")
        at = text.index("\nclaims:\n")
        end = text.index("\n# ", at + 1)
        host.write("/etc/xce/agent.yaml", text[:at] + AGENT + text[end:])
        host.write("/etc/xce/reporters.d/cards", f"#!/bin/sh\necho '{json.dumps(CARDS)}'\n", mode="0755")

    def _join(self) -> None:
        first = self.hosts["node1"]
        first.must("xce-broker", "key", "new", "broker")
        first.write("/etc/xce/broker.yaml", first.read("/etc/xce/broker.yaml") + BROKER)
        first.write("/etc/xce/hosts.yaml", "hosts:\n  - name: node[1-3]\n")
        first.must("systemctl", "start", "xce-broker")
        for name, host in self.hosts.items():
            first.must("xce-broker", "token", "new", "--hosts", name, "--out", f"/root/{name}.token")
            host.write("/root/token", first.read(f"/root/{name}.token"), mode="0600")
            host.must("xce-agent", "join", self.lab.address(1), "--token", "/root/token")
        for name in self.hosts:
            self.until(name, "available")

    # ------------------------------------------------------------------------------------------ looking

    def broker(self, *argv: str) -> Any:
        """What a command of the broker's says, as JSON."""
        return json.loads(self.hosts["node1"].must("xce-broker", *argv, "--json"))

    def state(self, name: str) -> str:
        """A host's state, as the broker sees it; '' while the broker does not answer."""
        done = self.hosts["node1"].run("xce-broker", "hosts", "--json")
        if not done.stdout.startswith(("{", "[")):
            return ""
        states: dict[str, str] = {one["host"]: one["state"] for one in json.loads(done.stdout)}
        return states.get(name, "")

    def until(self, name: str, state: str) -> None:
        self.hosts["node1"].until(lambda: self.state(name) == state, f"to see {name} as {state}", within_s=40)

    # ------------------------------------------------------------------------------------------- claims

    def bind(self, name: str, card: str, consumer: str, *options: str) -> str:
        """A claim on a host's card, ready there; the binding's id."""
        first = self.hosts["node1"]
        claim = f"job-{consumer}"
        first.must("xce-broker", "claim", "create", claim, "--instances", "card=1", *options)
        place = f"{name}=card-{card}"
        first.must("xce-broker", "claim", "bind", claim, place, "--consumer", consumer, "--wait", "20")
        (binding,) = self.bindings(consumer)
        return binding

    def bindings(self, consumer: str) -> dict[str, str]:
        """State of each binding of a consumer's claim."""
        shown = self.hosts["node1"].run("xce-broker", "claim", "show", f"job-{consumer}", "--json").stdout
        views = json.loads(shown)["bindings"]
        return {name: view["binding"].get("state", "pending") for name, view in views.items()}

    def release(self, consumer: str) -> None:
        first = self.hosts["node1"]
        first.must("xce-broker", "claim", "release", f"job-{consumer}")
        gone = ("xce-broker", "claim", "show", f"job-{consumer}")
        first.until(lambda: first.run(*gone).returncode != 0, "to forget the claim", within_s=20)

    def start(self, name: str, consumer: str) -> int:
        """A process in the consumer's group, as a job's starter makes it; its pid there."""
        script = (
            f"g={group(consumer)}; (echo 0 >$g/cgroup.procs; exec sleep 600 </dev/null >/dev/null 2>&1) & "
            "until grep -q . $g/cgroup.procs; do sleep 0.01; done; cat $g/cgroup.procs"
        )
        return int(self.hosts[name].must("sh", "-c", script).split()[0])

    def opens(self, name: str, consumer: str, *devices: str) -> list[bool]:
        """Which of these a process of the consumer may open."""
        tries = "; ".join(f"(: </dev/{one}) 2>/dev/null && echo y || echo n" for one in devices)
        script = f"echo 0 >{group(consumer)}/cgroup.procs; {tries}"
        return [word == "y" for word in self.hosts[name].must("sh", "-c", script).split()]


def group(consumer: str) -> str:
    return f"/sys/fs/cgroup/xce.slice/xce-jobs.service/{PREFIX}{consumer}"


def rpm(host: Host, *arguments: str) -> str:
    """rpm as an admin would call it; the shell finds the files."""
    return host.must("sh", "-c", " ".join([*RPM, *arguments]))


def alive(host: Host, pid: int) -> bool:
    return host.run("kill", "-0", str(pid)).returncode == 0
