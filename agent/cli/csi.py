"""`xce-agent csi`: the CSI plugins of this host, and the volumes in use.

All but `volumes` is asked by a helper of the command's own. It works without the agent, and harms nothing
that the agent does: no call changes a volume that is in use.
"""

import time
from collections.abc import Sequence
from enum import IntEnum

import msgspec

from xce.agent.cli import GOOD, TROUBLE, csi_create, csi_volumes, output, settings
from xce.agent.cli.options import Options, UsageError
from xce.agent.cli.waiting import until
from xce.linux import mountinfo
from xce.model import csi
from xce.model.configuration import AgentFile
from xce.model.csi import ControllerAbility, NodeAbility, Outcome, Service
from xce.model.profile import Claims
from xce.prepare import local
from xce.prepare.csi import paths, usage
from xce.prepare.csi.helper import HelperClient

SUMMARY = "CSI plugins of this host: what they can do, the space of a volume, making one for trying out"
PROGRAM = "xce-agent csi"
USAGE_TEXT = f"""\
usage: {PROGRAM} list [--json] [--config FILE]
       {PROGRAM} info PLUGIN [--json] [--config FILE]
       {PROGRAM} stats PLUGIN VOLUME [--json] [--config FILE]
       {PROGRAM} volumes [--json] [--socket PATH | --config FILE]
       {PROGRAM} create PLUGIN NAME [--size 10g] [--access RWX] [--type ext4]
           [--parameter KEY=VALUE]... [--secrets FILE] [--json] [--config FILE]
       {PROGRAM} delete PLUGIN VOLUME [--secrets FILE] [--config FILE]

list     the plugins of agent.yaml and those that have registered, and whether they are well
info     what a plugin says of itself and of this node
stats    what a plugin says of the space of a volume, by its ID, that is in use here; it may be minutes old
volumes  all volumes that bindings have, as the running agent knows them; IDs are the plugins'
create   a volume, for trying out, where a plugin makes volumes on the node's own socket and they
         need not be attached; what is printed is for a profile of agent.yaml
delete   one that nobody uses here, by the id that `create` has printed; one that is gone is no error

--secrets names what has the secrets, as `secrets` of a volume in agent.yaml: a file of root, or a program

exit status: 0 good, 1 a plugin is not there, not well, or has refused, 2 wrong usage, 3 no agent runs"""
_ARGUMENTS = {"list": 0, "info": 1, "stats": 2, "volumes": 0, "create": 2, "delete": 2}
_PATIENCE_S = 4.0


def run(argv: Sequence[str]) -> int:
    """Carry the command out."""
    if "--help" in argv:
        print(USAGE_TEXT)
        return GOOD
    options = Options(
        argv,
        flags=["--json"],
        values=["--config", "--socket", *csi_create.VALUES],
        repeated=[csi_create.PARAMETER],
    )
    verb, *names = options.arguments or [""]
    if len(names) != _ARGUMENTS.get(verb, -1):
        raise UsageError(f"expected a verb and its arguments\n{USAGE_TEXT}")
    if verb == "volumes":
        return csi_volumes.show(options)
    claims = settings.read(options.get("--config"), AgentFile).claims
    helper = local.helper(claims)
    try:
        if verb == "list":
            return _list(helper, claims, as_json=options.has("--json"))
        if (seen := _seen(helper, names[0])) is None:
            return TROUBLE
        if verb == "info":
            return _info(seen, as_json=options.has("--json"))
        if verb == "create":
            return csi_create.create(helper, seen, names[1], options)
        if verb == "delete":
            return csi_create.delete(helper, seen, names[1], claims, options)
        return _stats(helper, claims, seen, names[1], as_json=options.has("--json"))
    finally:
        helper.close()


