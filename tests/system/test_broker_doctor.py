"""`xce-broker doctor`, beside a running broker and without one."""

import json
import os
import socket
import subprocess
from typing import Any

import pytest

from tests.system.harness import Site, python
from tests.system.test_joining import make
from xce.wire import keys

pytestmark = [pytest.mark.system]


def doctor(site: Site) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    """Exit status, and findings by what they are about."""
    argv = [
        *python("xce.broker.cli"),
        "doctor",
        "--json",
        "--config",
        str(site.broker.folder / "broker.yaml"),
    ]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.getcwd()}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=30)
    found: dict[str, list[dict[str, Any]]] = {}
    for one in json.loads(done.stdout):
        found.setdefault(one["what"], []).append(one)
    assert all(one["advice"] for some in found.values() for one in some if one["level"] != "ok")
    return done.returncode, found


def texts(found: dict[str, list[dict[str, Any]]], what: str) -> str:
    return "\n".join(f"{one['level']}: {one['text']}" for one in found[what])


def test_it_finds_nothing_on_a_sound_host_with_and_without_the_broker(site: Site) -> None:
    site.broker.start()
    code, found = doctor(site)
    assert code == 0, found
    assert "ok: runs, pid" in texts(found, "broker")
    assert "is listened on" in texts(found, "ports")
    assert "the running broker has it open" in texts(found, "store")
    site.broker.stop()
    code, found = doctor(site)
    assert code == 0, found
    assert "is free" in texts(found, "ports")
    assert "is whole, revision" in texts(found, "store")
    assert "does not answer" in texts(found, "broker")


def test_it_names_what_is_wrong_with_files_keys_ports_and_store(site: Site) -> None:
    site.broker.start()
    site.broker.stop()
    folder = site.broker.folder
    (folder / "broker.key").chmod(0o644)
    (site.broker.accepted / "torn.pub").write_text("rubbish\n")
    (folder / "state/facts.db").write_bytes(b"rubbish" * 1000)
    with socket.create_server(("127.0.0.1", int(site.broker.endpoint.rpartition(":")[2]))):
        code, found = doctor(site)
    assert code == 1
    assert "too open" in texts(found, "key")
    assert "torn.pub" in texts(found, "accepted keys")
    assert "another program listens there" in texts(found, "ports")
    assert "is damaged" in texts(found, "store")
    (folder / "broker.yaml").write_text("listn: []\n")
    code, found = doctor(site)
    assert (code, "listn" in texts(found, "configuration")) == (1, True)
    assert "key" not in found, "what a file that cannot be understood names is not looked for"


def test_a_key_is_missed_where_the_settings_say_though_another_file_is_wrong(site: Site) -> None:
    folder = site.broker.folder
    site.broker.start()
    site.broker.stop()
    (folder / "hosts.yaml").write_text("hsts: []\n")
    (folder / "broker.key").unlink()
    code, found = doctor(site)
    assert (code, "hsts" in texts(found, "configuration")) == (1, True)
    assert found["key"][0]["advice"] == f"xce-broker key new broker --directory {folder}"


def test_it_names_agents_that_are_refused_and_tokens_that_are_left(site: Site) -> None:
    site.broker.start()
    make(site)  # for node*
    agent = site.agent("node1")
    stranger = keys.new("node1", "agent")
    (agent.folder / "agent.key").unlink()
    keys.save(stranger, agent.folder / "agent.key")
    agent.start()

    def refused() -> bool:
        return "refused" in texts(doctor(site)[1], "hosts")

    site.until(refused)
    assert "lets any host in that fits node*" in texts(doctor(site)[1], "tokens")
