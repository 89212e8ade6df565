"""A CSI node plugin: a real gRPC server in its own process, with real mounts. `python csi_plugin.py FOLDER`.

In FOLDER are its socket `csi.sock`, the backing directories of volumes `backing/ID`, the control file
`control.json`, read anew for each call, and `calls.jsonl`, one line for each call without secrets. Control:

    behaviours  list of words, each a habit that stock plugins have (see `HABITS`)
    controller  abilities of its controller service; absent: it has none here
    abilities, services, version, node_id, max_volumes, topology   what it says of itself
    registry    folder for a registrar's socket; registrar: what it says instead of the truth
    also        name of a second registrar's socket there
    faults      method -> {code, message, delay_s, hang, die: before|after, late_s, times}
    usage, abnormal   what it says of a volume's space and condition; capacity: of its size after it grew
    secret      what must be the secret `key` of Stage
    longer      method -> so many bytes more in its answer, in a field that nobody knows
    source      directory that is bound instead of the backing one
    stage       mount | nothing | below; filesystem: bind | tmpfs | loop
    device      what a block volume is published as, instead of a loop device of its own
"""

import asyncio
import contextlib
import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.server import Server

from xce.csi_node_helper import messages
from xce.csi_node_helper.messages import Method
from xce.linux import mountinfo, syscalls

_libc = ctypes.CDLL(None, use_errno=True)
_MS_BIND = 4096
HABITS = {
    "blind": "publishes what is in the staging directory, staged or not",
    "litter": "keeps a file of its own in the staging directory",
    "removes-staging": "removes the staging directory",
    "stacks": "mounts twice",
    "picky-absent": "refuses to take back what is not there",
    "picky-present": "refuses to take back a leaf that is not mounted",
    "ignores-read-only": "mounts for writing whatever is asked",
    "deletes-target": "deletes what is in the target before it mounts",
    "mounts-block": "mounts a file system where a device is asked for",
    "wants-target": "wants the target to be there",
    "wants-no-target": "wants the target not to be there",
    "keeps-leaf": "leaves the leaf where it is",
    "no-info": "does not say who it is",
    "silent-probe": "says nothing about being ready",
    "echoes-secrets": "repeats what it was given in its messages",
    "wants-context": "refuses an empty volume context",
    "forgets": "does not know a volume that it has not staged or published itself since its start",
    "says-unmounted": "says that it has unmounted, and has not",
}
ALL = {
    **{kind.__name__: method for kind, method in messages.METHODS.items()},
    "Info": messages.GET_PLUGIN_INFO,
    "Services": messages.GET_PLUGIN_CAPABILITIES,
    "Probe": messages.PROBE,
    "Node": messages.NODE_GET_INFO,
    "Abilities": messages.NODE_GET_CAPABILITIES,
    "Controller": messages.CONTROLLER_GET_CAPABILITIES,
}


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise GRPCError(Status.INTERNAL, f"{' '.join(command)}: {done.stderr.strip()}")


def mounts_at(path: str) -> int:
    return sum(mount.point == path for mount in mountinfo.read())


def below(path: str) -> list[str]:
    return [mount.point for mount in mountinfo.read() if (mount.point + "/").startswith(path + "/")]


def varint(number: int) -> bytes:
    if number < 128:
        return bytes([number])
    return bytes([number & 127 | 128]) + varint(number >> 7)


def block(request: Any) -> bool:
    return bool(request.volume_capability.HasField("block"))


