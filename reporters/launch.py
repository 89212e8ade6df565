"""From a candidate to a run: check its path once more, make its directory and control group, start it.

What is started is the descriptor that was checked here, whatever lies at the path by then, and only if it is
still the file whose hash is shown. Everything raises OSError (`NotTrustedError` for the path) or ValueError,
and then nothing runs.
"""

import os
from collections.abc import Collection, Sequence

from xce.linux import cgroup, paths
from xce.linux.loop import Loop
from xce.linux.reaper import Reaper
from xce.model.configuration import Mode
from xce.reporters import cage
from xce.reporters.directory import Candidate, signature_of
from xce.reporters.frame import LIMITS
from xce.reporters.run import Run, RunOwner


class ChangedError(OSError):
    """The file is not the one that was looked at any more."""


class Launcher:
    """Starts the runs of one reporter, one after the other."""

    def __init__(
        self,
        loop: Loop,
        reaper: Reaper,
        *,
        name: str,
        node: cage.Node,
        state_directory: str,
        group: cgroup.Cgroup | None,
        trusted: Collection[int],
        patience: float,
    ) -> None:
        self._loop, self._reaper = loop, reaper
        self._node, self._trusted, self._patience = node, trusted, patience
        self.directory = os.path.join(state_directory, "reporters", name)
        """The reporter's own, which it may write to."""
        self.group = group.child(name) if group else None
        self._limited: tuple[object, cage.Bounds] | None = None

    def launch(
        self,
        owner: RunOwner,
        candidate: Candidate,
        person: cage.Person,
        *,
        interval: float,
        timeout: float,
        expected: Sequence[str],
        own_user: bool,
    ) -> Run:
        """Start a run; see the module for what is raised."""
        settings = candidate.settings
        script = self._open(candidate)
        try:
            self._make_directory(person)
            bounds = self._limit(candidate, own_user=own_user)
            return Run(
                self._loop,
                self._reaper,
                owner,
                command=cage.command(
                    person,
                    bounds,
                    group=self.group.path if self.group else "",
                    directory=self.directory,
                    arguments=settings.arguments,
                ),
                environment=cage.environment(
                    candidate,
                    person,
                    self._node,
                    directory=self.directory,
                    interval=interval,
                    timeout=timeout,
                    expected=expected,
                ),
                script=script,
                group=self.group,
                mark=f"XCE_STATE_DIR={self.directory}",
                line_bytes=LIMITS.elim_bytes if settings.mode is Mode.ELIM else LIMITS.frame_bytes,
                streaming=settings.mode is not Mode.ONE_SHOT,
                patience=self._patience,
            )
        finally:
            os.close(script)

    def _open(self, candidate: Candidate) -> int:
        script = paths.open_checked(candidate.path, self._trusted)
        if signature_of(os.fstat(script)) != candidate.signature:
            os.close(script)
            raise ChangedError(f"{candidate.path} has just changed")
        return script

    def _make_directory(self, person: cage.Person) -> None:
        uid, gid = (person.user.uid, person.user.gid) if person.user else (os.geteuid(), os.getegid())
        paths.make_directory(self.directory, uid, gid, 0o700)

    def _limit(self, candidate: Candidate, *, own_user: bool) -> cage.Bounds:
        """Make the control group and set its limits, once for given settings."""
        limits, group = candidate.settings.limits, self.group
        fresh = group.create() if group else False
        wanted = (limits, own_user)
        if self._limited is None or self._limited[0] != wanted or fresh:
            bounds = cage.bounds(
                limits,
                memory_held=bool(group and group.limit("memory.max", limits.memory_mb << 20)),
                processes_held=bool(group and group.limit("pids.max", limits.processes)),
                own_user=own_user,
            )
            self._limited = (wanted, bounds)
        return self._limited[1]
