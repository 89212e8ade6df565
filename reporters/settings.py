"""What the shape of NAME.yaml, the settings beside a reporter, cannot say. Pure."""

import os
import re

from xce.model.configuration import Mode, ReporterSettings
from xce.model.resource import ttl_problem

ENTRY_BYTES = (128 << 10) - 2
"""Of one argument or NAME=VALUE: the kernel's MAX_ARG_STRLEN, without the final NUL and the cage's '+'."""
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def problems(settings: ReporterSettings) -> dict[str, str]:
    """What is wrong, by key."""
    found = {}
    for name, value in settings.environment.items():
        if problem := _environment_problem(name, value):
            found[f"environment.{name}"] = problem
    for place, argument in enumerate(settings.arguments):
        if len(os.fsencode(argument)) > ENTRY_BYTES:
            found[f"arguments[{place}]"] = f"is longer than {ENTRY_BYTES} bytes, and cannot be passed on"
        elif "\0" in argument:
            found[f"arguments[{place}]"] = "cannot be passed on; it holds a NUL character"
    names = [kind.name for kind in settings.types]
    for place, name in enumerate(names):
        if name in names[:place]:
            found[f"types[{place}].name"] = "is declared twice in this file; remove one"
    return found | _short_lived(settings)


def _short_lived(settings: ReporterSettings) -> dict[str, str]:
    """Types whose values would be stale before its next run."""
    asked = [kind.interval for kind in settings.types if kind.interval is not None]
    own = settings.interval if settings.mode is Mode.ONE_SHOT else None
    problems = (ttl_problem(kind, min(asked, default=own)) for kind in settings.types)
    return {f"types[{place}].ttl": problem for place, problem in enumerate(problems) if problem}


def _environment_problem(name: str, value: str) -> str:
    if not _ENVIRONMENT_NAME.fullmatch(name):
        return "cannot be set; letters, digits and '_' only, no digit first"
    if "\0" in value:
        return "cannot be set; it holds a NUL character"
    if name.startswith("XCE_"):
        return "is the agent's to set"
    if len(os.fsencode(f"{name}={value}")) > ENTRY_BYTES:
        return f"is longer than {ENTRY_BYTES} bytes, and cannot be passed on"
    return ""
