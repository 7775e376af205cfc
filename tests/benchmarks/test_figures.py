from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from benchmarks.figures import Figure, Report, Target, differences, percentile, ratios, show


def test_ratios_are_taken_pair_by_pair_and_not_of_medians() -> None:
    figure = ratios("peer over ours", [4.0, 9.0, 2.0], [2.0, 3.0, 4.0], Target("at least", 2))
    assert figure.samples == (2.0, 3.0, 0.5)
    assert (figure.median, figure.verdict) == (2.0, "met")


def test_differences_need_as_many_of_each() -> None:
    assert differences("added", "ms", [3.0, 5.0], [1.0, 4.0]).samples == (2.0, 1.0)
    with pytest.raises(ValueError, match="shorter"):
        differences("added", "ms", [3.0, 5.0], [1.0])


@pytest.mark.parametrize(
    ("target", "verdict"),
    [(Target("at most", 1), "missed"), (Target("at most", 2), "met"), (Target("at least", 2.1), "missed"), (None, "")],
)
def test_the_median_is_what_a_target_is_about(target: Target | None, verdict: str) -> None:
    assert Figure("x", "ms", (0.5, 2.0, 90.0), target).verdict == verdict


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(number) for number in range(200, 0, -1)]
    assert percentile(values, 0.5) == 100
    assert percentile(values, 0.99) == 198
    assert percentile([7.0], 0.99) == 7


def test_a_table_shows_median_spread_and_target() -> None:
    out = StringIO()
    figure = Figure("exec to first answer", "s", (1.0, 3.0, 2.0), Target("at most", 1.5))
    show(Console(file=out, width=120), Report("cold start", [figure], {}))
    row = out.getvalue().splitlines()[-2]
    assert " ".join(row.split()) == "exec to first answer 2.000 s 1.000 s 3.000 s <= 1.5 3 missed"
