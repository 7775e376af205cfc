from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from benchmarks.simulator.cost_table import CostTable, Measured, Noise, noise_of, read_costs

TABLE = CostTable(
    "m",
    "batch",
    {},
    Noise(0.1, 0.01, 4.0),
    tuple(
        Measured({"batch": rows, "seq": seq}, float(cost))
        for rows, seq, cost in ((1, 4, 10), (1, 8, 30), (4, 4, 20), (4, 8, 90))
    ),
)


def test_a_plan_takes_the_costs_that_were_measured_and_only_those() -> None:
    found = TABLE.candidates([(4, 8), (1, 8)])
    assert [(one.bucket, one.cost_us) for one in found] == [
        ({"batch": 4, "seq": 8}, 90.0),
        ({"batch": 1, "seq": 8}, 30.0),
    ]
    assert len({one.id for one in found}) == 2
    assert (TABLE.rows, TABLE.lengths, TABLE.length) == ([1, 4], [4, 8], "seq")
    with pytest.raises(KeyError):
        TABLE.candidates([(2, 8)])


def test_a_method_with_rows_alone_has_no_length() -> None:
    rows = CostTable("m", "batch", {}, TABLE.noise, (Measured({"batch": 1}, 3.0), Measured({"batch": 4}, 6.0)))
    assert (rows.length, rows.lengths) == ("", [1])
    assert [one.cost_us for one in rows.candidates([(1, 1), (4, 1)])] == [3.0, 6.0]
    assert rows.measured_us == {(1, 1): 3.0, (4, 1): 6.0}


def test_a_stored_table_is_read_as_it_was_written_and_another_file_is_told(tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    file.write_bytes(msgspec.json.encode(TABLE))
    assert read_costs(file) == TABLE
    file.write_text('{"model": 3}')
    with pytest.raises(ValueError, match=r"costs\.json: Expected `str`, got `int` - at `\$\.model`"):
        read_costs(file)


def test_noise_is_told_apart_from_stalls() -> None:
    generator = np.random.default_rng(0)
    runs_us = {name: list(scale * np.exp(generator.normal(0, 0.1, 400))) for name, scale in (("a", 10), ("b", 9000))}
    runs_us["a"][:8] = [50.0] * 8
    found = noise_of(runs_us)
    assert found.sigma == pytest.approx(0.1, rel=0.1)
    assert found.stall_share == 0.01
    assert found.stall_factor == pytest.approx(5.0, rel=0.1)
    assert noise_of({"a": [1.0, 1.0]}) == Noise(0.0, 0.0, 2.0)
