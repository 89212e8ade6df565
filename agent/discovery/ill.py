"""Which instances need a person, and the line that says so. Pure."""

from collections.abc import Iterable

from xce.model.instance import Health, Instance

PORTS = frozenset({"nic", "nic-port", "rdma", "bond"})
"""A port that is down or unknown is no trouble of the node."""
_NAMED = 4


def ill(instance: Instance) -> bool:
    """Whether it needs a person: not what is only laid out so, and no port without a cable."""
    if instance.health in (Health.LOST, Health.QUARANTINED):
        return True
    if instance.kind in PORTS or instance.health is Health.AVAILABLE:
        return False
    return instance.health is Health.UNKNOWN or bool(instance.evidence)


def told(instances: Iterable[Instance]) -> str:
    """Those that are ill, without their parts; '' if none is. An unknown one is no fault of its own: why a
    source says nothing is told by the source.
    """
    found = [one for one in instances if ill(one) and one.health is not Health.UNKNOWN]
    ids = {one.id for one in found}
    wholes = [one for one in found if one.parent not in ids]
    if not wholes:
        return ""
    names = ", ".join(f"{one.id} is {one.health} ({one.reason})" for one in wholes[:_NAMED])
    more = f" and {len(wholes) - _NAMED} more" if len(wholes) > _NAMED else ""
    return f"{names}{more}; what ends it: xce-agent inventory {wholes[0].id}"
