"""What the local socket says and does about claims: for the worker that starts jobs, and for people.

`claims` all bindings of this node · `claim` one of them, or all of a claim or consumer, with their steps ·
`wait` until they are ready · `publish` the same, with all that a job needs to start in them · `add-process`
puts a process into the consumer's cgroups · `unpublish` takes bindings back · `plan` says what would be done
for one that is not there. What the thread of claims knows is asked there; nothing here waits.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from xce.agent import claim_plan
from xce.agent.claim_work import LOCAL
from xce.agent.control import Operation, Reply
from xce.agent.ends import Known
from xce.linux.loop import Timer
from xce.model.claim import BindingState
from xce.model.message import BindingRelease

if TYPE_CHECKING:
    from xce.agent.claims import Claims
    from xce.agent.node import Node
    from xce.linux.loop import Loop
    from xce.prepare.entry import Entry, Report
    from xce.prepare.execute import Executor
    from xce.prepare.journal import Tombstone

Request = Mapping[str, Any]
Documents = list[dict[str, Any]]
WAIT_S, LONGEST_S = 60.0, 86400.0
LOOK_S = 0.05
NONE = "this host takes no claims (claims.enabled in agent.yaml)"
_NEVER_READY = {"undoing", "releasing"}
"""Phases of bindings that were or will be ready no more."""


def table(loop: "Loop", claims: "Claims | None", node: "Node") -> dict[str, Operation]:
    """The operations of one agent, by the name that a request gives in `op`. No `claims`: it takes none."""
    if claims is not None:
        return ClaimOperations(loop, claims, node).table()
    none = Operation(lambda _request, reply: reply({"error": NONE}))
    all_none = Operation(lambda _request, reply: reply({"bindings": [], "trouble": NONE}))
    return dict.fromkeys(("claim", "plan", "wait", "publish", "add-process", "unpublish"), none) | {
        "claims": all_none
    }


class ClaimOperations:
    """The operations of an agent that takes claims."""

    def __init__(self, loop: "Loop", claims: "Claims", node: "Node") -> None:
        self._loop, self._claims, self._node = loop, claims, node

    def table(self) -> dict[str, Operation]:
        """By their names."""
        return {
            "claims": Operation(self._all),
            "claim": Operation(self._one),
            "plan": Operation(self._plan),
            "wait": Operation(self._wait),
            "publish": Operation(self._publish, changes=True),
            "add-process": Operation(self._add, changes=True),
            "unpublish": Operation(self._unpublish, changes=True),
        }

    # ------------------------------------------------------------------------------------------- questions

    def _all(self, _request: Request, reply: Reply) -> None:
        if trouble := self._claims.trouble():
            reply({"bindings": [], "trouble": trouble})
            return
        self._details("", lambda found: reply({"bindings": found, "trouble": ""}), reply)

    def _one(self, request: Request, reply: Reply) -> None:
        name = _name(request)

        def told(found: Documents) -> None:
            reply({"bindings": found} if found else {"error": self._unknown(name)})

        self._details(name, told, reply)

    def _unknown(self, name: str) -> str:
        words = f"there is no binding, claim or consumer {name!r} on this host"
        for one in self._claims.ends.newest(name):
            if one.over:
                return f"{words} any more: {_how(one)}"
            if note := self._waits(one.binding):
                return f"{words} yet: binding {one.binding} has not begun: {note}"
        return words

    def _waits(self, binding: str) -> str:
        """Why a binding that was ordered has not begun; ''."""
        report = self._claims.holdings.reports.get(binding)
        return report.note if report is not None and report.state is BindingState.PENDING else ""

    def _plan(self, request: Request, reply: Reply) -> None:
        if trouble := self._claims.trouble():
            reply({"error": trouble})
            return
        inventories = [self._node.inventory(name) for name in self._node.references()]
        try:
            wanted = claim_plan.wanted(request, [one for one in inventories if one is not None])
        except claim_plan.CannotPlan as error:
            reply({"error": str(error)})
            return
        self._claims.ask(lambda executor: claim_plan.planned(executor, wanted), reply)

    # --------------------------------------------------------------------------------------------- waiting

    def _wait(self, request: Request, reply: Reply) -> Callable[[], None]:
        return self._until_ready(request, lambda found: reply({"bindings": found}), reply)

    def _publish(self, request: Request, reply: Reply) -> Callable[[], None]:
        """Everything that a job needs to start in its claims; with `pid` that process is in them as well."""

        def told(found: Documents) -> None:
            if "pid" in request and "error" in (entered := _entered(request["pid"], found)):
                reply(entered)
            else:
                reply({"bindings": found})

        return self._until_ready(request, told, reply, variables=True)

    def _until_ready(
        self,
        request: Request,
        ready: Callable[[Documents], None],
        reply: Reply,
        *,
        variables: bool = False,
    ) -> Callable[[], None]:
        """Calls `ready` once all that is meant is ready, or says at once that it never will be, or at the end
        of the time that it is not; a gang is ready when the broker says so.
        """
        name, seconds = _name(request), seconds_of(request.get("seconds", WAIT_S))
        seen: set[str] = set()

        def look(found: Documents, time_is_over: bool) -> bool:
            seen.update(one["binding"] for one in found)
            if lost := self._lost(name, seen, found):
                names = [binding for binding, _ in lost]
                reply({"error": "; ".join(words for _, words in lost), "ended": names})
            elif found and all(one["ready"] for one in found):
                ready(found)
            elif time_is_over:
                reply({"error": f"{self._undecided(name, found)} within {seconds:g} s"})
            else:
                return False
            return True

        return self._until(name, seconds, look, reply, variables=variables)

    def _lost(self, name: str, seen: set[str], found: Documents) -> list[tuple[str, str]]:
        """Bindings that will not be ready, and why: those that end or have ended while somebody waited, and
        those that had failed when he came. What had been released then may be ordered anew.
        """
        lost = [
            (one["binding"], f"binding {one['binding']} will not be ready: {_undoing(one)}")
            for one in found
            if one["phase"] in _NEVER_READY
        ]
        here = {one["binding"] for one in found}
        for one in self._claims.ends.newest(name):
            meant = name in {one.binding, one.consumer} or not found
            if one.binding not in here and one.over and ((one.failed and meant) or one.binding in seen):
                lost.append((one.binding, _how(one)))
        return lost

    def _undecided(self, name: str, found: Documents) -> str:
        names = [one["binding"] for one in found if not one["ready"]]
        if names:
            return f"{', '.join(names)} not ready"
        for one in self._claims.ends.newest(name):
            if note := self._waits(one.binding):
                return f"{one.binding} not ready ({note})"
        return f"nobody has bound {name!r} here"

    def _until(
        self,
        name: str,
        seconds: float,
        look: Callable[[Documents, bool], bool],
        reply: Reply,
        *,
        variables: bool = False,
    ) -> Callable[[], None]:
        """Show `look` all that `name` means, again and again until it is content; true: the time is over.
        Gives what ends it.
        """
        end, timers, seen = self._loop.now() + seconds, list[Timer](), -1

        def again() -> None:
            nonlocal seen
            timers.clear()
            changes = self._claims.holdings.changes
            if changes == seen and self._loop.now() < end:  # the thread has other work
                timers.append(self._loop.call_later(LOOK_S, again))
                return
            seen = changes
            self._details(name, told, reply, variables=variables)

        def told(found: Documents) -> None:
            if not look(found, self._loop.now() >= end):
                timers.append(self._loop.call_later(LOOK_S, again))

        def gone() -> None:
            for timer in timers:
                timer.cancel()

        again()
        return gone

    # ---------------------------------------------------------------------------------------------- orders

    def _add(self, request: Request, reply: Reply) -> None:
        """Put a process into the groups of a consumer whose bindings are ready."""
        name = _name(request)

        def told(found: Documents) -> None:
            if not found or not all(one["ready"] for one in found):
                reply({"error": f"{name!r} is not ready on this host"})
            else:
                reply(_entered(request.get("pid"), found))

        self._details(name, told, reply)

    def _unpublish(self, request: Request, reply: Reply) -> Callable[[], None]:
        """Take a binding back, or all of a consumer; says so when nothing of them is left, or at the end of
        the time what is in the way. A claim may be other consumers' too, and is not meant.
        """
        name, seconds = _name(request), seconds_of(request.get("seconds", 0))
        meant: list[str] | None = None

        def look(found: Documents, time_is_over: bool) -> bool:
            nonlocal meant
            first = meant is None
            if meant is None:
                meant = [one["binding"] for one in found if name in {one["binding"], one["consumer"]["name"]}]
                if not meant and not self._has_ended(name):
                    reply({"error": f"there is no binding or consumer {name!r} on this host"})
                    return True
            left = {one["binding"]: one["note"] for one in found if one["binding"] in meant}
            begun = {one["binding"] for one in found if one["phase"] == "releasing"}
            self._release([one for one in left if one not in begun])  # again, if it could not be recorded
            if not left:
                reply({"released": meant})
            elif time_is_over and not (first and left.keys() - begun):
                reply(self._left(left, begun, seconds))
            else:
                return False
            return True

        return self._until(name, seconds, look, reply)

    def _left(self, left: dict[str, str], begun: set[str], seconds: float) -> dict[str, Any]:
        """Of bindings that are not released yet; no error where it has begun, and nobody has waited."""
        if not seconds and left.keys() <= begun:
            return {"releasing": list(left)}
        words = f"{', '.join(left)} not released within {seconds:g} s"
        unrecorded = self._claims.seen.unrecorded if left.keys() - begun else ""
        why = "; ".join(dict.fromkeys(filter(None, [*left.values(), unrecorded])))
        return {"error": f"{words}: {why}" if why else words, "releasing": sorted(begun)}

    def _release(self, bindings: list[str]) -> None:
        epoch = self._claims.holdings.epoch
        for name in bindings:
            self._claims.ordered(BindingRelease(epoch=epoch, op_id=LOCAL, binding=name))

    def _has_ended(self, name: str) -> bool:
        known = self._claims.ends.newest(name)
        return any(one.over and name in {one.binding, one.consumer} for one in known)

    # --------------------------------------------------------------------------------------------- details

    def _details(
        self, name: str, told: Callable[[Documents], None], reply: Reply, *, variables: bool = False
    ) -> None:
        """Ask the thread of all bindings (''), or of those that `name` means."""
        claims = self._claims
        if trouble := claims.trouble():
            reply({"error": trouble})
            return
        standing = dict(claims.holdings.standing)
        said = {name: report.note for name, report in claims.holdings.reports.items() if report.note}

        def question(executor: "Executor") -> tuple[Documents, "Tombstone | None"]:
            found = list(_documents(executor, name, standing, variables=variables))
            for one in found:  # an order that could not be recorded is known to the loop alone
                one["note"] = one["note"] or said.get(one["binding"], "")
            return found, executor.journal.tombstone(name) if name and not found else None

        def answer(given: tuple[Documents, "Tombstone | None"]) -> None:
            found, stone = given
            if stone is not None:
                claims.ends.found(name, stone.state, stone.reason)
            told(found)

        claims.ask(question, answer)


def _documents(
    executor: "Executor", name: str, standing: Mapping[str, str], *, variables: bool
) -> Iterator[dict[str, Any]]:
    """In the thread: what is known of bindings."""
    meant = [entry for entry in executor.entries.values() if not name or name in _names(entry)]
    for entry, report in zip(meant, executor.reports(meant), strict=True):
        found = _document(entry, report, standing.get(entry.id, ""))
        values = _evidence(entry, "environment").get("variables", {})
        yield found | {"variables": values} if variables else found


def _names(entry: "Entry") -> set[str]:
    binding = entry.order.binding
    return {binding.id, binding.claim, binding.consumer.name}


def _document(entry: "Entry", report: "Report", standing: str) -> dict[str, Any]:
    from xce.prepare import steps  # noqa: PLC0415 - in the thread, where it is loaded

    binding = entry.order.binding
    ready = report.state is BindingState.READY
    environment = _evidence(entry, "environment")
    return {
        "binding": binding.id,
        "claim": binding.claim,
        "gang": binding.gang,
        "consumer": msgspec.to_builtins(binding.consumer),
        "instances": [one.id for one in binding.instances],
        "state": report.state.value,
        "standing": standing,
        "ready": ready and (not binding.gang or standing == BindingState.READY),
        "phase": entry.phase.value,
        "reason": report.reason,
        "conditions": [one.value for one in report.conditions],
        "note": report.note,
        "evidence": report.evidence,
        "ports": report.ports,
        "groups": _evidence(entry, "group").get("groups", []),
        "files": sorted(environment.get("files", {})),
        "cdi": environment.get("device", ""),
        "steps": [
            {
                "what": steps.describe(work.step),
                "state": str(work.state),
                "evidence": {name: one for name, one in work.evidence.items() if name != "variables"}
                | _used(entry, number),
            }
            for number, work in enumerate(entry.works)  # whoever asks may see all but what a job was told
        ],
    }


def _used(entry: "Entry", number: int) -> dict[str, Any]:
    """How much of a scratch directory is, where that is looked at."""
    from xce.prepare.scratch import Progress  # noqa: PLC0415 - as above

    held = entry.progress.get(number, {}).get(Progress)
    return {"used": held.used} if held is not None and held.used is not None else {}


def _evidence(entry: "Entry", kind: str) -> dict[str, Any]:
    for work in entry.works:
        if work.step.__struct_config__.tag == kind:
            return work.evidence
    return {}


def _entered(pid: object, found: Documents) -> dict[str, Any]:
    """Put a process into the groups of bindings that are ready."""
    if not isinstance(pid, int) or pid <= 1:
        return {"error": f"cannot add process {pid!r}"}
    groups = sorted({group for one in found for group in one["groups"]})
    try:
        for group in groups:
            with open(f"{group}/cgroup.procs", "w", encoding="ascii") as file:
                file.write(str(pid))
    except OSError as error:
        return {"error": f"cannot put process {pid} into {error.filename or groups}: {error.strerror}"}
    return {"added": pid, "groups": groups}


def _how(one: Known) -> str:
    """How a binding has ended."""
    return f"binding {one.binding} {one.state.value}" + (f": {one.reason}" if one.reason else "")


def _undoing(one: dict[str, Any]) -> str:
    if one["phase"] == "releasing":
        return "it is being released"
    return f"it failed: {one['reason']}"


def _name(request: Request) -> str:
    return str(request.get("name", ""))


def seconds_of(given: Any) -> float:
    """How long somebody wants to wait. JSON as Python reads it has NaN, and numbers that no float holds."""
    if not isinstance(given, int | float):
        return WAIT_S
    if given <= 0:
        return 0.0
    return float(given) if given < LONGEST_S else LONGEST_S
