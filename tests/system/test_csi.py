"""A plugin's volume with everything real: broker, agent, helper, plugin, mounts; each dies in between."""

import base64
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.csi_node_helper.world import Plugin, program
from tests.project import tree
from tests.system.harness import AgentProgram, Site
from tests.system.test_claims import bindings_of, ended, node
from xce.broker.client import Client
from xce.linux import mountinfo, proc
from xce.model import message as m
from xce.model.claim import Ask, BindingState, Claim, Consumer, MountAsk

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root"),
]
INSIDE = "XCE_TEST_SEEN_BY_PID_1"
ASK = Ask(mounts=[MountAsk(name="data", source="shared")])


def csi_node(site: Site, plugin: Plugin) -> AgentProgram:
    agent = node(site, "node1")
    claims = agent.settings["claims"]
    claims["directory"] = str(plugin.folder.parent / "claims")
    claims["csi"] = {"plugins": {"fake": plugin.socket}, "helper": program(plugin.folder)}
    claims["profiles"]["default"]["volumes"] = {"shared": {"csi": {"plugin": "fake", "id": "vol1"}}}
    return agent


def bound(client: Client, claim: str) -> str:
    client.ask(m.ClaimCreate(id="", claim=Claim(id=claim, ask=ASK)))
    place = m.Place(claim=claim, host="node1", consumer=Consumer(name=claim))
    (binding,) = client.ask(m.ClaimBind(id="", places=[place])).made
    view = client.wait_bindings([binding], timeout=30)[binding]
    assert view.binding.state is BindingState.READY, view
    return binding


