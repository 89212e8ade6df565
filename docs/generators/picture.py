"""`docs/topology-h100.svg`: what `xce-agent topology --svg` draws of the example machine."""

from pathlib import Path

from xce.agent.picture import svg
from xce.agent.picture.plan import Plan
from xce.agent.probe import instances, machinefile, topology

EXAMPLES = Path(__file__).parents[1] / "examples"
EXAMPLE = "machine-h100"


def render() -> dict[str, str]:
    """The one file of this generator."""
    machine = machinefile.load(EXAMPLES / f"{EXAMPLE}.yaml")
    found = instances.found(machine, topology.topology(machine))
    return {"topology-h100.svg": svg.svg(Plan(found.instances), EXAMPLE)}
