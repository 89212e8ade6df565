"""What went wrong for people with volumes, tried with all programs: seen by the kernel on the node, and by
whoever looks at the broker.

The steps alone, at every moment and with every fault, are tried in tests/prepare.
"""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.system.harness import Site
from tests.system.one_node import CACHE, DATA, FAILED, READY, RELEASING, Node
from tests.system.test_claims import bindings_of, ended, node, until_there
from tests.system.test_claims_killed import left, prepare_folders
from xce.broker.client import BrokerRefused
from xce.model import message as m
from xce.model.claim import AccessMode, Ask, Consumer, MountAsk

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts and control groups need root"),
]
FILES = 100


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
