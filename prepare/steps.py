"""The table of kinds: which handler does, observes and undoes each kind of step. A new kind is a new row."""

from typing import Any

from xce.prepare.block import BlockHandler
from xce.prepare.csi.handler import CsiHandler
from xce.prepare.environment import EnvironmentHandler
from xce.prepare.filter import FilterHandler
from xce.prepare.group import GroupHandler
from xce.prepare.handler import Handler
from xce.prepare.mounts import BindHandler, StageHandler
from xce.prepare.ports import PortsHandler
from xce.prepare.scratch import ScratchHandler
from xce.prepare.shared import SharedHandler
from xce.prepare.step import Bind, Block, Csi, Environment, Filter, Group, Ports, Scratch, Shared, Stage, Step

HANDLERS: dict[type[Any], Handler[Any]] = {
    Group: GroupHandler(),
    Filter: FilterHandler(),
    Stage: StageHandler(),
    Csi: CsiHandler(),
    Block: BlockHandler(),
    Bind: BindHandler(),
    Scratch: ScratchHandler(),
    Shared: SharedHandler(),
    Ports: PortsHandler(),
    Environment: EnvironmentHandler(),
}


def handler(step: Step) -> Handler[Any]:
    """The handler of a step."""
    return HANDLERS[type(step)]


def key(step: Step) -> str:
    """What a step works on."""
    return handler(step).key(step)


def describe(step: Step) -> str:
    """One line for a person."""
    return handler(step).describe(step)
