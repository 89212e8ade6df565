"""A job in a container: podman in a claim that `xce-agent run` entered, containerd with a pod in its group.

Both take the claim by its CDI file.
"""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from tests.linux import engine
from tests.linux.containerd import EXITED, RUNNING, Containerd
from tests.linux.podman import Podman
from tests.linux.surroundings import tun
from tests.system.harness import AgentProgram, Site
from tests.system.test_claims import bindings_of, ended, node, place, ready, until_there
from tests.system.test_claims_killed import left, prepare_folders
from xce.broker.client import Client
from xce.linux.cgroup import Cgroup
from xce.model import message as m
from xce.model.claim import Ask, Claim, Consumer, InstanceAsk, MountAsk

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="cgroups and device filters need root"),
]
ASK = Ask(
    instances=[InstanceAsk(kind="card")],
    mounts=[MountAsk(name="input", source="data", read_only=True)],
    scratch_bytes=1 << 20,
    environment={"GREETING": "hello"},
)
DEVICES = Claim(id="job", ask=Ask(instances=[InstanceAsk(kind="card")]))
LOOK = """
(: <>{card}) && echo device
(: </dev/full) 2>&1 | grep -o 'Operation not permitted'
cat "$XCE_DIR_INPUT/file"; echo
(: > /xce/input/file) 2>&1 | grep -o 'Read-only file system'
cp /bin/busybox "$XCE_DIR_SCRATCH" 2>&1 | grep -o 'No space left on device'
echo $GREETING $XCE_BINDING
"""


def seen(binding: str) -> list[str]:
    """What `LOOK` says in a container; every engine gives its containers /dev/full, and no claim here."""
    denied, full = "Operation not permitted", "No space left on device"
    return ["device", denied, "data", "Read-only file system", full, f"hello {binding}"]


@pytest.fixture
def card(tmp_path: Path) -> str:
    return tun(tmp_path / "card")


@pytest.fixture
def agent(site: Site, tmp_path: Path, card: str) -> Iterator[AgentProgram]:
    """A node with a card, a volume and a scratch root; its mounts reach the engines."""
    made = node(site, "node1")
    prepare_folders(made)
    found = {"id": "card-own", "kind": "card", "attributes": {"device_files": [card]}}
    made.script("cards", f"#!/bin/sh\necho '{json.dumps({'xce': 1, 'instances': [found]})}'\n")
    claims = made.settings["claims"]
    claims["profiles"]["default"]["device_paths"] = [card]
    os.mkdir(claims["cdi_directory"])
    with engine.shared(claims["directory"]):
        site.broker.start()
        made.start()
        until_there(site, "node1")
        yield made
        made.stop()


def chosen(client: Client) -> m.Place:
    """Where its claim is bound."""
    where = place(client, "job", "node1", "card-own", "")
    return msgspec.structs.replace(where, consumer=Consumer(name="j", user="root"))


@pytest.mark.parametrize("programs", [lambda: "", engine.newer], ids=["of this machine", "newer"])
def test_podman_gives_a_job_what_its_claim_has(
    site: Site, agent: AgentProgram, card: str, tmp_path: Path, programs: Callable[[], str]
) -> None:
    podman = Podman(tmp_path, agent.settings["claims"]["cdi_directory"], programs=programs())
    with site.client() as client:
        client.ask(m.ClaimCreate(id="", claim=Claim(id="job", ask=ASK)))
        (binding,) = ready(client, chosen(client))
        taken = agent.ask(op="publish", name="job", seconds=5)["bindings"][0]["cdi"]
        assert taken == f"xce.dev/claim={binding}"
        command = podman.command(["--cgroups=split", "--device", taken], ["sh", "-c", LOOK.format(card=card)])
        done = agent.command("run", "--claim", "job", "--", *command)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == seen(binding)
        client.ask(m.ClaimRelease(id="", claim="job"))
        ended(site, client, binding)
    assert left(agent) == []


@pytest.fixture
def containerd(site: Site, agent: AgentProgram, tmp_path: Path) -> Iterator[Containerd]:
    """It runs before there are claims."""
    (tmp_path / "containerd").mkdir()
    made = Containerd(
        tmp_path / "containerd",
        Cgroup(site.cgroup_of("engine")),
        cdi=agent.settings["claims"]["cdi_directory"],
        programs=engine.newer(),
    )
    with made as running:
        yield running


