"""What went wrong for people with volumes, directories, ports and disks, tried with all programs: seen by the
kernel on the node, and by whoever looks at the broker.

The steps alone, at every moment and with every fault, are tried in tests/prepare.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.linux.kernel import in_place_of
from tests.linux.test_beneath import exchange
from tests.linux.test_mountapi import bind as bind_mount
from tests.prepare.test_names import NAMES, refused
from tests.system.harness import AgentProgram, Site
from tests.system.test_claims import (
    INVENTORY,
    OTHER,
    OWN,
    bindings_of,
    ended,
    node,
    place,
    run_in,
    until_there,
)
from tests.system.test_claims_killed import left, prepare_folders
from xce.broker.client import BrokerRefused, Client
from xce.linux import mountapi, mountinfo
from xce.linux.cgroup import Cgroup
from xce.model import message as m
from xce.model.claim import (
    AccessMode,
    Ask,
    BindingState,
    Claim,
    Consumer,
    InstanceAsk,
    MountAsk,
    PortsAsk,
    SharedAsk,
    binding_number,
)
from xce.model.claim_check import text_problem
from xce.prepare import names
from xce.prepare.ports import is_free

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts and control groups need root"),
]
PENDING, PREPARING, READY = BindingState.PENDING, BindingState.PREPARING, BindingState.READY
RELEASING, RELEASED, FAILED = BindingState.RELEASING, BindingState.RELEASED, BindingState.FAILED
REFUSED = "Operation not permitted"
DATA, CACHE = MountAsk(name="data", source="data"), MountAsk(name="cache", source="staged")
CARD = [InstanceAsk(kind="card")]
HOME = Ask(shared=[SharedAsk(volume="home")])
FILES = 100


class Node:
    """An agent that takes claims, its broker, and a client of that."""

    def __init__(self, site: Site, client: Client, agent: AgentProgram) -> None:
        self.site, self.client, self.agent = site, client, agent
        self.claims: dict[str, Any] = agent.settings["claims"]

    def order(self, name: str, ask: Ask, *, card: str = "", **more: Any) -> str:
        """A claim of this name, bound for a consumer of this name."""
        consumer = more.pop("consumer", Consumer(name=name, user="root"))
        self.client.ask(m.ClaimCreate(id=f"create-{name}", claim=Claim(id=name, ask=ask, **more)))
        where = m.Place(claim=name, host="node1", consumer=consumer)
        if card:
            where = place(self.client, name, "node1", card, name)
        return self.client.ask(m.ClaimBind(id=f"bind-{name}", places=[where])).made[0]

    def bound(self, name: str, ask: Ask, **more: Any) -> m.BindingView:
        """The same, once it is ready or has failed."""
        binding = self.order(name, ask, **more)
        return self.client.wait_bindings([binding], timeout=30)[binding]

    def ready(self, name: str, ask: Ask, **more: Any) -> str:
        view = self.bound(name, ask, **more)
        assert view.binding.state is READY, view
        return view.binding.id

    def view(self, binding: str) -> m.BindingView:
        """What the broker has of it."""
        return self.client.ask(m.ClaimsRequest(id="")).bindings[binding]

    def told(self, binding: str, words: str) -> m.BindingView:
        """The broker's and the agent's words, once both say what is the matter."""
        self.site.until(lambda: words in bindings_of(self.agent)[binding]["note"])
        return self.site.until(lambda: view if words in (view := self.view(binding)).note else None)

    def release(self, *claims: str) -> None:
        for name in claims:
            self.client.ask(m.ClaimRelease(id=f"release-{name}", claim=name))

    def ended(self, *bindings: str) -> None:
        ended(self.site, self.client, *bindings)
        self.site.until(lambda: left(self.agent) == [])

    def point(self, binding: str, name: str) -> Path:
        return Path(self.claims["directory"], binding, name)

    def mounts(self, point: Path | None = None) -> list[mountinfo.Mount]:
        """On a point, or all of claims."""
        top = f"{self.claims['directory']}/"
        return [
            one
            for one in mountinfo.read()
            if (one.point == str(point) if point else one.point.startswith(top))
        ]

    def folder(self, name: str) -> Path:
        return self.agent.folder / name

    def run(self, name: str, *command: str) -> subprocess.CompletedProcess[str]:
        """A command within the claim."""
        return self.agent.command("run", "--claim", name, "--", *command)


def with_more_volumes(agent: AgentProgram) -> None:
    volumes = agent.settings["claims"]["profiles"]["default"]["volumes"]
    volumes["fixed"] = {"path": str(agent.folder / "data"), "read_only": True}
    volumes["option"] = {"type": "tmpfs", "options": ["ro", "size=1m"]}


@pytest.fixture
def one(site: Site, request: pytest.FixtureRequest) -> Iterator[Node]:
    """`request.param`: what else is set before the agent starts."""
    agent = node(site, "node1")
    prepare_folders(agent)
    getattr(request, "param", with_more_volumes)(agent)
    site.broker.start()
    agent.start()
    until_there(site, "node1")
    with site.client() as client:
        yield Node(site, client, agent)


def starting(*prepared: Callable[[AgentProgram], None]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("one", prepared, indirect=True, ids=["" for _ in prepared])


def removed(path: Path) -> None:
    subprocess.run(["rm", "-rf", "--one-file-system", str(path)], check=True)


# ----------------------------------------------------------------------------------------------- volumes


def test_c_csi_01_ordered_and_published_again_and_again_it_is_mounted_once(one: Node) -> None:
    binding = one.ready("job", Ask(mounts=[DATA]))
    where = m.Place(claim="job", host="node1", consumer=Consumer(name="job", user="root"))
    for _ in range(2):
        assert one.client.ask(m.ClaimBind(id="bind-job", places=[where])).made == [binding]
        assert one.agent.ask(op="publish", name="job", seconds=5)["bindings"][0]["binding"] == binding
        with pytest.raises(BrokerRefused, match=f"job has it already, binding {binding}"):
            one.client.ask(m.ClaimBind(id="another", places=[where]))
    other = m.Place(claim="job", host="node1", consumer=where.consumer, read_only=True)
    with pytest.raises(BrokerRefused, match="that id was given to another order"):
        one.client.ask(m.ClaimBind(id="bind-job", places=[other]))
    [mount] = one.mounts()
    assert (mount.point, mount.options.split(",")[0]) == (str(one.point(binding, "data")), "rw")
    assert one.agent.ask(op="unpublish", name=binding, seconds=10) == {"released": [binding]}
    assert one.mounts() == []
    assert "error" not in one.agent.ask(op="unpublish", name=binding, seconds=10)
    one.ended(binding)


def test_c_csi_02_users_of_a_volume_are_counted_across_a_kill(one: Node) -> None:
    first, second = one.ready("first", Ask(mounts=[CACHE])), one.ready("second", Ask(mounts=[CACHE]))
    kept = one.point(second, "cache") / "file"
    kept.write_text("precious")
    device = kept.stat().st_dev
    staged = Path(one.claims["directory"], ".staged/staged")
    one.agent.kill()
    one.agent.start()
    one.site.until(lambda: bindings_of(one.agent).get(second, {}).get("state") == "ready")
    one.release("first")
    ended(one.site, one.client, first)
    assert [mount.point for mount in one.mounts()] == [str(staged), str(kept.parent)]
    job = one.run("second", "sh", "-c", 'cat "$XCE_DIR_CACHE/file"')
    assert (job.stdout, kept.stat().st_dev) == ("precious", device)
    one.release("second")
    one.ended(second)
    assert one.mounts() == []


def test_c_csi_03_a_busy_volume_is_waited_for_and_named_and_keeps_its_files(one: Node) -> None:
    data = one.folder("data")
    for number in range(FILES - 1):  # one is there
        (data / str(number)).write_text("x")
    binding = one.ready("job", Ask(mounts=[DATA]))
    with (one.point(binding, "data") / "7").open():
        one.release("job")
        view = one.told(binding, f"is busy: pid {os.getpid()} (")
        assert (view.binding.state, view.conditions) == (RELEASING, ["blocked"])
        assert view.note == one.agent.command("claim", "why", "job").stdout.rstrip()
        time.sleep(1)  # it is tried again
        assert one.view(binding) == view
        assert len(one.mounts()) == 1
    one.ended(binding)
    assert len(list(data.iterdir())) == FILES


def test_c_csi_04_a_job_cannot_write_where_anybody_says_read_only(one: Node) -> None:
    """The request, the access mode, the volume, its mount options."""
    for name, source, access, read_only in (
        ("request", "data", AccessMode.RWX, True),
        ("access", "data", AccessMode.ROX, False),
        ("volume", "fixed", AccessMode.RWX, False),
        ("option", "option", AccessMode.RWX, False),
    ):
        ask = Ask(mounts=[MountAsk(name="data", source=source, read_only=read_only)])
        binding = one.ready(name, ask, access=access)
        [mount] = one.mounts(one.point(binding, "data"))
        assert "ro" in mount.options.split(","), name
        job = one.run(name, "sh", "-c", ': >"$XCE_DIR_DATA/new"')
        assert job.returncode
        assert "Read-only file system" in job.stderr, name
        one.release(name)
        one.ended(binding)


def test_c_csi_05_an_agent_that_dies_between_two_steps_of_a_volume_finishes_them(site: Site) -> None:
    """Between stage and publish, mount and record, unpublish and unstage; the broker says nothing anew."""
    agent = node(site, "node1")
    prepare_folders(agent)
    strike = site.folder / "strike"
    agent.argv = [agent.argv[0], "-m", "tests.fakes.mortal_agent", f"{agent.folder}/agent.yaml", str(strike)]
    site.broker.start()
    agent.start()
    with site.client() as client:
        one = Node(site, client, agent)
        for number, point in enumerate(
            ("stage.after-do", "mounts.mounted", "bind.after-do", "bind.after-undo")
        ):
            until_there(site, "node1")
            dies_at(one, point, strike, f"job{number}")


def dies_at(one: Node, point: str, strike: Path, name: str) -> None:
    ask, releasing = Ask(mounts=[CACHE]), "undo" in point
    if releasing:
        binding = one.ready(name, ask)
        strike.write_text(point)
        one.release(name)
    else:
        strike.write_text(point)
        binding = one.order(name, ask)
    assert one.agent.ended() == -signal.SIGKILL
    assert one.mounts(), "that is what must not be forgotten"
    one.agent.start()
    if not releasing:
        one.site.until(lambda: one.view(binding).binding.state is READY, within_s=30)
        assert [mount.point for mount in one.mounts()] == [
            f"{one.claims['directory']}/.staged/staged",
            str(one.point(binding, "cache")),
        ]
        one.release(name)
    one.ended(binding)
    one.release(name)  # the same again
    assert one.mounts() == []


def test_c_csi_06_no_sub_path_leads_out_of_the_volume(one: Node) -> None:
    data = one.folder("data")
    (data / "link-to-etc").symlink_to("/etc")
    (data / "a").mkdir()
    (data / "dir").mkdir()
    (data / "dir/link").symlink_to("/")
    (data / "inside").symlink_to("a")
    for number, path in enumerate(("link-to-etc", "dir/link/etc", "inside")):
        ask = Ask(mounts=[MountAsk(name="data", source="data", subdirectory=path)])
        view = one.bound(f"job{number}", ask)
        assert view.binding.state is FAILED
        assert f"cannot mount {data}/{path}: there is a symbolic link in it" in view.binding.reason
    for path in ("a/../../..", "/etc", "a/./.."):
        ask = Ask(mounts=[MountAsk(name="data", source="data", subdirectory=path)])
        with pytest.raises(BrokerRefused, match=r"subdirectory: must be names with '/' between them"):
            one.order("job", ask)
    assert left(one.agent) == []


# ----------------------------------------------------------------------------------- directories and ports


def own_range() -> tuple[int, int]:
    """Four ports that the kernel gives to outgoing connections, and nobody has."""
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    for first in range(high - 4, low, -7):
        if all(is_free(port) for port in range(first, first + 4)):
            return first, first + 3
    pytest.skip("no four free ports in a row")


def with_the_kernels_ports(agent: AgentProgram) -> None:
    low, high = own_range()
    agent.settings["claims"]["profiles"]["default"]["ports"] = {"low": low, "high": high}


@starting(with_the_kernels_ports)
def test_c_dir_01_a_pool_in_the_kernels_own_range_is_told_and_what_connections_have_is_not_given(
    one: Node,
) -> None:
    low, high = (one.claims["profiles"]["default"]["ports"][key] for key in ("low", "high"))
    words = f"the kernel gives {low}-{high} to outgoing connections; reserve them"
    assert [words in line for line in one.agent.status()["trouble"]] == [True]
    assert words in one.agent.command("doctor", "--config", str(one.folder("agent.yaml"))).stdout
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = low + 1
        with socket.create_connection(server.getsockname(), source_address=("127.0.0.1", taken)):
            binding = one.ready("job", Ask(ports=[PortsAsk(name="http", count=3)]))
            assert one.view(binding).binding.ports == {"http": [low, low + 2, low + 3]}
            for port in (low, low + 2, low + 3):
                serve = f"import socket; socket.create_server(('', {port}))"
                assert one.run("job", "python3", "-c", serve).returncode == 0
            late = one.bound("late", Ask(ports=[PortsAsk(name="http", count=1)]))
            assert late.binding.state is FAILED
            assert f"only 0 of 1 are free from {low} to {high}" in late.binding.reason
    one.release("job", "late")
    one.ended(binding)


def squashed(agent: AgentProgram) -> None:
    """As if all shares squashed root. Its reporter runs as the agent does: it gives nothing away."""
    agent.prefix = ["setpriv", "--bounding-set=-chown", "--inh-caps=-all"]
    agent.settings["reporters"] |= {"user": "root", "allow_root": ["cards"]}


@starting(squashed)
def test_c_dir_03_where_nothing_can_be_given_to_a_user_the_claim_fails_and_nothing_is_left(one: Node) -> None:
    mine = one.ready("mine", HOME)  # root's own needs not to be given away
    view = one.bound("job", HOME, consumer=Consumer(name="j", user="nobody", job="7"))
    assert view.binding.state is FAILED
    words = f"{one.folder('home')}/nobody: cannot give to 65534 (root squashed?)"
    assert words in view.binding.reason
    assert [path.name for path in one.folder("home").iterdir()] == ["root"]
    one.release("mine")
    one.ended(mine)


def test_c_dir_04_every_name_of_a_job_is_one_directory_and_can_be_read_back(one: Node) -> None:
    good = [name for name in NAMES if not text_problem(name)]
    assert {"1042[7]", "1042_7", "1042%5B7%5D", "../../etc", "..", "*", "$(id)", "a/b"} <= set(good)
    jobs = [Consumer(name=f"j{number}", user="root", job=name) for number, name in enumerate(good)]
    jobs.append(Consumer(name="e", user="root", job="1042", index="[7]"))
    one.client.ask(m.ClaimCreate(id="", claim=Claim(id="job", ask=HOME)))
    places = [m.Place(claim="job", host="node1", consumer=job) for job in jobs]
    made = one.client.ask(m.ClaimBind(id="", places=places)).made
    views = one.client.wait_bindings(made, timeout=30)
    assert {view.binding.state for view in views.values()} == {READY}, views
    top = one.folder("home") / "root"
    found = os.listdir(top)
    assert sorted(map(names.decode, found)) == sorted(good)
    assert all(len(os.fsencode(name)) <= 255 for name in found)
    assert [path.name for path in one.folder("home").iterdir()] == ["root"]
    assert sorted(os.listdir(top / "1042")) == ["%5B7%5D", "err", "in", "out"]
    one.release("job")
    one.ended(*made)
    one.client.ask(m.ClaimCreate(id="", claim=Claim(id="next", ask=HOME)))
    for name in set(NAMES) - set(good) - {""}:  # '' is the consumer's name
        where = m.Place(claim="next", host="node1", consumer=Consumer(name="n", user="root", job=name))
        with pytest.raises(BrokerRefused, match=r"consumer\.job"):
            one.client.ask(m.ClaimBind(id="", places=[where]))
    assert left(one.agent) == []
    assert not any(refused(name) for name in good)


ROUNDS = 1000 if "XCE_TEST_FULL" in os.environ else 5


@contextlib.contextmanager
def swapping(inside: Callable[[], Path], outside: Path) -> Iterator[None]:
    """A loop that exchanges a directory of a job for a link to the outside, and back."""
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            exchange(inside(), outside)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_c_dir_05_a_release_removes_the_users_tree_and_nothing_else(one: Node, tmp_path: Path) -> None:
    """Links as last and as middle component, and a loop that swaps a directory for a link meanwhile."""
    outside, spare = tmp_path / "outside", one.folder("spare")
    (outside / "deep").mkdir(parents=True)
    for name in ("one", "deep/two"):
        (outside / name).write_text("precious")
    spare.symlink_to(outside)
    job = Consumer(name="job", user="root")
    out = one.folder("home") / "root/job/out"
    with swapping(lambda: out / "d", spare):
        for number in range(ROUNDS):
            binding = one.ready(f"job{number}", HOME, consumer=job)
            (out / "d").mkdir()
            for name in ("d/deep", "e/deep"):
                with contextlib.suppress(FileExistsError):
                    (out / name).mkdir(parents=True)
            (out / "last").symlink_to(outside)
            (out / "e/deep/middle").symlink_to(outside / "deep")
            one.release(f"job{number}")
            one.ended(binding)
            assert list(one.folder("home").iterdir()) == []
            if spare.is_dir() and not spare.is_symlink():
                removed(spare)
            if not os.path.lexists(spare):
                spare.symlink_to(outside)
    assert sorted(str(path.relative_to(outside)) for path in outside.rglob("*")) == [
        "deep",
        "deep/two",
        "one",
    ]


def test_c_dir_05_a_mount_in_the_users_tree_is_named_and_what_is_on_it_stays(one: Node) -> None:
    binding = one.ready("job", HOME)
    inside = one.folder("home") / "root/job/out/mounted"
    inside.mkdir()
    bind_mount(one.folder("data"), inside)
    one.release("job")
    view = one.told(binding, f"{inside}: a file system is mounted on it")
    assert (view.binding.state, view.conditions) == (RELEASING, ["blocked"])
    assert (one.folder("data") / "file").read_text() == "data"
    mountapi.unmount(str(inside))
    one.ended(binding)
    assert list(one.folder("home").iterdir()) == []


# ------------------------------------------------------------------------------------------------- devices


def unable(agent: AgentProgram) -> None:
    """It can neither load filters nor write to the old controller, nor mount."""
    agent.prefix = ["setpriv", "--bounding-set=-bpf,-sys_admin", "--inh-caps=-all"]


@starting(unable)
def test_c_dev_03_an_agent_that_cannot_keep_devices_takes_claims_without_any(one: Node) -> None:
    why = "cannot load device filters: Operation not permitted (CAP_BPF"
    assert f"devices are kept by nothing ({why}" in one.agent.command("status").stdout
    plain = one.ready("plain", Ask(environment={"GREETING": "hello"}))
    assert one.run("plain", "sh", "-c", "echo $GREETING").stdout == "hello\n"
    view = one.bound("gpu", Ask(instances=CARD), card="card-own")
    assert view.binding.state is FAILED
    assert view.binding.reason.startswith(f"device isolation unavailable: {why}")
    one.release("plain")
    one.ended(plain)


def test_c_dev_04_released_is_said_when_the_last_process_is_gone_and_its_group_too(one: Node) -> None:
    """One that ignores TERM; another that was put into the claim long after the first."""
    binding = one.ready("job", Ask(instances=CARD), card="card-own")
    group = Cgroup(one.claims["cgroup"]).child("xce-consumer-job")
    look = f"(: <{OWN}) && echo own; (: <{OTHER}) || echo no other; while :; do sleep 60; done"
    enter = f'echo $$ >{group.path}/cgroup.procs; exec env -i sh -c "$0"'
    how: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with (
        subprocess.Popen(["sh", "-c", enter, f"trap '' TERM; {look}"], **how) as first,
        subprocess.Popen(
            ["sh", "-c", 'read go; exec sh -c "$0"', look], stdin=subprocess.PIPE, **how
        ) as late,
    ):
        assert first.stdout is not None
        assert late.stdout is not None
        assert [first.stdout.readline() for _ in range(2)] == ["own\n", "no other\n"]
        one.agent.ask(op="add-process", name="job", pid=late.pid)
        assert late.stdin is not None
        print("go", file=late.stdin, flush=True)
        assert [late.stdout.readline() for _ in range(2)] == ["own\n", "no other\n"]
        one.release("job")
        one.site.until(lambda: over(one, binding) or None, every_s=0)
        assert not group.exists(), "released, and its group is there"
        assert (first.wait(5), late.wait(5)) == (-signal.SIGKILL, -signal.SIGTERM)
    one.ended(binding)


def over(one: Node, binding: str) -> bool:
    found = one.client.ask(m.ClaimsRequest(id="")).bindings.get(binding)
    return found is None or found.binding.state is RELEASED


def test_c_msg_01_of_two_agents_of_one_name_one_prepares_and_the_other_touches_nothing(site: Site) -> None:
    key = site.key("node1", "agent", hosts=("node1",))
    first = node(site, "node1")
    second = site.agent("node1", key=key)
    second.settings["claims"] = json.loads(json.dumps(first.settings["claims"]))
    second.settings["claims"] |= {
        "cgroup": f"{first.settings['claims']['cgroup']}-2",
        "directory": str(second.folder / "claims"),
    }
    Cgroup(second.settings["claims"]["cgroup"]).create()
    site.broker.start()
    first.start()
    until_there(site, "node1")
    second.start()
    site.until(lambda: "already served by" in second.status().get("link", {}).get("trouble", ""))
    with site.client() as client:
        one = Node(site, client, first)
        binding = one.ready("job", Ask(instances=CARD), card="card-own")
        assert [group.path for group in Cgroup(one.claims["cgroup"]).children()] == [
            f"{one.claims['cgroup']}/xce-consumer-job"
        ]
        assert list(Cgroup(second.settings["claims"]["cgroup"]).children()) == []
        assert second.status()["bindings"] == []
        assert one.agent.ask(op="claims")["bindings"][0]["binding"] == binding
        one.release("job")
        ended(site, client, binding)


# ---------------------------------------------------------------------------------- disks and restarts


def on_a_small_disk(agent: AgentProgram) -> None:
    """Its state is on a file system of 4 MiB."""
    place = agent.folder / "state"
    tree, at = mountapi.make("tmpfs", {"size": "4m"}), os.open(place, os.O_PATH)
    mountapi.attach(tree, at)
    for fd in (tree, at):
        os.close(fd)


def fill(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(512)):
            pass


NO_SPACE = "cannot record intent: no space"


@starting(on_a_small_disk)
def test_c_sta_04_on_a_full_disk_nothing_begins_and_everybody_is_told_why(one: Node) -> None:
    ask = Ask(mounts=[DATA])
    stays, goes = one.ready("stays", ask), one.ready("goes", ask)
    ballast = one.folder("state") / "ballast"
    before, seen = left(one.agent), one.view(stays)
    fill(ballast)
    late = one.order("late", ask)
    one.release("goes")
    assert one.told(late, NO_SPACE).binding.state is PENDING
    view = one.told(goes, NO_SPACE)
    assert (view.binding.state, view.conditions) == (RELEASING, ["blocked"])
    assert NO_SPACE in one.agent.command("claim", "why", "late").stderr
    assert NO_SPACE in one.agent.command("claim", "why", "goes").stdout
    assert NO_SPACE in one.agent.command("claim", "release", "stays").stderr
    shown = one.agent.command("status").stdout
    assert f"binding {goes}: ready, blocked: {NO_SPACE}" in shown
    assert f"journal: {NO_SPACE}" in shown
    assert left(one.agent) == before
    assert one.view(stays) == seen
    ballast.unlink()
    assert one.client.wait_bindings([late], timeout=30)[late].binding.state is READY
    ended(one.site, one.client, goes)
    assert one.view(stays) == seen
    one.release("stays", "late")
    one.ended(stays, late)
    one.agent.stop()
    mountapi.unmount(str(one.folder("state")))


def stands(one: Node, binding: str, state: BindingState) -> bool:
    return one.view(binding).binding.state is state


def test_c_sta_05_after_a_reboot_nothing_is_ready_by_the_record_alone(one: Node, tmp_path: Path) -> None:
    """No mounts, no control groups; the second one's instance is not found any more."""
    both = Ask(instances=CARD, mounts=[DATA])
    first, second = one.ready("first", both, card="card-own"), one.ready("second", both, card="card-other")
    assert one.agent.stop() == 0
    for mount in one.mounts():
        mountapi.unmount(mount.point)
    for group in Cgroup(one.claims["cgroup"]).children():
        group.kill()
        one.site.until(group.remove)
    for name in ("claims", "cdi"):
        removed(one.folder(name))
    one.agent.script("cards", "#!/bin/sh\nexit 0\n", interval=0.2)
    cards: Any = INVENTORY["instances"]
    found = {**INVENTORY, "instances": cards[:1]}
    boot = tmp_path / "boot_id"
    boot.write_text("0b00710b-0000-4000-8000-000000000000\n")
    with in_place_of("/proc/sys/kernel/random/boot_id", boot):
        one.agent.start()
        for binding in (first, second):
            one.site.until(partial(stands, one, binding, PREPARING))
            assert one.view(binding).binding.reason == "the host was started anew"
        assert left(one.agent) == []
        one.agent.script("cards", f"#!/bin/sh\necho '{json.dumps(found)}'\n")
        one.site.until(partial(stands, one, first, READY))
        one.site.until(partial(stands, one, second, FAILED))
        assert one.view(second).binding.reason == "instance card-other is not on this node now"
        assert run_in(one.agent, "first", OWN, OTHER) == ["open", REFUSED]
        assert [mount.point for mount in one.mounts()] == [str(one.point(first, "data"))]
        before = one.view(first)
        steps = one.agent.ask(op="claim", name="first")["bindings"][0]["steps"]
        one.agent.kill()
        one.agent.start()
        until_there(one.site, "node1")
        one.site.until(lambda: bindings_of(one.agent).get(first, {}).get("state") == "ready")
        assert one.view(first) == before
        assert one.agent.ask(op="claim", name="first")["bindings"][0]["steps"] == steps, "nothing is redone"
        one.release("first", "second")
        one.ended(first)
        one.agent.stop()


