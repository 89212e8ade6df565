"""Ranges of host names as people write them: `node[001-100,200]`, `rack[1-4]n[01-16]`.

Pure text; the number of names is bounded before any is made. A number range keeps the width of its first
number, so `[001-100]` gives `001` and `[1-100]` gives `1`.
"""

import re
from itertools import product

from xce.model.supply import name_problem

HOSTS = 100_000
"""Names from one range."""

_PART = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"[0-9]{2,}-[0-9]|[0-9]-[0-9]{2,}")
_ITEM = re.compile(r"([0-9]{1,12})(?:-([0-9]{1,12}))?")


def expand(text: str, limit: int = HOSTS) -> list[str]:
    """The names that `text` stands for, in order; raises ValueError that says what is wrong with it."""
    pieces = _PART.split(text)  # text, range, text, range, ..., text
    if any("[" in piece or "]" in piece for piece in pieces[::2]):
        raise ValueError("brackets do not match")
    if len(pieces) == 1:
        return [_checked(text)]
    ranges = [[_range(item.strip()) for item in piece.split(",")] for piece in pieces[1::2]]
    count = 1
    for items in ranges:
        count *= sum(last - first + 1 for first, last, _ in items)
    if count > limit:
        raise ValueError(f"stands for {count} names, more than {limit}")
    numbers = [
        [str(number).zfill(width) for first, last, width in items for number in range(first, last + 1)]
        for items in ranges
    ]
    texts = pieces[::2]
    names = ["".join(_woven(texts, chosen)) for chosen in product(*numbers)]
    _checked(names[0])
    _checked(max(names, key=len))
    return names


def pattern_problem(pattern: str) -> str:
    """'' if `pattern` (shell-style, as in keys and tokens) can be meant; otherwise what is wrong with it.

    In a pattern brackets stand for one character: `node[01-16]` is node0, node1 and node6, and no range.
    """
    sets = _PART.findall(pattern)
    if "[" in _PART.sub("", pattern) or "]" in _PART.sub("", pattern):
        return f"host pattern {pattern!r}: brackets do not match"
    if any(_RANGE.search(inside) for inside in sets):
        return f"host pattern {pattern!r}: brackets stand for one character here; write node?? or node*"
    return ""


def _range(item: str) -> tuple[int, int, int]:
    match = _ITEM.fullmatch(item)
    if not match:
        raise ValueError(f"'{item}' in the brackets: expected a number or FIRST-LAST")
    first, last = match[1], match[2] or match[1]
    if int(last) < int(first):
        raise ValueError(f"'{item}' in the brackets: the first number is above the last")
    return int(first), int(last), len(first)


def _woven(texts: list[str], chosen: tuple[str, ...]) -> list[str]:
    woven = [texts[0]]
    for number, text in zip(chosen, texts[1:], strict=True):
        woven += [number, text]
    return woven


def _checked(name: str) -> str:
    if "," in name:
        raise ValueError("one name or range here; put each in an item of its own")
    if problem := name_problem(name):
        raise ValueError(problem)
    return name
