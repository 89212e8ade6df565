"""Boxes that know their size before they are drawn: rows, columns, frames; and text that fits. Pure.

A `Box` is a width, a height and a way to draw itself at a place. Everything is in pixels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

GAP = 10
_WIDE, _NARROW = set("MWmw@%"), set("iIl.,:;|'!()[]jtf ")
BOLD = 1.13
"""How much wider bold letters are."""


@dataclass(frozen=True, slots=True)
class Box:
    """Something of a size."""

    width: float
    height: float
    draw: Callable[[float, float], list[str]]
    """At the left upper corner; the elements."""
    grown: "Callable[[float], Box] | None" = None
    """The same of another height, if it can: neighbours in a row are equally high."""


def element(name: str, **attributes: object) -> str:
    """`<rect .../>`; `_` in a name is `-`, a trailing one is nothing (`class_`)."""
    return f"<{name}{_attributes(attributes)}/>"


def text(x: float, y: float, words: str, style: str, **attributes: object) -> str:
    """Words with their base line at y."""
    return f'<text x="{x:g}" y="{y:g}" class="{style}"{_attributes(attributes)}>{escape(words)}</text>'


def rect(x: float, y: float, width: float, height: float, style: str, *, radius: float = 8) -> str:
    """A rectangle with round corners."""
    return element("rect", x=x, y=y, width=width, height=height, rx=radius, class_=style)


def group(title: str, elements: Sequence[str]) -> list[str]:
    """Elements with a title that browsers show and screen readers say."""
    return ["<g>", f"<title>{escape(title)}</title>", *elements, "</g>"]


def fit(words: str, size: float, width: float) -> str:
    """The words, cut with an ellipsis if they are wider than that in a sans-serif font of that size."""
    if length(words, size) <= width:
        return words
    while words and length(words + "…", size) > width:
        words = words[:-1]
    return words.rstrip() + "…"


def length(words: str, size: float) -> float:
    """About how wide the words are."""
    return size * sum(0.95 if one in _WIDE else 0.36 if one in _NARROW else 0.62 for one in words)


def column(boxes: Sequence[Box], gap: float = GAP) -> Box:
    """One below the other."""
    if len(boxes) == 1:
        return boxes[0]
    width = max((box.width for box in boxes), default=0)
    height = sum(box.height for box in boxes) + gap * max(0, len(boxes) - 1)

    def draw(x: float, y: float) -> list[str]:
        drawn = []
        for box in boxes:
            drawn += box.draw(x, y)
            y += box.height + gap
        return drawn

    return Box(width, height, draw)


def row(boxes: Sequence[Box], gap: float = GAP) -> Box:
    """One beside the other, equally high."""
    highest = max((box.height for box in boxes), default=0)
    boxes = [box.grown(highest) if box.grown else box for box in boxes]
    width = sum(box.width for box in boxes) + gap * max(0, len(boxes) - 1)

    def draw(x: float, y: float) -> list[str]:
        drawn = []
        for box in boxes:
            drawn += box.draw(x, y)
            x += box.width + gap
        return drawn

    return Box(width, highest, draw)


def flow(boxes: Sequence[Box], limit: float, gap: float = GAP) -> Box:
    """Beside one another as far as the limit goes, then in further rows, equally long if that fits."""
    rows = _rows(boxes, limit, gap)
    each = -(-len(boxes) // len(rows)) if rows else 0
    even = [list(boxes[at : at + each]) for at in range(0, len(boxes), each or 1)]
    if all(sum(box.width + gap for box in line) - gap <= limit for line in even):
        rows = even
    return column([row(line, gap) for line in rows], gap)


def _rows(boxes: Sequence[Box], limit: float, gap: float) -> list[list[Box]]:
    rows: list[list[Box]] = []
    used = 0.0
    for box in boxes:
        if not rows or used + gap + box.width > limit:
            rows.append([])
            used = -gap
        rows[-1].append(box)
        used += gap + box.width
    return rows


Heading = Callable[[float, float, float], list[str]]
"""Drawn at a place, within a width."""


def frame(inner: Box, style: str, heading: Heading, *, top: float, pad: float, height: float = 0) -> Box:
    """A frame around a box, with a heading of the height `top`; at least of that height."""
    width, height = inner.width + 2 * pad, max(height, inner.height + top + pad)

    def draw(x: float, y: float) -> list[str]:
        return [
            rect(x, y, width, height, style, radius=12 if pad > 12 else 9),
            *heading(x + pad, y, inner.width),
            *inner.draw(x + pad, y + top),
        ]

    def grown(to: float) -> Box:
        return frame(inner, style, heading, top=top, pad=pad, height=to)

    return Box(width, height, draw, grown)


def wide(inner: Box, width: float) -> Box:
    """A box that is at least that wide."""
    return Box(max(inner.width, width), inner.height, inner.draw)


def _attributes(attributes: dict[str, object]) -> str:
    found = []
    for name, value in attributes.items():
        written = f"{value:g}" if isinstance(value, float) else str(value)
        found.append(f' {name.rstrip("_").replace("_", "-")}="{escape(written)}"')
    return "".join(found)