def test_c_sta_05_a_reboot_that_takes_the_journal_along_makes_all_anew_by_what_the_broker_knows(
    one: Node, tmp_path: Path
) -> None:
    """A host without a disk. What was to go meanwhile is gone, and results on a shared volume are kept."""
    ask = Ask(mounts=[DATA, CACHE], shared=HOME.shared, ports=[PortsAsk(name="p", count=1)])
    stays, goes = one.ready("stays", ask), one.ready("goes", Ask(mounts=[DATA]))
    result = one.folder("home") / "root/stays/out/result"
    result.write_text("precious")
    before = one.view(stays).binding
    one.agent.kill()
    one.release("goes")
    for mount in reversed(one.mounts()):
        mountapi.unmount(mount.point)
    for group in Cgroup(one.claims["cgroup"]).children():
        one.site.until(group.remove)
    for name in ("claims", "cdi", "state"):
        removed(one.folder(name))
    one.folder("state").mkdir()
    boot = tmp_path / "boot_id"
    boot.write_text("0b00710b-0000-4000-8000-000000000000\n")
    with in_place_of("/proc/sys/kernel/random/boot_id", boot):
        one.agent.start()
        one.site.until(lambda: one.view(stays).binding.revision > before.revision)
        one.site.until(partial(stands, one, stays, READY))
        after = one.view(stays).binding
        assert (after.ports, after.evidence != before.evidence) == (before.ports, True)
        assert {Path(mount.point).name for mount in one.mounts()} == {"data", "staged", "cache"}
        assert result.read_text() == "precious"
        ended(one.site, one.client, goes)
        one.release("stays")
        one.ended(stays)
        one.agent.stop()


