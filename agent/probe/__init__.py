"""Finding the hardware of a machine: a child process reads it, pure functions say what it means.

The child (`main.py`) is the only process that loads NVML and pyroute2. What was read is a `facts.Machine`;
`topology.py` and `instances.py` turn it into what the supply map holds; `keep.py`, in the agent, remembers
what was there before. Nothing else of the agent may import `nvml.py` or `links.py`.
"""
