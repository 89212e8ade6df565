"""`docs/man/`: a page for every program and every configuration file, from their own help and docstrings, and
`packaging/completion/`: what the shells complete.

Only xce-reporter(7), the contract for authors of reporters, is written by hand.
"""

import contextlib
import importlib
import inspect
import io
import os
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from msgspec import inspect as types

from docs.generators import configuration
from xce.agent import cli as agent_cli
from xce.agent import reporter_cli
from xce.agent.cli import reporter as agent_reporters
from xce.broker import cli as broker_cli
from xce.csi_node_helper import main as csi_helper
from xce.model import configuration as files
from xce.model.schema import words

DATE = "November 29, 2026"
COLUMNS = "79"

PROGRAMS: dict[str, tuple[str, str, tuple[str, ...], str, tuple[str, ...]]] = {
    "xce-agent": (
        "xce.agent.cli",
        "report a host's resources and make claims true on it",
        agent_cli.COMMANDS,
        "The agent of one host. It runs the reporters of /etc/xce/reporters.d and keeps the broker's copy of "
        "their values true, finds its devices, and prepares its claims. Most commands ask the running agent "
        "at its local socket, which XCE_AGENT_SOCKET may name.",
        ("xce-agent.yaml 5", "xce-reporter 7", "xce-broker 8", "xce-csi-node-helper 8"),
    ),
    "xce-reporter": (
        "xce.agent.external",
        "report values that belong to no host, play or simulate them",
        reporter_cli.COMMANDS,
        "Runs reporters for pools, under an identity of its own; plays recordings; and simulates reporters "
        "and whole fleets of hosts.",
        ("xce-reporter.yaml 5", "xce-reporter 7", "xce-agent 8"),
    ),
    "xce-broker": (
        "xce.broker.cli",
        "hold the supply map and the claims of a cluster",
        tuple(broker_cli.COMMANDS),
        "The broker of one cluster, and the commands that ask it.",
        ("xce-broker.yaml 5", "xce-resources.yaml 5", "xce-hosts.yaml 5", "xce-agent 8"),
    ),
}
"""Package of the commands, description in a line and at length, commands, and what to see also."""

FILES: dict[str, tuple[str, type[Any], str]] = {
    "xce-agent.yaml": ("agent.yaml", files.AgentFile, "xce-agent 8"),
    "xce-broker.yaml": ("broker.yaml", files.BrokerFile, "xce-broker 8"),
    "xce-resources.yaml": ("resources.yaml", files.ResourcesFile, "xce-broker 8"),
    "xce-hosts.yaml": ("hosts.yaml", files.HostsFile, "xce-broker 8"),
    "xce-reporter.yaml": ("reporter.yaml", files.ExternalFile, "xce-reporter 8"),
}


def render() -> dict[str, str]:
    """All pages, and the completions."""
    pages = {f"man/{program}.8": program_page(program) for program in PROGRAMS}
    pages["man/xce-csi-node-helper.8"] = helper_page()
    pages |= {f"man/{name}.5": file_page(name) for name in FILES}
    return pages | {
        "../packaging/completion/xce.bash": bash_completion(),
        "../packaging/completion/_xce": zsh_completion(),
    }


# ------------------------------------------------------------------------------------------- programs


def program_page(program: str) -> str:
    """The page of one program: what it is, and every command's own help."""
    package, line, commands, about, also = PROGRAMS[program]
    lines = [
        *_head(program, 8, line),
        ".Sh SYNOPSIS",
        ".Nm",
        ".Ar command",
        ".Op Ar argument ...",
        ".Nm",
        ".Fl -version",
        ".Sh DESCRIPTION",
    ]
    lines += [_text(about), ".Pp", "The commands are:", ".Bl -tag -width reporter"]
    for command in commands:
        lines += [f".It Cm {command}", _text(summary(package, command))]
    lines += [".El", ".Sh COMMANDS"]
    for command in commands:
        lines += [f".Ss {command}"]
        for title, text in helps(package, command):
            lines += [".Pp", f".Sy {title}"] if title else []
            lines += [".Bd -literal", *(_escape(row) for row in text.splitlines()), ".Ed"]
    lines += [".Sh SEE ALSO", *_references(also)]
    return "\n".join([*lines, ""])


