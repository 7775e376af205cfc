from __future__ import annotations

from itertools import product
from xml.etree import ElementTree as ET

import pytest

from warmpool.fitting.method_fit import FITTED, TODAY, MethodFit, fit_method
from warmpool.fitting.observations import Seen, observed
from warmpool.fitting.picture import picture
from warmpool.manifest import DimSpec, ExecutableSpec
from warmpool.shape_sketch import Shape

BATCH = DimSpec(name="batch", max=64, sizes=(1, 8), batch=True)
SEQ = DimSpec(name="seq", max=64, sizes=(16, 64))
WIDE = DimSpec(name="wide", max=1, sizes=(1,))
SVG = "{http://www.w3.org/2000/svg}"


def fit(shapes: dict[Shape, float], *dims: DimSpec) -> MethodFit:
    buckets = [dict(zip([dim.name for dim in dims], sizes, strict=True)) for sizes in product(*(d.sizes for d in dims))]
    measured = [
        ExecutableSpec(
            key="k",
            method="predict",
            bucket=bucket,
            minimum=False,
            ladder=False,
            cost_us=100.0 * max(bucket.values()),
            size_bytes=1,
        )
        for bucket in buckets
    ]
    seen = observed(shapes, dims)
    return fit_method("predict", dims, buckets, measured, Seen(seen, observed({}, dims)))


def texts(document: str) -> list[str]:
    return [str(one.text) for one in ET.fromstring(document).iter(f"{SVG}text")]


def within(document: str) -> bool:
    """Whether every shape lies on the drawing."""
    root = ET.fromstring(document)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    places = {"x": width, "cx": width, "x1": width, "x2": width, "y": height, "cy": height, "y1": height, "y2": height}
    return all(
        0 <= float(value) <= places[name]
        for one in root.iter()
        for name, value in one.attrib.items()
        if name in places and one is not root
    )


@pytest.mark.parametrize(
    ("shapes", "dims"),
    [
        ({(1, 5): 100.0, (3, 40): 150.0}, (BATCH, SEQ)),
        ({(5,): 100.0, (40,): 150.0}, (SEQ,)),
        ({(1, 5, 1): 100.0, (3, 40, 1): 150.0}, (BATCH, SEQ, WIDE)),
    ],
)
def test_every_plan_is_shown_with_its_figures(shapes: dict[Shape, float], dims: tuple[DimSpec, ...]) -> None:
    found = fit(shapes, *dims)
    document = picture("toy/1", [found])
    shown = texts(document)
    assert "toy/1" in shown
    assert "predict: 250 requests" in shown
    for plan in found.plans:
        assert f"{plan.name} ({len(plan.buckets)})" in shown
        assert f"{plan.padding:.0%}" in shown
        assert f"{plan.time_us / 1000:.3g} ms" in shown
    assert {dim.name for dim in dims} <= set(shown)
    assert within(document)


def test_of_two_dimensions_every_shape_is_a_disc_and_every_bucket_a_square_of_its_plan() -> None:
    found = fit({(1, 5): 100.0, (3, 40): 150.0}, BATCH, SEQ)
    root = ET.fromstring(picture("toy/1", [found]))
    assert len(list(root.iter(f"{SVG}circle"))) == 2 * 2, "in both panels"
    squares = [one for one in root.iter(f"{SVG}rect") if one.attrib["width"] == one.attrib["height"] == "6.00"]
    assert len(squares) == len(found.plan(TODAY).buckets) + len(found.plan(FITTED).buckets)


def test_several_methods_are_one_below_the_other() -> None:
    found = fit({(5,): 250.0}, SEQ)
    one, two = (ET.fromstring(picture("toy/1", [found] * count)) for count in (1, 2))
    assert float(two.attrib["height"]) > 1.7 * float(one.attrib["height"])


def test_a_name_is_text_whatever_it_holds() -> None:
    """Of a store anybody may have written the name of a version."""
    shown = texts(picture("<script>&\x1b[31m", [fit({(5,): 250.0}, SEQ)]))
    assert "<script>&\\x1b[31m" in shown
