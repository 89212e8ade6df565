"""The matrices of real servers (`nvidia-smi topo -m`): a PCI tree built to be such a server gives them."""

from itertools import count
from pathlib import Path

import pytest

from tests.hardware import recorded
from xce.agent.probe.facts import Machine, Nvidia, NvidiaGpu, NvLink, Pci
from xce.agent.probe.topology import topology

TOPO = recorded.HERE / "topo"
NUMA_BY_CPUS = {"0-63": 0, "64-127": 8}
"""Of the old tool without a NUMA column; node numbers as such machines have them."""


class Matrix:
    """One file: names of GPUs and NICs, and a word for each pair."""

    def __init__(self, path: Path) -> None:
        lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
        self.names = lines[0].split("\t")[1:-2]
        self.gpus = [name for name in self.names if name.startswith("GPU")]
        self.nics = [name for name in self.names if not name.startswith("GPU")]
        self.words: dict[tuple[str, str], str] = {}
        self.numa: dict[str, int] = {}
        for line in lines[1:]:
            row, *cells = line.split("\t")
            self.numa[row] = int(cells[-1]) if cells[-1] else NUMA_BY_CPUS[cells[-2]]
            self.words |= {(row, name): cell for name, cell in zip(self.names, cells, strict=False)}

    def nic_numa(self, nic: str) -> int:
        """Of a GPU that is near; a NIC far from all is on a node of its own."""
        near = [self.numa[gpu] for gpu in self.gpus if self.words[gpu, nic] in ("PIX", "PXB", "PHB")]
        same = [self.numa[gpu] for gpu in self.gpus if self.words[gpu, nic] == "NODE"]
        return (near or same or [100 + self.nics.index(nic)])[0]


def groups(names: list[str], related: set[frozenset[str]]) -> list[list[str]]:
    """Names that are joined by pairs, in order."""
    found: list[set[str]] = []
    for name in names:
        joined = [one for one in found if any(frozenset((name, other)) in related for other in one)]
        found = [one for one in found if one not in joined] + [{name}.union(*joined)]
    return [[name for name in names if name in one] for one in found]


def build(matrix: Matrix) -> tuple[Machine, dict[str, str]]:
    """A machine with that matrix: a host bridge for those at PHB, a root port with a switch below it for
    those at PXB, and below that a switch for those at PIX."""
    where = {frozenset(pair): word for pair, word in matrix.words.items() if pair[0] != pair[1]}
    at = {word: {pair for pair, told in where.items() if told == word} for word in ("PIX", "PXB", "PHB")}
    numbers = count(0x10)
    found: list[Pci] = []
    addresses: dict[str, str] = {}
    for domain, below_root in enumerate(groups(matrix.names, at["PIX"] | at["PXB"] | at["PHB"])):

        def bridge(domain: int = domain) -> str:
            return f"{domain:04x}:{next(numbers):02x}:00.0"

        for tree in groups(below_root, at["PIX"] | at["PXB"]):
            port, top = bridge(), bridge()
            for members in groups(tree, at["PIX"]):
                downstream, switch = bridge(), bridge()
                for name in members:
                    addresses[name] = f"{domain:04x}:{next(numbers):02x}:00.0"
                    path = (port, top, downstream, switch, bridge())
                    found.append(function(addresses[name], name, matrix, path, f"pci{domain:04x}:00"))
    gpus = [gpu(index, name, matrix, addresses) for index, name in enumerate(matrix.gpus)]
    return Machine(pci=tuple(found), nvidia=Nvidia(gpus=tuple(gpus))), addresses


def function(address: str, name: str, matrix: Matrix, bridges: tuple[str, ...], root: str) -> Pci:
    of_gpu = name in matrix.gpus
    return Pci(
        address=address,
        klass=0x030200 if of_gpu else 0x020700,
        vendor=0x10DE if of_gpu else 0x15B3,
        numa=matrix.numa[name] if of_gpu else matrix.nic_numa(name),
        bridges=bridges,
        root=root,
    )


def gpu(index: int, name: str, matrix: Matrix, addresses: dict[str, str]) -> NvidiaGpu:
    """NVLinks straight to the others where each has its own, through switches where all have as many."""
    links = {other: matrix.words[name, other] for other in matrix.gpus if other != name}
    joined = {other: int(word[2:]) for other, word in links.items() if word.startswith("NV")}
    if len(joined) > 3:
        one = next(iter(joined.values()))
        links_of = [NvLink(link=link, active=True, remote_type=2) for link in range(one)]
    else:
        ends = [addresses[other] for other, links in joined.items() for _ in range(links)]
        links_of = [
            NvLink(link=link, active=True, remote=end, remote_type=0) for link, end in enumerate(ends)
        ]
    return NvidiaGpu(index=index, pci=addresses[name], links=tuple(links_of))


@pytest.mark.parametrize("name", ["dgx-a100", "xd670-h100", "pcie-8gpu", "power9-4gpu"])
def test_a_server_built_alike_has_the_same_matrix(name: str) -> None:
    matrix = Matrix(TOPO / f"{name}.tsv")
    machine, addresses = build(matrix)
    found = topology(machine)
    names = {address: name for name, address in addresses.items()}
    words = {(names[pair.a], names[pair.b]): pair.word for pair in (*found.gpu_gpu, *found.gpu_nic)}
    assert len(words) == len(matrix.gpus) * (len(matrix.gpus) - 1) / 2 + len(matrix.gpus) * len(matrix.nics)
    for pair, word in words.items():
        assert word == matrix.words[pair] == matrix.words.get(pair[::-1], word), pair


def test_what_a_confined_process_was_told_is_not_what_the_kernel_says() -> None:
    """`NODE` between sockets, in a job with few CPUs: by the NUMA nodes of the devices it is SYS."""
    matrix = Matrix(TOPO / "h100-restricted-view.tsv")
    machine, addresses = build(matrix)
    found = topology(machine)
    wrong = set()
    for row in matrix.gpus:
        for column in matrix.nics:
            word = found.pair(addresses[row], addresses[column]).word
            if word != matrix.words[row, column]:
                wrong.add((matrix.words[row, column], word, matrix.numa[row] == matrix.nic_numa(column)))
    assert wrong == {("NODE", "SYS", False)}
