"""`xce-agent inventory` and `topology`: what is printed, in how many columns, and the exit code."""

import json
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.agent.picture.test_plan import H100
from tests.fakes.program import without_reader
from tests.hardware import recorded
from xce.agent.cli import GOOD, NOT_RUNNING, TROUBLE, USAGE, inventory_clear, main
from xce.agent.cli.options import UsageError
from xce.agent.probe import facts, machinefile, once
from xce.model.configuration import Discovery
from xce.model.instance import Health, Instance, ill

GOLDEN = Path(__file__).parent / "picture" / "golden"


class Ran(msgspec.Struct):
    """What a command did."""

    code: int
    out: str
    err: str


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*words: object) -> Ran:
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return run


@pytest.mark.parametrize("name", recorded.ALL)
def test_every_machine_fits_eighty_columns_and_says_why_what_is_not_available_is_not(
    name: str, command: Any
) -> None:
    ran = command("inventory", "--from", recorded.MACHINES / name)
    assert ran.code in (GOOD, TROUBLE), ran.err
    assert max(map(len, ran.out.splitlines())) <= 80
    table, _, below = ran.out.partition("\n\n")
    assert ("unavailable" in table) <= ("unavailable: " in below)
    assert ("unknown" in table) <= ("unknown: " in below)
    assert ("not complete:" in ran.out) <= (ran.code == TROUBLE)


def test_the_table_is_what_was_looked_at_and_found_good(command: Any) -> None:
    assert command("inventory", "--from", H100).out == (GOLDEN / "h100.inventory").read_text()


@pytest.mark.parametrize(
    "name", ["GPU7", "GPU-6f1d0007", "0000:c5:00.0", "GPU-6f1d0007-2b1c-4d5e-8f90-a1b2c3d4e5f7"]
)
def test_one_instance_is_found_by_any_of_its_names_and_shown_whole(name: str, command: Any) -> None:
    ran = command("inventory", "--from", H100, name)
    assert ran.code == GOOD
    assert ran.out == (GOLDEN / "h100.gpu7").read_text()
    assert max(map(len, ran.out.splitlines())) <= 80


def test_a_name_that_is_none_or_several_is_refused_with_a_way_out(command: Any) -> None:
    assert command("inventory", "--from", H100, "GPU9").err.startswith(
        "xce-agent inventory: no instance 'GPU9'"
    )
    many = command("inventory", "--from", H100, "MIG-")
    assert (many.code, "is not one instance but 3" in many.err) == (USAGE, True)


def test_an_id_to_clear_is_given_as_the_table_shows_it_and_never_by_a_number() -> None:
    ids = ["GPU-aa01", "GPU-aa01/part0", "GPU-ab02", "MIG-c7384736-d1f2"]
    shown = {"GPU-aa": "GPU-aa01", "GPU-aa01": "GPU-aa01", "MIG-c7..d1f2": "MIG-c7384736-d1f2"}
    assert {text: inventory_clear.whole(text, ids) for text in shown} == shown
    for text, why in (("GPU-a", "beginning of 2 ids"), ("GPU0", "no id begins with")):
        with pytest.raises(UsageError, match=why):
            inventory_clear.whole(text, ids)


def test_json_holds_all_and_can_be_read_back(command: Any) -> None:
    told = json.loads(command("inventory", "--from", H100, "--json").out)
    units = msgspec.convert(told["instances"], list[Instance])
    assert (told["complete"], told["machine"], len(units)) == (True, "machine-h100", 8 + 3 + 24)
    assert json.loads(command("inventory", "--from", H100, "--json", "GPU0").out)["kind"] == "gpu"


def test_kinds_are_chosen_and_a_kind_that_is_not_there_is_told(command: Any) -> None:
    told = json.loads(command("inventory", "--from", H100, "--json", "--kind", "mig,gpu").out)
    assert {one["kind"] for one in told["instances"]} == {"gpu", "mig"}
    ran = command("inventory", "--from", H100, "--kind", "gpus")
    assert "no instance of the kind gpus; there is: gpu, mig, nic, nic-port" in ran.err


