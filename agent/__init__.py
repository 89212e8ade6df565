"""The per-host program `xce-agent`, its commands, and `xce-reporter` for values that belong to no host.

`daemon.py` puts all parts on one loop. `core.py` decides what is said to the broker and when, `link.py` says
it. `node.py` holds what the node knows (`types.py`: by which types), `crew.py` runs what gives values,
`intake.py` turns its output into knowledge. `control.py` and `operations.py` answer the commands in `cli/`;
`external/` has those of `xce-reporter`.
"""