@pytest.mark.skipif(INSIDE in os.environ, reason="it is in there")
def test_the_scenarios_in_a_namespace_where_pid_1_sees_our_mounts() -> None:
    """The agent makes no mounts that the host's first process would not see: here that one is pytest."""
    command = ["unshare", "-mpf", "--mount-proc", "--kill-child", "--propagation", "private"]
    command += [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(
        command,
        cwd=tree.ROOT,
        env={**os.environ, INSIDE: "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout


@pytest.mark.skipif(INSIDE not in os.environ, reason="run by the test above")
def test_two_jobs_share_a_volume_and_whoever_dies_in_between_they_keep_it(site: Site, plugin: Plugin) -> None:
    agent = csi_node(site, plugin)
    site.broker.start()
    agent.start()
    site.until(lambda: site.snapshot().locations["host:node1"].state == "available")
    with site.client() as client:
        one, two = bound(client, "one"), bound(client, "two")
        file = plugin.folder.parent / "claims" / two / "data/file"
        assert file.read_text() == "payload"
        told = {"csi.fake.node": "node-7", "csi.fake.volumes": 1, "csi.volume.shared.bytes_used": 300}
        site.until(lambda: told.items() <= site.values("node1").items())
        agent.kill()
        plugin.stop()
        agent.start()
        site.until(lambda: bindings_of(agent).get(two, {}).get("state") == "ready")
        client.ask(m.ClaimRelease(id="", claim="one"))
        ended(site, client, one)
        assert file.read_text() == "payload"
        client.ask(m.ClaimRelease(id="", claim="two"))
        site.until(lambda: "plugin fake" in bindings_of(agent)[two]["note"])
        plugin.start()
        ended(site, client, two)
    rpcs = [call["rpc"] for call in plugin.calls() if "Volume" in call["rpc"]]
    assert rpcs[:2] == ["NodeStageVolume", "NodePublishVolume"]
    assert rpcs.count("NodeStageVolume") == rpcs.count("NodeUnstageVolume") == 1
    assert [mount for mount in mountinfo.read() if mount.point.startswith(str(plugin.folder.parent))] == []


@pytest.mark.skipif(INSIDE not in os.environ, reason="run by the test above")
def test_without_the_helper_all_else_is_served_and_a_volume_waits_for_the_package(
    site: Site, plugin: Plugin
) -> None:
    agent = csi_node(site, plugin)
    installed = Path(agent.settings["claims"]["csi"]["helper"])
    elsewhere = installed.rename(f"{installed}.not-yet")
    site.broker.start()
    agent.start()
    site.until(lambda: site.snapshot().locations["host:node1"].state == "available")
    install = "install xce-csi-node-helper"
    site.until(lambda: any(install in line for line in agent.status()["trouble"]))
    with site.client() as client:
        client.ask(m.ClaimCreate(id="", claim=Claim(id="one", ask=ASK)))
        place = m.Place(claim="one", host="node1", consumer=Consumer(name="one"))
        (binding,) = client.ask(m.ClaimBind(id="", places=[place])).made
        site.until(lambda: install in bindings_of(agent).get(binding, {}).get("note", ""))
        elsewhere.rename(installed)
        view = client.wait_bindings([binding], timeout=30)[binding]
        assert view.binding.state is BindingState.READY, view
        site.until(lambda: agent.status()["trouble"] == [])
        client.ask(m.ClaimRelease(id="", claim="one"))
        ended(site, client, binding)


WORDS = {
    "volume_id": "vol1",
    "volume_context/share": "horse-drawn-cart",
    "publish_context@node1/lun": "lun-of-node-one",
}


@pytest.mark.skipif(INSIDE not in os.environ, reason="run by the test above")
def test_a_providers_words_reach_the_plugin_also_after_a_crash_and_stay_in_no_file_of_the_node(
    site: Site, plugin: Plugin
) -> None:
    """The provider makes the volume, names it, lets it grow; the agent dies while it is being published."""
    agent = csi_node(site, plugin)
    agent.settings["claims"]["profiles"]["default"]["volumes"]["shared"] = {"csi": {"plugin": "fake"}}
    plugin.control(faults={"NodePublishVolume": {"code": 14, "message": "not now"}})
    site.broker.start()
    agent.start()
    site.until(lambda: site.snapshot().locations["host:node1"].state == "available")
    with site.client() as client:
        client.ask(m.ClaimCreate(id="", claim=Claim(id="made", ask=ASK, provider="store")))
        client.ask(m.ClaimProvide(id="", claim="made", state=BindingState.READY, volume=WORDS))
        place = m.Place(claim="made", host="node1", consumer=Consumer(name="job"))
        (binding,) = client.ask(m.ClaimBind(id="", places=[place])).made
        site.until(lambda: plugin.calls("NodePublishVolume"))
        agent.kill()
        plugin.control()
        agent.start()
        view = client.wait_bindings([binding], timeout=30)[binding]
        assert view.binding.state is BindingState.READY, view
        calls = plugin.calls("NodePublishVolume")
        assert calls[0] == calls[-1], "the same call as before the crash"
        assert calls[0]["volume_context"] == {"share": "horse-drawn-cart"}
        assert calls[0]["publish_context"] == {"lun": "lun-of-node-one"}
        larger = {**WORDS, "capacity_bytes": "1048576"}
        client.ask(m.ClaimProvide(id="", claim="made", state=BindingState.READY, volume=larger))
        site.until(lambda: plugin.calls("NodeExpandVolume"))
        shown = ("csi", "volumes", "--json")
        site.until(lambda: json.loads(agent.command(*shown).stdout)[0]["bytes"] == 1048576)
        head, line = agent.command("csi", "volumes").stdout.splitlines()
        assert dict(zip(head.split(), line.split(), strict=False))["GROWN"] == "1048576"
        files = [path for path in agent.folder.rglob("*") if path.is_file()]
        files += [path for path in site.folder.rglob("*.log") if path.is_file()]
        assert any(b"vol1" in path.read_bytes() for path in files), "the search reads the journal"
        for word in (b"horse-drawn-cart", b"lun-of-node-one"):
            assert [path for path in files if word in path.read_bytes()] == []
        client.ask(m.ClaimRelease(id="", bindings=[binding]))
        ended(site, client, binding)


SECRET, FLAG = "correct-horse", "password=battery-staple"


def searched(site: Site, agent: AgentProgram, client: Client) -> dict[str, str]:
    """Everything that a run leaves or shows, by where: files, processes, answers."""
    found = {}
    for path in site.folder.rglob("*"):
        if path.is_file() and path.name not in {"agent.yaml", "secrets.json"}:
            found[str(path)] = path.read_bytes().decode("latin-1")
    programs = {str(site.folder), "xce-csi-node-helper", "xce.prepare.child"}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            arguments = (process / "cmdline").read_text()
            if any(word in arguments for word in programs):
                found[f"process {process.name}"] = arguments + (process / "environ").read_text()
    found["status"] = str(agent.status())
    found["claims"] = str(client.ask(m.ClaimsRequest(id="")))
    found["snapshot"] = str(client.snapshot(["host:node1"]))
    for words in (["claim", "list"], ["csi", "volumes", "--json"], ["status", "--json"]):
        found[" ".join(words)] = agent.command(*words).stdout
    return found


@pytest.mark.skipif(INSIDE not in os.environ, reason="run by the test above")
def test_known_secrets_are_in_no_log_journal_process_or_message_of_a_whole_run(
    site: Site, plugin: Plugin
) -> None:
    """The plugin repeats what it is given in every error, and later in answers to calls without secrets."""
    agent = csi_node(site, plugin)
    file = site.folder / "secrets.json"
    file.write_text(json.dumps({"key": SECRET}))
    file.chmod(0o600)
    volume = agent.settings["claims"]["profiles"]["default"]["volumes"]["shared"]
    volume["csi"]["secrets"], volume["options"] = str(file), [FLAG]
    sick = {"code": 13, "message": f"mount -o {FLAG} failed for {SECRET}", "times": 1}
    denied = {"code": 16, "message": "denied", "times": 1}
    faults = {"NodeStageVolume": denied, "NodePublishVolume": sick, "NodeUnpublishVolume": sick}
    plugin.control(behaviours=["echoes-secrets"], faults=faults)
    site.broker.start()
    agent.start()
    site.until(lambda: site.snapshot().locations["host:node1"].state == "available")
    with site.client() as client:
        client.ask(m.ClaimCreate(id="", claim=Claim(id="refused", ask=ASK)))
        place = m.Place(claim="refused", host="node1", consumer=Consumer(name="refused"))
        (refused,) = client.ask(m.ClaimBind(id="", places=[place])).made
        view = client.wait_bindings([refused], timeout=30)[refused]
        assert "[hidden]" in view.binding.reason, view
        binding = bound(client, "kept")
        running = searched(site, agent, client)
        client.ask(m.ClaimRelease(id="", claim="kept"))
        ended(site, client, binding)
        over = searched(site, agent, client)
    assert any(call["secrets"] for call in plugin.calls("NodePublishVolume")), "they were used"
    assert any(FLAG in call.get("volume_capability", "") for call in plugin.calls("NodeStageVolume"))
    for found in (running, over):
        where = [place for place, text in found.items() if binding in text]
        assert any("claims.sqlite" in place for place in where), "the search reads what is written"
        assert any(place.endswith("agent node1.log") or "broker" in place for place in where)
        assert any("xce-csi-node-helper" in text for place, text in found.items() if "process" in place)
        for word in (SECRET, "battery-staple", base64.b64encode(SECRET.encode()).decode()):
            assert [place for place, text in found.items() if word in text] == []


@pytest.mark.skipif(INSIDE not in os.environ, reason="run by the test above")
def test_a_plugin_that_registers_is_taken_before_anybody_claims_a_volume(site: Site, plugin: Plugin) -> None:
    agent = csi_node(site, plugin)
    claims = agent.settings["claims"]
    registry = plugin.folder / "registry"
    registry.mkdir()
    claims["csi"] = {"registration": str(registry), "helper": claims["csi"]["helper"]}
    claims["profiles"]["default"]["volumes"]["shared"]["csi"]["plugin"] = "fake.xce.example"
    plugin.stop()
    plugin.control(registry=str(registry))
    site.broker.start()
    agent.start()
    site.until(lambda: site.snapshot().locations["host:node1"].state == "available")
    helpers = [one for one in proc.processes() if one.name == "xce-csi-helper" and one.state != "Z"]
    assert helpers == [], "nobody has registered: its memory is saved"
    plugin.start()
    site.until(lambda: plugin.calls("NotifyRegistrationStatus"))
    assert plugin.calls("NotifyRegistrationStatus")[-1]["plugin_registered"] is True
    with site.client() as client:
        binding = bound(client, "one")
        client.ask(m.ClaimRelease(id="", claim="one"))
        ended(site, client, binding)
