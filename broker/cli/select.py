"""Which rows a person means: shell-style patterns and host ranges."""

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase

from xce.broker.cli.options import UsageError
from xce.broker.mirror import Mirror
from xce.model.hostlist import expand

LOCATIONS = "a location is host:NAME, group:NAME, pool:NAME, ..."


def selector(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Whether a name is meant: `node*`, `node[01-16]`; no patterns mean all."""
    names: set[str] = set()
    globs: list[str] = []
    for pattern in patterns:
        try:
            names.update(expand(pattern))
        except ValueError:
            globs.append(pattern)
    return lambda name: not patterns or name in names or any(fnmatchcase(name, pattern) for pattern in globs)


def require(what: str, patterns: Iterable[str], names: Iterable[str], hint: str = "") -> None:
    """Refuse a pattern without `*` and `?` that fits nothing: a misspelled monitor must not say "good"."""
    known = list(names)
    for pattern in patterns:
        if not set("*?") & set(pattern) and not any(map(selector([pattern]), known)):
            raise UsageError(f"there is no {what} {pattern!r}", hint)


def require_known(resources: Sequence[str], locations: Sequence[str], mirror: Mirror) -> None:
    """Refuse names of resources and locations that a snapshot does not have."""
    supplied = {resource for view in mirror.locations.values() for resource in view.values}
    require("resource", resources, {*mirror.types, *supplied}, "xce-broker types lists them")
    require("location", locations, mirror.locations, LOCATIONS)


def hosts(texts: Iterable[str]) -> list[str]:
    """The host names that names and ranges stand for; raises `UsageError`."""
    names: list[str] = []
    for text in texts:
        try:
            names += expand(text.removeprefix("host:"))
        except ValueError as error:
            raise UsageError(f"host {text!r}: {error}", "a name, or a range: node[01-16]") from error
    return names
