"""What a device looks like: a tile with its name, what it is, its health, its parts, its rail. Pure."""

from xce.agent.picture import tree
from xce.agent.picture.boxes import BOLD, Box, element, fit, group, length, rect, text
from xce.agent.picture.plan import Device
from xce.model.instance import Health, Instance

WIDTH, HEIGHT = 166, 62
CELLS, CELL = 8, 14
"""Partitions in a row, and how large one is."""
RAILS = 16
"""Colours of rails; then they begin anew."""
FABRICS = {
    "infiniband": "InfiniBand",
    "roce": "RoCE",
    "omnipath": "Omni-Path",
    "efa": "EFA",
    "iwarp": "iWARP",
}
_STRIP = 4
_MARKS = {
    Health.AVAILABLE: "✓",
    Health.UNAVAILABLE: "-",
    Health.LOST: "x",
    Health.QUARANTINED: "!",
    Health.UNKNOWN: "?",
}


def tile(device: Device) -> Box:
    """A GPU, an accelerator or a NIC."""
    kind = device.kind
    parts = _parts(device)
    height = HEIGHT + (parts.height + 8 if parts else 0)
    look = looks(device)

    def draw(x: float, y: float) -> list[str]:
        drawn = [
            rect(x, y, WIDTH, height, f"tile {kind}", radius=7),
            element(
                "rect",
                x=x,
                y=y + 8,
                width=_STRIP,
                height=height - 16,
                rx=2,
                class_=f"h-{look}",
            ),
            text(x + 13, y + 20, fit(device.name, 13 * BOLD, WIDTH - 42), "name"),
            *mark(look, x + WIDTH - 15, y + 15),
            text(x + 13, y + 35, fit(_what(device), 11, WIDTH - 24), "what"),
            *_foot(device, x, y + HEIGHT - 10),
            *(parts.draw(x + 13, y + HEIGHT) if parts else []),
        ]
        return group(tooltip(device), drawn)

    return Box(WIDTH, height, draw)


def looks(device: Device) -> Health:
    """The health that is shown: of a GPU that is offered in parts and not ill, that of the worst part."""
    if device.parts and not device.instance.evidence:
        return max((part.health for part in device.parts), key=list(Health).index)
    return device.instance.health


def mark(health: Health, x: float, y: float) -> list[str]:
    """A dot with a sign in it, so that nobody needs the colour."""
    return [
        element("circle", cx=x, cy=y, r=6.5, class_=f"h-{health}"),
        text(x, y + 3.4, _MARKS[health], "sign", text_anchor="middle"),
    ]


def chip(x: float, y: float, words: str, style: str) -> list[str]:
    """A small label whose right end is at x and whose middle is at y."""
    width = length(words, 9.5) * BOLD + 12
    return [
        element("rect", x=x - width, y=y - 7, width=width, height=14, rx=7, class_=style),
        text(x - width / 2, y + 3.3, words, "chip", text_anchor="middle"),
    ]


def tooltip(device: Device) -> str:
    """Everything worth knowing, in lines."""
    instance = device.instance
    lines = [
        " ".join(word for word in (device.name, device.text("product")) if word),
        device.id,
        f"{instance.health}: {instance.reason}" if instance.reason else str(instance.health),
        instance.evidence,
        f"NUMA node {device.text('numa') or 'unknown'}",
        " > ".join((device.text("pci_root"), *device.texts("bridges"), device.text("pci"))).strip(" >"),
        *instance.notes,
    ]
    return "\n".join(line for line in lines if line)


def _what(device: Device) -> str:
    if device.kind == "nic":
        fabric = device.text("fabric_kind")
        words = (tree.product(device), FABRICS.get(fabric, fabric.capitalize()))
        return " · ".join(word for word in words if word and word != "Unknown")
    memory = device.number("memory_mib")
    product = tree.product(device)
    size = f"{round(memory / 1024)} GB" if memory and "GB" not in product else ""
    return " · ".join(word for word in (product, size) if word)


