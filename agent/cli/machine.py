"""Where `inventory` and `topology` get instances: the running agent, this machine as it is, or a file."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from xce.agent import config
from xce.agent.cli import client, output
from xce.agent.cli.options import Options, UsageError
from xce.model.instance import Instance
from xce.model.refusal import ConfigRefused

if TYPE_CHECKING:
    from xce.agent.probe.facts import Machine
    from xce.agent.probe.topology import AdminTopology
    from xce.model.configuration import Discovery

FLAGS = ["--json", "--here"]
VALUES = ["--from", "--groups", "--socket", "--config"]
HELP = """\
  --from PATH    of a machine that is not this one: a file, or the folder of a recorded one
  --here         look at this machine, even if an agent runs
  --groups FILE  with --from or --here: an admin's topology file
  --socket PATH  of the agent's local socket (default: where agent.yaml says)
  --config FILE  of the agent, instead of /etc/xce/agent.yaml"""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What there is, and whether that is all."""

    title: str
    """The machine's name."""
    instances: list[Instance]
    complete: bool
    trouble: str = ""
    """What keeps it from being complete."""
    generation: int | None = None
    """Of the agent's inventory; None where no agent counts."""
    notes: tuple[str, ...] = ()
    """What of an admin's file was not taken."""


def abbreviates(text: str, id_: str) -> bool:
    """Whether it is the beginning of an id, or its two ends as the table shows them: `MIG-c7..409fd`."""
    head, _, tail = text.partition("..")
    return id_.startswith(head) and id_.endswith(tail)


def seen(options: Options) -> Seen:
    """By the options of a command. Raises `UsageError`, `client.AgentError`, `client.NotRunning`."""
    if path := options.get("--from"):
        machine, admin = _from(path, options.get("--groups"))
        return _judged(machine, admin, Path(path).resolve().name.partition(".")[0])
    if options.has("--here"):
        return _here(options)
    if options.has("--groups"):
        raise UsageError("--groups goes with --from or --here: a running agent has its own topology file")
    named = options.has("--socket") or options.has("--config")
    try:
        return of_agent(client.socket_path(options.get("--socket"), options.get("--config")))
    except client.NotRunning:
        if named:
            raise
    output.fail("xce-agent", "no agent answers: this is what the machine shows just now")
    return _here(options)


def read(options: Options) -> "Machine":
    """The facts of this machine, or of that of `--from`. Raises `UsageError`."""
    if path := options.get("--from"):
        return _from(path, "")[0]
    return _read(_settings(options))


def of_agent(path: str) -> Seen:
    """What the agent at this socket knows."""
    answer = client.ask(path, op="inventory")
    return Seen(
        title=os.uname().nodename,
        instances=msgspec.convert(answer["instances"], list[Instance]),
        complete=answer["complete"],
        trouble=answer["trouble"],
        generation=answer["generation"],
    )


def _here(options: Options) -> Seen:
    from xce.agent.probe import machinefile  # noqa: PLC0415

    settings = _settings(options)
    try:
        admin = (
            machinefile.load_admin(path) if (path := options.get("--groups") or settings.topology) else None
        )
    except ConfigRefused as refused:
        raise UsageError(str(refused)) from refused
    return _judged(_read(settings), admin, os.uname().nodename)


def _read(settings: "Discovery") -> "Machine":
    from xce.agent.probe import once  # noqa: PLC0415

    try:
        return once.machine(settings)
    except OSError as error:
        raise UsageError(f"cannot start the probe: {error.strerror}") from error


def _settings(options: Options) -> "Discovery":
    """`discovery:` of the agent's configuration; the defaults where there is none that can be read."""
    from xce.agent.memory import Memory  # noqa: PLC0415
    from xce.model.configuration import AgentFile, Discovery  # noqa: PLC0415

    path = options.get("--config")
    try:
        return config.read(
            path or config.AGENT, AgentFile, memory=Memory(""), must_exist=bool(path)
        ).discovery
    except ConfigRefused as refused:
        if path:
            raise UsageError(str(refused)) from refused
        return Discovery()


def _from(path: str, groups: str) -> "tuple[Machine, AdminTopology | None]":
    from xce.agent.probe import machinefile  # noqa: PLC0415

    try:
        beside = groups or (path if Path(path).is_dir() else "")
        return machinefile.load(path), machinefile.load_admin(beside) if beside else None
    except ConfigRefused as refused:
        raise UsageError(str(refused)) from refused


def _judged(machine: "Machine", admin: "AdminTopology | None", title: str) -> Seen:
    from xce.agent.probe import instances, topology  # noqa: PLC0415

    placed = topology.topology(machine, admin)
    found = instances.found(machine, placed)
    why = [f"{source}: {words}" for source, words in found.blind.items()]
    why += [f"the parts of {identifier} could not be read" for identifier in found.partial]
    return Seen(
        title=title,
        instances=list(found.instances),
        complete=found.complete,
        trouble="; ".join([*why, *machine.faults[:4], *found.faults[:4]]),
        notes=placed.conflicts,
    )
