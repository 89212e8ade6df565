"""Claims with everything real: broker, agents, their links, the kernel's cgroups and device filter."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.linux.kernel import terminal
from tests.project import tree
from tests.system.harness import AgentProgram, Site
from xce.broker.client import BrokerRefused, Client
from xce.linux.cgroup import Cgroup
from xce.model import message as m
from xce.model.claim import Ask, BindingState, Claim, Consumer, InstanceAsk, MountAsk, PortsAsk

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="cgroups and device filters need root"),
]

OWN, OTHER = terminal(), terminal()
INVENTORY = {
    "xce": 1,
    "instances": [
        {"id": name, "kind": "card", "attributes": {"device_files": [path]}}
        for name, path in (("card-own", OWN), ("card-other", OTHER))
    ],
}
CARDS = f"#!/bin/sh\necho '{json.dumps(INVENTORY)}'\n"
OPEN = """
import sys
for path in sys.argv[1:]:
    try:
        open(path, "rb").close()
        print("open")
    except OSError as error:
        print(error.strerror)
"""
REFUSED = "Operation not permitted"


def node(site: Site, name: str) -> AgentProgram:
    """An agent that takes claims, with two cards."""
    agent = site.agent(name)
    jobs = Cgroup(f"{site.cgroup_of(agent.folder.name)}-jobs")
    jobs.create()
    agent.settings["claims"] = {
        "enabled": True,
        "directory": str(agent.folder / "claims"),
        "cgroup": jobs.path,
        "cdi_directory": "",
        "check_s": 0.1,
        "profiles": {
            "default": {
                "devices": ["c *:* m", "b *:* m", "c 1:3 rwm", "c 1:8 rwm", "c 1:9 rwm"],
                "device_paths": ["/dev/pts/*"],
                "grace_s": 0.3,
            }
        },
    }
    agent.script("cards", CARDS)
    return agent


def until_there(site: Site, *names: str) -> None:
    def there() -> bool:
        seen = site.snapshot().locations
        return all(
            seen[f"host:{name}"].state == "available" and seen[f"host:{name}"].inventories for name in names
        )

    site.until(there)


def alone(site: Site) -> AgentProgram:
    """A broker, and one node that it knows, `node1`."""
    agent = node(site, "node1")
    site.broker.start()
    agent.start()
    until_there(site, "node1")
    return agent


def place(client: Client, claim: str, host: str, card: str, consumer: str) -> m.Place:
    ref = client.snapshot([f"host:{host}"]).locations[f"host:{host}"].inventories["cards"]
    pick = m.Pick(id=card, reporter="cards", generation=ref.generation)
    return m.Place(claim=claim, host=host, consumer=Consumer(name=consumer), instances=[pick])


def ready(client: Client, *places: m.Place) -> list[str]:
    """Bind, and wait until all are ready."""
    made = client.ask(m.ClaimBind(id="", places=list(places))).made
    views = client.wait_bindings(made, timeout=30)
    assert {one.binding.state for one in views.values()} == {BindingState.READY}, views
    return made


def ended(site: Site, client: Client, *bindings: str) -> None:
    def over() -> bool:
        found = client.ask(m.ClaimsRequest(id="")).bindings
        return all(
            name not in found or found[name].binding.state is BindingState.RELEASED for name in bindings
        )

    site.until(over)


def run_in(agent: AgentProgram, consumer: str, *paths: str) -> list[str]:
    """What a process in the consumer's cgroup gets when it opens these."""
    group = f"{agent.settings['claims']['cgroup']}/xce-consumer-{consumer}"
    enter = f"echo $$ > {group}/cgroup.procs && exec {sys.executable} -c '{OPEN}' {' '.join(paths)}"
    done = subprocess.run(["/bin/sh", "-c", enter], capture_output=True, text=True, check=True, timeout=30)
    return done.stdout.split("\n")[:-1]


def bindings_of(agent: AgentProgram) -> dict[str, Any]:
    return {one["binding"]: one for one in agent.status().get("bindings", [])}


ASK = Ask(
    instances=[InstanceAsk(kind="card")],
    ports=[PortsAsk(name="http", count=2)],
    environment={"GREETING": "hello"},
)


