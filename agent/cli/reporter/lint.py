"""`xce-agent reporter lint FILE ...`: what can be said of a reporter without running it."""

import os
from collections.abc import Iterator, Mapping, Sequence

from xce.agent import trial
from xce.agent.cli import GOOD, TROUBLE
from xce.agent.cli.options import Options, UsageError
from xce.agent.cli.settings import read
from xce.agent.intake import settings_file
from xce.linux import users
from xce.model import human
from xce.model.configuration import AgentFile
from xce.model.resource import ResourceType, Scope
from xce.reporters import cage
from xce.reporters.directory import Candidate

SUMMARY = "check a reporter and its settings without running it"
PROGRAM = "xce-agent reporter lint"
USAGE_TEXT = f"""\
usage: {PROGRAM} [--config FILE] FILE|NAME ...

Checks owner and mode of the whole path, the first line, whether its user may read it, its YAML settings, and
its types against those of the cluster as last learned on this host.
exit status: 0 nothing found, 1 something found"""


def run(argv: Sequence[str]) -> int:
    """Check each; 1 if something was found in any."""
    if "--help" in argv:
        print(USAGE_TEXT)
        return GOOD
    options = Options(argv, values=["--config"])
    if not options.arguments:
        raise UsageError("expected a FILE or the NAME of a reporter")
    settings = read(options.get("--config"), AgentFile)
    clean = True
    for what in options.arguments:
        try:
            candidate = trial.find(what, settings)
            found = findings(candidate, settings)
        except trial.NoSuchReporter as error:
            found = [("problem", str(error))]
        for level, text in found or [("ok", _summary(candidate, settings))]:
            for line in text.splitlines() or [""]:
                print(human.printable(f"{what}: {level}: {line}"))
        clean = clean and not found
    return GOOD if clean else TROUBLE


def findings(candidate: Candidate, settings: AgentFile) -> list[tuple[str, str]]:
    """What is wrong (`problem`: it would not run) or odd (`warning`)."""
    found: list[tuple[str, str]] = []
    # As the agent sees it, whoever asks: it is root wherever reporters have a user of their own.
    policy = cage.Policy(uid=0, user=settings.reporters.user, allow_root=settings.reporters.allow_root)
    try:
        cage.admit(candidate, policy, users.find)
    except cage.NotAdmittedError as error:
        found.append(("problem", str(error)))
    if candidate.interpreter and not os.path.exists(candidate.interpreter):
        found.append(("problem", cage.no_interpreter(candidate)))
    if candidate.warning:
        found.append(("warning", candidate.warning))
    types = trial.types_for(candidate, settings)
    found += [("problem", text) for text in types.problems.get(settings_file(candidate), ())]
    return found + [
        ("problem", f"{settings_file(candidate)}: {text}") for text in _misplaced(candidate, types.in_force)
    ]


def _misplaced(candidate: Candidate, types: Mapping[str, ResourceType]) -> Iterator[str]:
    """Names that this reporter promises or declares, and that it cannot give here."""
    for kind in candidate.settings.types:
        if kind.scope is not Scope.HOST:
            words = f"has scope {kind.scope.value}: declare it in resources.yaml; a host cannot report it"
            yield f"types[{kind.name}]: {words}"
    for name in candidate.settings.reports:
        known = types.get(name)
        if known is None:
            yield f"reports: no such resource type {name!r}; declare it under 'types:'"
        elif known.scope is not Scope.HOST:
            yield f"reports: {name} has scope {known.scope.value}, which a host cannot report"
        elif known.reporter not in {"", candidate.name}:
            yield f"reports: only '{known.reporter}' reports {name}"


def _summary(candidate: Candidate, settings: AgentFile) -> str:
    own = candidate.settings
    every = human.span(own.interval or settings.reporters.interval)
    return f"{own.mode.value}, every {every}, as {own.user or settings.reporters.user}"
