"""Hosts as network namespaces on one bridge, for tests of partitions.

    with Lab(hosts=3) as lab:
        lab.run(1, ["ping", "-c1", lab.address(2)])
        lab.cut(1, 2)        # both directions, silently: packets are dropped, nobody is told
        lab.heal()

Nothing appears in the root network namespace: the bridge has a namespace of its own. Names carry a random
prefix, so labs run side by side. A host has its own network and nothing else of its own: files, processes
and cgroups are this machine's. Needs root, `ip`, `nft` and `nsenter`; without namespaces the test is skipped.
"""

import secrets
import subprocess
from types import TracebackType
from typing import Self

import pytest

SUBNET = "10.77.0"


class Lab:
    """`hosts` hosts, numbered from 1, that reach each other; a context manager that takes them down again."""

    def __init__(self, *, hosts: int) -> None:
        self.prefix = f"xce-{secrets.token_hex(3)}"
        self.hosts = range(1, hosts + 1)
        self._cuts: set[tuple[int, int]] = set()

    def __enter__(self) -> Self:
        switch = self.namespace(0)
        try:
            _ip("netns", "add", switch)
        except (OSError, RuntimeError) as error:
            pytest.skip(f"needs network namespaces: {error}")
        try:
            _ip("-n", switch, "link", "add", "br0", "type", "bridge")
            _ip("-n", switch, "link", "set", "br0", "up")
            for host in self.hosts:
                self._connect(host, switch)
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def _connect(self, host: int, switch: str) -> None:
        name = self.namespace(host)
        _ip("netns", "add", name)
        _ip("-n", switch, "link", "add", f"p{host}", "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("-n", switch, "link", "set", f"p{host}", "master", "br0", "up")
        _ip("-n", name, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        _ip("-n", name, "link", "set", "lo", "up")

    def namespace(self, host: int) -> str:
        """Name of a host's network namespace; 0 is the switch."""
        return f"{self.prefix}-{host}"

    def address(self, host: int) -> str:
        """A host's IPv4 address."""
        return f"{SUBNET}.{host}"

    def command(self, host: int, argv: list[str]) -> list[str]:
        """The command line that runs `argv` on a host. (`ip netns exec` hides the cgroups.)"""
        return ["nsenter", f"--net=/run/netns/{self.namespace(host)}", "--", *argv]

    def run(self, host: int, argv: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a short command on a host, whatever its exit status."""
        return subprocess.run(
            self.command(host, argv), capture_output=True, text=True, check=False, timeout=30
        )

    def cut(self, host: int, *others: int) -> None:
        """Drop all packets between a host and others (all others when none is named), both ways, silently."""
        self._cuts |= {(host, other) for other in others or set(self.hosts) - {host}}
        self._filter(host)

    def heal(self) -> None:
        """End all cuts."""
        cut = {host for host, _ in self._cuts}
        self._cuts.clear()
        for host in cut:
            self._filter(host)

    def _filter(self, host: int) -> None:
        peers = [self.address(other) for cut, other in sorted(self._cuts) if cut == host]
        rules = "table inet lab\ndelete table inet lab\n"
        if peers:
            dropped = f"{{ {', '.join(peers)} }}"
            rules += f"""table inet lab {{
                chain input {{ type filter hook input priority 0; ip saddr {dropped} drop; }}
                chain output {{ type filter hook output priority 0; ip daddr {dropped} drop; }}
            }}"""
        command = self.command(host, ["nft", "-f", "-"])
        done = subprocess.run(command, input=rules, capture_output=True, text=True, check=False, timeout=30)
        if done.returncode:
            raise RuntimeError(f"cannot set the packet filter of host {host}: {done.stderr.strip()}")

    def down(self) -> None:
        """Take the hosts away; may be called twice. Programs in them are the caller's to end first."""
        names = _ip("netns", "list").split()
        for host in (*self.hosts, 0):
            if self.namespace(host) in names:
                _ip("netns", "delete", self.namespace(host))


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False, timeout=30)
    if done.returncode:
        raise RuntimeError(f"cannot run ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout
