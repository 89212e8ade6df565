"""The picture: one SVG without scripts or foreign fonts, light and dark, readable aloud. Pure."""

from collections import Counter
from html import escape

from xce.agent.picture import tree
from xce.agent.picture.boxes import (
    BOLD,
    Box,
    column,
    element,
    fit,
    flow,
    frame,
    length,
    rect,
    row,
    text,
    wide,
)
from xce.agent.picture.links import rings
from xce.agent.picture.plan import Branch, Device, Plan
from xce.agent.picture.style import STYLE
from xce.agent.picture.tiles import RAILS, WIDTH, looks, mark, tile
from xce.model.instance import Health

MARGIN = 32
PAGE = 1520
"""As wide as it gets."""
LEAST = 720


def svg(plan: Plan, title: str) -> str:
    """The document. `title` names the machine."""
    body = column([_main(plan), wide(_legend(plan), LEAST)], 24)
    width, top = max(body.width, LEAST) + 2 * MARGIN, 96
    height = body.height + top + MARGIN
    said = summary(plan)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
            f'viewBox="0 0 {width:g} {height:g}" role="img" aria-labelledby="title desc">',
            f'<title id="title">{escape(title)}: topology</title>',
            f'<desc id="desc">{escape(description(plan))}</desc>',
            f"<style>{STYLE}</style>",
            element("rect", width="100%", height="100%", class_="page"),
            text(MARGIN, 48, fit(title, 24, width - 2 * MARGIN), "title"),
            text(MARGIN, 72, fit(said, 13, width - 2 * MARGIN), "subtitle"),
            *body.draw(MARGIN, top),
            "</svg>\n",
        ]
    )


def summary(plan: Plan) -> str:
    """What there is, in one line."""
    counts = (
        Counter(tree.product(device) or device.kind for device in plan.compute),
        Counter(tree.product(device) or "NIC" for device in plan.nics),
    )
    words = [f"{number} x {name}" for count in counts for name, number in count.most_common(4)]
    parts = Counter(part.kind for device in plan.devices for part in device.parts)
    words += [f"{number} {'MIG slices' if kind == 'mig' else 'partitions'}" for kind, number in parts.items()]
    known = [numa for numa in plan.numas if "unknown" not in numa.names[0]]
    words += [f"{len(known)} NUMA node{'s' * (len(known) > 1)}"] if known else []
    fabrics = {device.text("fabric") for device in plan.compute} - {""}
    words += [f"NVLink domain {fabric}, beyond this host" for fabric in sorted(fabrics)]
    return " · ".join(words) or "no GPU, accelerator or NIC was found"


def description(plan: Plan) -> str:
    """The picture in sentences."""
    said = [f"{summary(plan)}."]
    for numa in plan.numas:
        names = [device.name for device in numa.all()]
        said.append(f"{numa.names[0]}: {', '.join(names)}.")
        said += [
            f"{', '.join(one.name for one in branch.all())} share {branch.names[-1]}."
            for branch in _switches(numa)
        ]
    ill = [device for device in plan.devices if device.instance.health is not Health.AVAILABLE]
    said += [f"{device.name} is {device.instance.health}: {device.instance.reason}." for device in ill[:40]]
    return " ".join(said)


def _switches(branch: Branch) -> list[Branch]:
    return [one for below in branch.branches for one in [below, *_switches(below)]]


def _main(plan: Plan) -> Box:
    """Panels, and the links beside them where there is room, else below."""
    links = _links(plan)
    if not links.height:
        return _panels(plan, PAGE)
    beside = _panels(plan, PAGE - links.width - 20)
    if beside.width + 20 + links.width <= PAGE and beside.height < 4 * links.height:
        return row([beside, links], 20)
    return column([_panels(plan, PAGE), links], 20)


def _panels(plan: Plan, width: float) -> Box:
    many = len(plan.numas)
    across = 1 if many == 1 else 2 if many <= 4 else 4
    limit = (width - (across - 1) * 20) / across - 36
    return flow([_panel(numa, max(limit, WIDTH + 24)) for numa in plan.numas], width, 20)


def _panel(numa: Branch, limit: float) -> Box:
    cpus = f"CPUs {numa.names[1]}" if len(numa.names) > 1 else ""

    def heading(x: float, y: float, width: float) -> list[str]:
        first = text(x, y + 28, numa.names[0], "panelname")
        left = length(numa.names[0], 15) * BOLD + 12
        room = width - left
        return [first, text(x + left, y + 28, fit(cpus, 11, room), "muted")] if room > 60 else [first]

    return frame(wide(_inside(numa, limit), 150), "panel", heading, top=44, pad=18)


def _inside(branch: Branch, limit: float) -> Box:
    """GPUs, then NICs, then what has a frame of its own."""
    framed = [_framed(child, limit - 24) for child in branch.branches]
    compute = [tile(device) for device in branch.devices if device.kind != "nic"]
    nics = [tile(device) for device in branch.devices if device.kind == "nic"]
    if framed and not compute and len(nics) <= 2:  # a NIC alone beside switches
        return flow([*framed, *nics], limit)
    rows = [flow(boxes, limit) for boxes in (compute, framed, nics) if boxes]
    return column(rows or [Box(WIDTH, 1, lambda _x, _y: [])])


def _framed(branch: Branch, limit: float) -> Box:
    names = branch.names
    words = {"root": "host bridge ", "bridge": "switch ", "group": ""}[branch.kind] + names[-1]
    if branch.kind == "root" and len(names) > 1:
        words = f"switch {names[-1]} · {names[0]}"

    def heading(x: float, y: float, width: float) -> list[str]:
        return [text(x, y + 17, fit(words, 10.5, width), "muted")]

    switch = branch.kind != "root" or len(names) > 1
    return frame(_inside(branch, limit), "switch" if switch else "root", heading, top=26, pad=10)


def _links(plan: Plan) -> Box:
    found = rings(plan)
    if not found:
        return Box(0, 0, lambda _x, _y: [])

    def heading(x: float, y: float, _width: float) -> list[str]:
        return [text(x, y + 28, "Links between GPUs", "panelname")]

    return frame(flow(found, PAGE / 2, 24), "panel", heading, top=44, pad=18)


def _legend(plan: Plan) -> Box:
    """What the colours mean: of what is in the picture."""
    healths = [health for health in Health if any(health in _shown(device) for device in plan.devices)]
    items = [_key(f"{health}", [*mark(health, 8, 0)]) for health in healths]
    kinds = {device.kind for device in plan.devices}
    for kind, word in (("gpu", "GPU"), ("accelerator", "accelerator"), ("nic", "NIC")):
        items += [_key(word, [rect(0, -7, 16, 14, f"tile {kind}", radius=3)])] if kind in kinds else []
    frames = {_style(branch) for numa in plan.numas for branch in _switches(numa)}
    for style, word in (("root", "host bridge"), ("switch", "PCIe switch or group")):
        items += [_key(word, [rect(0, -7, 16, 14, style, radius=3)])] if style in frames else []
    rails = sorted(
        {int(rail) for device in plan.devices for rail in device.texts("rails") if rail.isdecimal()}
    )
    if rails:
        colours = [
            element("rect", x=at * 9.0, y=-5, width=8, height=10, rx=2, class_=f"rail-{rail % RAILS}")
            for at, rail in enumerate(rails[:RAILS])
        ]
        many = f"rails {rails[0]} to {rails[-1]}" if len(rails) > 1 else f"rail {rails[0]}"
        items.append(_key(many, colours, 9 * min(len(rails), RAILS)))
    return flow(items, PAGE, 22)


def _shown(device: Device) -> tuple[Health, ...]:
    return (looks(device), *(part.health for part in device.parts))


def _style(branch: Branch) -> str:
    return "switch" if branch.kind != "root" or len(branch.names) > 1 else "root"


def _key(words: str, drawn: list[str], wide: float = 16) -> Box:
    def draw(x: float, y: float) -> list[str]:
        return [
            f'<g transform="translate({x:g} {y + 9:g})">',
            *drawn,
            text(wide + 8, 4, words, "key"),
            "</g>",
        ]

    return Box(wide + 8 + length(words, 12), 18, draw)
