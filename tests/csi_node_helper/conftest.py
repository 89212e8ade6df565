"""Fixtures: see world.py."""

from tests.csi_node_helper.world import world

__all__ = ["world"]
