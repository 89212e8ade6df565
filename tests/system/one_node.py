"""An agent that takes claims, its broker and an admin of that: what cases on a node are tried with."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.harness import AgentProgram, Site
from tests.system.test_claims import bindings_of, ended, node, place, until_there
from tests.system.test_claims_killed import left, prepare_folders
from xce.broker.client import Client
from xce.linux import mountinfo
from xce.model import message as m
from xce.model.claim import Ask, BindingState, Claim, Consumer, InstanceAsk, MountAsk, SharedAsk

PENDING, PREPARING, READY = BindingState.PENDING, BindingState.PREPARING, BindingState.READY
RELEASING, RELEASED, FAILED = BindingState.RELEASING, BindingState.RELEASED, BindingState.FAILED
DATA, CACHE = MountAsk(name="data", source="data"), MountAsk(name="cache", source="staged")
CARD = [InstanceAsk(kind="card")]
HOME = Ask(shared=[SharedAsk(volume="home")])


class Node:
    """An agent that takes claims, its broker, and a client of that."""

    def __init__(self, site: Site, client: Client, agent: AgentProgram) -> None:
        self.site, self.client, self.agent = site, client, agent
        self.claims: dict[str, Any] = agent.settings["claims"]

    def order(self, name: str, ask: Ask, *, card: str = "", **more: Any) -> str:
        """A claim of this name, bound for a consumer of this name."""
        consumer = more.pop("consumer", Consumer(name=name, user="root"))
        self.client.ask(m.ClaimCreate(id=f"create-{name}", claim=Claim(id=name, ask=ask, **more)))
        where = m.Place(claim=name, host="node1", consumer=consumer)
        if card:
            where = place(self.client, name, "node1", card, name)
        return self.client.ask(m.ClaimBind(id=f"bind-{name}", places=[where])).made[0]

    def bound(self, name: str, ask: Ask, **more: Any) -> m.BindingView:
        """The same, once it is ready or has failed."""
        binding = self.order(name, ask, **more)
        return self.client.wait_bindings([binding], timeout=30)[binding]

    def ready(self, name: str, ask: Ask, **more: Any) -> str:
        """The same; it must be ready."""
        view = self.bound(name, ask, **more)
        assert view.binding.state is READY, view
        return view.binding.id

    def view(self, binding: str) -> m.BindingView:
        """What the broker has of it."""
        return self.client.ask(m.ClaimsRequest(id="")).bindings[binding]

    def told(self, binding: str, words: str) -> m.BindingView:
        """The broker's and the agent's words, once both say what is the matter."""
        self.site.until(lambda: words in bindings_of(self.agent)[binding]["note"])
        return self.site.until(lambda: view if words in (view := self.view(binding)).note else None)

    def release(self, *claims: str) -> None:
        """Order that."""
        for name in claims:
            self.client.ask(m.ClaimRelease(id=f"release-{name}", claim=name))

    def ended(self, *bindings: str) -> None:
        """Until nothing of them is left."""
        ended(self.site, self.client, *bindings)
        self.site.until(lambda: left(self.agent) == [])

    def point(self, binding: str, name: str) -> Path:
        """Where something of a binding is mounted."""
        return Path(self.claims["directory"], binding, name)

    def mounts(self, point: Path | None = None) -> list[mountinfo.Mount]:
        """On a point, or all of claims."""
        top = f"{self.claims['directory']}/"
        return [
            one
            for one in mountinfo.read()
            if (one.point == str(point) if point else one.point.startswith(top))
        ]

    def folder(self, name: str) -> Path:
        """One of the agent's."""
        return self.agent.folder / name

    def run(self, name: str, *command: str) -> subprocess.CompletedProcess[str]:
        """A command within the claim."""
        return self.agent.command("run", "--claim", name, "--", *command)


def with_more_volumes(agent: AgentProgram) -> None:
    """Some that nobody may write to."""
    volumes = agent.settings["claims"]["profiles"]["default"]["volumes"]
    volumes["fixed"] = {"path": str(agent.folder / "data"), "read_only": True}
    volumes["option"] = {"type": "tmpfs", "options": ["ro", "size=1m"]}


def make_one(site: Site, request: pytest.FixtureRequest) -> Iterator[Node]:
    """Body of the fixture `one`. `request.param`: what else is set before the agent starts."""
    agent = node(site, "node1")
    prepare_folders(agent)
    getattr(request, "param", with_more_volumes)(agent)
    site.broker.start()
    agent.start()
    until_there(site, "node1")
    with site.client() as client:
        yield Node(site, client, agent)


def starting(*prepared: Callable[[AgentProgram], None]) -> pytest.MarkDecorator:
    """With that set, instead."""
    return pytest.mark.parametrize("one", prepared, indirect=True, ids=["" for _ in prepared])


def removed(path: Path) -> None:
    """With all that is in it."""
    subprocess.run(["rm", "-rf", "--one-file-system", str(path)], check=True)