def test_a_claim_is_made_true_on_the_node_and_taken_back(site: Site) -> None:
    """READY means that the job can open its device and no other; RELEASED, that nothing is left."""
    agent = alone(site)
    with site.client() as client:
        client.ask(m.ClaimCreate(id="", claim=Claim(id="job-7", ask=ASK)))
        (binding,) = ready(client, place(client, "job-7", "node1", "card-own", "7"))
        view = client.ask(m.ClaimsRequest(id="", claim="job-7")).bindings[binding]
        assert len(view.binding.ports["http"]) == 2
        assert view.binding.evidence
        assert run_in(agent, "7", OWN, OTHER, "/dev/null") == ["open", REFUSED, "open"]
        assert bindings_of(agent)[binding]["standing"] == "ready"
        client.ask(m.ClaimRelease(id="", claim="job-7"))
        ended(site, client, binding)
    assert not os.path.exists(f"{agent.settings['claims']['cgroup']}/xce-consumer-7")
    site.until(lambda: bindings_of(agent) == {})


def test_an_agent_that_is_killed_adopts_what_is_there_and_prepares_nothing_twice(site: Site) -> None:
    """The job runs on while the agent is away; so does its filter; the controller sees it back in seconds."""
    agent = alone(site)
    with site.client() as client:
        client.ask(m.ClaimCreate(id="", claim=Claim(id="job", ask=ASK)))
        (binding,) = ready(client, place(client, "job", "node1", "card-own", "j"))
        before = client.ask(m.ClaimsRequest(id="")).bindings[binding].binding
        agent.kill()
        assert run_in(agent, "j", OWN, OTHER) == ["open", REFUSED]
        agent.start()
        site.until(lambda: bindings_of(agent).get(binding, {}).get("state") == "ready")
        until_there(site, "node1")
        after = client.ask(m.ClaimsRequest(id="")).bindings[binding]
        assert (after.binding, after.conditions) == (before, []), "no fact was needed"
        agent.kill()
        client.ask(m.ClaimRelease(id="", claim="job"))
        agent.start()
        ended(site, client, binding)


def test_two_nodes_one_gang_ready_at_once_and_gone_together(site: Site) -> None:
    agents = [node(site, name) for name in ("node1", "node2")]
    site.broker.start()
    for agent in agents:
        agent.start()
    until_there(site, "node1", "node2")
    with site.client() as client:
        client.ask(m.ClaimCreate(id="", claim=Claim(id="train", ask=ASK)))
        made = ready(
            client, *(place(client, "train", name, "card-other", "t") for name in ("node1", "node2"))
        )
        revisions = {one.binding.revision for one in client.ask(m.ClaimsRequest(id="")).bindings.values()}
        assert len(revisions) == 1, "one fact made both ready"
        for agent in agents:
            assert run_in(agent, "t", OTHER, OWN) == ["open", REFUSED]
        client.ask(m.ClaimRelease(id="", claim="train"))
        ended(site, client, *made)
        bad = msgspec.structs.replace(ASK, profile="none")
        client.ask(m.ClaimCreate(id="", claim=Claim(id="bad", ask=bad)))
        places = [place(client, "bad", name, "card-other", "b") for name in ("node1", "node2")]
        made = client.ask(m.ClaimBind(id="", places=places)).made
        views = client.wait_bindings(made, timeout=30)
        assert any("no profile 'none'" in one.binding.reason for one in views.values())


def test_a_broker_that_is_killed_while_nodes_work_finds_everything_as_it_is(site: Site) -> None:
    agent = alone(site)
    with site.client() as client:
        client.ask(m.ClaimCreate(id="", claim=Claim(id="job", ask=ASK)))
        order = m.ClaimBind(id="once", places=[place(client, "job", "node1", "card-own", "j")])
        first = client.ask(order)
        site.broker.kill()
        time.sleep(0.3)
        site.broker.start()
        assert site.until(lambda: client.ask(order)) == first
        (binding,) = first.made
        assert client.wait_bindings([binding], timeout=30)[binding].binding.state is BindingState.READY
        assert list(bindings_of(agent)) == [binding]
        client.ask(m.ClaimRelease(id="", claim="job"))
        ended(site, client, binding)


