"""What is wrong with a configuration file, line by line. Small: every program names it at its start."""

import msgspec


class ConfigError(msgspec.Struct, frozen=True):
    """One thing that is wrong in a configuration file. As text it is one line for an admin."""

    path: str
    line: int
    """From 1; 0 when the whole file is meant."""
    key: str
    """Dotted, as written: `reporters.interval`, `hosts[node17].values.tmp`; '' for the file."""
    problem: str
    hint: str = ""

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}" if self.line else self.path
        key = f" {self.key}:" if self.key else ""
        hint = f"; {self.hint}" if self.hint else ""
        return f"{place}:{key} {self.problem}{hint}"


class ConfigRefused(Exception):
    """A file does not fit. It is refused whole; `errors` has every place."""

    def __init__(self, errors: list[ConfigError]) -> None:
        super().__init__("\n".join(str(error) for error in errors))
        self.errors = errors