def helper_page() -> str:
    """The program that nobody starts by hand: its own help is all that there is to say."""
    lines = [
        *_head(csi_helper.PROGRAM, 8, "speak CSI to the node plugins of vendors"),
        ".Sh SYNOPSIS",
        ".Nm",
        ".Op Fl -version",
        ".Sh DESCRIPTION",
        ".Bd -literal",
        *(_escape(row) for row in csi_helper.HELP.splitlines()),
        ".Ed",
        ".Sh SEE ALSO",
        *_references(("xce-agent 8", "xce-agent.yaml 5")),
    ]
    return "\n".join([*lines, ""])


def summary(package: str, command: str) -> str:
    """A command in one line."""
    text: str = importlib.import_module(f"{package}.{command}").SUMMARY
    return text[:1].upper() + text[1:] + "."


def helps(package: str, command: str) -> Iterator[tuple[str, str]]:
    """What `--help` prints of a command, and of the commands below it, with their titles."""
    module = importlib.import_module(f"{package}.{command}")
    yield "", help_of(module)
    if module is agent_reporters:
        for verb in agent_reporters.COMMANDS:
            below = importlib.import_module(f"{package}.{command}.{verb}")
            yield f"{command} {verb}", help_of(below)
    for verb, text in _verbs(module):
        yield f"{command} {verb}", text


def _verbs(module: ModuleType) -> Iterator[tuple[str, str]]:
    """The commands below one that uses argparse's subparsers."""
    if not hasattr(module, "parser"):
        return
    with _columns():
        for action in module.parser()._actions:  # noqa: SLF001 - argparse has no public way
            if isinstance(action.choices, dict):
                for verb, parser in action.choices.items():
                    yield verb, parser.format_help()


def help_of(module: ModuleType) -> str:
    """What `--help` prints, for a terminal of 79 columns."""
    said = io.StringIO()
    with _columns(), contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        module.run(["--help"])
    return said.getvalue().rstrip()


@contextlib.contextmanager
def _columns() -> Iterator[None]:
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = COLUMNS
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


# ---------------------------------------------------------------------------------------------- files


def file_page(name: str) -> str:
    """The page of one configuration file: each key with value, default and meaning."""
    file, kind, program = FILES[name]
    about = " ".join((inspect.getdoc(kind) or "").split())
    lines = [
        *_head(name, 5, f"configuration of {program.split()[0]}"),
        ".Sh SYNOPSIS",
        f".Pa /etc/xce/{file}",
    ]
    lines += [".Sh DESCRIPTION"]
    if about.strip("`.") != f"/etc/xce/{file}":
        lines += [_text(_plain(about)), ".Pp"]
    lines += [
        "A file that does not fit is refused whole, with line and key of each error, and what was good stays "
        "in force.",
        "Times are in seconds.",
        *_keys(kind),
    ]
    seen = {kind}
    for title, inner in _inner(kind, seen):
        lines += [f".Ss {_escape(title)}", *_keys(inner)]
    lines += [".Sh FILES", f".Pa /etc/xce/{file}", ".Sh SEE ALSO", *_references((program,))]
    return "\n".join([*lines, ""])


def _keys(kind: type[Any]) -> list[str]:
    info = types.type_info(kind)
    assert isinstance(info, types.StructType)
    told = configuration.docstrings(kind)
    lines = [".Bl -tag -width Ds"]
    for field in info.fields:
        lines.append(f".It Ic {field.encode_name}")
        lines.append(_text(_plain(told[field.encode_name])))
        what = words(field.type).removeprefix("a ")
        default = configuration.default(field).strip("`*")
        lines += [".br", _text(f"Value: {what}." + (f" Default: {default}." if default else ""))]
        if enum := configuration.enumeration(field.type):
            meanings = configuration.docstrings(enum)
            lines.append(".Bl -tag -width Ds -compact")
            for member in enum:
                lines += [f".It Cm {member.value}", _text(_plain(meanings[member.name]))]
            lines.append(".El")
    return [*lines, ".El"]


def _inner(kind: type[Any], seen: set[type[Any]]) -> Iterator[tuple[str, type[Any]]]:
    """The sections and entries below a file, in order, each once."""
    info = types.type_info(kind)
    assert isinstance(info, types.StructType)
    for field in info.fields:
        for struct in _structs(field.type):
            if struct not in seen:
                seen.add(struct)
                yield f"{field.encode_name}:", struct
                yield from _inner(struct, seen)


