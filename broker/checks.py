"""The checks of `xce-broker doctor`: each looks at one thing and says what it found. Nothing is changed.

They look with the eyes of the user that the broker runs as: a key that root can read may be closed to it.
"""

import errno
import os
import re
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

import msgspec

from xce.broker import config, daemon
from xce.broker.client import Broker, Client
from xce.broker.session import BrokerRefused, BrokerUnreachable
from xce.broker.store import StoreError, files
from xce.model.configuration import BrokerFile
from xce.model.message import BrokerStatus, KeysRequest, KeyView, StatusRequest
from xce.model.refusal import ConfigRefused
from xce.model.role import Role
from xce.wire import keys
from xce.wire.keys import KeyFileError

ENOUGH_BYTES = 256 << 20
"""For the store to grow and be copied."""
RELEASED = 1_735_689_600
"""2025-01-01: a clock before this is wrong."""
ANSWER_S = 3.0
UNIT_FILES = ("/etc/systemd/system/xce-broker.service", "/usr/lib/systemd/system/xce-broker.service")


class Finding(msgspec.Struct, frozen=True):
    """`level`: ok, warning (worth knowing) or problem (something will not work)."""

    level: str
    text: str
    advice: str = ""


class Asked(msgspec.Struct, frozen=True):
    """What the running broker says of itself; both None where none answers."""

    status: BrokerStatus | None = None
    keys: list[KeyView] | None = None
    problem: str = ""


Findings = Iterator[Finding]
Check: TypeAlias = Callable[[], Findings]


def all_checks(path: Path) -> Iterator[tuple[str, Check]]:
    """Every check with its name, in the order in which they help."""
    settings, found = _settings(path)
    yield "configuration", lambda: iter(found)
    if settings is None:  # what it names would be looked for in the wrong places
        yield (
            "others",
            lambda: iter(
                [Finding("warning", f"not looked at without {path}", "correct it, then: xce-broker doctor")]
            ),
        )
        return
    asked = _ask(settings)
    named: list[tuple[str, Check]] = [
        ("broker", lambda: _broker(asked)),
        ("key", lambda: _key(settings)),
        ("accepted keys", lambda: _accepted(settings)),
        ("ports", lambda: _ports(settings, running=asked.status is not None)),
        ("store", lambda: _store(settings)),
        ("disk", lambda: _disk(settings)),
        ("files", lambda: _open_files(settings, asked)),
        ("clock", _clock),
        ("hosts", lambda: _hosts(asked)),
        ("tokens", lambda: _tokens(asked, datetime.now(UTC))),
    ]
    yield from named


def owner(settings: BrokerFile) -> int:
    """The user that the broker runs as: whose its state is, before the first start its key."""
    for path in (settings.state_directory, settings.key):
        try:
            return os.stat(path).st_uid
        except OSError:
            continue
    return os.geteuid()


def settings_of(path: Path) -> BrokerFile:
    """broker.yaml, or the defaults where it cannot be read; what is wrong with it is a finding."""
    return _settings(path)[0] or BrokerFile()


def _settings(path: Path) -> tuple[BrokerFile | None, list[Finding]]:
    """broker.yaml, None if it cannot be understood; the defaults where there is none."""
    settings = None
    try:
        settings = config.read_config(path)
        site = config.read_site(settings)
    except ConfigRefused as refused:
        problems = [
            Finding(
                "problem",
                str(msgspec.structs.replace(error, hint="")),
                error.hint or "correct it, then: systemctl reload xce-broker",
            )
            for error in refused.errors
        ]
        return settings, problems
    except OSError as error:
        text, advice = f"cannot read {error.filename}: {error.strerror}", f"chmod a+r {error.filename}"
        if isinstance(error, FileNotFoundError):
            advice = f"touch {error.filename}: an empty one means all defaults; or give --config"
        return settings or BrokerFile(), [Finding("problem", text, advice)]
    read = f"{path}, {settings.resources} and {settings.hosts} are good: {len(site.groups_of)} hosts"
    return settings, [Finding("ok", read)]


def _ask(settings: BrokerFile) -> Asked:
    if not settings.local or not os.path.exists(settings.local):
        return Asked(problem=f"there is no {settings.local}" if settings.local else "it has no local socket")
    try:
        with Client(Broker(f"ipc://{settings.local}"), timeout=ANSWER_S) as client:
            status = client.ask(StatusRequest(id="", peers=True))
            return Asked(status, client.ask(KeysRequest(id="")).keys)
    except (BrokerRefused, BrokerUnreachable, OSError) as error:
        return Asked(problem=str(error))


def _broker(asked: Asked) -> Findings:
    if asked.status is None:
        masked = any(os.path.realpath(path) == "/dev/null" for path in UNIT_FILES)
        first = "systemctl unmask xce-broker; " if masked else ""
        text = f"{'its unit is masked' if masked else 'does not answer'}: {asked.problem}"
        yield Finding("warning", text, f"{first}systemctl start xce-broker")
        return
    yield Finding("ok", f"runs, pid {asked.status.pid}, revision {asked.status.revision}")
    for line in asked.status.trouble:
        yield Finding("warning", line, "xce-broker status; docs/operations.md says what a word means")


