"""`xce-broker claim create | list | show | bind | wait | release | delete | watch`: claims by hand."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from xce.broker import claim_rows
from xce.broker.cli import COMMANDS, claim_make, claim_wait, output
from xce.broker.cli.connect import connect
from xce.broker.cli.follow import events
from xce.broker.cli.options import (
    EXIT_STATUS,
    GOOD,
    TROUBLE,
    Example,
    UsageError,
    carry_out,
    connection,
    count,
    json_option,
    positive,
    verbs,
)
from xce.broker.cli.options import parser as command_parser
from xce.broker.client import Changed, Client, Fresh, LinkNews
from xce.model import human
from xce.model.claim import AccessMode, BindingState, ClaimForm, Consumer, Reclaim
from xce.model.message import (
    BindingForce,
    BindingView,
    ClaimBind,
    ClaimCreate,
    ClaimDelete,
    ClaimRelease,
    Claims,
    ClaimsRequest,
    ClaimView,
    Pick,
    Place,
)

SUMMARY = COMMANDS["claim"]
ABOUT = """
A claim asks for instances (GPUs, slices, ports, ...), mounts, scratch and directories. Bound to a host for a
consumer (a job, a task, a replica) it is prepared there, and ready once the kernel was read back. A template
claim belongs to one job and is forgotten when it is released; a standalone claim stays until it is deleted.

A file for `create -f` has the fields of a claim (docs/claims.md):

  id: ckpt-7
  form: standalone
  access: RWO
  ask:
    mounts:
      - {name: ckpt, source: checkpoints}
"""
_VERBS = {
    "create": "make a claim, from a file or from options",
    "list": "list claims",
    "show": "show a claim with its bindings",
    "bind": "bind a claim to hosts; to several: all become ready at once, or are released",
    "wait": "wait until claims or bindings are ready, or say at once that they never will be",
    "release": "release a claim, a gang or bindings",
    "delete": "delete a claim that is not bound",
    "watch": "follow claims, one line for each change",
}


def parser() -> argparse.ArgumentParser:
    """The command's options and help."""
    made = command_parser(
        "claim",
        SUMMARY,
        ABOUT,
        [
            Example("xce-broker claim create job-7 --instances gpu=2 --scratch 100G", "for one job"),
            Example("xce-broker claim create -f ckpt-7.yaml", "from a file"),
            Example("xce-broker claim bind job-7 node1=GPU-1f3a,GPU-77b0 --consumer 7 --wait 60", "and wait"),
            Example("xce-broker claim bind train node1 node2 --consumer 9", "a gang"),
            Example("xce-broker claim wait job-7 --wait 60", "exit status 4 if it fails"),
            Example("xce-broker claim list --problems", "exit status 1 if there are any"),
            Example("xce-broker claim release job-7", "and forget it"),
            Example("xce-broker claim release --binding b1042 --force --reason 'host burnt'", "give up"),
        ],
        connects=False,
        exit_status=f"{EXIT_STATUS}\n  4  what was waited for has failed, is released, or is being released",
    )
    under = verbs(made, _VERBS)
    _create_options(under["create"])
    _list_options(under["list"])
    under["show"].add_argument("claim")
    under["show"].add_argument(
        "--definition", action="store_true", help="only what it asks for, as `create -f` takes it"
    )
    _bind_options(under["bind"])
    under["wait"].add_argument("name", nargs="+", help="a claim or a binding")
    under["wait"].add_argument(
        "--wait", type=positive, default=60.0, metavar="SECONDS", help="at most so long; default: %(default)g"
    )
    _release_options(under["release"])
    under["delete"].add_argument("claim")
    under["watch"].add_argument("claim", nargs="?", default="", help="only this one; default: all")
    under["watch"].add_argument("--count", type=count, metavar="N", help="end after N lines")
    under["watch"].add_argument("--seconds", type=positive, default=None, help="end after so long")
    for verb in under.values():
        json_option(verb, "print JSON")
        connection(verb)
    return made


def _create_options(made: argparse.ArgumentParser) -> None:
    made.add_argument("claim", nargs="?", default="", help="its id; none: the broker makes one")
    made.add_argument("-f", "--file", type=Path, help="YAML with all fields; then no other option is taken")
    made.add_argument("--form", choices=[form.value for form in ClaimForm], help="default: template")
    made.add_argument("--owner", default="", help="user whom it is for; default: we, by the name of our key")
    made.add_argument("--project", default="")
    made.add_argument("--access", choices=[mode.value for mode in AccessMode], help="default: RWX")
    made.add_argument("--reclaim", choices=[what.value for what in Reclaim], help="default: retain")
    made.add_argument("--provider", default="", help="who makes it; default: it is there")
    made.add_argument("--instances", action="append", default=[], metavar="KIND[=COUNT]", help="default: one")
    made.add_argument(
        "--mount",
        action="append",
        default=[],
        metavar="NAME[=SOURCE][:ro]",
        help="a volume of the node's profile; default: NAME",
    )
    made.add_argument("--scratch", default="", metavar="SIZE", help="bytes, or 100M, 20G, 1T")
    made.add_argument(
        "--ports",
        action="append",
        default=[],
        metavar="NAME[=COUNT|=LOW-HIGH]",
        help="default: one; LOW-HIGH: one of these",
    )
    made.add_argument("--shared", action="append", default=[], metavar="VOLUME")
    made.add_argument("--env", action="append", default=[], metavar="NAME=TEXT")
    made.add_argument("--profile", default="", help="of the node; default: its default one")


