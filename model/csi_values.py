"""What a node tells of CSI plugins and their volumes as values: names and types. Pure.

`csi.PLUGIN.…` are attributes and counters of the host, `csi.volume.VOLUME.…` what a plugin says of a volume
that is in use there. PLUGIN and VOLUME are the names that agent.yaml uses, as letters, digits and `_`.
"""

import hashlib
import re

from xce.model.resource import Kind, Layer, Order, ResourceType

FEED = "csi:"
"""Before the plugin's name, in the name of its feed; a volume's has `/` and its name behind that."""
_ELEMENT = 24


def element(name: str) -> str:
    """A name as a part of a resource's; long ones are cut, with a hash of what they were."""
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
    if len(plain) <= _ELEMENT:
        return plain
    return f"{plain[: _ELEMENT - 7]}_{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def plugin_types(plugin: str) -> dict[str, ResourceType]:
    """What is told of a plugin on this host, by the last part of its name."""
    place, about = f"csi.{element(plugin)}", f"CSI plugin {plugin[:63]}"
    node, topology = f"what {about} calls this node", f"where this node is, as {about} says: KEY=VALUE"
    return _by_part(
        ResourceType(name=f"{place}.node", kind=Kind.STRING, description=node),
        ResourceType(name=f"{place}.topology", kind=Kind.STRING_SET, description=topology),
        _counter(f"{place}.volumes", f"volumes of {about} that are in use on this node"),
        _counter(f"{place}.volumes_max", f"volumes that {about} takes on this node"),
        ResourceType(
            name=f"{place}.volumes_free",
            kind=Kind.NUMERIC,
            order=Order.DECREASING,
            layer=Layer.COUNTER,
            consumable=True,
            minimum=0,
            description=f"volumes of {about} that this node can use beside those in use",
        ),
    )


def volume_types(volume: str) -> dict[str, ResourceType]:
    """What is told of a volume in use, by the last part of its name."""
    place, about = f"csi.volume.{element(volume)}", f"of volume {volume[:63]}, as its CSI plugin says"
    condition = f"{about.removeprefix('of ')}: its condition is not normal; it decides nothing"
    return _by_part(
        *(
            ResourceType(
                name=f"{place}.{unit}_{what}",
                kind=Kind.NUMERIC,
                unit=unit,
                minimum=0,
                description=f"{unit} {what} {about}",
            )
            for unit in ("bytes", "inodes")
            for what in ("total", "used", "available")
        ),
        ResourceType(name=f"{place}.abnormal", kind=Kind.BOOLEAN, description=condition),
    )


def _counter(name: str, description: str) -> ResourceType:
    return ResourceType(name=name, kind=Kind.NUMERIC, layer=Layer.COUNTER, minimum=0, description=description)


def _by_part(*kinds: ResourceType) -> dict[str, ResourceType]:
    return {kind.name.rpartition(".")[2]: kind for kind in kinds}