def _structs(info: types.Type) -> Iterator[type[Any]]:
    if isinstance(info, types.StructType):
        yield info.cls
    elif isinstance(info, types.ListType):
        yield from _structs(info.item_type)
    elif isinstance(info, types.DictType):
        yield from _structs(info.value_type)
    elif isinstance(info, types.UnionType):
        for one in info.types:
            yield from _structs(one)


# --------------------------------------------------------------------------------------------- shells


def bash_completion() -> str:
    """Commands, their subcommands and options, for bash-completion."""
    lines = [
        "# Completion of xce-agent, xce-broker and xce-reporter. Generated: python docs/generate.py man",
        "_xce() {",
    ]
    lines += [
        "    local program=${1##*/} word=${COMP_WORDS[COMP_CWORD]} words",
        "    case $program/${COMP_WORDS[1]-} in",
    ]
    for program, (package, _line, commands, _about, _also) in PROGRAMS.items():
        for command in commands:
            lines.append(f"        {program}/{command}) words='{completions(program, package, command)}' ;;")
    lines += [
        "        *) words='' ;;",
        "    esac",
        "    if ((COMP_CWORD == 1)); then",
        "        case $program in",
    ]
    for program, (_package, _line, commands, _about, _also) in PROGRAMS.items():
        lines.append(f"            {program}) words='{' '.join(commands)} --help --version' ;;")
    lines += ["        esac", "    fi"]
    lines += ['    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")']
    lines += ['    ((${#COMPREPLY[@]})) || mapfile -t COMPREPLY < <(compgen -f -- "$word")', "}"]
    return "\n".join([*lines, f"complete -F _xce {' '.join(PROGRAMS)}", ""])


def zsh_completion() -> str:
    """The same for zsh."""
    lines = [f"#compdef {' '.join(PROGRAMS)}", "# Generated: python docs/generate.py man", "local -a offered"]
    lines += ["if ((CURRENT == 2)); then", "    case $service in"]
    for program, (package, _line, commands, _about, _also) in PROGRAMS.items():
        told = " ".join(f"'{command}:{_quoted(summary(package, command))}'" for command in commands)
        lines.append(f"        {program}) offered=({told}) ;;")
    lines += ["    esac", "    _describe command offered", "else", "    case $service/${words[2]} in"]
    for program, (package, _line, commands, _about, _also) in PROGRAMS.items():
        for command in commands:
            lines.append(
                f"        {program}/{command}) offered=({completions(program, package, command)}) ;;"
            )
    lines += ["    esac", "    compadd -a offered", "    _files", "fi", ""]
    return "\n".join(lines)


def completions(program: str, package: str, command: str) -> str:
    """Subcommands and options of a command, by its help; what stands behind another command is that one's."""
    module = importlib.import_module(f"{package}.{command}")
    found = (
        list(agent_reporters.COMMANDS) if module is agent_reporters else [verb for verb, _ in _verbs(module)]
    )
    for _title, text in helps(package, command):
        own = re.sub(rf"(?!{program} {command}\b)xce-\w+ [a-z].*", "", text)
        found += re.findall(r"(?<![\w-])--[a-z][a-z-]*", own)
    return " ".join(dict.fromkeys(found))


def _quoted(text: str) -> str:
    return text.rstrip(".").replace("'", "'\\''").replace(":", "\\:")


# ----------------------------------------------------------------------------------------------- mdoc


def _head(name: str, section: int, line: str) -> list[str]:
    return [
        '.\\" Generated: python docs/generate.py man',
        f".Dd {DATE}",
        f".Dt {name.upper()} {section}",
        ".Os",
        ".Sh NAME",
        f".Nm {name}",
        f".Nd {line}",
    ]


def _references(also: tuple[str, ...]) -> list[str]:
    pages = sorted(also, key=lambda page: page.split()[::-1])
    return [f".Xr {page}" + (" ," if page != pages[-1] else "") for page in pages]


def _plain(text: str) -> str:
    return text.replace("`", "")


def _text(text: str) -> str:
    """Running text: a sentence a line, as mandoc wants it."""
    return "\n".join(_escape(line) for line in re.split(r"(?<=[.;:!?]) +(?=[A-Z'])", text))


def _escape(line: str) -> str:
    escaped = line.replace("\\", "\\e")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
