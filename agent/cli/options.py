"""The few options of a command, read alike everywhere and without a heavy import."""

from collections.abc import Sequence

from xce.agent.cli import USAGE, CommandError


class UsageError(CommandError):
    """The command cannot be carried out as it was given."""

    code = USAGE


class Options:
    """Options (`--name`, with or without a value) and the arguments that are none."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        flags: Sequence[str] = (),
        values: Sequence[str] = (),
        repeated: Sequence[str] = (),
    ) -> None:
        self.arguments: list[str] = []
        self._given: dict[str, str] = {}
        self._all: dict[str, list[str]] = {}
        rest = list(argv)
        while rest:
            word = rest.pop(0)
            name, equals, value = word.partition("=")
            if not word.startswith("--"):
                self.arguments.append(word)
            elif name in values and (equals or rest):
                self._given[name] = value if equals else rest.pop(0)
            elif name in repeated and (equals or rest):
                self._all.setdefault(name, []).append(value if equals else rest.pop(0))
            elif word in flags:
                self._given[word] = ""
            else:
                raise UsageError(f"cannot understand {word!r}")

    def has(self, name: str) -> bool:
        """Whether the option was given."""
        return name in self._given

    def get(self, name: str, default: str = "") -> str:
        """The option's value."""
        return self._given.get(name, default)

    def all(self, name: str) -> list[str]:
        """All values of an option that may be given several times."""
        return self._all.get(name, [])

    def number(self, name: str, default: float) -> float:
        """The option's value as a number above 0."""
        text = self._given.get(name)
        try:
            value = float(text) if text is not None else default
        except ValueError:
            value = 0
        if value <= 0:
            raise UsageError(f"{name} must be a number above 0, not {text!r}")
        return value
