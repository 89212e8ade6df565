"""Configuration files of the agent and of external reporters: read, checked beyond their shape, compared.

A file that does not fit is refused whole (`ConfigRefused` with every place). A missing file is an error only
if somebody named it: a bare host runs on the defaults.
"""

import os
import re
from typing import TypeVar

import msgspec

from xce.agent.discovery import expect, ports
from xce.agent.memory import Memory
from xce.model import profile
from xce.model.address import host_port
from xce.model.configuration import AgentFile, Discovery, ExternalFile
from xce.model.refusal import ConfigError, ConfigRefused
from xce.model.supply import name_problem

AGENT = "/etc/xce/agent.yaml"
EXTERNAL = "/etc/xce/reporter.yaml"
FILE_BYTES = 1 << 20
_RUN_DIRECTORY = re.compile(r"""^run_directory: *["']?(/[^"'#\s]*)""", re.MULTILINE)

F = TypeVar("F", bound=AgentFile | ExternalFile)

FIXED = ("name", "state_directory", "run_directory", "cgroup", "claims")
"""Keys that only a restart changes."""


def cache_directory() -> str:
    """Where meanings of YAML files are remembered, known before any file is read: systemd.exec(5)."""
    return os.environ.get("STATE_DIRECTORY", "").partition(":")[0]


def read(path: str, kind: type[F], *, memory: Memory, must_exist: bool) -> F:
    """The file's settings; raises `ConfigRefused`, also for a file that cannot be read."""
    try:
        with open(path, "rb") as file:
            text = file.read(FILE_BYTES + 1)
        if len(text) > FILE_BYTES:
            raise ConfigRefused([ConfigError(path, 0, "", f"larger than {FILE_BYTES} bytes")])
        settings = memory.parsed(text.decode(), path, kind, _parse, may_keep=_may_keep)
    except FileNotFoundError as error:
        if must_exist:
            raise ConfigRefused([ConfigError(path, 0, "", f"cannot read it: {error.strerror}")]) from error
        settings = kind()
    except UnicodeDecodeError as error:
        raise ConfigRefused([ConfigError(path, 0, "", f"not UTF-8 at byte {error.start + 1}")]) from error
    except OSError as error:
        raise ConfigRefused([ConfigError(path, 0, "", f"cannot read it: {error.strerror}")]) from error
    return settings


def run_directory(path: str) -> str:
    """What a file that cannot be used, and maybe not parsed, says of the run directory; '' for nothing."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found = _RUN_DIRECTORY.search(file.read(FILE_BYTES))
    except OSError:
        return ""
    return found[1] if found else ""


def refuse_blank(path: str) -> None:
    """Raises `ConfigRefused` if the file is gone or says nothing: at a start that means the defaults, but of
    a file that a running program was configured by it is more likely an accident.
    """
    hint = "the settings before it stay in force; write {} to it if the defaults are meant"
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(FILE_BYTES)
    except OSError as error:
        raise ConfigRefused(
            [ConfigError(path, 0, "", f"cannot read it: {error.strerror}; {hint}")]
        ) from error
    if all(line.strip() in {"", "---", "..."} or line.lstrip().startswith("#") for line in text.splitlines()):
        raise ConfigRefused([ConfigError(path, 0, "", f"is empty; {hint}")])


def fixed_changes(before: F, after: F) -> list[str]:
    """Keys that differ and cannot be changed in a running program."""
    return [key for key in _fixed(before) if getattr(before, key) != getattr(after, key)]


def with_fixed(before: F, after: F) -> F:
    """`after` with the keys of `before` that cannot be changed."""
    return msgspec.structs.replace(after, **{key: getattr(before, key) for key in _fixed(before)})


def _fixed(settings: AgentFile | ExternalFile) -> list[str]:
    return [key for key in FIXED if key in settings.__struct_fields__]


def with_directory(settings: F, directory: str) -> F:
    """The settings with the reporters of another directory."""
    return msgspec.structs.replace(
        settings, reporters=msgspec.structs.replace(settings.reporters, directory=directory)
    )


def _parse(text: str, path: str, kind: type[F]) -> F:
    from xce.model import document  # noqa: PLC0415 - PyYAML costs 20 ms, and a known text is not parsed

    return document.load(text, path, kind, check=_problems)


def _may_keep(settings: AgentFile | ExternalFile) -> bool:
    """Mount options may be passwords: what the file says of them is in the file, and in no copy of it."""
    if not isinstance(settings, AgentFile):
        return True
    volumes = [one for profile in settings.claims.profiles.values() for one in profile.volumes.values()]
    return not any(
        one.options or (one.csi and (one.csi.context or one.csi.publish_context)) for one in volumes
    )


def _problems(settings: AgentFile | ExternalFile) -> dict[str, str]:
    """What the shape of the file cannot say, by key."""
    scheme, separator, rest = settings.broker.partition("://")
    reachable = separator and (
        (scheme == "tcp" and host_port(rest)) or (scheme == "ipc" and rest.startswith("/"))
    )
    paths = {
        "state_directory": settings.state_directory,
        "run_directory": settings.run_directory,
        "reporters.directory": settings.reporters.directory,
        "cgroup": settings.cgroup or "/",
    }
    metrics = settings.metrics if isinstance(settings, AgentFile) else ""
    found = {key: "must be an absolute path" for key, value in paths.items() if not os.path.isabs(value)}
    if settings.broker and not reachable:
        found["broker"] = f"{settings.broker!r} is no endpoint; tcp://HOST:PORT or ipc:///PATH"
    if settings.name and (problem := name_problem(settings.name)):
        found["name"] = problem
    if isinstance(settings, AgentFile):
        found |= _discovery_problems(settings.discovery)
        found |= {f"claims.{key}": problem for key, problem in profile.problems(settings.claims).items()}
    if metrics and not host_port(metrics):
        found["metrics"] = f"{metrics!r} is not ADDRESS:PORT"
    return found


def _discovery_problems(settings: Discovery) -> dict[str, str]:
    paths = ("library", "root", "machine", "topology")
    relative = {
        f"discovery.{key}": "must be an absolute path"
        for key in paths
        if (path := getattr(settings, key)) and not os.path.isabs(path)
    }
    found = {
        "discovery.expected": expect.problem(settings.expected),
        "discovery.ports": ports.problem(settings.ports),
    }
    return relative | {key: problem for key, problem in found.items() if problem}
