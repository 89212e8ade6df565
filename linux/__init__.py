"""The kernel in thin typed wrappers: event loop, the one process starter, cgroups, /proc readers.

Standard library and python-prctl only; nothing of ours is imported. Roots (`/proc`, a cgroup's path) and
clocks are parameters. What fails raises OSError with the path, or a subclass that says which rule was broken.
"""
