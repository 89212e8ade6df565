"""A node's instances as people look at them: who is close to whom, as matrix, tree and picture.

Pure: a function of instances, wherever they come from (an agent, a probe, a file). `plan.py` sorts them into
NUMA nodes, host bridges and switches; the others draw what it says.
"""
