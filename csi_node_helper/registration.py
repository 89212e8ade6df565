"""The registration folder: plugins whose registrar puts a socket there are asked who they are, and answered.

The registrar is the server of its socket. Sockets are looked at again when they are another file than before;
a plugin whose socket is gone is let go.
"""

import asyncio
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from xce.csi_node_helper import messages
from xce.csi_node_helper.connection import CallFailed, Connection, File

_SCAN_S = 0.5
_ANSWER_S = 5.0
_SOCKETS = 64
_KIND = "CSIPlugin"
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?")


class _Known(NamedTuple):
    file: File
    plugin: str
    """'' if it was refused."""


class Registration:
    """Watches one folder. `add(name, endpoint)` says why a plugin is not taken, '' if it is."""

    def __init__(self, folder: str, *, add: Callable[[str, str], str], remove: Callable[[str], None]) -> None:
        self.folder, self._add, self._remove = folder, add, remove
        self._known: dict[str, _Known] = {}

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            await self.scan()
            await asyncio.sleep(_SCAN_S)

    async def scan(self) -> None:
        """Look at the folder once. What cannot be asked yet is asked at the next look."""
        there = self._sockets()
        for path, known in list(self._known.items()):
            if there.get(path) != known.file:
                del self._known[path]
                if known.plugin:
                    self._let_go(known.plugin)
        new = {path: file for path, file in there.items() if path not in self._known}
        answers = await asyncio.gather(*(self._register(path) for path in new))  # one may hang
        for (path, file), plugin in zip(new.items(), answers, strict=True):
            if plugin is not None:
                self._known[path] = _Known(file, plugin)

    def _let_go(self, plugin: str) -> None:
        """Who was refused, or is there under the same name, is asked anew: the place is free."""
        self._remove(plugin)
        self._known = {path: one for path, one in self._known.items() if one.plugin not in {"", plugin}}

    def _sockets(self) -> dict[str, File]:
        found: dict[str, File] = {}
        try:
            names = sorted(os.listdir(self.folder))
        except OSError:
            return found
        for name in names:
            path = os.path.join(self.folder, name)
            file = Connection(path).file()
            if name.endswith(".sock") and not name.startswith(".") and file is not None:
                found[path] = file
        known_first = sorted(found.items(), key=lambda one: one[0] not in self._known)
        return dict(known_first[:_SOCKETS])

    async def _register(self, path: str) -> str | None:
        """The plugin's name, '' if it is not taken, None if it did not answer."""
        connection = Connection(path)
        try:
            method = messages.REGISTRATION_INFO
            info = await connection.call(method, method.request(), _ANSWER_S)
            problem = refusal(info) or self._add(info.name, endpoint(info.endpoint))
            notify = messages.REGISTRATION_NOTIFY
            status = notify.request(plugin_registered=not problem, error=problem)
            await connection.call(notify, status, _ANSWER_S)
        except CallFailed:
            return None
        finally:
            connection.close()
        return "" if problem else str(info.name)


def endpoint(text: str) -> str:
    """A socket's path; some write it as an address."""
    return text.removeprefix("unix://")


def refusal(info: Any) -> str:
    """Why a plugin cannot be used here; '' if it can."""
    if info.type != _KIND:
        return f"this node takes plugins of type {_KIND}, not {info.type[:63]!r}"
    if not _NAME.fullmatch(info.name):
        return "its name is not one: at most 63 letters, digits, dots and dashes"
    if not endpoint(info.endpoint).startswith("/"):
        return f"its endpoint is no absolute path: {info.endpoint[:200]!r}"
    versions = list(info.supported_versions)
    if versions and not any(version.removeprefix("v").split(".")[0] == "1" for version in versions):
        return f"version 1 of CSI is not among its versions: {', '.join(versions)[:200]}"
    return ""
