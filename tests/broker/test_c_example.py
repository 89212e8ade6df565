"""The C controller: compiled with every warning an error, and run through all that can happen to a link."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.broker.test_client import HERE, change, heard, obedient
from tests.fakes.fed_agent import FedAgent
from tests.fakes.live_broker import LiveBroker
from tests.fakes.program import Program
from tests.fakes.scripted_broker import Answers, ScriptedBroker
from xce.model.message import Credit, Failed, Lost, SnapshotRequest, ToBroker, WatchRequest
from xce.model.role import Role
from xce.wire import codec, keys

SOURCE = Path(__file__).parents[2] / "docs" / "examples" / "controller.c"


@pytest.fixture(scope="session")
def controller(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The program, with the sanitisers that find what a test does not see."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    program = tmp_path_factory.mktemp("c") / "controller"
    strict = [
        "cc",
        "-std=c11",
        "-O1",
        "-g",
        "-Wall",
        "-Wextra",
        "-Werror",
        str(SOURCE),
        "-lzmq",
        "-o",
        str(program),
    ]
    built = subprocess.run(strict, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    sanitised = [*strict, "-fsanitize=address,undefined"]
    subprocess.run(sanitised, capture_output=True, check=False)  # not every system has the libraries for it
    return str(program)


def test_it_is_short_enough_to_be_read() -> None:
    assert len(SOURCE.read_text().splitlines()) < 150


def test_it_takes_a_snapshot_and_follows_the_changes(controller: str, tmp_path: Path) -> None:
    with (
        ScriptedBroker(obedient, local=tmp_path / "b") as broker,
        Program([controller, f"ipc://{tmp_path}/b"]) as program,
    ):
        program.until('#5 host:node1 {"source":"config"')
        (watch,) = heard(broker, WatchRequest)
        assert isinstance(watch, WatchRequest)
        assert watch.since == HERE
        for sequence in range(6, 6 + 40):
            broker.say(codec.encode_json(change(watch.id, sequence)))
        for sequence in range(6, 6 + 40):
            program.until(f'#{sequence} host:node1 {{"values":{{"mem":{sequence}}}}}')
        assert all(data[:1] == b"{" for data in broker.raw)
        (credit,) = heard(broker, Credit)
        assert credit == Credit(id=watch.id, more=32)


def test_it_goes_on_after_a_broken_link_and_starts_anew_when_it_has_lost_changes(
    controller: str, tmp_path: Path
) -> None:
    def forgetful(message: ToBroker) -> Answers:
        if isinstance(message, WatchRequest) and message.since.sequence == 6:
            return [Lost(id=message.id, reason="change 7 is not kept any more")]
        return obedient(message)

    path = tmp_path / "b"
    with Program([controller, f"ipc://{path}"]) as program:
        with ScriptedBroker(obedient, local=path) as broker:
            program.until("whole")
            (watch,) = heard(broker, WatchRequest)
            assert isinstance(watch, WatchRequest)
            broker.say(codec.encode_json(change(watch.id, 6)))
            program.until("#6 host:node1")
        with ScriptedBroker(forgetful, local=path) as broker:
            again = heard(broker, WatchRequest)[0]
            assert isinstance(again, WatchRequest)
            assert again.since.sequence == 6, "first it tries to go on"
            program.until("lost ")
            program.until("whole")
            heard(broker, SnapshotRequest)


def test_it_speaks_curve_with_keys_from_files(controller: str, tmp_path: Path) -> None:
    mine, theirs = keys.new("ctl", Role.CONTROLLER), keys.new("broker", "broker")
    keys.save(mine, tmp_path / "ctl.key")
    keys.save(keys.KeyPair("broker", "broker", theirs.public), tmp_path / "broker.pub")
    files = [str(tmp_path / "ctl.key"), str(tmp_path / "broker.pub")]
    with (
        ScriptedBroker(obedient, key=theirs, accept=(mine.public,)) as broker,
        Program([controller, broker.endpoints[0], *files]) as program,
    ):
        program.until("whole")
        broker.accept = lambda _public: None
        with Program([controller, broker.endpoints[0], *files]) as refused:
            refused.until("the broker does not know our key")
            assert refused.wait() == 1
        keys.save(keys.new("broker", "broker"), tmp_path / "other.pub")
        with Program([controller, broker.endpoints[0], files[0], str(tmp_path / "other.pub")]) as lost:
            lost.until("hung up on us; is BROKER.pub its key?")


def test_it_says_why_it_ends(controller: str, tmp_path: Path) -> None:
    def refuse(message: ToBroker) -> Answers:
        assert isinstance(message, SnapshotRequest)
        return [Failed(id=message.id, code="forbidden", message='role agent may not say "snapshot"')]

    with (
        ScriptedBroker(refuse, local=tmp_path / "b"),
        Program([controller, f"ipc://{tmp_path}/b"]) as program,
    ):
        program.until('role agent may not say \\"snapshot\\"')
        assert program.wait() == 1
    for arguments in ([], ["ipc:///x", "one"], ["no endpoint"]):
        with Program([controller, *arguments]) as program:
            program.until("usage: controller ENDPOINT")
            assert program.wait() == 1
    with Program([controller, "tcp://127.0.0.1:1", "/none.key", "/none.pub"]) as program:
        program.until("/none.key: no key in it")


@pytest.mark.system
def test_it_follows_the_real_broker_over_curve_and_over_its_death(controller: str, tmp_path: Path) -> None:
    broker = LiveBroker(tmp_path, tcp=True)
    broker.new_key("ctl", Role.CONTROLLER)
    keys.save(keys.KeyPair("broker", "broker", broker.key.public), tmp_path / "broker.pub")
    endpoint = f"tcp://127.0.0.1:{broker.port}"
    with (
        broker,
        FedAgent(broker.local, "node1", {"level": 1}) as agent,
        Program([controller, endpoint, f"{tmp_path}/ctl.key", f"{tmp_path}/broker.pub"]) as program,
    ):
        agent.wait_welcome()
        program.until("whole")
        for number in range(2, 100):
            agent.feed(level=number)
        program.until('"level":99')
        broker.kill()
        broker.start()
        program.until("lost ")
        program.until("whole")
        agent.wait_welcome(2)
        agent.feed(level=1000)
        program.until('"level":1000')
