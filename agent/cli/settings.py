"""Which configuration a command works by."""

from typing import TypeVar

from xce.agent import config
from xce.agent.cli.options import UsageError
from xce.agent.memory import Memory
from xce.model.configuration import AgentFile, ExternalFile
from xce.model.refusal import ConfigRefused

F = TypeVar("F", bound=AgentFile | ExternalFile)


def read(path: str, kind: type[F]) -> F:
    """The configuration at `path`, or the default one. Raises `UsageError`."""
    default = config.AGENT if kind is AgentFile else config.EXTERNAL
    try:
        return config.read(path or default, kind, memory=Memory(""), must_exist=bool(path))
    except ConfigRefused as refused:
        raise UsageError("\n".join(str(error) for error in refused.errors)) from refused
