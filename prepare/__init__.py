"""What a claim needs on a node: steps that are planned, written down, done, read back and undone.

`plan` turns a binding and its claim into steps, which are plain values. `executor` carries them out against
the `journal`; the table in `steps` says how each kind is done, observed and undone. Nothing here knows of
sockets, loops or the broker.
"""
