"""The benchmark's own parts, on traffic so small that it takes no time; what it says of real traffic it says itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import simulate
from benchmarks.figures import Target
from benchmarks.simulate import LENGTHS, POWERS, Traffic, clock, pictures, saturated
from benchmarks.simulator.arrivals import TraceError
from benchmarks.simulator.cost_table import STORED, read_costs
from benchmarks.simulator.generator import generate
from benchmarks.simulator.goodput import contest, figures_of
from benchmarks.simulator.sweep import Settings

EMBED = read_costs(STORED / "embed.json")


def test_stored_costs_have_every_executable_that_is_played_and_say_where_they_are_from() -> None:
    assert len(EMBED.candidates(simulate.MORE_POWERS)) == 25
    digits = read_costs(STORED / "digits.json")
    assert len(digits.candidates([(rows, 1) for rows in digits.rows])) == 6
    for table in (EMBED, digits):
        assert {"cpu", "cores", "jaxlib", "runs", "taken", "version"} <= table.where.keys()
        assert 0 < table.noise.sigma < 1


def test_without_a_folder_traffic_is_generated_and_with_one_it_is_read(tmp_path: Path) -> None:
    made = Traffic.of(None)
    assert [one.name for one in made.all] == ["generated bursty", "generated steady"]
    assert max(made.bursty.lengths) == LENGTHS[-1]
    with pytest.raises(TraceError, match="azure_llm_2023_code"):
        Traffic.of(tmp_path)


def test_a_contest_gives_carried_loads_ratios_and_pictures_for_every_seed() -> None:
    arrivals = generate("bursty", 500, 1).within(LENGTHS[-1])
    settings = Settings(arrivals, EMBED, 0.25, POWERS, POWERS)
    said: list[str] = []
    found = contest("t", settings, settings.full_per_s, (0.001, 1.0), 2, said.append)
    assert len(said) == 3
    assert [len(points) for points in found.rounds] == [2, 2]
    assert found.rounds[0][0].window == found.rounds[1][0].window
    figures = figures_of(found, (1.0,), Target("at least", 1.5))
    assert len(figures) == 4
    assert all(len(figure.samples) == 2 for figure in figures)
    baseline, live = found.carried()
    assert figures[2].samples == pytest.approx([one / other for one, other in zip(live, baseline, strict=True)])
    assert figures[3].samples[0] == found.rounds[0][1].live.share / found.rounds[0][1].baseline.share
    svgs = pictures([found, found, found])
    assert set(svgs) == {"share", "goodput"}
    assert all(svg.startswith("<svg") and "fixed window" in svg for svg in svgs.values())
    points = found.document()
    assert points[0]["live"]["answered"] + points[0]["live"]["refused"] <= 500
    faster = clock(found)[0]
    assert faster.samples[0] == pytest.approx(arrivals.span_s / found.rounds[0][0].live.wall_s)


def test_saturation_counts_only_what_is_within_the_limit() -> None:
    figures = saturated(EMBED, generate("steady", 300, 1).within(LENGTHS[-1]).lengths, 1)
    assert figures[2].samples[0] <= simulate.P99_S_MAX["embed"] * 1e3
    assert 0.5 < figures[0].samples[0] < 1.05
