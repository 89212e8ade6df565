"""`docs/configuration.md`: every key of every configuration file, from the structs and the docstrings below
their fields."""

import ast
import inspect
import re
import textwrap
from enum import Enum
from typing import Any

import msgspec
from msgspec import inspect as types

from xce.model import configuration as files
from xce.model import profile
from xce.model.resource import ResourceType
from xce.model.schema import words
from xce.model.supply import PoolAmount

HEAD = """\
# Configuration

Generated from `model/configuration.py` and `model/profile.py` by `python docs/generate.py configuration`; do
not edit. Examples of the files, with comments, are in [`etc/`](../etc).

| file | who reads it | a change counts |
|---|---|---|
| [`/etc/xce/agent.yaml`](#etcxceagentyaml) | `xce-agent` on each host | at SIGHUP (`systemctl reload`) |
| [`NAME.yaml`](#nameyaml) beside a reporter | `xce-agent`, `xce-reporter` | at once |
| [`/etc/xce/broker.yaml`](#etcxcebrokeryaml) | `xce-broker` | at SIGHUP, but for the keys below |
| [`/etc/xce/resources.yaml`](#etcxceresourcesyaml) | `xce-broker` | at SIGHUP |
| [`/etc/xce/hosts.yaml`](#etcxcehostsyaml) | `xce-broker` | at SIGHUP |
| [`/etc/xce/reporter.yaml`](#etcxcereporteryaml) | `xce-reporter run` | at SIGHUP |

Some keys count only at the next start: of broker.yaml `listen`, `local`, `key`, `accepted_keys`,
`state_directory`, `keep_deltas`, `metrics` and `audit`; of agent.yaml and reporter.yaml `name`,
`state_directory`, `run_directory`, `cgroup` and `claims`.

## How files are read

A file that does not fit is refused whole, and what was good stays in force. All errors of form are told at
once; what contradicts something else (a name written twice, a value of another kind than its type) is looked
for once there are none:

```
/etc/xce/agent.yaml:12: reporters.intervall: unknown key; did you mean 'interval'?
/etc/xce/agent.yaml:13: reporters.budget: expected a whole number of at least 1, got 'ten'
```

- A missing or empty file is all defaults; only broker.yaml has to be there, and what it or a command
  names. A file that is emptied below a running agent is refused: write `{}` if the defaults
  are meant. A key without a value is an error, except for lists, sections and keys without a default.
- Times are seconds; a size says its unit in its name.
- The booleans are `true` and `false`. `yes`, `no`, `on`, `off`, `True` and numbers with leading zeros are
  refused unless they stand in quotes: other programs read them in another way.
- An unknown key is an error, a key written twice is an error, and so are tags, merge keys (`<<`) and a
  second document in one file. Anchors and aliases may be used.
- Host names may be ranges where it says so: `node[001-100,200]`, `rack[1-4]n[01-16]`. The width of the
  first number is kept. Inside `[ ]` and `{ }` of YAML a range must stand in quotes.
"""

SECTIONS: tuple[tuple[str, type[Any]], ...] = (
    ("/etc/xce/agent.yaml", files.AgentFile),
    ("reporters: (agent.yaml, reporter.yaml)", files.AgentReporters),
    ("discovery: (agent.yaml)", files.Discovery),
    ("health: (discovery)", files.Probation),
    ("expected: (discovery)", files.Expected),
    ("ports: (discovery)", files.PortRange),
    ("claims: (agent.yaml)", profile.Claims),
    ("csi: (claims)", profile.Csi),
    ("profiles: (claims)", profile.Profile),
    ("volumes: (profiles)", profile.Volume),
    ("csi: (volumes)", profile.CsiVolume),
    ("shared: (profiles)", profile.SharedVolume),
    ("scratch: (profiles)", profile.ScratchRoot),
    ("ports: (profiles)", profile.ClaimPorts),
    ("NAME.yaml", files.ReporterSettings),
    ("limits: (NAME.yaml)", files.Limits),
    ("/etc/xce/resources.yaml", files.ResourcesFile),
    ("types: (resources.yaml, NAME.yaml)", ResourceType),
    ("pools: (resources.yaml)", files.PoolEntry),
    ("resources: (pools)", PoolAmount),
    ("/etc/xce/hosts.yaml", files.HostsFile),
    ("hosts: (hosts.yaml)", files.HostEntry),
    ("groups: (hosts.yaml)", files.GroupEntry),
    ("/etc/xce/broker.yaml", files.BrokerFile),
    ("/etc/xce/reporter.yaml", files.ExternalFile),
)


