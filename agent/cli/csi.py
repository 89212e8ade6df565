"""`xce-agent csi list | info | stats | volumes`: the CSI plugins of this host, and the volumes in use.

All but `volumes` is asked by a helper of the command's own. It works without the agent, and harms nothing
that the agent does: no call here changes a volume.
"""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from xce.agent.cli import GOOD, TROUBLE, csi_volumes, output, settings
from xce.agent.cli.options import Options, UsageError
from xce.model import csi
from xce.model.configuration import AgentFile
from xce.model.csi import NodeAbility, Outcome
from xce.model.profile import Claims
from xce.prepare import local
from xce.prepare.csi import paths
from xce.prepare.csi.helper import HelperClient

SUMMARY = "CSI plugins of this host: list them, what one can do, the space of a volume"
PROGRAM = "xce-agent csi"
USAGE_TEXT = f"""\
usage: {PROGRAM} list [--json] [--config FILE]
       {PROGRAM} info PLUGIN [--json] [--config FILE]
       {PROGRAM} stats PLUGIN VOLUME [--json] [--config FILE]
       {PROGRAM} volumes [--json] [--socket PATH | --config FILE]

list   the plugins of agent.yaml and those that have registered, and whether they are well
info   what a plugin says of itself and of this node
stats  what a plugin says of the space of a volume that is in use here; it may be minutes old
volumes  all volumes that bindings have, as the running agent knows them; IDs are the plugins'

exit status: 0 good, 1 a plugin is not there, not well, or has refused, 2 wrong usage, 3 no agent runs"""
_ARGUMENTS = {"list": 0, "info": 1, "stats": 2, "volumes": 0}
_PATIENCE_S = 4.0
_LOOK_S = 0.02
T = TypeVar("T")


def run(argv: Sequence[str]) -> int:
    """Carry the command out."""
    if "--help" in argv:
        print(USAGE_TEXT)
        return GOOD
    options = Options(argv, flags=["--json"], values=["--config", "--socket"])
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
        if verb == "info":
            return _info(helper, names[0], as_json=options.has("--json"))
        return _stats(helper, claims, names[0], names[1], as_json=options.has("--json"))
    finally:
        helper.close()


def _until(look: Callable[[], T | None]) -> T | None:
    """What `look` gives, or gave last when patience is over."""
    end = time.monotonic() + _PATIENCE_S
    while (found := look()) is None and time.monotonic() < end:
        time.sleep(_LOOK_S)
    return found


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

    _until(all_heard)
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
                *(one.socket, one.problem),
            )
            for one in found
        ]
        output.table(("PLUGIN", "STATE", "VERSION", "NODE", "VOLUMES", "SOCKET", "PROBLEM"), rows)
    else:
        print("no CSI plugins (agent.yaml: claims.csi)")
    missing = set(claims.csi.plugins) - {one.plugin for one in found}
    return TROUBLE if missing or not all(one.ready for one in found) else GOOD


def _info(helper: HelperClient, plugin: str, *, as_json: bool) -> int:
    seen = _until(lambda: (one := helper.seen(plugin)) and (one if one.asked or one.problem else None))
    if seen is None:
        problem = helper.problem or "it is not in agent.yaml (claims.csi) and has not registered"
        output.fail(PROGRAM, f"cannot find plugin '{plugin}': {problem}")
        return TROUBLE
    if as_json:
        output.print_json(msgspec.to_builtins(seen))
    else:
        known = {int(one): one.name for one in NodeAbility}
        rows = [
            ("name", seen.name),
            ("version", seen.version),
            ("socket", seen.socket + (" (registered)" if seen.registered else "")),
            ("state", "available" if seen.ready else f"problem: {seen.problem}"),
            ("abilities", ", ".join(known.get(one, f"number {one}") for one in seen.abilities)),
            ("node", seen.node_id),
            ("volumes", "as many as there are" if seen.max_volumes is None else str(seen.max_volumes)),
            ("topology", ", ".join(f"{key}={value}" for key, value in sorted(seen.topology.items()))),
        ]
        output.table((), rows)
    return GOOD if seen.ready else TROUBLE


def _stats(helper: HelperClient, claims: Claims, plugin: str, volume: str, *, as_json: bool) -> int:
    call = csi.Statistics(
        volume=volume,
        path=paths.target(claims.directory, plugin, volume),
        staging=paths.staging(claims.directory, plugin, volume),
    )
    seen = _until(lambda: (one := helper.seen(plugin)) and (one if one.asked or one.problem else None))
    if seen is not None and seen.asked and NodeAbility.GET_VOLUME_STATS not in seen.abilities:
        output.fail(PROGRAM, f"plugin '{plugin}' has no statistics")
        return TROUBLE
    told = _until(lambda: helper.ask("stats", plugin, call))
    if told is None or told.outcome is not Outcome.OK:
        words = told.message if told else f"no answer within {_PATIENCE_S:g} s"
        output.fail(PROGRAM, f"cannot get statistics of volume {volume}: {words}")
        return TROUBLE
    if as_json:
        output.print_json(msgspec.to_builtins(told.usage))
    else:
        rows = [(one.unit, str(one.total), str(one.used), str(one.available)) for one in told.usage]
        output.table(("UNIT", "TOTAL", "USED", "AVAILABLE"), rows)
        if told.abnormal:
            print("the plugin says that its condition is not normal")
    return GOOD