def published(agent: AgentProgram, claim: str) -> tuple[Cgroup, str]:
    """The group of a claim's consumer, and its name for engines."""
    told: dict[str, Any] = agent.ask(op="publish", name=claim, seconds=5)["bindings"][0]
    return Cgroup(told["groups"][0]), told["cdi"]


def test_containerd_gives_a_pod_what_its_claim_has_and_the_pod_ends_with_it(
    site: Site, agent: AgentProgram, card: str, containerd: Containerd
) -> None:
    with site.client() as client:
        client.ask(m.ClaimCreate(id="", claim=Claim(id="job", ask=ASK)))
        (binding,) = ready(client, chosen(client))
        group, device = published(agent, "job")
        pod = containerd.pod(group)
        container = containerd.create(pod, ["sh", "-c", f"exec 7<>{card}; exec sleep 60"], device)
        containerd.start(container)
        said = containerd.exec(container, ["sh", "-c", LOOK.format(card=card)])
        assert said.out.splitlines() == seen(binding), said
        client.ask(m.ClaimRelease(id="", claim="job"))
        ended(site, client, binding)
        site.until(lambda: containerd.state(container) == EXITED)
        assert left(agent) == []
    containerd.remove(pod)


def test_a_pod_elsewhere_that_has_a_claims_mounts_keeps_it_from_being_released(
    site: Site, agent: AgentProgram, containerd: Containerd
) -> None:
    """The node agent of Kubernetes chooses the groups of its pods itself."""
    elsewhere = Cgroup(site.cgroup_of("elsewhere"))
    with site.client() as client:
        client.ask(m.ClaimCreate(id="", claim=Claim(id="job", ask=ASK)))
        (binding,) = ready(client, chosen(client))
        _, device = published(agent, "job")
        pod = containerd.pod(elsewhere)
        container = containerd.start(containerd.create(pod, ["sleep", "60"], device))
        client.ask(m.ClaimRelease(id="", claim="job"))
        site.until(lambda: "is still mounted elsewhere: pid" in bindings_of(agent)[binding]["note"])
        assert containerd.state(container) == RUNNING
        containerd.remove(pod)
        ended(site, client, binding)
    assert left(agent) == []
    another = containerd.pod(elsewhere)
    with pytest.raises(grpc.RpcError, match="unresolvable CDI devices"):
        containerd.create(another, ["true"], device)
    containerd.remove(another)
    elsewhere.remove()


def test_a_pod_elsewhere_keeps_a_claim_of_devices_alone_before_it_has_opened_one(
    site: Site, agent: AgentProgram, card: str, containerd: Containerd
) -> None:
    """It may open them at any time: its engine lets it, and no filter of ours holds for it."""
    elsewhere = Cgroup(site.cgroup_of("elsewhere"))
    with site.client() as client:
        client.ask(m.ClaimCreate(id="", claim=DEVICES))
        (binding,) = ready(client, chosen(client))
        _, device = published(agent, "job")
        pod = containerd.pod(elsewhere)
        container = containerd.start(containerd.create(pod, ["sleep", "60"], device))
        client.ask(m.ClaimRelease(id="", claim="job"))
        site.until(lambda: "is still mounted elsewhere: pid" in bindings_of(agent)[binding]["note"])
        opened = containerd.exec(container, ["sh", "-c", f"(: <>{card}) && echo device"])
        assert opened.out == "device\n", "that is why it is waited for"
        containerd.remove(pod)
        ended(site, client, binding)
    assert left(agent) == []
    elsewhere.remove()


def test_a_container_that_was_made_before_a_release_cannot_be_started_after_it(
    site: Site, agent: AgentProgram, containerd: Containerd
) -> None:
    """Its engine has taken from the CDI file what the devices are, and would give them."""
    elsewhere = Cgroup(site.cgroup_of("elsewhere"))
    with site.client() as client:
        client.ask(m.ClaimCreate(id="", claim=DEVICES))
        (binding,) = ready(client, chosen(client))
        _, device = published(agent, "job")
        pod = containerd.pod(elsewhere)
        container = containerd.create(pod, ["sleep", "60"], device)
        client.ask(m.ClaimRelease(id="", claim="job"))
        ended(site, client, binding)
    with pytest.raises(grpc.RpcError, match=r"claim\.json.*no such file or directory"):
        containerd.start(container)
    containerd.remove(pod)
    elsewhere.remove()
