"""The matrix that admins know from `nvidia-smi topo -m`, for all vendors. Pure."""

import textwrap
from collections.abc import Sequence

from xce.agent.picture.plan import LEGEND, Device, Plan

WIDTH = 80
"""Of what is said below the table, where nothing else is asked for."""


def matrix(plan: Plan, *, width: int | None = None) -> list[str]:
    """The lines. A table wider than `width` goes on in blocks of columns; None: never."""
    devices = [*plan.compute, *plan.nics]
    if not devices:
        return []
    rows = [[device.name, *(plan.word(device, other) for other in devices)] for device in devices]
    header = ["", *(device.name for device in devices)]
    tails = [(device.text("cpus") or "-", device.text("numa") or "?") for device in devices]
    header += ["CPUs", "NUMA"]
    rows = [[*row, *tail] for row, tail in zip(rows, tails, strict=True)]
    blocks = _blocks([header, *rows], width)
    lines = [line for block in blocks for line in [*block, ""]]
    words = {word for row in rows for word in row[1:-2]}
    return [*lines, *legend(words), *names(plan.nics, width or WIDTH)]


def legend(words: set[str]) -> list[str]:
    """What the words that occur mean."""
    plain = {"NV#" if word.startswith("NV") else word for word in words}
    return [f"{word:<5} {meaning}" for word, meaning in LEGEND.items() if word in plain]


def names(nics: Sequence[Device], width: int) -> list[str]:
    """Which network device is behind a name that is an RDMA device's, where there is one."""
    found = [(one.name, ", ".join(net for net in one.texts("nets") if net != one.name)) for one in nics]
    told = [f"{name}={nets}" for name, nets in found if nets]
    words = "network devices: " + ", ".join(told)
    return (
        ["", *textwrap.wrap(words, width, subsequent_indent="    ", break_on_hyphens=False)] if told else []
    )


def _blocks(table: list[list[str]], width: int | None) -> list[list[str]]:
    """The table cut into blocks of columns, each with the names in front."""
    sizes = [max(len(row[at]) for row in table) for at in range(len(table[0]))]
    groups: list[list[int]] = [[]]
    used = sizes[0]
    for at in range(1, len(sizes)):
        if width is not None and groups[-1] and used + 2 + sizes[at] > width:
            groups.append([])
            used = sizes[0]
        groups[-1].append(at)
        used += 2 + sizes[at]
    return [
        ["  ".join(row[at].ljust(sizes[at]) for at in [0, *columns]).rstrip() for row in table]
        for columns in groups
    ]
