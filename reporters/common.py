"""What the reporters of a node have in common, as each of them sees it. The supervisor gives it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from xce.linux import cgroup, mountinfo, users
from xce.linux.loop import Loop
from xce.linux.reaper import Reaper
from xce.model.configuration import AgentReporters
from xce.reporters import cage
from xce.reporters.directory import Candidate
from xce.reporters.result import Sink

if TYPE_CHECKING:
    from xce.reporters.reporter import Reporter

Write: TypeAlias = Callable[[str, Callable[[], object]], object]
"""Carries out a job, of which the newest under each name counts; it may come back before the job is done."""


class Shared(Protocol):
    """See the module."""

    loop: Loop
    reaper: Reaper
    sink: Sink
    node: cage.Node
    settings: AgentReporters
    policy: cage.Policy
    mounts: mountinfo.Table
    state_directory: str
    group: cgroup.Cgroup | None
    patience: float
    write: Write
    chance: Callable[[], float]
    living: set["Reporter"]
    """Those with a run, or a leftover, present and removed: each adds itself, `finished` takes it out."""
    find_user: Callable[[str], users.User | None]
    look_again: Callable[[], object]
    """The files are not what they were."""

    def has_own_user(self, candidate: Candidate) -> bool:
        """Whether no other reporter runs as the user that this one names."""

    def ready(self, reporter: "Reporter") -> None:
        """Its time has come: `start` it when there is room."""

    def finished(self, reporter: "Reporter") -> None:
        """Nothing of its run is left, or what is left takes no room."""
