"""A volume of a CSI plugin on a booted host: in use while the helper's files change their package."""

import json
from pathlib import Path

import pytest

from tests.hosts.box import Host
from tests.hosts.cluster import rpm
from tests.hosts.conftest import NOW, OLDER
from tests.hosts.test_packages import available, serve
from tests.project import tree

pytestmark = [pytest.mark.root, pytest.mark.system, pytest.mark.slow]

CLAIMS = """
claims:
  enabled: true
  csi: {plugins: {fake: /root/plugin/csi.sock}}
  profiles:
    default:
      volumes: {data: {csi: {plugin: fake, id: vol1}}}
"""
PLACE = "/run/xce-claims"


def plugin(host: Host) -> None:
    """The plugin of the tests, as a service of its own, on the libraries of the packages."""
    host.must("mkdir", "-p", "/root/plugin/backing/vol1")
    host.write("/root/plugin/backing/vol1/file", "payload\n")
    host.write("/root/plugin/control.json", "{}")
    host.write("/root/plugin.py", (tree.ROOT / "tests/fakes/csi_plugin.py").read_text())
    command = ("/usr/bin/python3", "-B", "/root/plugin.py", "/root/plugin")
    host.must("systemd-run", "--unit=plugin", "--setenv=PYTHONPATH=/usr/lib/xce/site", *command)
    host.until(lambda: host.run("test", "-S", "/root/plugin/csi.sock").returncode == 0, "to have a plugin")


def calls(host: Host) -> list[str]:
    """Those that do something to a volume, in their order."""
    lines = host.read("/root/plugin/calls.jsonl").splitlines()
    return [rpc for line in lines if (rpc := json.loads(line)["rpc"]).endswith("Volume")]


def mounts(host: Host) -> list[str]:
    return [line for line in host.read("/proc/1/mountinfo").splitlines() if f" {PLACE}/" in line]


def test_a_volume_in_use_is_kept_while_the_helper_gets_a_package_of_its_own(host: Host, older: Path) -> None:
    rpm(host, "-i", "--nodeps", "/packages/older/*.rpm")
    text = host.read("/etc/xce/agent.yaml")
    at = text.index("\nclaims:\n")
    host.write("/etc/xce/agent.yaml", text[:at] + CLAIMS + text[text.index("\n# ", at + 1) :])
    plugin(host)
    serve(host)
    assert OLDER in host.must("xce-agent", "status")
    host.must("xce-broker", "claim", "create", "c", "--mount", "data=data")
    host.must("xce-broker", "claim", "bind", "c", host.name, "--consumer", "job", "--wait", "20")
    before = mounts(host)
    assert len(before) == 3, "staged, published, and bound for the job"

    rpm(host, "-U", "--nodeps", "/packages/*.rpm")
    available(host)
    assert NOW in host.must("xce-agent", "status")
    assert mounts(host) == before
    assert calls(host) == ["NodeStageVolume", "NodePublishVolume"], "nobody was asked again"
    refused = host.run("rpm", "--dbpath", "/var/lib/rpm", "-e", "--nodeps", "xce-csi-node-helper")
    assert refused.returncode != 0
    assert "is mounted at /run/xce-claims/.csi/" in refused.stderr

    host.must("xce-broker", "claim", "release", "c")
    gone = ("xce-broker", "claim", "show", "c")
    host.until(lambda: host.run(*gone).returncode != 0, "to give the volume back", within_s=30)
    assert calls(host)[2:] == ["NodeUnpublishVolume", "NodeUnstageVolume"]
    assert mounts(host) == []
    rpm(host, "-e", "--nodeps", "xce-csi-node-helper")
    host.until(
        lambda: "install xce-csi-node-helper" in host.run("xce-agent", "doctor").stdout, "to miss the helper"
    )
    assert "Traceback" not in host.journal("xce-*")