def _key(settings: BrokerFile) -> Findings:
    if not settings.listen:
        yield Finding("ok", "none needed: it listens on no port")
        return
    path = Path(settings.key)
    try:
        key = keys.load(path, secret=True)
    except KeyFileError as error:
        yield Finding("problem", str(error), _mended(path))
        return
    if key.role not in {"", "broker"}:
        yield Finding(
            "problem",
            f"{path} is a key for the role {key.role}",
            f"mv {path} {path}.other; xce-broker key new broker",
        )
        return
    yield Finding("ok", f"{path}: {key.public.decode()}")
    public = path.with_suffix(".pub")
    try:
        if keys.load(public, secret=False).public != key.public:
            text = f"{public} is not the public half of {path}: who copies it cannot connect"
            yield Finding("problem", text, f"sed /secret-key/d {path} >{public}; chmod 644 {public}")
    except KeyFileError as error:
        yield Finding(
            "warning", str(error), f"peers need it: sed /secret-key/d {path} >{public}; chmod 644 {public}"
        )


def _mended(path: Path) -> str:
    """How a key becomes one that can be used."""
    if path.exists():
        return f"chown xce-broker {path}; chmod 600 {path}"
    usual = str(path.parent) == os.path.dirname(BrokerFile().key)
    return f"xce-broker key new {path.stem}" + ("" if usual else f" --directory {path.parent}")


def _accepted(settings: BrokerFile) -> Findings:
    good, problems = keys.load_directory(Path(settings.accepted_keys))
    for problem in problems:
        yield Finding(
            "problem", problem, "its peer is refused: mend the file, then systemctl reload xce-broker"
        )
    if not problems:
        yield Finding("ok", f"{len(good)} in {settings.accepted_keys}")


def _ports(settings: BrokerFile, *, running: bool) -> Findings:
    for endpoint in [*settings.listen, *([settings.metrics] if settings.metrics else [])]:
        address, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        listens = _listens(address.strip("[]"), int(port)) if port.isdecimal() else None
        if listens is None:
            yield Finding(
                "warning",
                f"cannot tell whether {endpoint} is free",
                "ip -brief address: is it one of this host?",
            )
        elif listens and not running:
            text = f"{endpoint}: another program listens there"
            yield Finding(
                "problem", text, f"ss -lntp 'sport = {port}' names it; or another port in broker.yaml"
            )
        elif running and not listens:
            yield Finding("problem", f"{endpoint}: nobody listens there", "xce-broker status says why")
        else:
            yield Finding("ok", f"{endpoint} {'is listened on' if listens else 'is free'}")


