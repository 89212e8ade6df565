#!/usr/bin/env python3
"""Writes the documents that are made from code, so that they cannot say something else than it does.

    python docs/generate.py [--check] [NAME ...]

Each module in `docs/generators/` is one generator: its `render()` returns the text of every file that it
owns, by path below `docs/`, from the code alone. `--check` writes nothing, prints what differs and exits 1;
the tests run it.
"""

import argparse
import difflib
import importlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

DOCS = Path(__file__).resolve().parent

Render = Callable[[], dict[str, str]]


def generators(folder: Path = DOCS / "generators") -> dict[str, Render]:
    """Every generator by name."""
    names = sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
    return {name: importlib.import_module(f"docs.generators.{name}").render for name in names}


def differences(rendered: dict[str, str], docs: Path = DOCS) -> list[str]:
    """Unified diffs between the files in `docs` and what they should be; [] when nothing differs."""
    found = []
    for name, wanted in rendered.items():
        path = docs / name
        present = path.read_text() if path.exists() else ""
        if present != wanted:
            lines = difflib.unified_diff(
                present.splitlines(keepends=True),
                wanted.splitlines(keepends=True),
                f"docs/{name}",
                f"docs/{name} as generated",
            )
            found.append("".join(lines) or f"docs/{name} is missing\n")
    return found


def write(rendered: dict[str, str], docs: Path = DOCS) -> None:
    """Write what differs."""
    for name, text in rendered.items():
        path = docs / name
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"wrote docs/{name}")


def rendered_by(wanted: Iterable[str], known: dict[str, Render]) -> dict[str, str]:
    """The files of the wanted generators; a file that two of them own is an error."""
    files: dict[str, str] = {}
    for name in wanted:
        for path, text in known[name]().items():
            if path in files:
                raise ValueError(f"cannot generate docs/{path}: two generators own it, the second is {name}")
            files[path] = text
    return files


def main(arguments: list[str]) -> int:
    """The command."""
    known = generators()
    parser = argparse.ArgumentParser(prog="docs/generate.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 if something differs")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of: {', '.join(known)}; default: all")
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in known:
            parser.error(f"no generator named {name!r}; there are: {', '.join(known)}")
    files = rendered_by(options.names or known, known)
    if not options.check:
        write(files)
        return 0
    found = differences(files)
    if found:
        print("".join(found) + "cannot pass: run `python docs/generate.py` and commit the result")
    return 1 if found else 0


if __name__ == "__main__":
    sys.path.insert(0, str(DOCS.parent))
    sys.exit(main(sys.argv[1:]))
