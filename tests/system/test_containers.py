"""A job in a container: `xce-agent run` enters the claim, podman takes it by its CDI file."""

import json
import os
import stat
from pathlib import Path

import pytest

from tests.linux.podman import Podman
from tests.system.harness import Site
from tests.system.test_claims import ended, node, place, ready, until_there
from xce.model import message as m
from xce.model.claim import Ask, Claim, InstanceAsk, MountAsk

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="cgroups and device filters need root"),
]

JOB = """
(: <>{card}) && echo device
cat "$XCE_DIR_INPUT/file"
(: > /xce/input/file) 2>&1 | grep -o 'Read-only file system'
echo $GREETING
"""


def test_a_job_in_a_container_has_what_its_claim_has(site: Site, tmp_path: Path) -> None:
    (tmp_path / "cdi").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data/file").write_text("data\n")
    podman = Podman(tmp_path, str(tmp_path / "cdi"))
    card = str(tmp_path / "card")
    os.mknod(card, stat.S_IFCHR | 0o666, os.makedev(1, 7))
    agent = node(site, "node1")
    found = {"id": "card-own", "kind": "card", "attributes": {"device_files": [card]}}
    agent.script("cards", f"#!/bin/sh\necho '{json.dumps({'xce': 1, 'instances': [found]})}'\n")
    claims = agent.settings["claims"]
    claims |= {"cdi_directory": str(tmp_path / "cdi"), "namespace": "self"}
    claims["profiles"]["default"] |= {
        "device_paths": [card],
        "volumes": {"data": {"path": str(tmp_path / "data"), "read_only": True}},
    }
    site.broker.start()
    agent.start()
    until_there(site, "node1")
    ask = Ask(
        instances=[InstanceAsk(kind="card")],
        mounts=[MountAsk(name="input", source="data")],
        environment={"GREETING": "hello"},
    )
    with site.client() as client:
        client.ask(m.ClaimCreate(id="", claim=Claim(id="job", ask=ask)))
        (binding,) = ready(client, place(client, "job", "node1", "card-own", "j"))
        taken = agent.ask(op="publish", name="job", seconds=5)["bindings"][0]["cdi"]
        assert taken == f"xce.dev/claim={binding}"
        command = podman.command(["--cgroups=split", "--device", taken], ["sh", "-c", JOB.format(card=card)])
        done = agent.command("run", "--claim", "job", "--", *command)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == ["device", "data", "Read-only file system", "hello"]
        client.ask(m.ClaimRelease(id="", claim="job"))
        ended(site, client, binding)
    assert os.listdir(tmp_path / "cdi") == []
