"""A machine's /sys and /proc as facts: `read(root)`, and nothing concluded from them.

One module per subject; `tree.py` is the only one that opens anything. Nothing here asks netlink or a library,
and nothing raises for what a machine holds: what is absent is unknown, what cannot be read is a fault.
"""

from xce.agent.probe.sysfs.read import read

__all__ = ["read"]