def _listens(address: str, port: int) -> bool | None:
    """Whether somebody has the port; None if that cannot be found out."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("" if address in {"*", "0.0.0.0", "::"} else address, port))
            trial.listen(1)
        except PermissionError:
            return None
        except OSError as error:
            return True if error.errno == errno.EADDRINUSE else None
    return False


def _store(settings: BrokerFile) -> Findings:
    place = files.Place(Path(settings.state_directory))
    if not place.base.exists():
        if any(place.pieces()) or place.head.exists():
            text = f"{place.base} is gone, and parts of it are there: facts were recorded"
            yield Finding("problem", text, "bring back a copy with 'xce-broker restore FILE'")
        else:
            yield Finding("ok", "there is none yet: the first start makes it")
        return
    try:
        with files.in_words(place.base), closing(_reading(place.base)) as held:
            last = files.check(held, place.base, known=len(files.STEPS), at_least=files.read_head(place.head))
    except StoreError as error:
        if "has it open" in str(error):
            yield Finding("ok", "the running broker has it open, and checked it at its start")
        else:
            yield Finding(
                "problem",
                str(error),
                "xce-broker restore FILE, of a copy; docs/operations.md, The broker is in trouble, says when",
            )
        return
    yield Finding("ok", f"{place.base} is whole, revision {last}")


def _reading(base: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{base.absolute().as_uri()}?mode=ro", uri=True, timeout=0.2)


def _disk(settings: BrokerFile) -> Findings:
    path = settings.state_directory
    if not os.path.exists(path) and any(os.path.exists(unit) for unit in UNIT_FILES):
        yield Finding("ok", f"{path} is not there yet: the unit makes it")
        return
    try:
        free = os.statvfs(path)
    except OSError as error:
        yield Finding("problem", f"cannot use {path}: {error.strerror}", f"install -d -m 700 {path}")
        return
    room = free.f_bavail * free.f_frsize
    if not os.access(path, os.W_OK, effective_ids=True):
        yield Finding("problem", f"cannot write in {path}", f"chown -R xce-broker {path}")
    elif room < ENOUGH_BYTES or (free.f_files and free.f_favail < 100):
        yield Finding(
            "warning",
            f"{path} is nearly full: {room >> 20} MiB are free",
            f"make room: du -xh {path} | sort -h",
        )
    else:
        yield Finding("ok", f"{room >> 20} MiB are free in {path}")


def _open_files(settings: BrokerFile, asked: Asked) -> Findings:
    """Whether as many peers as are allowed can be connected at once."""
    wanted = settings.max_peers + daemon.SPARE_FILES
    limit = _limit_of(asked.status.pid) if asked.status else _limit_of_unit()
    if limit is None and not os.path.isdir("/run/systemd/system"):
        limit = _limit_of(os.getpid())  # whoever starts it has the same, or says another
    if limit is None:
        yield Finding("ok", f"{wanted} are needed; the limit is the service manager's")
    elif limit < wanted:
        text = f"{limit} may be open, {wanted} are needed for {settings.max_peers} peers"
        yield Finding(
            "warning",
            text,
            f"systemctl edit xce-broker: [Service] LimitNOFILE={wanted}; or a smaller max_peers",
        )
    else:
        yield Finding("ok", f"{limit} may be open, {wanted} are needed")


def _limit_of(pid: int) -> int | None:
    try:
        text = Path(f"/proc/{pid}/limits").read_text("ascii")
    except OSError:
        return None
    found = re.search(r"^Max open files +\S+ +(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else None


def _limit_of_unit() -> int | None:
    for path in UNIT_FILES:
        try:
            text = Path(path).read_text("utf-8")
        except OSError:
            continue
        found = re.search(r"^LimitNOFILE=(\d+)", text, re.MULTILINE)
        return int(found[1]) if found else None
    return None


def _clock() -> Findings:
    if time.time() < RELEASED:
        text = f"the date is {time.strftime('%Y-%m-%d')}: tokens end at a wrong time"
        yield Finding("problem", text, "systemctl enable --now chronyd (or systemd-timesyncd)")
    else:
        yield Finding("ok", time.strftime("%Y-%m-%d %H:%M:%S %Z"))


def _hosts(asked: Asked) -> Findings:
    """Hosts whose agents are refused or missing, and how often somebody was."""
    if asked.status is None:
        yield Finding("ok", "not asked: the broker does not run")
        return
    quality = asked.status.quality.hosts
    missing = {state: quality.get(state, 0) for state in ("lost", "expected") if quality.get(state, 0)}
    refused = {
        name.removeprefix("refused."): count
        for name, count in asked.status.counters.items()
        if count and name in {f"refused.{reason}" for reason in _AGENTS}
    }
    for state, count in missing.items():
        yield Finding("warning", f"hosts that are {state}: {count}", f"xce-broker hosts --state {state}")
    for reason, count in refused.items():
        text = f"times that an agent was refused ({reason}): {count}"
        yield Finding("warning", text, _AGENTS[reason])
    if not missing and not refused:
        yield Finding("ok", f"{sum(quality.values())}, none is missing and none was refused")


_AGENTS = {
    "key": "whose is it? xce-broker key list; the host joins anew with a new token",
    "role": "a key was revoked, or is used for another role than it was made for: xce-broker key list",
    "name": "a host was renamed, or a key was copied: xce-broker hosts --problems",
    "duplicate": "two machines use one name: xce-broker hosts --problems shows both addresses",
    "released": "on it: systemctl disable --now xce-agent; or, to have it back: xce-broker host add NAME",
    "unknown-host": "put it into hosts.yaml, systemctl reload xce-broker; or systemctl stop xce-agent there",
    "protocol": "the same version on both sides: rpm -q xce-agent xce-broker, or dpkg -l 'xce*'",
}
"""What to do about an agent that was refused for a reason."""


def _tokens(asked: Asked, now: datetime) -> Findings:
    """Tokens that are still good, and those whose time was over before anybody used them."""
    if asked.keys is None:
        yield Finding("ok", "not asked: the broker does not run")
        return
    live = [key for key in asked.keys if key.role == Role.JOINER and not key.revoked]
    over = [key for key in live if key.until and datetime.fromisoformat(key.until) < now]
    for key in over[:8]:
        text = f"{key.name}, for {','.join(key.hosts)}, ended at {key.until} and was never used"
        yield Finding("warning", text, f"xce-broker token revoke {key.name} --reason unused")
    wide = [key for key in live if key not in over and any(set("*?[") & set(name) for name in key.hosts)]
    for key in wide[:8]:
        text = f"{key.name} lets any host in that fits {','.join(key.hosts)}, until {key.until}"
        yield Finding(
            "warning", text, f"when it is not needed: xce-broker token revoke {key.name} --reason done"
        )
    if not over and not wide:
        yield Finding("ok", f"{len(live)} are good, each for hosts with names")
