"""`xce-broker key new | add | revoke | list`: who may talk to the broker."""

import argparse
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from xce.broker.cli import COMMANDS, output
from xce.broker.cli.connect import connect, of_this_host
from xce.broker.cli.options import (
    CONFIGURATION,
    GOOD,
    KEYS,
    TROUBLE,
    Example,
    UsageError,
    carry_out,
    complain,
    connection,
    json_option,
    patterns,
    verbs,
)
from xce.broker.cli.options import parser as command_parser
from xce.broker.cli.statedir import give_to_service, owner_of
from xce.broker.client import Broker, Client
from xce.broker.session import BrokerUnreachable
from xce.model.message import KeyAdd, KeyRevoke, KeysRequest, KeyView, StatusRequest
from xce.model.role import Role
from xce.wire import keys

SUMMARY = COMMANDS["key"]
ROLES = [role.value for role in Role if role is not Role.JOINER]
"""A joiner's key is a token, which `token new` makes."""
ANSWER_S = 3.0
ABOUT = """
Every peer that comes by TCP has a key pair (CURVE), and every key has a role:

  agent       a host's agent; --hosts says for which host names it may speak
  reporter    xce-reporter, for values of pools that its name is assigned to
  provider    adds, releases and drains hosts, sets pools
  controller  takes snapshots, follows changes, holds, drains, makes and binds claims
  admin       everything

NAME.key holds the secret: mode 0600, for the peer alone. NAME.pub is for the broker. The broker's own pair is
made by `key new broker`; every peer needs its broker.pub.
"""
_VERBS = {
    "new": "make a key pair",
    "add": "let the broker accept a public key",
    "revoke": "let the broker accept a key no longer; its connections are cut off, its host is lost",
    "list": "list accepted and revoked keys",
    "rotate": "give the broker another key, in two steps, without a host that falls out",
}


def parser() -> argparse.ArgumentParser:
    """The command's options and help."""
    made = command_parser(
        "key",
        SUMMARY,
        ABOUT,
        [
            Example("xce-broker key new broker", "the broker's own pair, in /etc/xce/keys"),
            Example("xce-broker key new node17 --role agent --hosts node17", "a pair for one host"),
            Example("xce-broker key add node17.pub", "the running broker accepts it"),
            Example("xce-broker key add --offline admin.pub", "from its next start or reload"),
            Example("xce-broker key revoke node17 --reason 'disk was sold'", "never again"),
            Example("xce-broker key list", "who is known"),
            Example("xce-broker key rotate", "a new key for the broker: says what to do next"),
        ],
        connects=False,
    )
    new, add, revoke, listing, rotate = verbs(made, _VERBS).values()
    rotate.add_argument("--finish", action="store_true", help="all hosts have heard of it: change it")
    rotate.add_argument(
        "--directory", type=Path, default=KEYS, help="of the broker's key; default: %(default)s"
    )
    new.add_argument("name", help="whose; `broker` for the broker itself")
    new.add_argument("--role", choices=ROLES, help="needed, but for the broker")
    new.add_argument("--hosts", default="", metavar="PATTERNS", help="agents: host names, comma between them")
    new.add_argument(
        "--directory", type=Path, help=f"where to write; default: the current one, for the broker {KEYS}"
    )
    add.add_argument("file", type=Path, help="NAME.pub")
    for verb in (add, listing):
        verb.add_argument("--offline", action="store_true", help="use the directory, ask no running broker")
        verb.add_argument("--directory", type=Path, help="of accepted keys; default: that of broker.yaml")
    revoke.add_argument("name", help="the key's name")
    revoke.add_argument("--reason", required=True, help="for those who look later")
    json_option(listing)
    for verb in (new, add, revoke):
        json_option(verb, "print JSON")
    for verb in (add, revoke, listing):
        connection(verb)
    return made


def run(argv: Sequence[str]) -> int:
    """Carry the command out."""
    return carry_out(
        parser(),
        lambda options: {"new": _new, "add": _add, "revoke": _revoke, "list": _list, "rotate": _rotate}[
            options.verb
        ](options),
        argv,
    )


