"""The admin's guide, followed word by word on three booted hosts."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from tests.hosts.box import Host
from tests.project import tree
from tests.system.netlab import Lab

pytestmark = [pytest.mark.root, pytest.mark.system, pytest.mark.slow]

NAMES = ("node1", "node2", "node3")
PAGE = (tree.ROOT / "docs/guide-admin.md").read_text()
PROMPT = re.compile(r"(all|node\d)# (.*)")


def steps() -> list[tuple[str, str]]:
    """(host or `all`, command) of all the page's blocks, in order; a here-document is part of its command."""
    found: list[tuple[str, str]] = []
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL):
        for line in block.splitlines():
            if match := PROMPT.fullmatch(line):
                found.append((match[1], match[2]))
            else:
                found[-1] = (found[-1][0], f"{found[-1][1]}\n{line}")
    return found


@pytest.fixture
def three(base: Path, repository: Path, tmp_path: Path) -> Iterator[dict[str, Host]]:
    """Three hosts that know each other's names, and nothing of us but a folder of packages."""
    with Lab(hosts=3) as lab, contextlib.ExitStack() as stack:
        hosts = {
            name: stack.enter_context(
                Host(
                    name,
                    tmp_path,
                    namespace=f"/run/netns/{lab.namespace(number)}",
                    binds=(f"{repository}/now:/srv/xce",),
                )
            )
            for number, name in enumerate(NAMES, 1)
        }
        known = "".join(f"{lab.address(number)} {name}\n" for number, name in enumerate(NAMES, 1))
        for host in hosts.values():
            host.write("/etc/hosts", f"127.0.0.1 localhost\n{known}")
            host.must("mkdir", "-p", "/etc/yum.repos.d", "/etc/rpm")
            host.write("/etc/rpm/macros", "%_dbpath /var/lib/rpm\n")  # Debian's rpm has another
        yield hosts


class Admin:
    """Somebody with a shell on each host, in which a `cd` lasts."""

    def __init__(self, hosts: dict[str, Host]) -> None:
        self._hosts = hosts
        self._at = dict.fromkeys(hosts, "/root")

    def types(self, name: str, command: str) -> str:
        """What a command prints that has to succeed."""
        if command.startswith("scp "):  # there is no ssh between these hosts
            file, target = command.split()[1:]
            where = PurePosixPath("/root", target.partition(":")[2], PurePosixPath(file).name)
            text = self._hosts[name].read(f"{self._at[name]}/{file}")
            self._hosts[target.partition(":")[0]].write(str(where), text, mode="0600")
            return ""
        if command.startswith("cd "):
            self._at[name] = command.removeprefix("cd ")
            return ""
        return self._hosts[name].must("bash", "-ec", f"cd {self._at[name]}\n{command}")


def test_the_guide_can_be_followed_word_by_word(three: dict[str, Host]) -> None:
    admin = Admin(three)
    printed: dict[str, str] = {}
    for where, command in steps():
        for name in NAMES if where == "all" else (where,):
            if command == "xce-broker hosts":
                three[name].until(
                    lambda: three["node1"].run("xce-broker", "hosts").stdout.count(" available ") == 3,
                    "to have all three",
                )
            printed[f"{name}# {command}"] = admin.types(name, command)
            if command == "systemctl restart xce-broker":
                three[name].until(
                    lambda: three["node1"].run("xce-broker", "hosts", "--problems").returncode == 0,
                    "to have all three with the broker's new key",
                )
    assert "node1# xce-broker hosts" in printed
    assert re.search(r"healthy +host:node2 +true", printed["node1# xce-broker supply"])
    ran = next(text for command, text in printed.items() if "run --claim first" in command)
    assert re.fullmatch(r"hello from ports \d+,\d+\n", ran)
    assert "fan 3 is dead" in printed["node1# xce-broker drain"]
    assert "Traceback" not in "".join(host.must("journalctl", "--no-pager") for host in three.values())


def test_the_guide_uses_every_host_and_hides_nothing() -> None:
    assert {where for where, _ in steps()} == {"all", *NAMES}
    assert len(steps()) > 40
    assert "--force" not in PAGE
