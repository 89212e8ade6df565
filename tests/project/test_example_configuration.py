"""The files in `etc/` are valid, and what they show as defaults are the defaults."""

import re
from typing import Any

import msgspec
import pytest

from tests.project import tree
from xce.model import document
from xce.model.configuration import (
    AgentFile,
    AgentReporters,
    BrokerFile,
    Discovery,
    HostsFile,
    ReporterSettings,
    ResourcesFile,
)
from xce.model.profile import Claims
from xce.model.site import check_site, site_of

FILES: dict[str, type[Any]] = {
    "agent.yaml": AgentFile,
    "broker.yaml": BrokerFile,
    "hosts.yaml": HostsFile,
    "resources.yaml": ResourcesFile,
}


def text_of(name: str) -> str:
    return (tree.ROOT / "etc" / name).read_text()


def keys_of(struct: type[Any]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(struct)}


@pytest.mark.parametrize("name", sorted(FILES))
def test_an_example_is_valid(name: str) -> None:
    document.load(text_of(name), name, FILES[name])


def test_the_examples_fit_each_other() -> None:
    resources = document.load_placed(text_of("resources.yaml"), "resources.yaml", ResourcesFile)
    hosts = document.load_placed(text_of("hosts.yaml"), "hosts.yaml", HostsFile)
    assert check_site(resources, hosts) == []
    site = site_of(resources.value, hosts.value)
    assert site.values["host:node016"]["rack"] == "B4"
    assert site.values["host:login1"]["rack"] == "A1"


def test_the_example_reporters_declare_nothing_else_than_the_cluster() -> None:
    ours = {kind.name: kind for kind in document.load(text_of("resources.yaml"), "", ResourcesFile).types}
    for path in tree.tracked("reporters/examples/*.yaml"):
        settings = document.load((tree.ROOT / path).read_text(), str(path), ReporterSettings)
        assert [kind for kind in settings.types if ours.get(kind.name, kind) != kind] == []


@pytest.mark.parametrize(("name", "changed"), [("agent.yaml", {"broker"}), ("broker.yaml", set[str]())])
def test_every_key_is_shown_with_its_default(name: str, changed: set[str]) -> None:
    shown = re.sub(r"^#(?=\S|  +\S)", "", text_of(name), flags=re.MULTILINE)
    kind = FILES[name]
    loaded, default = document.load(shown, name, kind), kind()
    differing = {key for key in keys_of(kind) if getattr(loaded, key) != getattr(default, key)}
    assert differing == changed
    assert keys_of(kind) - set(re.findall(r"^(\w+):", shown, re.MULTILINE)) == set()


def test_every_key_of_the_section_for_reporters_is_shown() -> None:
    section = text_of("agent.yaml").partition("\nreporters:\n")[2].partition("\nclaims:\n")[0]
    assert set(re.findall(r"^#  (\w+):", section, re.MULTILINE)) == keys_of(AgentReporters)


def test_every_key_of_the_section_for_claims_is_shown() -> None:
    section = text_of("agent.yaml").partition("\nclaims:\n")[2].partition("\ndiscovery:\n")[0]
    assert set(re.findall(r"^#  (\w+):", section, re.MULTILINE)) == keys_of(Claims)


def test_every_key_of_the_section_for_discovery_is_shown() -> None:
    section = text_of("agent.yaml").partition("\ndiscovery:\n")[2]
    assert set(re.findall(r"^#  (\w+):", section, re.MULTILINE)) == keys_of(Discovery)
