"""The per-host program `xce-agent`, its commands, and `xce-reporter` for values that belong to no host.

`core.py` decides what is said to the broker and when; `link.py` says it. `node.py` holds what the node knows,
`daemon.py` puts all parts on one loop, `control.py` answers the commands in `cli/`.
"""
