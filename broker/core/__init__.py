"""The broker's decisions: pure, without sockets, files, threads, clocks or randomness.

`machine.Broker` is the only door: messages, the passing of seconds and the answers of the store go in,
effects come out. Durable state is in `ledger.py`, what is known from moment to moment in `location.py` and
`supply.py`.
"""
