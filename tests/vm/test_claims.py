"""What needs a kernel that has what this one lacks: project quotas, controllers of version 2, RDMA, a reboot.

Tests that run here too, as far as they can, and those of guest.py, in one machine; then its power is lost,
and another boots with its disk. XCE_TEST_FULL=1 adds the crash matrix of a project quota: two minutes.
"""

import os
import re

import pytest

from tests.vm import box

pytestmark = pytest.mark.vm

FULL = bool(os.environ.get("XCE_TEST_FULL"))
MATRIX = 'run matrix tests/prepare/test_crash_matrix.py -k "no_limit and xfs"' if FULL else ""

START = """
modprobe -a loop quota_v2 xfs btrfs dummy rdma_rxe ib_uverbs rdma_ucm
mkdir -p /dev/pts /disk; mount -t devpts -o newinstance,ptmxmode=666 devpts /dev/pts
cd /sys/fs/cgroup; mount -t cgroup2 cgroup2 .; cd .
mkdir tests; echo $$ > tests/cgroup.procs
sed 's/[a-z][a-z]*/+&/g' cgroup.controllers > cgroup.subtree_control
disk() {
    mount -o prjquota /dev/vdb /disk; mkdir -p /disk/scratch /disk/node/run; mount -t tmpfs run /disk/node/run
}
cd /tmp/xce
run() { # run NAME ARGUMENTS: pytest
    echo "begin $1"; shift
    python3 -m pytest -p no:cacheprovider --basetemp /tmp/tests -v --durations=8 "$@" || true
}
alone() { # the same, with a control group to itself, as a unit has one
    echo "begin $1"; mkdir "/sys/fs/cgroup/$1"
    sh -c 'echo 0 >"/sys/fs/cgroup/$0/cgroup.procs"
        exec python3 -m pytest -p no:cacheprovider --basetemp /tmp/tests -v "$@"' "$@" || true
}
# Without the conftest of all, which wants hypothesis: to load that takes ten seconds here.
few() { run "$@" --noconftest -p no:hypothesispytest; }
"""
FIRST = (
    START
    + f"""
for n in 0 1; do
    ip link add d$n type dummy; ip link set d$n up; ip addr add 192.168.7$n.1/24 dev d$n
    rdma link add rxe$n type rxe netdev d$n
done
mkfs.xfs -q /dev/vdb; disk
few guest tests/vm/guest.py -k "not reboot"
few quotas tests/prepare/test_quota.py \\
    -k "not admin and (xfs or writes_more or subvolumes_of or project and ext4)"
{MATRIX}
export XCE_TEST_WITHIN_S=120 # emulated, and perhaps beside others
run product tests/system/test_claims.py -k made_true_on_the_node
alone limits tests/reporters/test_controllers.py
few reboot tests/vm/guest.py -k before
"""
)
SECOND = START + "disk; few rebooted tests/vm/guest.py -k after\n"
RUNS = {"guest": 2, "quotas": 17, "product": 1, "limits": 4, "rebooted": 1} | ({"matrix": 2} if FULL else {})
"""How many tests there are in each."""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What every run of pytest in the machine said, by its name."""
    box.need()
    folder = tmp_path_factory.mktemp("vm")
    with (folder / "disk").open("wb") as file:
        file.truncate(320 << 20)
    drive = f"-drive file={folder}/disk,format=raw,if=none,id=d1 -device virtio-blk-pci,drive=d1,bus=pcie.0"
    first = box.run(folder, FIRST, drive, ends=box.CRASHED, within_s=900)
    text = first + "\n" + box.run(folder, SECOND, drive)
    parts = re.split(r"^begin (\w+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("run", RUNS)
def test_in_the_machine(said: dict[str, str], run: str) -> None:
    """As many as there should be have passed, and none was left out."""
    ended = said[run].rstrip().splitlines()[-1]
    assert f" {RUNS[run]} passed" in ended, said[run]
    assert "failed" not in ended, said[run]
    assert "skipped" not in ended, said[run]


def test_the_machine_went_down_in_the_midst_of_a_claim(said: dict[str, str]) -> None:
    assert "test_before_a_reboot" in said["reboot"]
    assert not re.search(r"passed|failed|error", said["reboot"]), said["reboot"]
