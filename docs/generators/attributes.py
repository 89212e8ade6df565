"""`docs/attributes.md`: every attribute of a found instance, from the table that the discovery uses."""

from xce.agent.probe.attributes import TABLE, Attribute

HEAD = """\
# Attributes of instances

Generated from `agent/probe/attributes.py` by `python docs/generate.py`; do not edit. What they are for and
how they are found is told in [discovery.md](discovery.md).

An attribute that is not known is absent: a choice that asks for it does not fit. What moves by itself
(clocks, the link speed of an idle GPU, use) is no attribute.

| attribute | of | form | meaning | source |
|---|---|---|---|---|
"""


def render() -> dict[str, str]:
    """The one file of this generator."""
    return {"attributes.md": HEAD + "".join(f"{_row(attribute)}\n" for attribute in TABLE)}


def _row(one: Attribute) -> str:
    form = f"{one.form}, {one.unit}" if one.unit else str(one.form)
    cells = (f"`{one.name}`", one.kinds, form, one.meaning, one.source)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
