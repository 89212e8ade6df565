"""A node with a CSI plugin: the executor, a helper in its own process, a fake plugin in another.

`vol1` is shared by all, `solo` is for one consumer, `fixed` is read-only by its access mode, `locked` by the
volume's setting.
"""

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.csi_node_helper.world import Plugin, program
from tests.linux.kernel import make_group
from tests.prepare.world import World
from xce.linux import mountinfo
from xce.linux.cgroup import Cgroup
from xce.linux.mountinfo import Mount
from xce.model.claim import AccessMode, Ask, BindingState, MountAsk
from xce.model.profile import Csi, CsiVolume, Volume
from xce.prepare.csi import paths
from xce.prepare.entry import Report

READY, RELEASED, FAILED = BindingState.READY, BindingState.RELEASED, BindingState.FAILED
SECRET = "correct-horse"
FLAG = "password=battery-staple"
CONTEXTS: dict[str, Any] = {
    "context": {"ticket": "made-of-glass"},
    "publish_context": {"token": "attached-by-thread"},
}
WORDS = {
    "volume_id": "vol1",
    "volume_context/share": "horse-drawn-cart",
    "publish_context/lun": "any-old-lun",
    "publish_context@here/lun": "lun-of-this-host",
    "publish_context@elsewhere/lun": "lun-of-another",
    "note": "of the provider's own",
}
"""What a provider says; the last one means nothing here."""
SIZE = 1 << 20
REGISTERED = "fake.xce.example"
"""What the plugin calls itself when it registers."""
HIDDEN = ("battery-staple", "made-of-glass", "attached-by-thread", "horse-drawn-cart", "lun-of-this-host")


def asked(source: str = "vol1", **fields: Any) -> Ask:
    return Ask(mounts=[MountAsk(name="m", source=source, **fields)])


