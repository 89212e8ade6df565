"""broker.yaml: what is wrong with it is told with its line, before anything is opened."""

from pathlib import Path

import pytest

from xce.broker.config import read_config
from xce.model.refusal import ConfigRefused


def refused(folder: Path, text: str) -> list[str]:
    path = folder / "broker.yaml"
    path.write_text(text)
    with pytest.raises(ConfigRefused) as caught:
        read_config(path)
    return [str(error).removeprefix(f"{folder}/") for error in caught.value.errors]


def test_endpoints_and_paths_that_cannot_be_used_are_told_with_their_lines(tmp_path: Path) -> None:
    text = """heartbeat: 2
local: here.sock
listen:
  - tcp://*:7400
  - tpc://*:7400
  - tcp://*:99999
  - tcp://node1
metrics: ':7401'
audit: audit.log
"""
    good = "tcp://ADDRESS:PORT, or tcp://*:PORT for all"
    assert refused(tmp_path, text) == [
        "broker.yaml:2: local: must be an absolute path",
        f"broker.yaml:5: listen[1]: 'tpc://*:7400' is no endpoint; {good}",
        f"broker.yaml:6: listen[2]: 'tcp://*:99999' is no endpoint; {good}",
        f"broker.yaml:7: listen[3]: 'tcp://node1' is no endpoint; {good}",
        "broker.yaml:8: metrics: ':7401' is not ADDRESS:PORT",
        "broker.yaml:9: audit: must be an absolute path",
    ]


def test_a_file_that_is_named_has_to_be_there(tmp_path: Path) -> None:
    """A slip in the path of hosts.yaml would be a cluster without hosts."""
    hosts = tmp_path / "hsots.yaml"
    assert refused(tmp_path, f"heartbeat: 2\nhosts: {hosts}\n") == [
        f"broker.yaml:2: hosts: there is no {hosts}; make it; an empty one is all defaults"
    ]
    hosts.touch()
    assert read_config(tmp_path / "broker.yaml").hosts == str(hosts)


def test_what_can_be_used_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "broker.yaml"
    path.write_text("listen: ['tcp://[::]:7400', tcp://eth0:7400]\nmetrics: '[::1]:7401'\nlocal: ''\n")
    assert read_config(path).listen == ["tcp://[::]:7400", "tcp://eth0:7400"]