def _list_options(made: argparse.ArgumentParser) -> None:
    made.add_argument("--host", default="", help="only claims with bindings on it")
    made.add_argument("--gang", default="", help="only claims of this gang")
    states = [state.value for state in BindingState]
    made.add_argument("--state", action="append", default=[], choices=states)
    made.add_argument("--problems", action="store_true", help="only those that need somebody")


def _bind_options(made: argparse.ArgumentParser) -> None:
    made.add_argument("claim")
    made.add_argument("place", nargs="+", metavar="HOST[=INSTANCE,...]", help="several make a gang")
    made.add_argument("--consumer", required=True, help="job, task or replica: unique on its host")
    made.add_argument("--user", default="", help="gets the directories; default: the claim's owner")
    made.add_argument("--job", default="", help="its directory on shared volumes; default: the consumer")
    made.add_argument("--index", default="", help="element of a job array")
    made.add_argument("--read-only", action="store_true")
    made.add_argument("--within", type=positive, default=0.0, metavar="SECONDS", help="or release it again")
    made.add_argument(
        "--wait", type=positive, default=None, metavar="SECONDS", help="until it is ready or has failed"
    )


def _release_options(made: argparse.ArgumentParser) -> None:
    made.add_argument("claim", nargs="?", default="")
    made.add_argument("--gang", default="")
    made.add_argument("--binding", action="append", default=[], metavar="ID")
    made.add_argument("--reason", default="", help="for those who look later")
    made.add_argument(
        "--force", action="store_true", help="wait for no node; its instances are quarantined (admins)"
    )


def run(argv: Sequence[str]) -> int:
    """Carry the command out."""
    bodies = {
        "create": _create,
        "list": _list,
        "show": _show,
        "bind": _bind,
        "wait": _wait,
        "release": _release,
        "delete": _delete,
        "watch": _watch,
    }
    return carry_out(parser(), lambda options: bodies[options.verb](options), argv)


def _create(options: argparse.Namespace) -> int:
    claim = claim_make.from_file(options) if options.file else claim_make.from_options(options)
    with connect(options) as client:
        done = client.ask(ClaimCreate(id="", claim=claim))
    return _done(options, done.made, done.revision, f"claim {done.made[0]} created")


def _done(options: argparse.Namespace, made: list[str], revision: int, words: str) -> int:
    if options.json:
        output.json({"made": made, "revision": revision})
    else:
        print(f"{words}, revision {revision}")
    return GOOD


def _list(options: argparse.Namespace) -> int:
    with connect(options) as client:
        answer = client.ask(ClaimsRequest(id="", host=options.host, gang=options.gang))
    answer = claim_rows.only(answer, options.state)
    rows = claim_rows.claim_rows(answer.claims, answer.bindings)
    if options.problems:
        rows = [row for row in rows if row.is_problem]
    if options.json:
        output.json(rows)
    else:
        cells = [
            (
                *(row.claim, row.form, row.owner, row.access, row.state),
                ", ".join(f"{count} {state}" for state, count in sorted(row.bindings.items())),
                ",".join(row.hosts),
                ",".join(row.conditions),
                row.reason,
            )
            for row in rows
        ]
        headers = ("CLAIM", "FORM", "OWNER", "ACCESS", "STATE", "BINDINGS", "HOSTS", "CONDITIONS", "REASON")
        output.table(headers, cells, none="no claims")
    return TROUBLE if options.problems and rows else GOOD


def _show(options: argparse.Namespace) -> int:
    with connect(options) as client:
        answer = client.ask(ClaimsRequest(id="", claim=options.claim))
    view = answer.claims.get(options.claim)
    if view is None:
        raise UsageError(f"there is no claim {options.claim!r}", "xce-broker claim list")
    if options.definition:
        output.json(view.claim)
        return GOOD
    if options.json:
        output.json(Claims(id="", revision=answer.revision, claims=answer.claims, bindings=answer.bindings))
        return GOOD
    (row,) = claim_rows.claim_rows(answer.claims, answer.bindings)
    output.fields(
        [
            ("claim", row.claim),
            ("state", ", ".join([row.state, *row.conditions])),
            ("form", f"{row.form}, access {row.access}, reclaim {view.claim.reclaim.value}"),
            ("owner", " ".join(filter(None, (row.owner, row.project and f"(project {row.project})")))),
            ("created by", view.by),
            ("asks for", claim_make.in_words(view.claim.ask)),
            ("reason", row.reason),
        ]
    )
    print()
    output.table(
        BINDING_HEADERS, [_cells(one) for one in claim_rows.binding_views(answer.bindings)], none="not bound"
    )
    return GOOD


