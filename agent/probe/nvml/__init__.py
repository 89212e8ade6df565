"""NVIDIA's management library: the only place that imports pynvml.

`Library` is the library as one process holds it: found, initialised, asked, given back. `calls.py` is the
table of what is asked of a GPU and what it costs, `slices.py` reads MIG, `events.py` hears XIDs.

The library can hang, crash and leak, so all this runs in the probe's child and nowhere else. Whatever a call
answers, nothing raises: a function that an old driver lacks and a thing that a board cannot do are *unknown*,
an error of one GPU stays with that GPU, an error of the library itself is the `error` of the whole reading.
"""

from xce.agent.probe.nvml.library import Library

__all__ = ["Library"]
