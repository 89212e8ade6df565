"""Where volumes are staged and published. Pure: places of ours, made of hashes, never of anybody's words.

Plugins take paths that are absolute, short, and made of plain characters; others they get wrong, or hand to a
shell. One volume of one plugin has one place for staging and one target on a node, whatever it is used for.
"""

import hashlib
import re

from xce.model.csi import PATH_BYTES

_PLAIN = re.compile(r"(/[A-Za-z0-9._-]+)+")
_LEAF = "v"
FOLDER = ".csi"
"""Below the directory of claims."""


class PathRefused(Exception):
    """A folder that no plugin could be given a path in."""


def staging(folder: str, plugin: str, volume: str) -> str:
    """Where a volume is staged."""
    return checked(f"{folder}/{FOLDER}/s/{_name(plugin, volume)}")


def target(folder: str, plugin: str, volume: str) -> str:
    """Where a volume is published: the only entry of a folder that only we write."""
    return checked(f"{folder}/{FOLDER}/p/{_name(plugin, volume)}/{_LEAF}")


def checked(path: str) -> str:
    """A path that every plugin can take. Raises `PathRefused`."""
    if not _PLAIN.fullmatch(path) or {".", ".."} & set(path.split("/")):
        raise PathRefused(
            f"{path} is no path for plugins: only letters, digits, '.', '_' and '-' may be in it "
            "(agent.yaml: claims.directory)"
        )
    if len(path) > PATH_BYTES:
        raise PathRefused(
            f"{path} is longer than the {PATH_BYTES} characters that every plugin takes "
            "(agent.yaml: claims.directory)"
        )
    return path


def _name(plugin: str, volume: str) -> str:
    """The same for nothing else: lengths keep the parts apart."""
    return hashlib.sha256(f"{len(plugin)}:{plugin}{volume}".encode()).hexdigest()[:32]