@pytest.mark.parametrize(
    ("change", "good"),
    [
        ({}, True),
        ({"health": Health.LOST, "reason": "GPU is lost"}, False),
        ({"health": Health.UNKNOWN}, False),
        ({"health": Health.QUARANTINED}, False),
        ({"health": Health.UNAVAILABLE, "reason": "MIG on"}, True),
        ({"health": Health.UNAVAILABLE, "reason": "remapping", "evidence": "seen"}, False),
        ({"kind": "nic", "health": Health.UNAVAILABLE, "reason": "port is DOWN", "evidence": "seen"}, True),
        ({"kind": "nic", "health": Health.LOST}, False),
    ],
)
def test_what_needs_a_person_is_told_from_how_things_are_laid_out(change: dict[str, Any], good: bool) -> None:
    assert ill(Instance(**{"id": "x", "kind": "gpu", **change})) is not good


def test_a_machine_with_a_lost_gpu_ends_with_one_and_names_it(tmp_path: Path, command: Any) -> None:
    machine = machinefile.load(H100)
    assert machine.nvidia is not None
    library = msgspec.structs.replace(machine.nvidia, gpus=machine.nvidia.gpus[:7])
    file = tmp_path / "lost.json"
    file.write_bytes(machinefile.encode(msgspec.structs.replace(machine, nvidia=library)))
    ran = command("inventory", "--from", file)
    assert ran.code == TROUBLE
    assert "lost: GPU is lost" in ran.out
    assert command("inventory", "--from", file, "0000:c5:00.0").code == TROUBLE


def test_what_a_machine_shows_is_recorded_and_read_back(tmp_path: Path, command: Any) -> None:
    file = tmp_path / "m.json"
    assert command("inventory", "--from", H100, "--record", file, "--anonymous").code == GOOD
    assert "a088:c203" not in file.read_text()
    again = command("inventory", "--from", H100, "--record", file)
    assert (again.code, "it is there already" in again.err) == (USAGE, True)
    table = command("inventory", "--from", file).out
    assert table == command("inventory", "--from", H100).out


@pytest.mark.parametrize("words", [["inventory", "a", "b"], ["inventory", "--frm", "x"], ["topology", "x"]])
def test_wrong_usage_is_two(words: list[str], command: Any) -> None:
    assert command(*words).code == USAGE


def test_a_file_that_does_not_fit_is_refused_with_its_place(tmp_path: Path, command: Any) -> None:
    (tmp_path / "m.yaml").write_text("pcie: []\n")
    ran = command("inventory", "--from", tmp_path / "m.yaml")
    assert ran.code == USAGE
    assert f"{tmp_path}/m.yaml:1: pcie: unknown key; did you mean 'pci'?" in ran.err


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """A socket that answers one question a connection as an agent does."""
    answer: dict[str, Any] = {}
    path = str(tmp_path / "agent.sock")
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    server.settimeout(10)

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection, connection.makefile("rwb") as file:
                assert json.loads(file.readline()) == {"op": "inventory"}
                file.write(json.dumps(answer).encode() + b"\n")

    thread = threading.Thread(target=serve)
    thread.start()
    yield path, answer
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join(10)


def test_a_running_agent_is_asked_and_says_since_when(
    agent: tuple[str, dict[str, Any]], command: Any
) -> None:
    path, answer = agent
    lost = {
        "id": "GPU-1",
        "kind": "gpu",
        "health": "lost",
        "reason": "GPU is lost",
        "since": "2026-11-29T12:00:00Z",
        "attributes": {"pci": "0000:82:00.0"},
    }
    answer |= {"generation": 7, "complete": False, "trouble": "nvidia: mismatch", "instances": [lost]}
    ran = command("inventory", "--socket", path)
    assert ran.code == TROUBLE
    assert "GPU0: lost: GPU is lost (since 2026-11-29T12:00:00Z)" in ran.out
    assert "not complete: nvidia: mismatch" in ran.out
    assert json.loads(command("inventory", "--socket", path, "--json").out)["generation"] == 7
    assert command("topology", "--socket", path).code == GOOD
    assert command("inventory", "--socket", path, "--groups", "x").code == USAGE


def test_without_an_agent_that_was_named_nothing_is_guessed(tmp_path: Path, command: Any) -> None:
    ran = command("inventory", "--socket", tmp_path / "none.sock")
    assert ran.code == NOT_RUNNING
    assert "the agent is not running" in ran.err