def _new(options: argparse.Namespace) -> int:
    is_broker = options.name == "broker"
    if is_broker and (options.role or options.hosts):
        raise UsageError("the broker's own key has no role and no hosts", "another name for another key")
    if not is_broker and not options.role:
        raise UsageError("which role?", f"--role {'|'.join(ROLES)}")
    if options.hosts and options.role != Role.AGENT:
        raise UsageError("--hosts is for agents", "leave it out")
    hosts = patterns(options.hosts) if options.hosts else ()
    try:
        pair = keys.new(options.name, "broker" if is_broker else options.role, hosts)
    except ValueError as error:
        raise UsageError(str(error)) from error
    secret, public = _places(pair.name, options.directory or (KEYS if is_broker else Path()))
    if is_broker and not options.directory:
        _make_keys_directory()
    _save(pair, secret, public)
    if options.json:
        output.json({"name": pair.name, "secret": str(secret), "public": str(public)})
        return GOOD
    for path, what in ((secret, "secret: for the peer alone"), (public, "public")):
        print(f"{path}  mode {stat.S_IMODE(path.stat().st_mode):04o}  {what}")
    return GOOD


def _places(name: str, directory: Path) -> tuple[Path, Path]:
    """Where the halves of a new pair are written, over nothing that is there."""
    secret, public = directory / f"{name}.key", directory / f"{name}.pub"
    for path in (secret, public):
        if os.path.lexists(path):
            raise UsageError(f"cannot write {path}: it exists already", "move it away to make a new key")
    if directory != KEYS and not directory.is_dir():
        raise UsageError(f"there is no directory {directory}", f"mkdir -p {directory}")
    return secret, public


def _make_keys_directory() -> None:
    """The first command on a new host is `key new broker`: nothing has made /etc/xce/keys yet."""
    for directory in (KEYS.parent, KEYS):
        try:
            directory.mkdir(mode=0o755, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"cannot make {directory}: {error.strerror}", "run as root, or give --directory"
            ) from error


def _save(pair: keys.KeyPair, secret: Path, public: Path) -> None:
    """Write both files, or none."""
    keys.save(pair, secret)
    try:
        keys.save(keys.KeyPair(pair.name, pair.role, pair.public, hosts=pair.hosts), public)
    except keys.KeyFileError:
        secret.unlink()
        raise
    if pair.role == "broker":
        _hand_over(secret)


def _hand_over(secret: Path) -> None:
    """Where the packaged broker looks for its key, its user must be able to read it; another broker's key is
    its maker's.
    """
    place = Path(os.path.abspath(secret)).parent
    try:
        named = Path(of_this_host(CONFIGURATION).key).parent
    except UsageError:
        named = KEYS
    if place in {KEYS, named}:
        give_to_service(secret)


def _rotate(options: argparse.Namespace) -> int:
    """Two steps, each of which may be repeated if it was broken off; between them the running broker
    announces the next key.
    """
    now, following = options.directory / "broker", options.directory / "broker.next"
    if not options.finish:
        if not os.path.lexists(f"{now}.key"):
            raise UsageError(f"there is no {now}.key", "begin with: xce-broker key new broker")
        _make_next(Path(f"{following}.key"), Path(f"{following}.pub"))
        print(f"{following}.key  is to be the broker's key. Next:")
        print("  systemctl reload xce-broker      # it is announced to every agent and controller there is")
        print("  xce-broker hosts --problems      # hosts that are away have to be told by hand")
        print("  xce-broker token list            # tokens from before end with the old key: make them anew")
        print("  xce-broker key rotate --finish   # after one heartbeat, at least")
        return GOOD
    if not any(Path(f"{following}.{kind}").exists() for kind in ("key", "pub")):
        raise UsageError(f"there is no {following}.key", "begin with: xce-broker key rotate")
    if Path(f"{following}.key").exists():
        _refuse_unannounced(Path(f"{following}.pub"))
    for kind in ("key", "pub"):
        if Path(f"{following}.{kind}").exists():
            if Path(f"{now}.{kind}").exists():  # not, if this was broken off right here
                os.replace(f"{now}.{kind}", f"{now}.old.{kind}")
            os.replace(f"{following}.{kind}", f"{now}.{kind}")
    print(f"{now}.key  is new; {now}.old.key is the old one. Next:")
    print("  systemctl restart xce-broker     # agents come back with the new key by themselves")
    print(f"  rm {now}.old.*  # when no host is missing")
    return GOOD


