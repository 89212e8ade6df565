"""The lifecycle of a reporter on its node, as a table."""

from enum import StrEnum

from xce.model.transition import Machine


class ReporterState(StrEnum):
    """What a reporter is doing, or why it is not."""

    WAITING = "waiting"
    """Its last run was good, or it has not run yet; the next run has a time."""
    RUNNING = "running"
    """A run is in progress; a persistent reporter is here all the time."""
    STOPPING = "stopping"
    """Told to end (deadline, cap, removal); its cgroup is not empty yet."""
    ABANDONED = "abandoned"
    """A child of it cannot be killed; never started a second time meanwhile."""
    BACKOFF = "backoff"
    """Its last run failed. Tried again at its interval, or later if it hung, crashed or could not start."""
    QUARANTINED = "quarantined"
    """Hung, crashed or could not start too often in a row: left alone until `xce-agent reporter reset` or a
    changed script, but for one try an hour."""
    REFUSED = "refused"
    """Not safe or not possible to start; looked at again when the file changes."""
    NOT_APPLICABLE = "not-applicable"
    """Said so with exit status 78; asked again when the file changes or after a reset."""
    REMOVED = "removed"
    """Its file is gone, and its values with it."""


class ReporterEvent(StrEnum):
    """What moves a reporter through its lifecycle."""

    STARTED = "started"
    """A run was started."""
    SUCCEEDED = "succeeded"
    """The run is over and nothing of it is left."""
    FAILED = "failed"
    """The run ended badly, or could not be started."""
    GAVE_UP = "gave-up"
    """Failed as often in a row as the limit allows."""
    DECLINED = "declined"
    """Exit status 78."""
    OVERDUE = "overdue"
    """Deadline over, cap exceeded, or the file is gone: the run is being ended."""
    UNKILLABLE = "unkillable"
    """A child is still there after KILL: in the kernel, waiting."""
    CHANGED = "changed"
    """The script or its settings are new and may run."""
    REFUSE = "refuse"
    """The file may not be run, with a cause."""
    RESET = "reset"
    """An admin says: try again."""
    REMOVE = "remove"
    """The file is gone."""


_S, _E = ReporterState, ReporterEvent
_RESTS = (_S.WAITING, _S.BACKOFF, _S.QUARANTINED, _S.REFUSED, _S.NOT_APPLICABLE)
_ALIVE = (_S.RUNNING, _S.STOPPING, _S.ABANDONED)

REPORTER = Machine(
    "reporter",
    ReporterState.WAITING,
    {
        (_S.WAITING, _E.STARTED): _S.RUNNING,
        (_S.BACKOFF, _E.STARTED): _S.RUNNING,
        (_S.QUARANTINED, _E.STARTED): _S.RUNNING,
        (_S.WAITING, _E.OVERDUE): _S.STOPPING,  # a run of the agent before this one is still there
        (_S.RUNNING, _E.OVERDUE): _S.STOPPING,
        (_S.STOPPING, _E.OVERDUE): _S.STOPPING,
        (_S.STOPPING, _E.UNKILLABLE): _S.ABANDONED,
        **{(state, _E.SUCCEEDED): _S.WAITING for state in _ALIVE},
        **{(state, _E.FAILED): _S.BACKOFF for state in _ALIVE},
        **{(state, _E.GAVE_UP): _S.QUARANTINED for state in _ALIVE},
        **{(state, _E.DECLINED): _S.NOT_APPLICABLE for state in _ALIVE},
        **{(state, _E.FAILED): _S.BACKOFF for state in (_S.WAITING, _S.BACKOFF)},  # could not be started
        **{(state, _E.GAVE_UP): _S.QUARANTINED for state in (_S.WAITING, _S.BACKOFF, _S.QUARANTINED)},
        **{(state, _E.CHANGED): _S.WAITING for state in _RESTS},
        **{(state, _E.RESET): _S.WAITING for state in _RESTS},
        **{(state, _E.REFUSE): _S.REFUSED for state in (*_RESTS, *_ALIVE)},
        **{(state, _E.REMOVE): _S.REMOVED for state in (*_RESTS, *_ALIVE)},
    },
    final=frozenset({_S.REMOVED}),
)