class CsiWorld(World):
    """See above. The plugin outlives it."""

    def __init__(self, place: Path, group: Cgroup, *, plugin: Plugin, **overrides: Any) -> None:
        self.plugin, self.options = plugin, list[str]()
        self.registry: str = overrides.pop("registry", "")
        """Where the plugin registers; '' if the settings name it."""
        self.name = REGISTERED if self.registry else "fake"
        for name in ("vol1", "solo", "fixed", "locked"):
            self.plugin.volume(name, data=f"payload of {name}")
        place.mkdir(exist_ok=True)
        self.secrets = place / "secrets.json"
        self.secrets.write_text(f'{{"key": "{SECRET}"}}')
        self.secrets.chmod(0o600)
        super().__init__(place, group, **overrides)

    def start(self) -> None:
        """With the plugin's volumes in the profile."""
        volumes = {
            "vol1": msgspec.structs.replace(
                self.volume("vol1", secrets=str(self.secrets)), options=self.options
            ),
            "flagged": Volume(options=[FLAG], csi=CsiVolume(plugin=self.name, id="vol1", **CONTEXTS)),
            "provided": Volume(
                csi=CsiVolume(plugin=self.name, context={"share": "of-the-profile", "kept": "x"})
            ),
            "solo": self.volume("solo", access=AccessMode.RWOP),
            "fixed": self.volume("fixed", access=AccessMode.ROX),
            "locked": msgspec.structs.replace(self.volume("locked"), read_only=True),
            "missing": self.volume("missing"),
            "typed": Volume(type="ext4", options=["noatime"], csi=CsiVolume(plugin=self.name, id="vol1")),
            "grouped": self.volume("vol1", group="4711"),
            **{access.value: self.volume("vol1", access=access) for access in AccessMode},
            "sized": self.volume("vol1", size_bytes=SIZE),
            "raw": self.volume("vol1", block=True),
            "raw-fixed": self.volume("vol1", block=True, access=AccessMode.ROX),
        }
        profile = msgspec.structs.replace(self.settings.profiles["default"], volumes=volumes)
        self.settings = msgspec.structs.replace(
            self.settings,
            profiles={"default": profile},
            csi=Csi(
                plugins={} if self.registry else {"fake": self.plugin.socket},
                registration=self.registry,
                helper=program(self.plugin.folder),
            ),
            remote_s=0.5,
        )
        super().start()

    def volume(self, name: str, **fields: Any) -> Volume:
        return Volume(csi=CsiVolume(plugin=self.name, id=name, **fields))

    def stop(self) -> None:
        self.node.csi.close()  # type: ignore[attr-defined]
        super().stop()

    @property
    def helper(self) -> int:
        """The helper's process."""
        pid = self.node.csi.pid  # type: ignore[attr-defined]
        assert isinstance(pid, int)
        return pid

    def kill_helper(self) -> None:
        with contextlib.suppress(AssertionError, ProcessLookupError):
            os.kill(self.helper, signal.SIGKILL)

    def provide(self, words: dict[str, str] | None, **fields: Any) -> Report:
        """Order a binding of a claim whose provider says `words`; again for the same `binding`."""
        binding, claim = self.order(fields.pop("ask", asked("provided")), **fields)
        claim = msgspec.structs.replace(claim, provider="store")
        return self.executor.prepare(
            op_id="o", epoch=1, binding=binding, claim=claim, instances={}, words=words
        )

    def reboot(self, state: Mapping[Path, bytes] | None = None) -> None:
        """The plugin, too, is another process; and the inventory is known."""
        self.plugin.stop()
        self.plugin.start()
        super().reboot(state)
        self.executor.resume(self.instances)

    def kept(self) -> bytes:
        """Everything in the journal's directory."""
        return b"".join(path.read_bytes() for path in (self.place / "state").iterdir() if path.is_file())

    def staging(self, volume: str = "vol1") -> str:
        return paths.staging(self.settings.directory, "fake", volume)

    def target(self, volume: str = "vol1") -> str:
        return paths.target(self.settings.directory, "fake", volume)

    def at(self, path: str) -> list[Mount]:
        return [mount for mount in mountinfo.read() if mount.point == path]

    def place_of(self, binding: str) -> Path:
        """What the consumer sees."""
        return Path(self.settings.directory, binding, "m")

    def rpcs(self) -> list[str]:
        """The calls for volumes that the plugin got, in their order."""
        short = {"NodeStageVolume": "stage", "NodePublishVolume": "publish"}
        short |= {"NodeUnpublishVolume": "unpublish", "NodeUnstageVolume": "unstage"}
        return [short[call["rpc"]] for call in self.plugin.calls() if call["rpc"] in short]

    def leftovers(self) -> list[str]:
        """The folders that all volumes share may stay."""
        return [path for path in super().leftovers() if not path.endswith((".csi", ".csi/s", ".csi/p"))]


def make_plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plugin]:
    """One process for many tests."""
    plugin = Plugin(tmp_path_factory.mktemp("csi") / "plugin")
    plugin.start()
    yield plugin
    plugin.stop()


def make_csi_world(tmp_path: Path, plugin: Plugin) -> Iterator[CsiWorld]:
    groups = make_group(tmp_path)
    plugin.renew()
    world = CsiWorld(tmp_path, next(groups), plugin=plugin)
    yield world
    world.close()
    next(groups, None)


def ready(csi: CsiWorld, source: str = "vol1", *, mount: dict[str, Any] | None = None, **fields: Any) -> str:
    """A binding that has a volume; `mount` is more of what is asked of it, `fields` of the order."""
    report = csi.bind(asked(source, **(mount or {})), **fields)
    assert (report.state, report.reason) == (READY, "")
    return report.binding


def gone(csi: CsiWorld, *bindings: str, within: float = 20) -> None:
    """Release bindings; nothing is left of them."""
    for binding in bindings:
        csi.executor.release(op_id=f"end-{binding}", epoch=1, binding=binding)
    csi.until(lambda: all(csi.report(one).state is RELEASED for one in bindings), within)
    assert csi.leftovers() == []
