"""The picture: nothing in it runs, loads or overlaps, all of it is on the page, and it can be read aloud."""

import re
from xml.etree import ElementTree as ET

import pytest

from tests.agent.picture.test_plan import plan_of
from tests.hardware import recorded
from xce.agent.picture import svg
from xce.agent.picture.boxes import BOLD, Box, fit, flow, length
from xce.agent.picture.plan import Plan
from xce.model.instance import Health, Instance

SVG = "{http://www.w3.org/2000/svg}"


def drawn(plan: Plan, title: str = "node17") -> ET.Element:
    return ET.fromstring(svg.svg(plan, title))


def rectangles(root: ET.Element, style: str) -> list[tuple[float, float, float, float]]:
    found = []
    for one in root.iter(f"{SVG}rect"):
        if style in one.get("class", "").split() and one.get("height") != "14":  # 14: the legend's
            x, y, width, height = (float(one.get(name, "")) for name in ("x", "y", "width", "height"))
            found.append((x, y, x + width, y + height))
    return found


@pytest.mark.parametrize("name", [*recorded.ALL, "h100"])
def test_all_of_a_machine_is_on_the_page_and_nothing_lies_over_anything(name: str) -> None:
    plan = plan_of(name)
    root = drawn(plan)
    width, height = float(root.get("width", "")), float(root.get("height", ""))
    tiles = rectangles(root, "tile")
    assert len(tiles) == len([one for one in plan.devices if one.kind in ("gpu", "accelerator", "nic")])
    for style in ("tile", "panel", "switch", "root", "cell"):
        for x1, y1, x2, y2 in rectangles(root, style):
            assert 0 <= x1 < x2 <= width, style
            assert 0 <= y1 < y2 <= height, style
    for at, (ax1, ay1, ax2, ay2) in enumerate(tiles):
        for bx1, by1, bx2, by2 in tiles[at + 1 :]:
            assert ax2 <= bx1 or bx2 <= ax1 or ay2 <= by1 or by2 <= ay1
    panels = rectangles(root, "panel")
    for x1, y1, x2, y2 in tiles:
        assert any(px1 <= x1 and x2 <= px2 and py1 <= y1 and y2 <= py2 for px1, py1, px2, py2 in panels)
    names = {text.text for text in root.iter(f"{SVG}text") if text.get("class") == "name"}
    assert len(names) == len({device.name for device in plan.devices})


@pytest.mark.parametrize("name", ["h100", "kfd-mi300x-cpx"])
def test_nothing_in_it_runs_or_is_loaded(name: str) -> None:
    text = svg.svg(plan_of(name), "node17")
    root = ET.fromstring(text)
    allowed = {"svg", "title", "desc", "style", "rect", "text", "g", "circle", "line"}
    assert {one.tag.removeprefix(SVG) for one in root.iter()} <= allowed
    for one in root.iter():
        assert not {key for key in one.attrib if key.startswith("on") or "href" in key}
    assert "url(" not in text
    assert "@import" not in text
    assert "@font-face" not in text


def test_it_says_aloud_what_it_shows() -> None:
    root = drawn(plan_of("h100"))
    assert root.get("role") == "img"
    assert [root.findtext(f"{SVG}{tag}") for tag in ("title",)] == ["node17: topology"]
    said = root.findtext(f"{SVG}desc") or ""
    assert "8 x H100 80GB HBM3" in said
    assert "NUMA node 1: GPU4, mlx5_6, GPU5, mlx5_7" in said
    assert "GPU0, mlx5_0 share 0000:1a:00.0." in said
    assert "mlx5_5 is unavailable: port is DOWN, Disabled." in said


def test_hostile_texts_stay_texts() -> None:
    evil = "<script>alert(1)</script>&\"'"
    one = Instance(
        id=f"GPU-{evil}",
        kind="gpu",
        health=Health.LOST,
        reason=evil,
        attributes={"product": evil, "numa": 0, "pci_root": evil, "rails": [evil]},
    )
    root = drawn(Plan([one]), evil)
    assert root.findtext(f"{SVG}title") == f"{evil}: topology"
    assert not list(root.iter(f"{SVG}script"))


def test_a_gpu_that_is_lost_is_seen_and_told_by_more_than_a_colour() -> None:
    lost = Instance(id="GPU-1", kind="gpu", health=Health.LOST, reason="GPU is lost", attributes={"numa": 0})
    text = svg.svg(Plan([lost]), "node17")
    assert 'class="h-lost"' in text
    assert ">x</text>" in text
    assert "GPU is lost</text>" in text


def test_a_gpu_in_mig_mode_looks_as_well_as_its_slices() -> None:
    gpu = Instance(id="GPU-1", kind="gpu", health=Health.UNAVAILABLE, reason="MIG on")
    slices = [
        Instance(id=f"MIG-{n}", kind="mig", parent="GPU-1", health=health)
        for n, health in enumerate([Health.AVAILABLE, Health.LOST])
    ]
    assert 'class="h-available"' in svg.svg(Plan([gpu, slices[0]]), "n")
    assert re.findall(r'circle[^>]*class="h-(\w+)"', svg.svg(Plan([gpu, *slices]), "n"))[0] == "lost"


def test_a_machine_without_devices_says_so() -> None:
    assert "no GPU, accelerator or NIC was found" in svg.svg(Plan([]), "node17")


def test_both_light_and_dark_pages_are_served() -> None:
    assert "@media (prefers-color-scheme:dark)" in svg.svg(Plan([]), "node17")


def test_texts_are_cut_to_their_room() -> None:
    assert fit("short", 10, 100) == "short"
    cut = fit("NVIDIA H100 80GB HBM3 in a very long product name", 11, 120)
    assert cut.endswith("…")
    assert length(cut, 11) <= 120
    assert BOLD > 1


def test_rows_are_even_and_within_the_limit() -> None:
    boxes = [Box(100, 50, lambda _x, _y: []) for _ in range(8)]
    row = flow(boxes, 790)
    assert (row.width, row.height) == (430, 110)
    assert flow(boxes, 870).height == 50
