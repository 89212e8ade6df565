"""What would be done for a claim on this host: the plan of a binding that is not there. Nothing is done.

`wanted` reads what somebody asks for and finds the instances in the node's inventories; `planned` makes the
plan with the settings of the running agent, in the thread that knows what other bindings have.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from xce.model.claim import Binding, Chosen, Claim, Consumer
from xce.model.claim_check import claim_problem, consumer_problem
from xce.model.instance import Instance, Inventory

if TYPE_CHECKING:
    from xce.prepare.execute import Executor

NAME = "dry-run"
"""Of the binding that is not there, and of its consumer if nobody named one."""


class CannotPlan(Exception):
    """What is asked for is no binding, in words."""


class Wanted(msgspec.Struct, frozen=True):
    """A binding that is not there."""

    binding: Binding
    claim: Claim
    instances: dict[str, Instance]


def wanted(request: Mapping[str, Any], inventories: Sequence[Inventory]) -> Wanted:
    """What a request asks for: `claim`, `consumer` and `instances` (ids). Raises `CannotPlan`."""
    try:
        claim = msgspec.convert(request.get("claim"), Claim)
        consumer = msgspec.convert(request.get("consumer", {"name": NAME}), Consumer)
        ids = msgspec.convert(request.get("instances", []), list[str])
    except msgspec.ValidationError as error:
        raise CannotPlan(f"cannot plan: {error}") from error
    if problem := claim_problem(claim):
        raise CannotPlan(f"cannot plan claim {claim.id!r}: {problem}")
    if problem := consumer_problem(consumer):
        raise CannotPlan(f"cannot plan: consumer.{problem}")
    instances = {one.id: one for inventory in inventories for one in inventory.instances}
    chosen = [_chosen(name, inventories, instances) for name in ids]
    if problem := _amiss(claim, chosen):
        raise CannotPlan(f"cannot plan claim {claim.id!r}: {problem}")
    binding = Binding(id=NAME, claim=claim.id, host="", consumer=consumer, instances=chosen)
    return Wanted(binding, claim, instances)


def _chosen(name: str, inventories: Sequence[Inventory], instances: Mapping[str, Instance]) -> Chosen:
    for inventory in inventories:
        for one in inventory.instances:
            if one.id == name:
                return Chosen(
                    id=name,
                    reporter=inventory.reporter,
                    generation=inventory.generation,
                    kind=one.kind,
                    parents=list(_parents(one, instances)),
                )
    raise CannotPlan(f"cannot plan: this host has no instance {name!r}; xce-agent inventory")


def _parents(one: Instance, instances: Mapping[str, Instance]) -> Iterator[str]:
    seen = {one.id}
    while one.parent and one.parent not in seen:
        yield one.parent
        seen.add(one.parent)
        if one.parent not in instances:
            return
        one = instances[one.parent]


def _amiss(claim: Claim, chosen: Sequence[Chosen]) -> str:
    """Why these are not the instances that a claim asks for; ''."""
    asked = Counter[str]()
    for ask in claim.ask.instances:
        asked[ask.kind] += len(ask.ids) or ask.count
    given = Counter(one.kind for one in chosen)
    if asked == given:
        return ""
    words = ", ".join(f"{count} {kind}" for kind, count in sorted(asked.items())) or "none"
    return f"it asks for {words}; choose as many with --instances"


def planned(executor: "Executor", asked: Wanted) -> dict[str, Any]:
    """The steps in words, and what stands against them now; in the thread of claims."""
    from xce.prepare import steps  # noqa: PLC0415 - only where claims are served
    from xce.prepare.plan import PlanRefused, plan  # noqa: PLC0415

    try:
        found = plan(asked.binding, asked.claim, asked.instances, executor.node.settings)
    except PlanRefused as refused:
        return {"error": f"cannot prepare claim {asked.claim.id!r} here: {refused}"}
    against = list(_against(executor, asked))
    try:
        executor.admit(found, asked.binding.id)
    except PlanRefused as refused:
        against.append(str(refused))
    return {"steps": [steps.describe(step) for step in found], "against": against}


def _against(executor: "Executor", asked: Wanted) -> Iterator[str]:
    if executor.recovering:
        yield f"this node is recovering: {executor.recovering}"
    for chosen, entry in executor.holders(asked.binding.instances):
        yield f"instance {chosen.id} is held by binding {entry.id}"
