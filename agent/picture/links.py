"""NVLink and xGMI as a ring of GPUs: lines as thick as their number, or spokes to a switch. Pure."""

import math
from collections import Counter
from collections.abc import Sequence

from xce.agent.picture.boxes import Box, element, group, rect, text
from xce.agent.picture.plan import Device, Plan
from xce.agent.picture.tiles import looks

LABELS = 12
"""Lines up to which each gets its number."""
_TAG, _HIGH = 46, 20


def rings(plan: Plan) -> list[Box]:
    """One ring for each link domain, in the order of its first GPU."""
    domains: dict[str, list[Device]] = {}
    for device in plan.compute:
        if device.peers or device.number("nvlink_switches"):
            domains.setdefault(device.text("link_domain") or device.id, []).append(device)
    return [_ring(members) for members in domains.values() if len(members) > 1]


def _ring(members: Sequence[Device]) -> Box:
    radius = max(84.0, len(members) * 13.5)
    width, height = 2 * radius + _TAG + 24, 2 * radius + _HIGH + 58
    hub = any(device.number("nvlink_switches") for device in members)
    kind = "xgmi" if members[0].text("link_kind") == "xgmi" else "nvlink"

    def draw(x: float, y: float) -> list[str]:
        cx, cy = x + width / 2, y + 44 + radius + _HIGH / 2
        places = {}
        for at, device in enumerate(members):
            angle = 2 * math.pi * at / len(members) - math.pi / 2
            places[device.id] = (cx + radius * math.cos(angle), cy + radius * math.sin(angle))
        lines = _spokes(places, cx, cy) if hub else _chords(members, places, kind)
        drawn = [text(cx, y + 16, caption(members), "ring", text_anchor="middle"), *lines]
        if hub:
            switches = members[0].number("nvlink_switches")
            words = f"{switches} NVSwitches" if switches and switches > 1 else "NVSwitch"
            drawn += [
                rect(cx - 52, cy - 17, 104, 34, "hub", radius=9),
                text(cx, cy + 4.5, words, "hubname", text_anchor="middle"),
            ]
        for device in members:
            px, py = places[device.id]
            drawn += group(
                device.id,
                [
                    rect(
                        px - _TAG / 2,
                        py - _HIGH / 2,
                        _TAG,
                        _HIGH,
                        f"tag o-{looks(device)}",
                        radius=6,
                    ),
                    text(px, py + 4, device.name, "tagname", text_anchor="middle"),
                ],
            )
        return drawn

    return Box(width, height, draw)


def caption(members: Sequence[Device]) -> str:
    """`8 GPUs, each pair NV18 (NVLink 4)`."""
    counts = Counter(count for device in members for count in device.peers.values())
    xgmi = members[0].text("link_kind") == "xgmi"
    version = members[0].text("nvlink_version")
    name = "xGMI" if xgmi else f"NVLink {version}".strip()
    all_pairs = all(len(device.peers) == len(members) - 1 for device in members)
    if len(counts) == 1 and all_pairs:
        number = next(iter(counts))
        each = f", each pair NV{number}" if number and not xgmi else ", all to all"
    else:
        each = ""
    return f"{name}: {len(members)} GPUs{each}"


def _spokes(places: dict[str, tuple[float, float]], cx: float, cy: float) -> list[str]:
    return [
        element("line", x1=px, y1=py, x2=cx, y2=cy, class_="link nvlink", stroke_width=3.0)
        for px, py in places.values()
    ]


def _chords(members: Sequence[Device], places: dict[str, tuple[float, float]], kind: str) -> list[str]:
    pairs = [
        (a, b, a.peers[b.id])
        for at, a in enumerate(members)
        for b in members[at + 1 :]
        if b.id in a.peers and b.id in places
    ]
    lines, labels = [], []
    most = max((count for _, _, count in pairs), default=1) or 1
    uneven = len({count for _, _, count in pairs}) > 1 or len(pairs) <= LABELS
    for a, b, count in pairs:
        (ax, ay), (bx, by) = places[a.id], places[b.id]
        wide = 1.6 if not count or len(pairs) > 2 * LABELS else 1.5 + 3.5 * count / most
        lines.append(element("line", x1=ax, y1=ay, x2=bx, y2=by, class_=f"link {kind}", stroke_width=wide))
        if count and uneven and len(pairs) <= LABELS:
            labels.append(text((ax + bx) / 2, (ay + by) / 2 - 4, f"NV{count}", "count", text_anchor="middle"))
    return [*lines, *labels]
