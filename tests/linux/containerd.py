"""A real container engine for tests: containerd, asked as Kubernetes' node agent asks it, gone with the test.

Pods share the host's network, so that no network plugin is needed.
"""

import hashlib
import io
import json
import platform
import subprocess
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import grpc
import pytest

from tests.linux import engine
from xce.linux.cgroup import Cgroup

_SOCKET = "/run/containerd.sock"
_IMAGE = "xce.example/busybox:1"
_PROBE = "xce.example/probe"
_HOST = 2
"""A namespace that is the host's."""
RUNNING, EXITED = 1, 2
WITHIN_S = 20.0
_CONFIG = """
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  enable_cdi = true
  cdi_spec_dirs = ["/run/cdi"]
  restrict_oom_score_adj = true
  sandbox_image = "{image}"
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "native"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  BinaryName = "{runc}"
"""
_messages = grpc.protos("tests/linux/cri.proto")


class Ran(NamedTuple):
    """What a command in a container has said."""

    status: int
    out: str
    err: str


class Containerd:
    """Below `place`, in a control group of its own; what the CDI files in `cdi` describe can be had."""

    def __init__(self, place: Path, group: Cgroup, *, cdi: str, programs: str) -> None:
        self._place, self._group, self._cdi, self._programs = place, group, cdi, programs
        self._process: subprocess.Popen[bytes] | None = None
        self._pods = 0

    def __enter__(self) -> Self:
        self._group.create()
        config = self._place / "config.toml"
        config.write_text(_CONFIG.format(image=_IMAGE, runc=engine.runc(self._place)))
        command = ["containerd", "-c", str(config), "-a", _SOCKET]
        command += ["--root", f"{self._place}/root", "--state", "/run/containerd"]
        enter = f'echo $$ > {self._group.path}/cgroup.procs && exec "$@"'
        self._process = subprocess.Popen(
            ["sh", "-c", enter, "sh", *engine.world(command, cdi=self._cdi, programs=self._programs)],
            stdout=(self._place / "log").open("wb"),
            stderr=subprocess.STDOUT,
        )
        self._channel = grpc.insecure_channel(f"unix:/proc/{self._process.pid}/root{_SOCKET}")
        try:
            grpc.channel_ready_future(self._channel).result(WITHIN_S)
            self._load_the_image()
            self._need_a_pod()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        assert self._process is not None
        self._channel.close()
        self._group.kill()  # the shims of containers too
        self._process.wait(WITHIN_S)
        while not self._group.remove():
            time.sleep(0.01)

    def _load_the_image(self) -> None:
        """As Kubernetes' images; it is the pod's own as well."""
        file = self._place / "image.tar"
        _write_image(engine.image(self._place / "image"), file)
        assert self._process is not None
        command = ["nsenter", "-m", "-r", "-t", str(self._process.pid), "--"]
        command += [
            "ctr",
            "-a",
            _SOCKET,
            "-n",
            "k8s.io",
            "images",
            "import",
            "--snapshotter",
            "native",
            str(file),
        ]
        subprocess.run(command, capture_output=True, text=True, check=True)

    def _need_a_pod(self) -> None:
        """One that gets what a CDI file of ours says. The engine hears of an image a moment later."""
        file = Path(self._cdi, "probe.json")
        mount = {"hostPath": str(self._place), "containerPath": "/probe", "options": ["bind", "ro"]}
        device = {"name": "all", "containerEdits": {"mounts": [mount]}}
        file.write_text(json.dumps({"cdiVersion": "0.3.0", "kind": _PROBE, "devices": [device]}))
        end = time.monotonic() + 2
        while True:
            try:
                pod = self.pod(self._group)
                container = self.start(self.create(pod, ["sleep", "60"], f"{_PROBE}=all"))
                seen = self.exec(container, ["ls", "/probe"])
                self.remove(pod)
                break
            except grpc.RpcError as error:
                if time.monotonic() > end:
                    pytest.skip(f"containerd cannot run containers here: {error.details()}")
                time.sleep(0.1)
        file.unlink()
        if "config.toml" not in seen.out:  # in a changed root, for instance
            pytest.skip(f"containerd gives containers no mounts here: {seen.err.strip()}")

    def _ask(self, method: str, request: Any, answer: str = "Empty") -> Any:
        kind = getattr(_messages, answer)
        call = self._channel.unary_unary(
            f"/runtime.v1.RuntimeService/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=kind.FromString,
        )
        return call(request, timeout=WITHIN_S)

    def _config(self, parent: Cgroup) -> Any:
        self._pods += 1
        name = f"pod{self._pods}"
        return _messages.PodConfig(
            metadata={"name": name, "uid": name, "namespace": "default"},
            linux={
                "cgroup_parent": within_hierarchy(parent),
                "security_context": {"namespace_options": {"network": _HOST}},
            },
        )

    def pod(self, parent: Cgroup) -> str:
        """A pod whose control groups are below `parent`."""
        self._made = self._config(parent)
        answer = self._ask("RunPodSandbox", _messages.RunPod(config=self._made), "PodId")
        return str(answer.pod_sandbox_id)

    def create(self, pod: str, command: Sequence[str], *devices: str) -> str:
        """A container of the newest pod, which is not started yet."""
        config = _messages.ContainerConfig(
            metadata={"name": "job"},
            image={"image": _IMAGE},
            command=["/bin/busybox", *command],
            CDI_devices=[{"name": device} for device in devices],
        )
        request = _messages.CreateContainer(pod_sandbox_id=pod, config=config, sandbox_config=self._made)
        return str(self._ask("CreateContainer", request, "ContainerId").container_id)

    def start(self, container: str) -> str:
        """It runs."""
        self._ask("StartContainer", _messages.ContainerId(container_id=container))
        return container

    def exec(self, container: str, command: Sequence[str]) -> Ran:
        """A command in a container that runs."""
        request = _messages.Exec(container_id=container, cmd=["/bin/busybox", *command], timeout=10)
        said = self._ask("ExecSync", request, "Said")
        return Ran(said.exit_code, said.stdout.decode(), said.stderr.decode())

    def state(self, container: str) -> int:
        """RUNNING, or EXITED."""
        request = _messages.ContainerId(container_id=container)
        return int(self._ask("ContainerStatus", request, "StatusOfContainer").status.state)

    def remove(self, pod: str) -> None:
        """With all its containers."""
        request = _messages.PodId(pod_sandbox_id=pod)
        self._ask("StopPodSandbox", request)
        self._ask("RemovePodSandbox", request)


def within_hierarchy(group: Cgroup) -> str:
    """A group's path as engines are told it."""
    return group.path.removeprefix("/sys/fs/cgroup").removeprefix("/unified")


def _write_image(root: Path, file: Path) -> None:
    """An OCI image of one layer that does nothing until it is killed."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as packed:
        packed.add(root, ".")
    blobs: dict[str, bytes] = {}

    def blob(content: bytes, kind: str) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        media = f"application/vnd.oci.image.{kind}"
        return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(content)}

    packed_layer = blob(layer.getvalue(), "layer.v1.tar")
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Entrypoint": ["/bin/busybox", "sleep", "600"]},
        "rootfs": {"type": "layers", "diff_ids": [packed_layer["digest"]]},
    }
    manifest = {
        "schemaVersion": 2,
        "config": blob(json.dumps(config).encode(), "config.v1+json"),
        "layers": [packed_layer],
    }
    named = blob(json.dumps(manifest).encode(), "manifest.v1+json")
    named["annotations"] = {"io.containerd.image.name": _IMAGE}
    index = {"schemaVersion": 2, "manifests": [named]}
    blobs |= {"index.json": json.dumps(index).encode(), "oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}
    with tarfile.open(file, "w") as archive:
        for name, content in blobs.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
