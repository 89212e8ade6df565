"""From NVIDIA's library to what is published: a fault ends when it should, and the layout stays."""

from pathlib import Path

import pytest

from tests.fakes.nvml import stand_in
from tests.fakes.nvml.stand_in import StandIn
from xce.agent.discovery import keep
from xce.agent.discovery.keep import Memory, Moment
from xce.agent.probe.frame import Line
from xce.agent.probe.reading import Reader
from xce.model.configuration import Discovery
from xce.model.instance import Instance

PLAIN, SLICED, SLICE = "GPU-0000aaaa", "GPU-0000bbbb", "MIG-0000cccc"
MADE = [
    {
        "mig_index": 0, "gi": 2, "ci": 0, "profile": "3g.20gb", "placement": [0, 4], "uuid": SLICE,
        "name": "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
    }
]  # fmt: skip
HEALTHY: dict[str, object] = {
    "driver": "580.105.08",
    "0.uuid": PLAIN, "0.pci": "00000000:0F:00.0", "0.field.230": 0, "0.events": 8,
    "1.uuid": SLICED, "1.pci": "00000000:15:00.0", "1.field.230": 0, "1.events": 8,
    **stand_in.of_gpu(1, {"mig.current": 1, "mig.pending": 1, **stand_in.mig(MADE)}),
}  # fmt: skip


class Node:
    """A probe's readings and the agent's memory of them."""

    def __init__(self, library: StandIn, root: Path, **settings: object) -> None:
        self.library, self.memory, self.now = library, Memory(), 1000.0
        self.reader = Reader(
            Discovery(root=str(root), library=str(library.library), **settings),  # type: ignore[arg-type]
            clock=lambda: self.now,
        )
        self.line = Line(instances=[])

    def moment(self) -> Moment:
        return Moment(self.now, f"t{self.now:.0f}", "boot")

    def read(self, after: float) -> dict[str, Instance]:
        self.now += after
        self.line = self.reader.line()
        self.memory = keep.after(self.memory, self.line, self.moment())
        return self.memory.instances

    def xid(self, gpu: int, number: int) -> None:
        assert self.reader.library is not None
        self.library.xid(gpu, number)
        assert self.reader.library.wait_events(1.0) == 1


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    made = StandIn(tmp_path / "nvml", HEALTHY)
    monkeypatch.setenv("XCE_TEST_NVML", str(made.folder))
    return made


def health(found: dict[str, Instance]) -> list[str]:
    return [found[id_].health.value for id_ in (PLAIN, SLICED, SLICE)]


def test_an_admins_clear_offers_what_is_still_seen_and_no_gpu_in_mig_mode(
    library: StandIn, tmp_path: Path
) -> None:
    node = Node(library, tmp_path)
    assert health(node.read(10)) == ["available", "unavailable", "available"]
    library.answer({**HEALTHY, "0.remapped": "0 1 1 0", "1.remapped": "0 1 1 0"})
    found = node.read(10)
    assert health(found) == ["unavailable"] * 3
    assert found[SLICE].reason == "its GPU: row remapping waits for a GPU reset"
    for id_ in (PLAIN, SLICED):
        node.memory = keep.cleared(
            node.memory, id_, node.line.verdicts[id_], who="admin", why="known board", moment=node.moment()
        )
    found = node.read(10)
    assert health(found) == ["available", "unavailable", "available"]
    assert found[SLICED].reason == "MIG on"
    assert "row remapping waits for a GPU reset; cleared by admin: known board" in found[PLAIN].notes
    node.reader.close()


def test_an_xid_is_over_when_the_driver_needs_nothing_though_readings_still_tell_it(
    library: StandIn, tmp_path: Path
) -> None:
    node = Node(library, tmp_path)
    node.read(10)
    node.now += 5
    library.answer({**HEALTHY, "0.field.230": 1})
    node.xid(0, 119)
    found = node.read(1)
    assert (health(found)[0], found[PLAIN].reason) == ("unavailable", "the driver asks for a GPU reset")
    library.answer(HEALTHY)
    assert node.read(10)[PLAIN].reason == "XID 119: GPU firmware does not answer"
    assert node.read(60)[PLAIN].reason == "on probation after: XID 119: GPU firmware does not answer"
    assert health(node.read(600)) == ["available", "unavailable", "available"]
    assert node.line.verdicts[PLAIN].events, "it is told all the same"
    node.reader.close()


def test_what_the_library_cannot_do_is_told_with_the_readings(library: StandIn, tmp_path: Path) -> None:
    node = Node(library, tmp_path)
    library.control({"code.nvmlEventSetCreate.*": 999})
    node.read(10)
    assert node.line.note.startswith(f"XIDs cannot be heard: events of {PLAIN}: Unknown Error (999)")
    library.control()
    node.read(10)
    assert node.line.note == ""
    node.reader.close()


def test_a_site_may_think_otherwise_of_an_xid(library: StandIn, tmp_path: Path) -> None:
    node = Node(library, tmp_path, xids_out=[94], xids_noted=[119])
    node.read(10)
    node.xid(0, 119)
    assert health(node.read(1))[0] == "available"
    node.xid(0, 94)
    assert node.read(10)[PLAIN].reason == "XID 94: memory error contained in one application"
    node.reader.close()