def render() -> dict[str, str]:
    """The one file of this generator."""
    return {"configuration.md": "\n".join([HEAD, *(section(title, kind) for title, kind in SECTIONS)])}


def section(title: str, kind: type[Any]) -> str:
    """One file, or one part of a file."""
    info = types.type_info(kind)
    assert isinstance(info, types.StructType)
    told = docstrings(kind)
    lines = [f"{'##' if '.yaml' in title and '(' not in title else '###'} {title}", ""]
    about = " ".join((inspect.getdoc(kind) or "").split())
    if about.strip("`.") != title:
        lines += [about, ""]
    lines += ["| key | value | default | meaning |", "|---|---|---|---|"]
    enums: dict[str, type[Enum]] = {}
    for field in info.fields:
        if enum := enumeration(field.type):
            enums[field.encode_name] = enum
        row = (f"`{field.encode_name}`", value(field.type), default(field), told[field.encode_name])
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
    for name, enum in enums.items():
        meanings = docstrings(enum)
        lines += ["", f"`{name}`:", ""]
        lines += [f"- `{member.value}`: {meanings[member.name]}" for member in enum]
    return "\n".join([*lines, ""])


def enumeration(info: types.Type) -> type[Enum] | None:
    """The enumeration that a field is of."""
    return info.cls if isinstance(info, types.EnumType) else None


def value(info: types.Type) -> str:
    """What may stand behind a key, in a few words."""
    if isinstance(info, types.UnionType):
        members = [member for member in info.types if not isinstance(member, types.NoneType)]
        return value(members[0]) if len(members) == 1 else words(info)
    if isinstance(info, types.EnumType):
        return "one of those below"
    if isinstance(info, types.ListType):
        return "list of " + _plural(value(info.item_type))
    if isinstance(info, types.DictType):
        return f"NAME: {value(info.value_type)}"
    if isinstance(info, types.StructType):
        return next(
            f"section [{anchor(title)}](#{_slug(title)})" for title, kind in SECTIONS if kind is info.cls
        )
    return words(info).removeprefix("a ")


def anchor(title: str) -> str:
    """The short name of a section."""
    return title.partition(" ")[0].rstrip(":")


def _slug(title: str) -> str:
    """The fragment that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _plural(text: str) -> str:
    return "texts" if text == "text" else text.replace("section", "sections", 1)


def default(field: types.Field) -> str:
    """A field's default as it would be written."""
    if field.required:
        return "**required**"
    plain = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if plain is None or plain == "" or isinstance(plain, msgspec.Struct):
        return ""
    return f"`{msgspec.json.encode(plain).decode().strip(chr(34))}`"


def docstrings(kind: type[Any]) -> dict[str, str]:
    """Field or member name to the docstring below it; one without is an error of the model."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for statement, following in zip(body.body, [*body.body[1:], ast.Pass()], strict=True):
        target = statement.target if isinstance(statement, ast.AnnAssign) else None
        if isinstance(statement, ast.Assign):
            target = statement.targets[0] if isinstance(statement.targets[0], ast.Name) else None
        if not isinstance(target, ast.Name):
            continue
        match following:
            case ast.Expr(value=ast.Constant(value=str(text))):
                found[target.id] = " ".join(text.split())
            case _:
                raise ValueError(f"{kind.__name__}.{target.id}: has no docstring below it")
    return found