BINDING_HEADERS = (
    "BINDING",
    "GANG",
    "HOST",
    "CONSUMER",
    "STATE",
    "CONDITIONS",
    "INSTANCES",
    "PORTS",
    "REASON",
)


def _cells(view: BindingView) -> tuple[str, ...]:
    binding = view.binding
    ports = (f"{name}={','.join(map(str, some))}" for name, some in sorted(binding.ports.items()))
    return (
        *(binding.id, binding.gang, binding.host, binding.consumer.name, binding.state.value),
        ",".join(view.conditions),
        ",".join(one.id for one in binding.instances),
        " ".join(ports),
        view.note or binding.reason,
    )


def _bind(options: argparse.Namespace) -> int:
    consumer = Consumer(name=options.consumer, user=options.user, job=options.job, index=options.index)
    with connect(options) as client:
        places = [
            Place(
                claim=options.claim,
                host=host,
                consumer=consumer,
                instances=_picks(client, host, ids),
                read_only=options.read_only,
            )
            for host, ids in map(_place, options.place)
        ]
        done = client.ask(ClaimBind(id="", places=places, ready_within_s=options.within))
        if options.wait is None:
            return _done(
                options, done.made, done.revision, f"claim {options.claim} bound: {', '.join(done.made)}"
            )
        views = claim_wait.decided(client, done.made, options.wait)
    if options.json:
        bindings = {name: one for name, one in views.items() if one is not None}
        output.json({"made": done.made, "revision": done.revision, "bindings": bindings})
        return claim_wait.verdict(done.made, views)
    return claim_wait.told(done.made, views, options.wait)


def _wait(options: argparse.Namespace) -> int:
    with connect(options) as client:
        answer = client.ask(ClaimsRequest(id=""))
        for name in options.name:
            if name not in answer.claims and name not in answer.bindings:
                raise UsageError(f"there is no claim or binding {name!r}", "xce-broker claim list")
        views = claim_wait.decided(client, options.name, options.wait)
    if options.json:
        output.json(views)
        return claim_wait.verdict(options.name, views)
    return claim_wait.told(options.name, views, options.wait)


def _place(text: str) -> tuple[str, list[str]]:
    host, _, ids = text.partition("=")
    return host, [one for one in ids.split(",") if one]


def _picks(client: Client, host: str, ids: Sequence[str]) -> list[Pick]:
    """Instances of a host as its inventories have them now."""
    if not ids:
        return []
    key = f"host:{host}"
    view = client.snapshot([key]).locations.get(key)
    if view is None:
        raise UsageError(f"there is no host {host!r}", "xce-broker hosts")
    bodies = client.inventories({key: list(view.inventories)}).get(key, {})
    found = {one.id: inventory for inventory in bodies.values() for one in inventory.instances}
    for name in ids:
        if name not in found:
            raise UsageError(
                f"host {host} has no instance {name!r}",
                f"xce-broker instances {host}",
            )
    return [Pick(id=name, reporter=found[name].reporter, generation=found[name].generation) for name in ids]


def _release(options: argparse.Namespace) -> int:
    if sum(map(bool, (options.claim, options.gang, options.binding))) != 1:
        raise UsageError("which?", "a claim, --gang or --binding")
    if options.force and (not options.binding or not options.reason):
        raise UsageError("--force needs --binding and --reason", "each binding that is given up is named")
    with connect(options) as client:
        if options.force:
            for name in options.binding:
                done = client.ask(BindingForce(id="", binding=name, reason=options.reason))
        else:
            order = ClaimRelease(
                id="",
                claim=options.claim,
                gang=options.gang,
                bindings=options.binding,
                reason=options.reason,
            )
            done = client.ask(order)
    what = options.claim or options.gang or ", ".join(options.binding)
    return _done(options, [], done.revision, f"{what} {'given up' if options.force else 'is being released'}")


def _delete(options: argparse.Namespace) -> int:
    with connect(options) as client:
        done = client.ask(ClaimDelete(id="", claim=options.claim))
    return _done(options, [], done.revision, f"claim {options.claim} deleted")


def _watch(options: argparse.Namespace) -> int:
    printed = 0
    claims: dict[str, ClaimView] = {}
    bindings: dict[str, BindingView] = {}
    with connect(options) as client:
        watch = client.watch()
        for event in events(watch, options.seconds):
            match event:
                case LinkNews():
                    output.aside(event.text)
                case Changed(delta=delta):
                    for claim, binding, text in claim_rows.changes(delta, claims, bindings):
                        if options.claim not in {"", claim}:
                            continue
                        printed += 1
                        _line(options, delta.revision, claim, binding, text)
                        if printed == options.count:
                            return GOOD
                case Fresh() if event.reason:
                    output.aside(f"changes were missed: {event.reason}")
            if event is not None and watch.mirror is not None:
                claims, bindings = dict(watch.mirror.claims), dict(watch.mirror.bindings)
    return GOOD


def _line(options: argparse.Namespace, revision: int, claim: str, binding: str, text: str) -> None:
    if options.json:
        output.json({"revision": revision, "claim": claim, "binding": binding, "text": text})
    else:
        print(human.printable(f"@{revision} {' '.join(filter(None, (claim, binding)))} {text}"), flush=True)
