"""The main way: a script on a node, its value at the broker, and all that can happen to the script."""

import os

import pytest

from tests.system.harness import Site
from xce.model.value import Absent, Presence

pytestmark = [pytest.mark.system, pytest.mark.root]

NUMBER = {"types": [{"name": "scratch_gb", "kind": "numeric"}], "interval": 1, "timeout": 2}


def test_a_dropped_script_is_a_value_at_the_broker_within_seconds(site: Site) -> None:
    agent = site.agent("node1")
    site.broker.start()
    agent.start()
    site.until(lambda: agent.status()["link"]["phase"] == "synced")
    agent.script("scratch", "#!/bin/sh\necho '{\"scratch_gb\": 12.5}'\n", **NUMBER)
    site.until(lambda: site.value("node1", "scratch_gb") == 12.5)
    site.until(lambda: agent.reporter("scratch")["state"] == "waiting")
    assert agent.status()["trouble"] == []


def test_a_script_that_is_changed_removed_broken_and_repaired_is_followed(site: Site) -> None:
    agent = site.agent("node1")
    site.broker.start()
    agent.start()
    agent.script("scratch", "#!/bin/sh\necho '{\"scratch_gb\": 1}'\n", **NUMBER)
    site.until(lambda: site.value("node1", "scratch_gb") == 1)

    agent.script("scratch", "#!/bin/sh\necho '{\"scratch_gb\": 2}'\n")
    site.until(lambda: site.value("node1", "scratch_gb") == 2)

    agent.script("scratch", "#!/bin/sh\necho no answer >&2\nexit 3\n")
    unknown = site.until(lambda: _absent(site, "scratch_gb"))
    assert (unknown.presence, unknown.last) == (Presence.UNKNOWN, 2)
    assert "exit status 3: no answer" in unknown.cause
    assert "exit status 3: no answer" in agent.reporter("scratch")["cause"]
    assert any("exit status 3" in line for line in agent.status()["trouble"])

    agent.script("scratch", "#!/bin/sh\necho '{\"scratch_gb\": 3}'\n")
    site.until(lambda: site.value("node1", "scratch_gb") == 3)

    (agent.reporters / "scratch").unlink()
    (agent.reporters / "scratch.yaml").unlink()
    site.until(lambda: "scratch_gb" not in site.values("node1"))
    place = site.snapshot().locations["host:node1"]
    assert "scratch" not in place.reporters
    assert agent.reporter("scratch") == {}


def test_what_is_refused_is_shown_on_the_node_and_at_the_broker_with_its_line_and_text(site: Site) -> None:
    agent = site.agent("node1")
    site.broker.start()
    agent.start()
    types = [{"name": "good", "kind": "numeric"}, {"name": "bad", "kind": "numeric"}]
    text = '#!/bin/sh\necho \'{"good": 1}\'\necho \'{"bad": "12,5", "good": 2}\'\necho \'{oops\'\n'
    agent.script("mixed", text, types=types, interval=1)
    site.until(lambda: site.value("node1", "good") == 2)
    refused = agent.reporter("mixed")["refused"]
    assert {(one["line"], one["name"], one["text"]) for one in refused} == {
        (2, "bad", '"12,5"'),
        (3, "", "{oops"),
    }
    state = site.snapshot().locations["host:node1"].reporters["mixed"]
    assert state.refused == 2
    assert "line 2: bad" in state.cause


def test_the_load_indices_of_this_machine_are_there_without_any_script(site: Site) -> None:
    agent = site.agent("node1")
    agent.settings["reporters"]["load_indices"] = True
    site.broker.start()
    agent.start()
    mem = site.until(lambda: now if isinstance(now := site.value("node1", "mem"), float | int) else None)
    assert mem > 0
    values = site.values("node1")
    assert values["ncpus"] == os.sysconf("SC_NPROCESSORS_ONLN")


def test_an_inventory_is_numbered_and_keeps_its_number_over_a_restart(site: Site) -> None:
    agent = site.agent("node1")
    site.broker.start()
    agent.start()
    frame = '{"xce":1,"instances":[{"id":"GPU-%s","kind":"gpu"}]}'
    agent.script("gpus", f"#!/bin/sh\necho '{frame % 'a'}'\n", interval=1)
    first = site.until(lambda: site.snapshot().locations["host:node1"].inventories.get("gpus"))
    assert (first.generation, first.count, first.complete) == (1, 1, True)
    agent.script("gpus", f"#!/bin/sh\necho '{frame % 'b'}'\n")
    site.until(lambda: site.snapshot().locations["host:node1"].inventories["gpus"].generation == 2)
    agent.stop()
    agent.start()
    site.until(lambda: agent.reporter("gpus").get("runs", 0) > 0)
    assert site.snapshot().locations["host:node1"].inventories["gpus"].generation == 2
    (agent.reporters / "gpus").unlink()
    (agent.reporters / "gpus.yaml").unlink()
    site.until(lambda: "gpus" not in site.snapshot().locations["host:node1"].inventories)


def test_of_two_reporters_of_one_name_the_second_is_refused_and_both_are_named(site: Site) -> None:
    agent = site.agent("node1")
    site.broker.start()
    agent.start()
    agent.script("first", "#!/bin/sh\necho '{\"scratch_gb\": 1}'\n", **NUMBER)
    site.until(lambda: site.value("node1", "scratch_gb") == 1)
    agent.script("second", "#!/bin/sh\necho '{\"scratch_gb\": 2}'\n", interval=1)
    site.until(lambda: agent.reporter("second").get("refused"))
    (refusal,) = agent.reporter("second")["refused"]
    assert refusal["name"] == "scratch_gb"
    assert "first" in refusal["reason"]
    assert site.value("node1", "scratch_gb") == 1
    (agent.reporters / "first").unlink()
    (agent.reporters / "first.yaml").unlink()
    site.until(lambda: site.value("node1", "scratch_gb") == 2)


def _absent(site: Site, name: str) -> Absent | None:
    reading = site.value("node1", name)
    return reading if isinstance(reading, Absent) else None