# ------------------------------------------------------------------------------------------ topology


def test_the_matrix_is_the_default_and_the_tree_is_asked_for(command: Any) -> None:
    assert command("topology", "--from", H100).out == (GOLDEN / "h100.matrix").read_text()
    tree = command("topology", "--from", H100, "--tree").out
    assert (
        tree.replace("├─ ", "|- ").replace("└─ ", "`- ").replace("│  ", "|  ")
        == (GOLDEN / "h100.tree").read_text()
    )


def test_json_has_devices_pairs_and_the_tree(command: Any) -> None:
    told = json.loads(command("topology", "--from", H100, "--json").out)
    assert len(told["devices"]) == 20
    assert len(told["pairs"]) == 20 * 19 // 2
    first = told["pairs"][0]
    assert (first["word"], first["links"], first["link"]) == ("NV18", 18, "nvlink")
    near = next(pair for pair in told["pairs"] if pair["word"] == "PIX")
    assert (near["level"], near["common"]) == ("bridge", "0000:1a:00.0")
    assert [branch["names"][0] for branch in told["tree"]] == ["NUMA node 0", "NUMA node 1"]


def test_the_picture_is_written_where_it_is_asked_for(tmp_path: Path, command: Any) -> None:
    assert command("topology", "--from", H100, "--svg", tmp_path / "t.svg").code == GOOD
    assert (tmp_path / "t.svg").read_text() == command("topology", "--from", H100, "--svg", "-").out
    ran = command("topology", "--from", H100, "--svg", tmp_path / "no" / "t.svg")
    assert (ran.code, "cannot write" in ran.err) == (USAGE, True)


def test_what_of_a_topology_file_was_not_taken_is_told(tmp_path: Path, command: Any) -> None:
    (tmp_path / "groups.json").write_text('{"groups": [{"members": ["0000:01:00.0"]}]}')
    ran = command("topology", "--from", H100, "--groups", tmp_path / "groups.json")
    assert "group 1: 0000:01:00.0 is not on this machine" in ran.err


# --------------------------------------------------------------------------------- this machine, in place


def tree(folder: Path) -> Discovery:
    """A machine with one NVIDIA GPU, as far as PCI shows."""
    device = folder / "sys/bus/pci/devices/0000:01:00.0"
    device.mkdir(parents=True)
    (device / "class").write_text("0x030200\n")
    (device / "vendor").write_text("0x10de\n")
    return Discovery(root=str(folder), timeout=5)


def test_the_machine_is_read_in_a_process_of_its_own(tmp_path: Path) -> None:
    """The library that is named does not exist: that is what is told of it."""
    settings = msgspec.structs.replace(tree(tmp_path), library=str(tmp_path / "no.so"))
    machine = once.machine(settings)
    assert [pci.address for pci in machine.pci] == ["0000:01:00.0"]
    assert machine.nvidia is not None
    assert "library not found" in machine.nvidia.error


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("import time; time.sleep(60)", "the process that asks it said nothing for 0.5 s"),
        ("import os; os.abort()", "the process that asks it ended without an answer"),
        ("print('{')", "the process that asks it ended without an answer"),
    ],
)
def test_a_library_that_hangs_or_crashes_costs_its_own_word_alone(
    script: str, why: str, tmp_path: Path
) -> None:
    settings = msgspec.structs.replace(tree(tmp_path), timeout=0.5)
    machine = once.machine(settings, command=(sys.executable, "-c", script))
    assert [pci.address for pci in machine.pci] == ["0000:01:00.0"]
    assert machine.nvidia == facts.Nvidia(error=why)
    assert why.removeprefix("the process that asks it") in machine.faults[-1]


@pytest.mark.parametrize(
    "line",
    [
        "xce.agent.cli topology --from docs/examples/machine-h100.yaml",
        "xce.agent.cli inventory --help",
        "xce.agent.cli --help",
        "xce.agent.reporter_cli --help",
    ],
)
def test_the_reader_of_a_pipe_may_leave(line: str) -> None:
    module, *arguments = line.split()
    program = f"import sys; from {module} import main; sys.exit(main())"
    done = without_reader([sys.executable, "-c", program, *arguments])
    assert (done.returncode, done.stderr) == (0, "")
