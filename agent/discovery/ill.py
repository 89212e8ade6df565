"""The line that says which instances need a person. Pure."""

from collections.abc import Iterable

from xce.model.instance import Health, Instance, ill

_NAMED = 4


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