def test_a_silent_node_keeps_its_claims_and_is_back_without_a_second_prepare(
    site: Site,
) -> None:
    """C-MSG-02: the connection stands and nobody answers; lost after three heartbeats, back within 30 s."""
    agent = alone(site)
    with site.client() as client:
        client.ask(m.ClaimCreate(id="", claim=Claim(id="job", ask=ASK)))
        (binding,) = ready(client, place(client, "job", "node1", "card-own", "j"))
        before = client.ask(m.ClaimsRequest(id="")).bindings[binding].binding
        steps = agent.ask(op="claim", name="job")["bindings"][0]["steps"]
        agent.signal(signal.SIGSTOP)
        site.until(lambda: site.snapshot().locations["host:node1"].state == "lost")
        view = client.ask(m.ClaimsRequest(id="")).bindings[binding]
        assert (view.binding, view.conditions) == (before, ["unreachable"])
        client.ask(m.ClaimCreate(id="", claim=Claim(id="other", ask=ASK)))
        with pytest.raises(BrokerRefused, match="host node1 is lost"):
            client.ask(m.ClaimBind(id="", places=[place(client, "other", "node1", "card-own", "o")]))
        agent.signal(signal.SIGCONT)
        until_there(site, "node1")
        view = client.ask(m.ClaimsRequest(id="")).bindings[binding]
        assert (view.binding, view.conditions) == (before, [])
        assert agent.ask(op="claim", name="job")["bindings"][0]["steps"] == steps, "nothing was done anew"
        with pytest.raises(BrokerRefused, match=f"binding {binding} of claim job has it"):
            client.ask(m.ClaimBind(id="", places=[place(client, "other", "node1", "card-own", "o")]))
        client.ask(m.ClaimRelease(id="", claim="job"))
        ended(site, client, binding)


def test_people_and_workers_on_the_host_see_wait_for_and_enter_a_claim(site: Site) -> None:
    """list, why, plan, run, and the socket's verbs that a worker uses."""
    agent = alone(site)
    with site.client() as client:
        assert agent.command("claim", "list").stderr == "no claims on this host\n"
        missing = agent.command("claim", "why", "job")
        assert (missing.returncode, "there is no binding, claim or consumer 'job'" in missing.stderr) == (
            1,
            True,
        )
        client.ask(m.ClaimCreate(id="", claim=Claim(id="job", ask=ASK)))
        made = client.ask(m.ClaimBind(id="", places=[place(client, "job", "node1", "card-own", "j")])).made
        done = agent.command("run", "--claim", "job", "--wait", "20", "--", "/bin/sh", "-c", INSIDE)
        assert done.returncode == 7, done.stderr
        assert done.stdout.splitlines() == ["hello", "own yes", "other no"]
        for what, status in (("/none", 127), ("/etc", 126)):
            ran = agent.command("run", "--claim", "job", "--", what)
            assert (ran.returncode, f"cannot run {what}: " in ran.stderr) == (status, True)
        assert agent.command("claim", "why", "j").stdout == "it is ready\n"
        site.until(lambda: bindings_of(agent)[made[0]]["standing"] == "ready")  # the broker has it too
        listed = agent.command("claim", "list").stdout.splitlines()
        assert listed[1].split()[:6] == [made[0], "job", "j", "ready", "ready", "card-own"]
        plan = agent.command("claim", "plan", made[0]).stdout
        assert [line.split()[2] for line in plan.splitlines()[1:]] == ["done"] * (len(plan.splitlines()) - 1)
        (published,) = agent.ask(op="publish", name="job", seconds=5)["bindings"]
        assert published["variables"]["GREETING"] == "hello"
        (waited,) = agent.ask(op="wait", name="job", seconds=5)["bindings"]
        assert waited == {key: one for key, one in published.items() if key != "variables"}
        assert agent.ask(op="claim", name="job")["bindings"] == [waited]
        assert agent.command("claim", "wait", "job").stdout == f"{made[0]} ready\n"
        with subprocess.Popen(["sleep", "60"]) as child:
            added = agent.ask(op="add-process", name="j", pid=child.pid)
            assert added["groups"] == waited["groups"]
            (name,) = {Path(group).name for group in waited["groups"]}
            assert f"/{name}\n" in Path(f"/proc/{child.pid}/cgroup").read_text()
            assert agent.command("claim", "release", "job").returncode == 1, "others may use the claim too"
            freed = agent.command("claim", "release", "j", "--wait", "20")
            assert freed.stdout == "j is released\n", freed.stderr
            assert child.wait(20) != 0, "a release ends the processes of the consumer"
        assert agent.command("claim", "release", "j").stdout == "j is released\n", "again is the same"
        ended(site, client, *made)
        assert client.ask(m.ClaimsRequest(id="")).claims["job"].state == "pending", "what is gone is told"


