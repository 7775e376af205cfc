from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from benchmarks.simulator.chart import HEIGHT, LEFT, RIGHT, TOP, WIDTH, Chart, Line

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*lines: Line, marked: tuple[float, ...] = ()) -> ET.Element:
    return ET.fromstring(Chart("A < B & C", "load", lines, marked).svg())


def texts(root: ET.Element) -> list[str]:
    return [one.text or "" for one in root.iter(f"{SVG}text")]


def test_points_lie_where_their_values_are_on_both_axes() -> None:
    root = drawn(Line("ours", (0.1, 1.0, 10.0), (1.0, 0.5, 0.0)))
    points = [(float(one.attrib["cx"]), float(one.attrib["cy"])) for one in root.iter(f"{SVG}circle")]
    right = WIDTH - RIGHT
    assert [x for x, _ in points] == pytest.approx([LEFT, (LEFT + right) / 2, right])  # logarithmic
    bottom = points[2][1]
    assert points[0][1] == pytest.approx(TOP)
    assert points[1][1] == pytest.approx((TOP + bottom) / 2)
    assert bottom < HEIGHT


def test_axes_have_round_numbers_and_every_line_its_name_apart_from_the_others() -> None:
    root = drawn(Line("ours", (1, 2), (72, 71)), Line("theirs", (1, 2), (30, 71.5)), marked=(9.5,))
    found = texts(root)
    assert {"A < B & C", "load", "ours", "theirs", "9.5", "1", "2"} <= set(found)
    assert [one for one in found if re.fullmatch(r"\d+", one) and one not in {"1", "2"}] == [
        "0",
        "20",
        "40",
        "60",
        "80",
    ]
    named = {one.text: float(one.attrib["y"]) for one in root.iter(f"{SVG}text") if one.text in {"ours", "theirs"}}
    assert abs(named["ours"] - named["theirs"]) >= 14


def test_a_single_load_is_drawn_too() -> None:
    assert len(list(drawn(Line("ours", (1,), (3,))).iter(f"{SVG}circle"))) == 1