def _make_next(secret: Path, public: Path) -> None:
    """The broker's next pair; one that was broken off between its two files is made whole."""
    if os.path.lexists(secret) and os.path.lexists(public):
        hint = "systemctl reload xce-broker; after a heartbeat: xce-broker key rotate --finish"
        raise UsageError(f"a rotation is under way: {secret} is there already", hint)
    if not os.path.lexists(secret):
        public.unlink(missing_ok=True)
        _save(keys.new("broker", "broker"), secret, public)
        return
    with owner_of(secret):
        pair = keys.load(secret, secret=True)
    keys.save(keys.KeyPair(pair.name, pair.role, pair.public), public)
    _hand_over(secret)


def _refuse_unannounced(following: Path) -> None:
    """A running broker that has told nobody of its next key would be left by all hosts at its next start."""
    local = of_this_host(CONFIGURATION).local
    if not local or not os.path.exists(local):
        return
    try:
        with Client(Broker(f"ipc://{local}"), timeout=ANSWER_S) as client:
            announced = client.ask(StatusRequest(id="")).next_key
    except BrokerUnreachable:
        return
    if not following.exists() or announced != keys.load(following, secret=False).public.decode():
        hint = "systemctl reload xce-broker, wait for a heartbeat, then this again"
        raise UsageError("the running broker has told nobody of its next key: no host would come back", hint)


def _add(options: argparse.Namespace) -> int:
    try:
        key = keys.load(options.file, secret=False)
    except keys.KeyFileError as error:
        raise UsageError(str(error), "FILE is the NAME.pub that xce-broker key new has written") from error
    if not key.role or key.role == "broker":
        raise UsageError(
            f"{options.file} is no peer's key", "make one with: xce-broker key new NAME --role ROLE"
        )
    if options.offline:
        path = _directory(options) / f"{key.name}.pub"
        keys.save(keys.KeyPair(key.name, key.role, key.public, hosts=key.hosts), path)
        text = f"{path}  accepted when the broker starts or reloads (systemctl reload xce-broker)"
        output.done(text, as_json=options.json, name=key.name, path=str(path))
        return GOOD
    with connect(options) as client:
        done = client.ask(
            KeyAdd(id="", name=key.name, role=key.role, public=key.public.decode(), hosts=list(key.hosts))
        )
    text = f"key {key.name} accepted as {key.role}, revision {done.revision}"
    output.done(text, as_json=options.json, name=key.name, revision=done.revision)
    return GOOD


def _revoke(options: argparse.Namespace) -> int:
    with connect(options) as client:
        done = client.ask(KeyRevoke(id="", name=options.name, reason=options.reason))
    text = f"key {options.name} revoked, revision {done.revision}"
    output.done(text, as_json=options.json, name=options.name, revision=done.revision)
    return GOOD


def _list(options: argparse.Namespace) -> int:
    problems: list[str] = []
    if options.offline:
        good, problems = keys.load_directory(_directory(options))
        rows = [
            KeyView(name=k.name, role=k.role, public=k.public.decode(), hosts=list(k.hosts)) for k in good
        ]
    else:
        with connect(options) as client:
            rows = client.ask(KeysRequest(id="")).keys
    if options.json:
        output.json(rows)
    else:
        output.table(
            ("NAME", "ROLE", "HOSTS", "PUBLIC", "REVOKED"),
            [(row.name, row.role, ",".join(row.hosts), row.public, row.revoked) for row in rows],
            none="no keys",
        )
    for problem in problems:
        complain(parser(), problem, "", TROUBLE)
    return TROUBLE if problems else GOOD


def _directory(options: argparse.Namespace) -> Path:
    """The directory of accepted keys; only root or we may write in it."""
    directory: Path = options.directory or Path(of_this_host(CONFIGURATION).accepted_keys)
    try:
        status = directory.stat()
    except OSError as error:
        raise UsageError(f"cannot use {directory}: {error.strerror}", f"mkdir -m 755 {directory}") from error
    if status.st_mode & 0o022 or status.st_uid not in {0, os.geteuid()}:
        mode = stat.S_IMODE(status.st_mode)
        raise UsageError(
            f"cannot trust {directory}: owner {status.st_uid}, mode {mode:03o}: others could add keys",
            f"chown root {directory}; chmod 755 {directory}",
        )
    return directory