class Plugin:
    """All methods; its state is lost when it ends, unless the mounts say it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.staged: set[str] = set()
        self.published: dict[str, str] = {}
        self.busy: set[str] = set()
        self.left: dict[str, int] = {}

    @property
    def control(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            return dict(json.loads((self.folder / "control.json").read_text()))
        return {}

    def has(self, habit: str) -> bool:
        assert habit in HABITS, habit
        return habit in self.control.get("behaviours", [])

    def __mapping__(self) -> dict[str, Handler]:
        return {method.path: self._handler(name, method) for name, method in ALL.items()}

    def _handler(self, name: str, method: Method) -> Handler:
        async def serve(stream: Any) -> None:
            request = await stream.recv_message()
            rpc = method.path.rpartition("/")[2]
            answer = await self.serve(rpc, name, request, method)
            if more := self.control.get("longer", {}).get(rpc):
                answer.MergeFromString(b"\xc2\x3e" + varint(more) + bytes(more))
            await stream.send_message(answer)

        return Handler(serve, Cardinality.UNARY_UNARY, method.request, method.answer)

    async def serve(self, rpc: str, name: str, request: Any, method: Method) -> Any:
        self.record(rpc, request)
        fault = self.fault(rpc)
        volume = getattr(request, "volume_id", "")
        if volume and volume in self.busy:
            raise GRPCError(Status.ABORTED, f"an operation for {volume} is running")
        self.busy.add(volume)
        shielded = asyncio.ensure_future(self.work(name, request, method, fault))
        shielded.add_done_callback(lambda _: self.busy.discard(volume))
        shielded.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(shielded)  # a deadline of the caller stops nothing

    def record(self, rpc: str, request: Any) -> None:
        kept: dict[str, Any] = {
            field.name: str(value) if field.name == "volume_capability" else value
            for field, value in request.ListFields()
            if field.name != "secrets"
        }
        kept = {name: dict(value) if hasattr(value, "items") else value for name, value in kept.items()}
        line = json.dumps(
            {"rpc": rpc, "secrets": bool(getattr(request, "secrets", None)), **kept}, default=str
        )
        with (self.folder / "calls.jsonl").open("a") as file:
            file.write(line + "\n")

    def fault(self, rpc: str) -> dict[str, Any]:
        fault = dict(self.control.get("faults", {}).get(rpc, {}))
        if "times" in fault:
            key = json.dumps([rpc, fault])
            left = self.left.setdefault(key, fault["times"])
            if left == 0:
                return {}
            self.left[key] = left - 1
        return fault

    async def work(self, name: str, request: Any, method: Method, fault: dict[str, Any]) -> Any:
        if fault.get("die") == "before":
            os._exit(9)
        await asyncio.sleep(fault.get("delay_s", 0))
        if fault.get("hang"):
            await asyncio.sleep(3600)
        if "code" in fault:
            secrets = " ".join(getattr(request, "secrets", {}).values())
            echo = f" {secrets} {request}" if self.has("echoes-secrets") else ""
            raise GRPCError(Status(fault["code"]), fault.get("message", "told to fail") + echo)
        answer = await asyncio.to_thread(getattr(self, name), request, method.answer)
        if fault.get("die") == "after":
            os._exit(9)
        await asyncio.sleep(fault.get("late_s", 0))
        return answer

    # ------------------------------------------------------------------------------------------- identity

    def Info(self, request: Any, answer: Any) -> Any:  # noqa: N802
        if self.has("no-info"):
            raise GRPCError(Status.UNAVAILABLE, "not now")
        return answer(name="fake.xce.example", vendor_version=self.control.get("version", "7.1"))

    def Services(self, request: Any, answer: Any) -> Any:  # noqa: N802
        return answer(capabilities=[{"service": {"type": one}} for one in self.control.get("services", [1])])

    def Probe(self, request: Any, answer: Any) -> Any:  # noqa: N802
        return (
            answer() if self.has("silent-probe") else answer(ready={"value": self.control.get("ready", True)})
        )

    def Node(self, request: Any, answer: Any) -> Any:  # noqa: N802
        return answer(
            node_id=self.control.get("node_id", "node-7"),
            max_volumes_per_node=self.control.get("max_volumes", 0),
            accessible_topology={"segments": self.control.get("topology", {"zone": "a"})},
        )

    def Abilities(self, request: Any, answer: Any) -> Any:  # noqa: N802
        return answer(
            capabilities=[{"rpc": {"type": one}} for one in self.control.get("abilities", [1, 2, 3])]
        )

    def Controller(self, request: Any, answer: Any) -> Any:  # noqa: N802
        if (can := self.control.get("controller")) is None:
            raise GRPCError(Status.UNIMPLEMENTED, "the controller is elsewhere")
        return answer(capabilities=[{"rpc": {"type": one}} for one in can])

    def Create(self, request: Any, answer: Any) -> Any:  # noqa: N802
        path = self.folder / "backing" / f"made-{request.name}"
        path.mkdir(exist_ok=True)
        context = {**request.parameters, "made": "by controller"}
        size = request.capacity_range.required_bytes
        return answer(volume={"volume_id": path.name, "volume_context": context, "capacity_bytes": size})

    def Delete(self, request: Any, answer: Any) -> Any:  # noqa: N802
        with contextlib.suppress(FileNotFoundError):
            (self.folder / "backing" / request.volume_id).rmdir()
        return answer()

    # ---------------------------------------------------------------------------------------------- volumes

    def backing(self, volume: str) -> Path:
        path = self.folder / "backing" / volume
        if not path.is_dir():
            raise GRPCError(Status.NOT_FOUND, f"no volume {volume}")
        return path

    def attach(self, volume: str, point: str) -> None:
        backing, kind = self.backing(volume), self.control.get("filesystem", "bind")
        if kind == "tmpfs":
            run("mount", "-t", "tmpfs", f"fake-{volume}", point)
        elif kind == "loop":
            new = not (self.folder / f"{volume}.img").exists()
            image = str(self.image(volume))
            if new:
                run("mkfs.ext4", "-q", image)
            run("mount", "-o", "loop", image, point)
        elif source := self.control.get("source"):
            syscall = _libc.mount(source.encode(), point.encode(), None, _MS_BIND, None)  # looks at neither
            assert syscall == 0
        else:
            run("mount", "--bind", str(backing), point)

    def Stage(self, request: Any, answer: Any) -> Any:  # noqa: N802
        path, volume = request.staging_target_path, request.volume_id
        self.backing(volume)
        if self.has("wants-context") and not request.volume_context:
            raise GRPCError(Status.INVALID_ARGUMENT, "volume context is missing")
        if (secret := self.control.get("secret")) and dict(request.secrets) != {"key": secret}:
            raise GRPCError(Status.UNAUTHENTICATED, "that is not the secret")
        how = "nothing" if block(request) else self.control.get("stage", "mount")
        if how == "mount" and not mounts_at(path):
            self.attach(volume, path)
        elif how == "below" and not mounts_at(path + "/inner"):
            os.makedirs(path + "/inner", exist_ok=True)
            self.attach(volume, path + "/inner")
        if self.has("litter") and not mounts_at(path):
            Path(path, "plugin-state.json").write_text("{}")
        self.staged.add(volume)
        return answer()

    def Unstage(self, request: Any, answer: Any) -> Any:  # noqa: N802
        path = request.staging_target_path
        if self.has("forgets") and request.volume_id not in self.staged:
            raise GRPCError(Status.NOT_FOUND, f"no volume {request.volume_id}")
        self.take_back(path, "Unstage")
        if (self.folder / f"{request.volume_id}.img").exists() and (
            device := self.loop_device(request.volume_id)
        ):
            run("losetup", "-d", device)
        if self.has("removes-staging"):
            run("rm", "-rf", "--one-file-system", path)
        self.staged.discard(request.volume_id)
        return answer()

    def Publish(self, request: Any, answer: Any) -> Any:  # noqa: N802
        volume, target, staging = request.volume_id, request.target_path, request.staging_target_path
        self.backing(volume)
        if staging and volume not in self.staged and not self.has("blind") and not below(staging):
            raise GRPCError(Status.FAILED_PRECONDITION, f"{volume} is not staged")
        there = os.path.lexists(target)
        if mounts_at(target) and not self.has("stacks"):
            return answer()
        if self.has("wants-target") and not there:
            raise GRPCError(Status.INTERNAL, "target is missing")
        if self.has("wants-no-target") and there:
            raise GRPCError(Status.INVALID_ARGUMENT, "target is there")
        if self.has("deletes-target"):
            run("rm", "-rf", "--one-file-system", target)
        if block(request) and not self.has("mounts-block"):
            device = self.control.get("device") or self.loop_device(volume) or self.attach_loop(volume)
            Path(target).touch()
            run("mount", "--bind", device, target)
            self.published[target] = volume
            return answer()
        os.makedirs(target, exist_ok=True)
        for _ in range(2 if self.has("stacks") else 1):
            self.bind(volume, staging, target)
        if request.readonly and not self.has("ignores-read-only"):
            run("mount", "-o", "remount,bind,ro", target)
        self.published[target] = volume
        return answer()

    def image(self, volume: str) -> Path:
        image = self.folder / f"{volume}.img"
        if not image.exists():
            with image.open("wb") as file:
                file.truncate(8 << 20)
        return image

    def loop_device(self, volume: str) -> str:
        found = subprocess.run(
            ["losetup", "-n", "-O", "NAME", "-j", str(self.image(volume))],
            capture_output=True,
            text=True,
            check=True,
        )
        return found.stdout.strip().partition("\n")[0]

    def attach_loop(self, volume: str) -> str:
        run("losetup", "-f", str(self.image(volume)))
        return self.loop_device(volume)

    def bind(self, volume: str, staging: str, target: str) -> None:
        how = self.control.get("stage", "mount")
        if not staging or how == "nothing":
            self.attach(volume, target)
        else:
            run("mount", "--bind", staging + ("/inner" if how == "below" else ""), target)

    def Unpublish(self, request: Any, answer: Any) -> Any:  # noqa: N802
        target = request.target_path
        if self.has("says-unmounted"):
            return answer()
        if self.has("forgets") and target not in self.published:
            raise GRPCError(Status.NOT_FOUND, f"no volume {request.volume_id}")
        self.take_back(target, "Unpublish")
        if not self.has("keeps-leaf") and not mounts_at(target):
            with contextlib.suppress(OSError):
                (os.unlink if os.path.isfile(target) else os.rmdir)(target)
        self.published.pop(target, None)
        return answer()

    def take_back(self, path: str, what: str) -> None:
        points = below(path)
        if not points and self.has("picky-absent") and not os.path.lexists(path):
            raise GRPCError(Status.INTERNAL, f"{what}: {path} does not exist")
        if not points and self.has("picky-present") and os.path.lexists(path):
            raise GRPCError(Status.INTERNAL, f"{what}: {path} is not mounted")
        if points:
            try:
                syscalls.umount2(points[-1], syscalls.UMOUNT_NOFOLLOW)
            except OSError as error:
                raise GRPCError(Status.INTERNAL, f"{what}: {error}") from error

    def Statistics(self, request: Any, answer: Any) -> Any:  # noqa: N802
        usage = [
            {"total": 1000, "used": 300, "available": 700, "unit": 1},
            {"total": 9, "used": 2, "available": 7, "unit": 2},
        ]
        condition = {"abnormal": self.control.get("abnormal", False), "message": "fine"}
        return answer(usage=self.control.get("usage", usage), volume_condition=condition)

    def Expand(self, request: Any, answer: Any) -> Any:  # noqa: N802
        return answer(capacity_bytes=self.control.get("capacity", request.capacity_range.required_bytes))


class Registrar:
    """What a stock registrar serves beside its plugin."""

    def __init__(self, plugin: Plugin, endpoint: str) -> None:
        self.plugin, self.endpoint = plugin, endpoint

    def __mapping__(self) -> dict[str, Handler]:
        served = {messages.REGISTRATION_INFO: self.info, messages.REGISTRATION_NOTIFY: self.notify}
        return {
            method.path: Handler(serve, Cardinality.UNARY_UNARY, method.request, method.answer)
            for method, serve in served.items()
        }

    async def info(self, stream: Any) -> None:
        await stream.recv_message()
        told: dict[str, Any] = {"type": "CSIPlugin", "name": "fake.xce.example", "endpoint": self.endpoint}
        told |= {"supported_versions": ["1.0.0"], **self.plugin.control.get("registrar", {})}
        await stream.send_message(messages.REGISTRATION_INFO.answer(**told))

    async def notify(self, stream: Any) -> None:
        self.plugin.record("NotifyRegistrationStatus", await stream.recv_message())
        await stream.send_message(messages.REGISTRATION_NOTIFY.answer())


async def main(folder: Path) -> None:
    plugin = Plugin(folder)
    path = folder / "csi.sock"
    path.unlink(missing_ok=True)
    server = Server([plugin])
    await server.start(path=str(path))
    registry = plugin.control.get("registry")
    if registry:
        for name in filter(None, ("fake.xce.example-reg.sock", plugin.control.get("also"))):
            registrar = Server([Registrar(plugin, str(path))])
            await registrar.start(path=f"{registry}/{name}")
    print("READY", flush=True)
    await server.wait_closed()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
