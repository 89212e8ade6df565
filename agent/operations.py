"""What can be asked over the local socket. Each operation is a function of request and reply.

`status` the status document · `watch` it again at every change · `explain` one resource, with what the broker
holds of it · `owners`: who gives which name · `reset` a reporter · `rekey`: connect anew, with the key in its
file now · `inventory` all instances that discovery tells of · `inventory-clear` one of them, with a reason ·
`discovery-release` the vendor's library, until `discovery-resume`. What is about claims is in
`claim_operations.py`.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from xce.agent import claim_operations
from xce.agent.control import Operation, Reply
from xce.linux.loop import Timer
from xce.model.builtin_types import DISCOVERY
from xce.model.message import Failed, Mine
from xce.model.reporter import ReporterState as State
from xce.model.value import Absent, Reading

if TYPE_CHECKING:
    from xce.agent.daemon import Daemon

ASK_S = 3.0
"""How long the broker may take to say what it holds."""
WATCH_S = 1.0
"""Shortest time between two documents of `watch`."""

Request = Mapping[str, Any]


class Operations:
    """The table of operations of one daemon."""

    def __init__(self, daemon: "Daemon") -> None:
        self._daemon = daemon
        self._asked: dict[str, Callable[[Mine | Failed | str], None]] = {}
        self._questions = 0

    def table(self) -> dict[str, Operation]:
        """By the name that a request gives in `op`."""
        return {
            "status": Operation(self._status),
            "watch": Operation(self._watch),
            "explain": Operation(self._explain),
            "owners": Operation(self._owners),
            "reset": Operation(self._reset, changes=True),
            "inventory": Operation(self._inventory),
            "inventory-clear": Operation(self._clear, changes=True),
            "rekey": Operation(self._rekey, changes=True),
            "discovery-release": Operation(self._release, changes=True),
            "discovery-resume": Operation(self._resume, changes=True),
            "csi-volumes": Operation(self._csi_volumes),
            **claim_operations.table(self._daemon.loop, self._daemon.claims, self._daemon.node),
        }

    def deliver(self, answer: Mine | Failed) -> None:
        """The broker has answered a question of ours."""
        if waiting := self._asked.pop(answer.id, None):
            waiting(answer)

    def _status(self, _request: Request, reply: Reply) -> None:
        reply(self._daemon.status())

    def _watch(self, _request: Request, reply: Reply) -> Callable[[], None]:
        """A document now, and one after each change, but not one after another without a pause."""
        loop, daemon = self._daemon.loop, self._daemon
        told = [""]
        timers: list[Timer] = []

        def look() -> None:
            document = daemon.status()
            if (mark := _mark(document)) != told[0]:
                told[0] = mark
                reply(document)
            timers[:] = [loop.call_later(WATCH_S, look)]

        look()
        return lambda: timers[0].cancel()  # noqa: PLW0108 - the timer of then

    def _csi_volumes(self, _request: Request, reply: Reply) -> None:
        if self._daemon.csi is None:
            reply({"volumes": []})
        else:
            self._daemon.csi.documents(lambda found: reply({"volumes": found}))

    def _owners(self, _request: Request, reply: Reply) -> None:
        reply({"owners": self._daemon.node.table.owners()})

    def _reset(self, request: Request, reply: Reply) -> None:
        name = str(request.get("reporter", ""))
        crew = self._daemon.crew
        if crew is not None and crew.reset(name):
            kept, state = "", self._daemon.node.states.get(name)
            if state is not None and state.state in {State.REFUSED, State.ABANDONED}:
                kept = f"is {state.state}: {state.cause}"
            reply({"reset": name, "kept": kept})
        else:
            known = ", ".join(sorted(self._daemon.node.states)) or "none"
            reply({"error": f"cannot reset {name!r}: no such reporter (there are: {known})"})

    def _inventory(self, _request: Request, reply: Reply) -> None:
        held = self._daemon.node.inventory(DISCOVERY)
        crew = self._daemon.crew
        discovery = crew.discovery if crew else None
        complete = bool(held and held.complete)
        reply(
            {
                "generation": held.generation if held else 0,
                "complete": complete,
                "trouble": "" if complete or discovery is None else discovery.unseen(),
                "instances": msgspec.to_builtins(discovery.instances() if discovery else []),
            }
        )

    def _clear(self, request: Request, reply: Reply) -> None:
        id_, why = str(request.get("id", "")), str(request.get("reason", ""))
        crew = self._daemon.crew
        if crew is None or crew.discovery is None:
            reply({"error": "cannot clear: there is no discovery here"})
            return
        try:
            crew.discovery.clear(id_, who="an admin", why=why)
        except ValueError as error:
            reply({"error": str(error)})
            return
        self._daemon.log.notice(f"inventory: {id_!r} cleared: {why!r}")
        reply({"cleared": id_})

    def _rekey(self, _request: Request, reply: Reply) -> None:
        daemon = self._daemon
        reply({"welcomes": daemon.core.welcomes})
        daemon.link.redirect(daemon.settings.broker)

    def _release(self, _request: Request, reply: Reply) -> None:
        crew = self._daemon.crew
        if crew is None or crew.discovery is None:
            reply({"error": "cannot release: there is no discovery here"})
            return
        crew.discovery.release(
            lambda why: reply({"error": f"cannot release: {why}"} if why else {"released": True})
        )

    def _resume(self, _request: Request, reply: Reply) -> None:
        crew = self._daemon.crew
        if crew is not None and crew.discovery is not None:
            crew.discovery.resume()
        reply({"released": False})

    def _explain(self, request: Request, reply: Reply) -> None:
        daemon, name = self._daemon, str(request.get("resource", ""))
        document = explanation(daemon, name)
        if "error" in document:
            reply(document)
            return

        def broker_says(answer: Mine | Failed | str) -> None:
            reply({**document, "broker": _held(answer, name, document)})

        self._ask(broker_says)

    def _ask(self, waiting: Callable[[Mine | Failed | str], None]) -> None:
        """Have the broker say what it holds; `waiting` gets it, or why not, in any case and once."""
        self._questions += 1
        identifier = f"q{self._questions}"
        core = self._daemon.core
        if not core.ask(identifier):
            none = "none is configured (`broker:` in agent.yaml)"
            waiting(core.trouble or ("not linked" if self._daemon.settings.broker else none))
            return
        self._asked[identifier] = waiting

        def too_late() -> None:
            if late := self._asked.pop(identifier, None):
                late(f"the broker did not answer within {ASK_S:g} s")

        self._daemon.loop.call_later(ASK_S, too_late)


def explanation(daemon: "Daemon", name: str) -> dict[str, Any]:
    """Everything that the node knows of one resource."""
    node, now = daemon.node, daemon.loop.now()
    found = node.table.explain(name, now)
    kind = node.types.in_force.get(name.partition("@")[0])
    refusals = daemon.crew.refusals_of(name) if daemon.crew else []
    status = daemon.status()
    if found is None and kind is None and not refusals:
        return {"error": f"cannot explain {name!r}: {_unknown(name, status)}"}
    document: dict[str, Any] = {
        "name": name,
        "type": msgspec.to_builtins(kind) if kind else None,
        "waiting": node.types.waiting.get(name, ""),
        "refused": refusals,
        "held": None,
        "reporter": None,
        "host": status["host"],
    }
    if found is not None:
        held: dict[str, Any] = msgspec.to_builtins(found)
        document["held"] = {**held, **shown(found.reading)}
        document["reporter"] = next(
            (one for one in status["reporters"] if one["name"] == found.reporter), None
        )
    return document


def _unknown(name: str, status: Mapping[str, Any]) -> str:
    """Why nothing is known of what somebody takes for a resource."""
    if any(one["name"] == name for one in status["reporters"]):
        return "it is a reporter, and no resource; `status` tells how it is"
    return "no such resource type, and no reporter has given it"


def shown(reading: Reading) -> dict[str, Any]:
    """A reading as `presence`, `value` and `cause`."""
    if isinstance(reading, Absent):
        return {
            "presence": reading.presence.value,
            "value": None,
            "cause": reading.cause,
            "last": reading.last,
        }
    return {"presence": "value", "value": reading, "cause": "", "last": None}


def _held(answer: Mine | Failed | str, name: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """What the broker holds of a name, and whether and why it differs from what the node has."""
    if isinstance(answer, str):
        return {"known": False, "trouble": answer}
    if isinstance(answer, Failed):
        return {"known": False, "trouble": f"the broker says: {answer.message}"}
    place, ours = answer.location, document["held"]
    reading = place.values.get(name)
    theirs = shown(reading) if reading is not None else None
    differs = ""
    if ours is None and theirs is not None:
        differs = "the node does not give it: it stands in hosts.yaml, or comes from elsewhere"
    elif ours is not None and theirs is None:
        state = place.reporters.get(ours["reporter"])
        refused = place.about.get(f"refused {name}", "")  # of an external reporter
        differs = refused or (state.cause if state else "") or "the broker does not hold it"
    elif ours is not None and theirs is not None and ours["value"] != theirs["value"]:
        state = place.reporters.get(ours["reporter"])
        refused = state.cause if state and name in state.cause else ""
        differs = refused or theirs["cause"] or "a change is on its way"
    return {"known": True, "reading": theirs, "differs": differs, "revision": answer.revision}


def _mark(document: Mapping[str, Any]) -> str:
    """What of a document counts as a change: everything but times that only go on."""
    link = {key: document["link"][key] for key in ("phase", "trouble", "endpoint")}
    reporters = [
        [one[key] for key in ("name", "state", "cause", "runs", "failures", "values", "pid", "refused")]
        for one in document["reporters"]
    ]
    return msgspec.json.encode([link, document["host"], reporters, document["trouble"]]).decode()
