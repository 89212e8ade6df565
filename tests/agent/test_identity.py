"""Whom the agent says that it is, and what it says when it cannot."""

from pathlib import Path

import pytest

from xce.agent import identity
from xce.model.configuration import AgentFile
from xce.wire.trust import Trust


def test_a_host_that_never_joined_is_told_how_keys_are_made(tmp_path: Path) -> None:
    key, broker_key = str(tmp_path / "agent.key"), str(tmp_path / "broker.pub")
    settings = AgentFile(broker="tcp://broker:7400", key=key, broker_key=broker_key)
    with pytest.raises(ValueError, match="No such file or directory; the keys are made by `join`"):
        identity.credentials(settings, Trust(lambda: broker_key))
    Path(key).write_text("rubbish\n")
    Path(key).chmod(0o600)
    with pytest.raises(ValueError, match="cannot read") as refused:
        identity.credentials(settings, Trust(lambda: broker_key))
    assert "`join`" not in str(refused.value), "a new key would not mend a torn one that the broker knows"
