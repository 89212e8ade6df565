"""Machines with NVIDIA GPUs, as answers of the stand-in library: for tests of the probe."""

import json
from pathlib import Path

from tests.fakes.nvml import stand_in

CASES = Path(__file__).parents[2] / "cases" / "gpu"
NOBODY = "00000000-0000-0000-0000-000000000000"


def case(name: str) -> list[tuple[float, dict[str, object], dict[str, object]]]:
    return stand_in.steps(json.loads((CASES / name).read_text()))


def four() -> dict[str, object]:
    """Four GPUs, none of whose numbers is another's."""
    (_, answers, _) = case("minor-swap.json")[0]
    return answers
