"""`xce-agent reporter explain RESOURCE`: the same as `xce-agent explain`."""

from xce.agent.cli.explain import SUMMARY, run

__all__ = ["SUMMARY", "run"]