def test_who_waits_for_a_binding_that_fails_is_told_at_once_and_why(site: Site) -> None:
    agent = alone(site)
    lacking = Ask(mounts=[MountAsk(name="data", source="nowhere")])
    with site.client() as client:
        client.ask(m.ClaimCreate(id="", claim=Claim(id="bad", ask=lacking)))
        (made,) = client.ask(
            m.ClaimBind(id="", places=[m.Place(claim="bad", host="node1", consumer=Consumer(name="j"))])
        ).made
        client.wait_bindings([made], timeout=20)
        for name in (made, "bad", "j"):
            began = time.monotonic()
            waited = agent.command("claim", "wait", name, "--wait", "30")
            assert time.monotonic() - began < 10
            assert waited.returncode == 4
            assert f"binding {made} failed: mount data: the profile has no volume 'nowhere'" in waited.stderr
        ran = agent.command("run", "--claim", "bad", "--wait", "30", "--", "true")
        assert ran.returncode == 4
        agent.stop()
        agent.start()
        site.until(lambda: agent.ask(op="claims")["trouble"] == "")
        assert agent.command("claim", "wait", made, "--wait", "30").returncode == 4, "the journal has it"
        typed = agent.command("run", "--claim", "jbo", "--wait", "1.3", "--", "true")
        assert "waiting for 'jbo' to be bound here and ready, at most 1.3 s" in typed.stderr
        short = agent.command("claim", "wait", "bad", "--wait", "0.2")
        assert (short.returncode, "nobody has bound 'bad' here" in short.stderr) == (1, True)


def test_what_a_binding_would_do_is_shown_before_there_is_one(site: Site, tmp_path: Path) -> None:
    """The steps in words, what is in the way, and nothing done."""
    agent = alone(site)
    file = tmp_path / "job.yaml"
    file.write_text("ask:\n  instances: [{kind: card}]\n  ports: [{name: http, count: 2}]\n")
    dry = ("claim", "plan", "--file", str(file), "--instances", "card-own", "--consumer", "9")
    shown = agent.command(*dry)
    assert shown.returncode == 0, shown.stderr
    kinds = ["control group", "device filter", "ports http", "environment"]
    assert [any(kind in line for line in shown.stdout.splitlines()) for kind in kinds] == [True] * 4
    assert not list(Path(agent.settings["claims"]["cgroup"]).glob("xce-consumer-*"))
    assert agent.ask(op="claims")["bindings"] == []
    with site.client() as client:
        client.ask(m.ClaimCreate(id="", claim=Claim(id="job", ask=ASK)))
        (made,) = ready(client, place(client, "job", "node1", "card-own", "j"))
        held = agent.command(*dry)
        assert (held.returncode, f"instance card-own is held by binding {made}" in held.stderr) == (1, True)
        client.ask(m.ClaimRelease(id="", claim="job"))
        ended(site, client, made)
    other = agent.command(*dry, "--profile", "big")
    assert (other.returncode, "this node has no profile 'big'" in other.stderr) == (1, True)
    lacking = agent.command("claim", "plan", "--file", str(file))
    assert (lacking.returncode, "it asks for 1 card" in lacking.stderr) == (1, True)
    file.write_text("ask:\n  prots: []\n")
    wrong = agent.command(*dry)
    assert (wrong.returncode, "job.yaml:2: ask.prots" in wrong.stderr) == (2, True)


WORKER = tree.ROOT / "docs" / "examples" / "worker.c"


def test_the_worker_in_c_starts_a_job_inside_its_claim_and_nothing_of_it_outside(
    site: Site, tmp_path: Path
) -> None:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    assert len(WORKER.read_text().splitlines()) < 120, "short enough to be read"
    strict = [
        "cc",
        "-std=c11",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        str(WORKER),
        "-o",
        str(tmp_path / "worker"),
    ]
    subprocess.run(strict, check=True)
    agent = alone(site)
    start = [str(tmp_path / "worker"), agent.socket, "job"]
    late = subprocess.run([*start, "0.2", "true"], capture_output=True, text=True, check=False, timeout=20)
    assert late.returncode == 125
    assert "nobody has bound 'job' here within 0.2 s" in late.stderr
    ask = msgspec.structs.replace(ASK, environment={"GREETING": 'hello "you" \\ ü'})
    with site.client() as client:
        client.ask(m.ClaimCreate(id="", claim=Claim(id="job", ask=ask)))
        made = client.ask(m.ClaimBind(id="", places=[place(client, "job", "node1", "card-own", "j")])).made
        job = [*start, "20", "/bin/sh", "-c", INSIDE]
        done = subprocess.run(job, capture_output=True, text=True, check=False, timeout=30)
        assert done.returncode == 7, done.stderr
        assert done.stdout.splitlines() == ['hello "you" \\ ü', "own yes", "other no"]
        client.ask(m.ClaimRelease(id="", claim="job"))
        ended(site, client, *made)


INSIDE = f"""
printf "%s\\n" "$GREETING"
(: < {OWN}) && echo own yes
(: < {OTHER}) 2>&1 | grep -q permitted && echo other no
exit 7
"""
