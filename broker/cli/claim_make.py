"""A claim from a file or from a command's options, and what it asks for in words."""

import argparse
import re

import msgspec

from xce.broker.cli.options import UsageError
from xce.model.claim import (
    AccessMode,
    Ask,
    Claim,
    ClaimForm,
    InstanceAsk,
    MountAsk,
    PortsAsk,
    Reclaim,
    SharedAsk,
)
from xce.model.claim_check import claim_problem

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
_SIZE = re.compile(r"(\d+)([KMGTP]?)(i?B)?")
_PLAIN = ("form", "owner", "project", "access", "reclaim", "provider", "scratch", "profile")
_LISTS = ("instances", "mount", "ports", "shared", "env")


def from_file(options: argparse.Namespace) -> Claim:
    """The claim of `-f FILE`; its id may be given beside it. Raises `UsageError` with file, line and key."""
    from xce.model import document, refusal  # noqa: PLC0415 - YAML costs 20 ms

    given = [name for name in (*_PLAIN, *_LISTS) if getattr(options, name)]
    if given:
        raise UsageError(f"--{given[0]} beside -f", "write it into the file")
    try:
        found = document.load_placed(options.file.read_text(), str(options.file), Claim)
    except refusal.ConfigRefused as error:
        raise UsageError(str(error)) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"cannot read {options.file}: it is no UTF-8 text") from error
    claim = found.value
    if options.claim and claim.id and options.claim != claim.id:
        raise UsageError(f"{options.file} says id: {claim.id}, not {options.claim}", "leave one of them out")
    if problem := claim_problem(claim):
        field = re.match(r"[\w.\[\]]+", problem)
        keys = _keys(field.group() if field else "")
        raise UsageError(f"{options.file}:{found.line(*keys)}: {problem}")
    return _with_id(claim, options.claim or claim.id)


def _keys(field: str) -> list[str | int]:
    """`ask.ports[1].count` as keys."""
    return [int(part) if part.isdigit() else part for part in re.findall(r"\w+", field)]


def _with_id(claim: Claim, name: str) -> Claim:
    return msgspec.structs.replace(claim, id=name)


def from_options(options: argparse.Namespace) -> Claim:
    """The claim that the options describe; raises `UsageError`."""
    ask = Ask(
        instances=[
            InstanceAsk(kind=kind, count=_number(count or "1", "--instances"))
            for kind, count in map(_pair, options.instances)
        ],
        mounts=[_mount(text) for text in options.mount],
        scratch_bytes=_size(options.scratch) if options.scratch else 0,
        ports=[_ports(text) for text in options.ports],
        shared=[SharedAsk(volume=name) for name in options.shared],
        environment=dict(map(_variable, options.env)),
        profile=options.profile,
    )
    claim = Claim(
        id=options.claim,
        form=ClaimForm(options.form or ClaimForm.TEMPLATE),
        owner=options.owner,
        project=options.project,
        access=AccessMode(options.access or AccessMode.RWX),
        provider=options.provider,
        reclaim=Reclaim(options.reclaim or Reclaim.RETAIN),
        ask=ask,
    )
    if problem := claim_problem(claim):
        raise UsageError(problem)
    return claim


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def _variable(text: str) -> tuple[str, str]:
    if "=" not in text:
        raise UsageError(f"--env: {text!r} says no value", f"{text}=TEXT, or {text}= for an empty one")
    return _pair(text)


def _mount(text: str) -> MountAsk:
    name, source = _pair(text.removesuffix(":ro"))
    return MountAsk(name=name, source=source or name, read_only=text.endswith(":ro"))


def _ports(text: str) -> PortsAsk:
    name, value = _pair(text)
    low, dash, high = value.partition("-")
    if dash:
        return PortsAsk(name=name, low=_number(low, "--ports"), high=_number(high, "--ports"))
    return PortsAsk(name=name, count=_number(value or "1", "--ports"))


def _number(text: str, option: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise UsageError(f"{option}: {text!r} is no number")
    return int(text)


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None or len(match[1]) > 15:
        raise UsageError(f"--scratch: {text!r} is no size", "bytes, or 100M, 20G, 1T")
    return int(match[1]) * _UNITS[match[2]]


def _binary(size: int) -> str:
    """In the largest unit of which it is a whole number."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size % 1024:
            return f"{size} {unit}"
        size //= 1024
    return f"{size} TiB"


def in_words(ask: Ask) -> str:
    """What a claim asks for, in one line."""
    words = [f"{len(one.ids) or one.count} {one.kind}" for one in ask.instances]
    words += [
        f"mount {one.name} of {one.source}{' read only' if one.read_only else ''}" for one in ask.mounts
    ]
    if ask.scratch_bytes:
        words.append(f"{_binary(ask.scratch_bytes)} of scratch")
    for ports in ask.ports:
        exact = ",".join(map(str, ports.exact))
        words.append(f"port {exact} as {ports.name}" if exact else f"{ports.count} ports as {ports.name}")
    words += [f"directories on {one.volume}" for one in ask.shared]
    words += [f"{name}={text}" for name, text in ask.environment.items()]
    return ", ".join(words) or "nothing of a node"