def _foot(device: Device, x: float, y: float) -> list[str]:
    """Why it is not available, or its rate or address; and its rail."""
    rails = device.texts("rails")
    drawn, room = [], WIDTH - 22.0
    if rails:
        words = "rail " + ",".join(rails[:3])
        drawn += chip(
            x + WIDTH - 8, y - 3.5, words, f"rail-{int(rails[0]) % RAILS if rails[0].isdecimal() else 0}"
        )
        room -= length(words, 9.5) * BOLD + 18
    instance = device.instance
    if looks(device) is Health.AVAILABLE and device.parts:
        return [*drawn, text(x + 13, y, fit(_offered(device), 10, room), "foot")]
    if instance.health is not Health.AVAILABLE and instance.reason:
        return [*drawn, text(x + 13, y, fit(instance.reason, 10, room), f"foot t-{looks(device)}")]
    rate = f"{device.text('gbps')} Gb/s" if device.text("gbps") else ""
    return [*drawn, text(x + 13, y, fit(rate or device.text("pci"), 10, room), "foot")]


def _offered(device: Device) -> str:
    kind = "MIG slices" if device.parts[0].kind == "mig" else "partitions"
    return f"{len(device.parts)} {kind}"


def _parts(device: Device) -> Box | None:
    if not device.parts:
        return None
    if all(part.kind == "mig" for part in device.parts):
        return _slices(device)
    return _cells(device.parts)


def _cells(parts: tuple[Instance, ...]) -> Box:
    """Equal partitions, eight in a row."""
    gap = (WIDTH - 26 - CELLS * CELL) / (CELLS - 1)
    rows = -(-len(parts) // CELLS)

    def draw(x: float, y: float) -> list[str]:
        drawn = []
        for at, part in enumerate(parts):
            left, top = x + at % CELLS * (CELL + gap), y + at // CELLS * (CELL + 3)
            drawn += group(_part(part), [rect(left, top, CELL, CELL, f"cell h-{part.health}", radius=3)])
        return drawn

    return Box(WIDTH - 26, rows * (CELL + 3) - 3, draw)


def _slices(device: Device) -> Box:
    """MIG slices where they are: one line for each that would lie over another."""
    whole = max(1, sum(name.startswith("memory-slice-") for name in device.instance.capacity))
    width = WIDTH - 26
    lanes: list[int] = []
    placed = []
    for part in sorted(device.parts, key=_start):
        start, size = _placement(part, whole)
        lane = next((at for at, end in enumerate(lanes) if end <= start), len(lanes))
        lanes[lane : lane + 1] = [start + size]
        placed.append((part, start, size, lane))

    def draw(x: float, y: float) -> list[str]:
        drawn = [rect(x, y + lane * 20, width, 17, "free", radius=4) for lane in range(len(lanes))]
        for part, start, size, lane in placed:
            left, long = x + start * width / whole, size * width / whole - 2
            profile = str(part.attributes.get("profile", ""))
            label = profile if length(profile, 9.5) * BOLD <= long - 2 else profile.partition(".")[0]
            drawn += group(
                _part(part),
                [
                    rect(left, y + lane * 20, long, 17, f"cell h-{part.health}", radius=4),
                    text(left + long / 2, y + lane * 20 + 12, label, "slice", text_anchor="middle"),
                ],
            )
        return drawn

    return Box(width, len(lanes) * 20 - 3, draw)


def _placement(part: Instance, whole: int) -> tuple[int, int]:
    """First slice and how many; all of them if it is not known."""
    start, _, size = str(part.attributes.get("placement", "")).partition(":")
    return (int(start), int(size)) if start.isdecimal() and size.isdecimal() else (0, whole)


def _start(part: Instance) -> int:
    return _placement(part, 0)[0]


def _part(part: Instance) -> str:
    state = f"{part.health}: {part.reason}" if part.reason else str(part.health)
    return f"{part.attributes.get('profile', part.kind)}\n{part.id}\n{state}"