def test_without_its_broker_a_node_mends_and_releases_and_says_so_when_it_is_back(one: Node) -> None:
    stays, goes = one.ready("stays", Ask(mounts=[DATA])), one.ready("goes", Ask(mounts=[DATA]))
    before = one.view(stays)
    one.site.broker.kill()
    mountapi.unmount(str(one.point(stays, "data")))
    one.site.until(lambda: one.mounts(one.point(stays, "data")))
    began = time.monotonic()
    assert one.agent.command("claim", "release", "goes", "--wait", "25").stdout == "goes is released\n"
    assert time.monotonic() - began < 20, "who waits is told at once, and not at the end of his time"
    assert one.mounts(one.point(goes, "data")) == []
    one.site.broker.start()
    one.site.until(partial(stands, one, goes, RELEASED))
    one.site.until(lambda: one.view(stays).conditions == [])
    assert one.view(stays) == before
    one.release("stays", "goes")
    one.ended(stays, goes)


def confirmed(one: Node) -> None:
    """The broker has heard the node since its start."""
    until_there(one.site, "node1")
    one.site.until(lambda: not one.site.snapshot().locations["host:node1"].conditions)


def test_c_sta_01_a_broker_that_goes_back_to_a_copy_orders_its_nodes_and_mixes_up_no_binding(
    one: Node, tmp_path: Path
) -> None:
    """The copy knows neither of the newest reign nor of the newest binding, whose job runs on."""
    broker = one.site.broker
    state = Path(broker.settings["state_directory"])
    first = one.ready("first", Ask(mounts=[CACHE]))
    broker.stop()
    shutil.copytree(state, tmp_path / "copy")
    for _ in range(2):
        broker.start()
        broker.stop()
    broker.start()
    confirmed(one)
    lost = one.ready("lost", Ask(instances=CARD), card="card-own")
    broker.stop()
    removed(state)
    shutil.copytree(tmp_path / "copy", state)
    broker.start()
    confirmed(one)
    assert one.view(first).binding.state is READY
    held = bindings_of(one.agent)[lost]
    new = one.ready("new", Ask(instances=CARD), card="card-other")
    newer = one.ready("newer", Ask(mounts=[DATA]))
    assert binding_number(lost) < binding_number(new) < binding_number(newer)
    assert one.mounts(one.point(newer, "data"))
    assert run_in(one.agent, "lost", OWN, OTHER) == ["open", REFUSED]
    assert run_in(one.agent, "new", OWN, OTHER) == [REFUSED, "open"]
    one.release("first", "new", "newer")
    ended(one.site, one.client, first, new, newer)
    assert bindings_of(one.agent) == {lost: held | {"standing": "unknown"}}
    assert one.agent.command("claim", "release", lost, "--wait", "10").returncode == 0
    one.ended()
