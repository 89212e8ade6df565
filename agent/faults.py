"""What is wrong with the agent as a process, by what it is about: gathered from its parts, shown and logged.

A part that knows its own fault has it as an attribute, '' when all is well; what no part knows is set here.
What is wrong with a reporter or a binding is theirs, and only logged here.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from xce.model.configuration import AgentFile
from xce.model.link import Phase

if TYPE_CHECKING:
    from xce.agent.daemon import Daemon


_SHOWN = 8
"""Bindings that are named."""


class Faults:
    """The faults of one daemon."""

    def __init__(self, daemon: "Daemon") -> None:
        self._daemon = daemon
        self._own: dict[str, str] = {}

    def __setitem__(self, about: str, text: str) -> None:
        """Say what is wrong; '' when it is right again."""
        self._own[about] = text

    def all(self) -> dict[str, str]:
        """Everything there is or was, '' for what is right again."""
        daemon = self._daemon
        claims, crew, csi = daemon.claims, daemon.crew, daemon.csi
        scarce = daemon.control is not None and daemon.control.scarce
        return {
            **self._own,
            **(crew.faults() if crew else {}),
            "descriptors": "none are left (ulimit -n, LimitNOFILE=)" if scarce else "",
            "state directory": daemon.memory.fault,
            "link": daemon.link.fault,
            "broker key": daemon.trust.fault,
            "claims": claims.trouble() if claims else "",
            "journal": claims.seen.unrecorded if claims else "",
            "orphans": claims.orphans_trouble() if claims else "",
            "directories": claims.unremoved_trouble() if claims else "",
            "file systems": claims.hanging_trouble() if claims else "",
            "namespace": claims.unseen if claims else "",
            "CSI": (claims.csi_fault if claims else "") or (csi.fault if csi else ""),
            "ports": self._ports() if claims else "",
        }

    def bindings(self) -> dict[str, str]:
        """Those of the node's bindings that a person should look at; of many, some."""
        found = list(self._daemon.claims.holdings.troubles().items()) if self._daemon.claims else []
        shown = {f"binding {name}": words for name, words in found[:_SHOWN]}
        more = len(found) - len(shown)
        return shown | ({"bindings": f"{more} more (xce-agent claim list)"} if more else {})

    def log(self, now: float, *, stopping: bool) -> None:
        """Log what has begun and what has ended."""
        daemon, log = self._daemon, self._daemon.log
        away = daemon.settings.broker and daemon.core.phase is not Phase.SYNCED
        if not stopping:  # neither is the end of the agent a fault of anybody, nor does it mend one
            log.fault("broker", daemon.core.trouble if away else "", now)
        for about, text in self.all().items():
            log.fault(about, text, now)
        if daemon.crew is not None and not stopping:
            log.faults(
                "reporter ", daemon.crew.troubles(), now, daemon.crew.lasting(), right=daemon.node.states
            )
        if daemon.claims is not None:
            held = daemon.claims.holdings
            log.faults("binding ", held.troubles(), now, right=held.ready())

    def look_at_scratch(self) -> None:
        """Whether others can put files where scratch of jobs is to be: not the doctor alone says so."""
        settings = self._daemon.settings
        if self._daemon.claims is not None and isinstance(settings, AgentFile):
            from xce.agent import scratch_roots  # noqa: PLC0415 - loaded where claims are taken

            self["scratch"] = scratch_roots.trouble(settings.claims)

    def internal(self, error: Exception, callback: Callable[..., object]) -> None:
        """An exception in a callback is a bug: it is shown until the next start, and costs nobody else."""
        where = getattr(callback, "__qualname__", repr(callback))
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        line = f" ({Path(place.tb_frame.f_code.co_filename).name}:{place.tb_lineno})" if place else ""
        self["internal error"] = f"{where}: {error!r}{line}; please report it"

    def _ports(self) -> str:
        from xce.agent.claims import ports_trouble  # noqa: PLC0415 - loaded where claims are taken

        settings = self._daemon.settings
        return ports_trouble(settings.claims) if isinstance(settings, AgentFile) else ""
