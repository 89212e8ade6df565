"""What the local socket says and does about claims: for the worker that starts jobs, and for people.

`claims` all bindings of this node · `claim` one of them, or all of a claim or consumer, with their steps ·
`claim-wait` the same with the consumer's variables, once it is ready, within `seconds` · `claim-add` puts a
process into the consumer's cgroups · `claim-release` takes it back. A worker may say `publish`, `wait`,
`add-process` and `unpublish` for these: `publish` is `claim-wait` for what a binding mounts, too, since all
of it is made true at once. What the thread of claims knows is asked there; nothing here waits.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from xce.agent.control import Operation, Reply
from xce.linux.loop import Timer
from xce.model.claim import ENDED, BindingState
from xce.model.message import BindingRelease

if TYPE_CHECKING:
    from xce.agent.claims import Claims
    from xce.linux.loop import Loop
    from xce.prepare.entry import Entry, Report
    from xce.prepare.execute import Executor

Request = Mapping[str, Any]
WAIT_S, LONGEST_S = 60.0, 86400.0
LOOK_S = 0.05
NONE = "this host takes no claims (claims.enabled in agent.yaml)"


class ClaimOperations:
    """The operations of one agent. `claims` is None where it takes none."""

    def __init__(self, loop: "Loop", claims: "Claims | None") -> None:
        self._loop, self._claims = loop, claims

    def table(self) -> dict[str, Operation]:
        """By the name that a request gives in `op`."""
        wait = Operation(self._wait, changes=True)
        add = Operation(self._add, changes=True)
        release = Operation(self._release, changes=True)
        return {
            "claims": Operation(self._all),
            "claim": Operation(self._one),
            "claim-wait": wait,
            "claim-add": add,
            "claim-release": release,
            "publish": wait,
            "wait": wait,
            "add-process": add,
            "unpublish": release,
        }

    def _all(self, _request: Request, reply: Reply) -> None:
        if self._claims is None:
            reply({"bindings": [], "trouble": NONE})
            return
        self._details("", lambda found: reply({"bindings": found, "trouble": self._fault()}))

    def _one(self, request: Request, reply: Reply) -> None:
        name = str(request.get("name", ""))

        def told(found: list[dict[str, Any]]) -> None:
            unknown = f"there is no binding, claim or consumer {name!r} on this host"
            reply({"bindings": found} if found else {"error": unknown})

        self._details(name, told, reply)

    def _wait(self, request: Request, reply: Reply) -> Callable[[], None]:
        """Answers when all that is meant is ready, or at the end of the time; a gang is ready when the broker
        says so. A binding that fails is not here any more, and may be ordered anew.
        """
        name, seconds = str(request.get("name", "")), _seconds(request.get("seconds", WAIT_S))
        end, timers = self._loop.now() + seconds, list[Timer]()

        def look() -> None:
            timers.clear()
            self._details(name, told, reply, variables=True)

        def told(found: list[dict[str, Any]]) -> None:
            undecided = [one["binding"] for one in found if not one["ready"]]
            if found and not undecided:
                reply({"bindings": found})
            elif self._loop.now() >= end:
                what = f"{', '.join(undecided)} not ready" if found else f"nobody has bound {name!r} here"
                reply({"error": f"{what} within {seconds:g} s"})
            else:
                timers.append(self._loop.call_later(LOOK_S, look))

        look()

        def gone() -> None:
            for timer in timers:
                timer.cancel()

        return gone

    def _add(self, request: Request, reply: Reply) -> None:
        """Put a process into the groups of a consumer whose bindings are ready."""
        name, pid = str(request.get("name", "")), request.get("pid")

        def told(found: list[dict[str, Any]]) -> None:
            if not found or not all(one["ready"] for one in found):
                reply({"error": f"{name!r} is not ready on this host"})
            elif not isinstance(pid, int) or pid <= 1:
                reply({"error": f"cannot add process {pid!r}"})
            else:
                reply(_entered(pid, sorted({group for one in found for group in one["groups"]})))

        self._details(name, told, reply)

    def _release(self, request: Request, reply: Reply) -> None:
        name, claims = str(request.get("name", "")), self._claims
        if claims is None:
            reply({"error": NONE})
            return
        report = claims.holdings.reports.get(name)
        if report is None or report.state in ENDED:
            reply({"error": f"there is no binding {name!r} on this host; xce-agent claim list"})
            return
        claims.ordered(BindingRelease(epoch=claims.newest_epoch, op_id="local", binding=name))
        reply({"releasing": name})

    def _details(
        self,
        name: str,
        told: Callable[[list[dict[str, Any]]], None],
        reply: Reply | None = None,
        *,
        variables: bool = False,
    ) -> None:
        """Ask the thread of all bindings (''), or of those that `name` means."""
        claims = self._claims
        if claims is None or claims.fault:
            if reply is not None:
                reply({"error": self._fault()})
            else:
                told([])
            return
        standing = dict(claims.holdings.standing)
        claims.ask(lambda executor: list(_documents(executor, name, standing, variables=variables)), told)

    def _fault(self) -> str:
        return NONE if self._claims is None else self._claims.fault


def _documents(
    executor: "Executor", name: str, standing: Mapping[str, str], *, variables: bool
) -> Iterator[dict[str, Any]]:
    """In the thread: what is known of bindings."""
    reports = {report.binding: report for report in executor.reports()}
    for entry in executor.entries.values():
        binding = entry.order.binding
        if not name or name in {binding.id, binding.claim, binding.consumer.name}:
            found = _document(entry, reports[binding.id], standing.get(binding.id, ""))
            values = _evidence(entry, "environment").get("variables", {})
            yield found | {"variables": values} if variables else found


def _document(entry: "Entry", report: "Report", standing: str) -> dict[str, Any]:
    from xce.prepare import steps  # noqa: PLC0415 - in the thread, where it is loaded

    binding = entry.order.binding
    ready = report.state is BindingState.READY and not entry.void
    environment = _evidence(entry, "environment")
    return {
        "binding": binding.id,
        "claim": binding.claim,
        "gang": binding.gang,
        "consumer": msgspec.to_builtins(binding.consumer),
        "instances": [one.id for one in binding.instances],
        "state": (BindingState.PREPARING if entry.void else report.state).value,
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
                "evidence": {name: one for name, one in work.evidence.items() if name != "variables"},
            }
            for work in entry.works  # whoever asks may see all but what a job was told
        ],
    }


def _evidence(entry: "Entry", kind: str) -> dict[str, Any]:
    for work in entry.works:
        if work.step.__struct_config__.tag == kind:
            return work.evidence
    return {}


def _entered(pid: int, groups: list[str]) -> dict[str, Any]:
    try:
        for group in groups:
            with open(f"{group}/cgroup.procs", "w", encoding="ascii") as file:
                file.write(str(pid))
    except OSError as error:
        return {"error": f"cannot put process {pid} into {error.filename or groups}: {error.strerror}"}
    return {"added": pid, "groups": groups}


def _seconds(given: Any) -> float:
    return min(max(float(given), 0.0), LONGEST_S) if isinstance(given, int | float) else WAIT_S
