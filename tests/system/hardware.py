"""A node whose /sys is a folder and whose NVIDIA library is the stand-in, for tests with real programs."""

import json
from pathlib import Path
from typing import Any

from tests.fakes.nvml.stand_in import StandIn, steps
from tests.system.harness import AgentProgram, Site
from xce.model.instance import Instance, Inventory, InventoryRef

CASES = Path(__file__).parent.parent / "cases"
QUICK = {
    "interval": 0.3,
    "timeout": 3,
    "grace": 1,
    "settle": 0.1,
    "calm": 0.2,
    "unknown_after": 60,
}


class Rig:
    """One agent beside a broker. `case`: a file that its library answers from; '': no library."""

    def __init__(self, site: Site, folder: Path, case: str = "", **settings: Any) -> None:
        self.site, self.folder = site, folder
        (folder / "root" / "sys").mkdir(parents=True)
        self.node: AgentProgram = site.agent("node1")
        self.discovery: dict[str, Any] = {**QUICK, "root": str(folder / "root"), **settings}
        self.library: StandIn | None = None
        self.steps: list[tuple[float, dict[str, object], dict[str, object]]] = []
        if case:
            told = json.loads((CASES / "gpu" / f"{case}.json").read_text())
            self.sysfs(told.get("sysfs", {}))
            self.steps = steps(told)
            self.library = StandIn(folder / "nvml", self.steps[0][1])
            self.discovery |= {
                "library": str(self.library.library),
                "environment": {"XCE_TEST_NVML": str(self.library.folder)},
            }
        self.node.settings["discovery"] = self.discovery
        site.broker.start()

    def start(self) -> "Rig":
        self.node.start()
        self.site.until(lambda: self.reference().generation)
        return self

    def step(self, number: int) -> None:
        """The library answers as in this step of its case from now on."""
        assert self.library is not None
        _, answers, orders = self.steps[number]
        self.library.answer(answers)
        self.library.control(orders)

    def orders(self, **orders: Any) -> None:
        """What the library does beside: `hang`, `crash`, ..., each for all GPUs, by function."""
        assert self.library is not None
        self.library.control({f"{what}.{function}.*": 1 for what, function in orders.items()})

    def reference(self) -> InventoryRef:
        """What the broker's snapshot says of the inventory."""
        return self.site.snapshot().locations["host:node1"].inventories["discovery"]

    def inventory(self) -> Inventory:
        """What the broker holds."""
        with self.site.client() as client:
            return client.inventories({"host:node1": ["discovery"]})["host:node1"]["discovery"]

    def all(self, kind: str = "gpu") -> dict[str, Instance]:
        return {one.id: one for one in self.inventory().instances if one.kind == kind}

    def health(self, kind: str = "gpu") -> dict[str, str]:
        return {id_: one.health.value for id_, one in self.all(kind).items()}

    def probe(self) -> dict[str, Any]:
        """The probe in the agent's status."""
        return self.node.reporter("discovery")

    def sysfs(self, files: dict[str, str]) -> None:
        for path, text in files.items():
            file = self.folder / "root" / "sys" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            if path.endswith("numa_node"):
                (file.parent / "class").write_text("0x030200\n")
                (file.parent / "vendor").write_text("0x10de\n")