def _list(helper: HelperClient, claims: Claims, *, as_json: bool) -> int:
    """Plugins of the settings are waited for; how many register is not known, so a moment must do."""
    began = time.monotonic()

    def all_heard() -> bool | None:
        helper.turn()
        seen = {one.plugin for one in helper.plugins() if one.asked or one.problem}
        if helper.problem:
            return True
        settled = not claims.csi.registration or time.monotonic() - began > _PATIENCE_S / 2
        return True if settled and set(claims.csi.plugins) <= seen else None

    until(all_heard, _PATIENCE_S)
    found = helper.plugins()
    if helper.problem:
        output.fail(PROGRAM, f"cannot ask the plugins: {helper.problem}")
        return TROUBLE
    if as_json:
        output.print_json(msgspec.to_builtins(found))
    elif found:
        rows = [
            (
                *(one.plugin, "available" if one.ready else "problem", one.version, one.node_id),
                "" if one.max_volumes is None else str(one.max_volumes),
                *(one.socket, "yes" if one.registered else "", one.problem),
            )
            for one in found
        ]
        output.table(
            ("PLUGIN", "STATE", "VERSION", "NODE", "VOLUMES", "SOCKET", "REGISTERED", "PROBLEM"), rows
        )
    else:
        print("no CSI plugins (agent.yaml: claims.csi)")
    missing = set(claims.csi.plugins) - {one.plugin for one in found}
    return TROUBLE if missing or not all(one.ready for one in found) else GOOD


def _seen(helper: HelperClient, plugin: str) -> csi.Seen | None:
    """The plugin, once it has said something; None if there is none, which is told."""
    seen = until(
        lambda: (one := helper.seen(plugin)) and (one if one.asked or one.problem else None), _PATIENCE_S
    )
    if seen is None or not seen.socket:
        problem = helper.problem or "it is not in agent.yaml (claims.csi) and has not registered"
        output.fail(PROGRAM, f"cannot find plugin '{plugin}': {problem}")
        return None
    return seen


def _info(seen: csi.Seen, *, as_json: bool) -> int:
    if as_json:
        output.print_json(msgspec.to_builtins(seen))
    else:
        rows = [
            ("name", seen.name),
            ("version", seen.version),
            ("socket", seen.socket + (" (registered)" if seen.registered else "")),
            ("state", "available" if seen.ready else f"problem: {seen.problem}"),
        ]
        output.table((), rows + _said(seen) if seen.asked else rows)
    return GOOD if seen.ready else TROUBLE


def _said(seen: csi.Seen) -> list[tuple[str, str]]:
    """What only the plugin itself can say."""
    return [
        ("abilities", _named(NodeAbility, seen.abilities)),
        ("services", _named(Service, seen.services)),
        ("controller", _named(ControllerAbility, seen.controller) or "not on this socket"),
        ("node", seen.node_id),
        ("volumes", "as many as there are" if seen.max_volumes is None else str(seen.max_volumes)),
        ("topology", ", ".join(f"{key}={value}" for key, value in sorted(seen.topology.items()))),
    ]


def _named(kind: type[IntEnum], numbers: Sequence[int]) -> str:
    known = {int(one): one.name for one in kind}
    return ", ".join(known.get(one, f"number {one}") for one in numbers)


def _stats(helper: HelperClient, claims: Claims, seen: csi.Seen, volume: str, *, as_json: bool) -> int:
    plugin = seen.plugin
    call = csi.Statistics(
        volume=volume,
        path=paths.target(claims.directory, plugin, volume),
        staging=paths.staging(claims.directory, plugin, volume),
    )
    if seen.asked and NodeAbility.GET_VOLUME_STATS not in seen.abilities:
        output.fail(PROGRAM, f"plugin '{plugin}' has no statistics")
        return TROUBLE
    if not usage.at_or_below(call.path, mountinfo.read()):
        known = "`xce-agent csi volumes` shows those that are"
        output.fail(PROGRAM, f"volume {volume} of plugin {plugin} is not in use on this node; {known}")
        return TROUBLE
    told = until(lambda: helper.ask("stats", plugin, call), _PATIENCE_S)
    if told is None or told.outcome is not Outcome.OK:
        words = told.message if told else f"no answer within {_PATIENCE_S:g} s"
        output.fail(PROGRAM, f"cannot get statistics of volume {volume}: {words}")
        return TROUBLE
    if as_json:
        said = {"usage": told.usage, "abnormal": told.abnormal, "condition": told.message}
        output.print_json(msgspec.to_builtins(said))
    else:
        rows = [(one.unit, str(one.total), str(one.used), str(one.available)) for one in told.usage]
        output.table(("UNIT", "TOTAL", "USED", "AVAILABLE"), rows)
        if told.abnormal is not None:
            word = "not normal" if told.abnormal else "normal"
            print(
                f"the plugin says that its condition is {word}{f': {told.message}' if told.message else ''}"
            )
    return GOOD
