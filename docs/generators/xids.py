"""`docs/xids.md`: every XID that is known here, and what follows from it."""

from xce.agent.probe import xid

HEAD = f"""\
# XIDs of NVIDIA GPUs

Generated from `agent/probe/xid.py` by `python docs/generate.py`; do not edit. The action is what the vendor's
catalogue asks for at once, for Ampere and newer GPUs ([source]({xid.SOURCE}));
the names are ours. A GPU that is *condemned* takes no new work until the driver says that it needs nothing,
it was gone and came back (a reset), the node was started anew, or an admin clears it. An XID that does not
condemn is shown as a note. A number that is not in this table condemns.

| XID | name | asks for | condemns |
|---|---|---|---|
"""


def render() -> dict[str, str]:
    """The one file of this generator."""
    return {"xids.md": HEAD + "\n".join(map(_row, xid.TABLE.values())) + "\n"}


def _row(entry: xid.Entry) -> str:
    condemns = "yes" if entry.condemns else "no"
    why = f": {entry.why}" if entry.why else ""
    return f"| {entry.xid} | {entry.name} | {entry.action} | {condemns}{why} |"
