"""The broker's files: read, and checked beyond their shape.

A file that does not fit is refused whole (`ConfigRefused` with every place). broker.yaml has to be there; the
other two are empty ones where they are not, unless broker.yaml names them.
"""

import errno
import os
from pathlib import Path

from xce.model.address import host_port
from xce.model.configuration import BrokerFile, HostsFile, ResourcesFile
from xce.model.refusal import ConfigError, ConfigRefused
from xce.model.site import Site

PATHS = ("local", "key", "accepted_keys", "state_directory", "resources", "hosts", "audit")
OPTIONAL = ("resources", "hosts")


def read_config(path: Path) -> BrokerFile:
    """broker.yaml; raises `ConfigRefused`, `OSError`."""
    from xce.model import document  # noqa: PLC0415 - YAML is needed at the start and on SIGHUP only

    text = _text(str(path))
    if text is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    found = document.load_placed(text, str(path), BrokerFile)
    if errors := found.errors(_problems(found.value)):
        raise ConfigRefused(errors)
    named = found.root.value if isinstance(found.root.value, dict) else {}
    gone = [key for key in OPTIONAL if key in named and not os.path.exists(getattr(found.value, key))]
    if gone:
        hint = "make it; an empty one is all defaults"
        raise ConfigRefused(
            [found.error((key,), f"there is no {getattr(found.value, key)}", hint) for key in gone]
        )
    return found.value


def read_site(config: BrokerFile) -> Site:
    """resources.yaml and hosts.yaml, checked together; a file that is not there is an empty one."""
    from xce.model import document  # noqa: PLC0415 - see above
    from xce.model.site import check_site, site_of  # noqa: PLC0415

    resources = document.load_placed(_text(config.resources) or "", config.resources, ResourcesFile)
    hosts = document.load_placed(_text(config.hosts) or "", config.hosts, HostsFile)
    if errors := check_site(resources, hosts):
        raise ConfigRefused(errors)
    return site_of(resources.value, hosts.value)


def filled(*paths: str) -> set[str]:
    """Those of the files that say something."""
    return {path for path in paths if (_text(path) or "").strip()}


def _problems(config: BrokerFile) -> dict[str, str]:
    """What the shape of broker.yaml cannot say, by key."""
    found = {
        key: "must be an absolute path"
        for key in PATHS
        if (value := getattr(config, key)) and not os.path.isabs(value)
    }
    for place, endpoint in enumerate(config.listen):
        scheme, _, rest = endpoint.partition("://")
        if scheme != "tcp" or not host_port(rest, lowest=0):
            found[f"listen[{place}]"] = (
                f"{endpoint!r} is no endpoint; tcp://ADDRESS:PORT, or tcp://*:PORT for all"
            )
    if config.metrics and not host_port(config.metrics, lowest=0):
        found["metrics"] = f"{config.metrics!r} is not ADDRESS:PORT"
    return found


def _text(path: str) -> str | None:
    """What is in a file, None if it is not there; raises `ConfigRefused` for what is no text."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        problem = f"not UTF-8 at byte {error.start + 1}"
        raise ConfigRefused([ConfigError(path, 0, "", problem)]) from error
