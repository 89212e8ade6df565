"""`xce-agent csi create | delete`: a volume of a plugin that needs no controller beside it, for trying out.

Only plugins that serve CreateVolume on the node's own socket and need no volume attached to a node: drivers
of local disks and of directories. What is printed is what a profile of agent.yaml takes.
"""

import json
import os

import msgspec

from xce.agent.cli import GOOD, TROUBLE, output
from xce.agent.cli.options import Options, UsageError
from xce.agent.cli.waiting import until
from xce.linux import mountinfo
from xce.model import csi
from xce.model.claim import AccessMode
from xce.model.csi import ControllerAbility, Outcome, Seen, Service
from xce.model.profile import Claims, CsiVolume, Volume
from xce.prepare.csi import paths, usage
from xce.prepare.csi.helper import HelperClient

PROGRAM = "xce-agent csi"
VALUES = ("--size", "--access", "--type", "--secrets")
PARAMETER = "--parameter"
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_ANSWER_S = 310.0
"""Longer than the helper waits for the plugin."""


def create(helper: HelperClient, seen: Seen, name: str, options: Options) -> int:
    """Make a volume and print it."""
    access = _access(options.get("--access", AccessMode.RWX.value))
    near = Service.VOLUME_ACCESSIBILITY_CONSTRAINTS in seen.services
    call = csi.Create(
        name=name,
        capability=csi.Capability(mode=usage.mode(access, seen.abilities), fs_type=options.get("--type")),
        required_bytes=size(options.get("--size", "0")),
        parameters=dict(_pair(text) for text in options.all(PARAMETER)),
        topology=seen.topology if near else {},
        secrets=_file(options.get("--secrets")),
    )
    if problem := unable(seen):
        output.fail(PROGRAM, f"cannot create a volume: {problem}")
        return TROUBLE
    told = _answer(helper, seen.plugin, call)
    if told is None or told.outcome is not Outcome.OK or not told.volume:
        words = told.message or str(told.outcome) if told else "no answer"
        output.fail(PROGRAM, f"cannot create volume {name}: {words}")
        if told is None or told.outcome in {Outcome.UNCERTAIN, Outcome.BUSY}:
            output.fail(PROGRAM, "it may exist all the same: the same command again gives the same volume")
        return TROUBLE
    volume = Volume(
        type=options.get("--type"),
        csi=CsiVolume(plugin=seen.plugin, id=told.volume, access=access, context=told.context),
    )
    if options.has("--json"):
        made = {"volume": told.volume, "context": told.context, "capacity_bytes": told.capacity_bytes}
        output.print_json({**made, "profile": {name: _plain(volume)}})
    else:
        print("# for agent.yaml, below claims.profiles.PROFILE.volumes:")
        print("\n".join(profile_lines(name, _plain(volume))))
    return GOOD


def delete(helper: HelperClient, seen: Seen, volume: str, claims: Claims, options: Options) -> int:
    """Delete a volume that nobody has here."""
    if problem := unable(seen) or in_use(claims, seen.plugin, volume):
        output.fail(PROGRAM, f"cannot delete volume {volume}: {problem}")
        return TROUBLE
    told = _answer(helper, seen.plugin, csi.Delete(volume=volume, secrets=_file(options.get("--secrets"))))
    if told is None or told.outcome is not Outcome.OK:
        words = told.message or str(told.outcome) if told else "no answer"
        output.fail(PROGRAM, f"cannot delete volume {volume}: {words}")
        return TROUBLE
    print(f"plugin {seen.plugin} has no volume {volume} any more")
    return GOOD


def _answer(helper: HelperClient, plugin: str, call: csi.Call) -> csi.Told | None:
    return until(lambda: helper.ask("command", plugin, call), _ANSWER_S)


# ------------------------------------------------------------------------------------------------------ pure


def unable(seen: Seen) -> str:
    """Why volumes of a plugin cannot be made and deleted from here; '' if they can."""
    if ControllerAbility.CREATE_DELETE_VOLUME not in seen.controller:
        return f"plugin {seen.plugin} has no CreateVolume on this socket: its controller is elsewhere"
    if ControllerAbility.PUBLISH_UNPUBLISH_VOLUME in seen.controller:
        return (
            f"volumes of plugin {seen.plugin} have to be attached to a node first, which its controller does"
        )
    return ""


def in_use(claims: Claims, plugin: str, volume: str) -> str:
    """Where a volume is mounted for claims of this node; '' if it is not."""
    table = mountinfo.read()
    for path in (f(claims.directory, plugin, volume) for f in (paths.target, paths.staging)):
        if found := usage.at_or_below(path, table):
            return f"it is in use on this node, mounted at {found[0][0]}"
    return ""


def size(text: str) -> int:
    """`10g` in bytes."""
    number, unit = (text[:-1], text[-1].lower()) if text and not text[-1].isdigit() else (text, "")
    if unit not in _UNITS or not number.isdecimal():
        raise UsageError(f"--size must be a number of bytes, or one with k, m, g or t, not {text!r}")
    return int(number) * _UNITS[unit]


def _file(path: str) -> str:
    """Absolute: the helper has another current directory."""
    return os.path.abspath(path) if path else ""


def _access(text: str) -> AccessMode:
    try:
        return AccessMode(text)
    except ValueError:
        modes = ", ".join(mode.value for mode in AccessMode)
        raise UsageError(f"--access must be one of {modes}, not {text!r}") from None


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise UsageError(f"{PARAMETER} must be KEY=VALUE, not {text!r}")
    return key, value


def _plain(volume: Volume) -> dict[str, object]:
    """What differs from the defaults."""
    assert volume.csi is not None
    plain: dict[str, object] = {"type": volume.type} if volume.type else {}
    named = {key: value for key, value in msgspec.to_builtins(volume.csi).items() if value}
    return plain | {"csi": named}


def profile_lines(name: str, volume: dict[str, object], indent: str = "") -> list[str]:
    """As YAML: texts are quoted as in JSON, which YAML reads alike."""
    lines = [f"{indent}{json.dumps(name)}:"]
    for key, value in volume.items():
        if isinstance(value, dict):
            lines += profile_lines(key, value, f"{indent}  ")
        else:
            lines.append(f"{indent}  {json.dumps(key)}: {json.dumps(value)}")
    return lines
