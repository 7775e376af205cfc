from __future__ import annotations

import itertools
from typing import Any

import jax
import numpy as np
import pytest

from examples.options.model import CONTRACT, model
from tests.examples.reference_options import Option
from warmpool.model import Method

NUMBERS = ("spot", "strike", "rate", "volatility", "maturity")

Columns = dict[str, np.ndarray]


def columns_of(options: list[Option]) -> Columns:
    numbers = {name: np.array([getattr(option, name) for option in options], np.float32) for name in NUMBERS}
    return {**numbers, "is_call": np.array([option.is_call for option in options], bool)}


def rounded(columns: Columns) -> list[Option]:
    """The options that float32 columns hold, exactly."""
    rows = zip(*(columns[name].tolist() for name in CONTRACT), strict=True)
    return [Option(*row) for row in rows]


def usual_columns(count: int) -> Columns:
    rng = np.random.default_rng(7)
    bounds = {
        "spot": (60, 140),
        "strike": (60, 140),
        "rate": (-0.02, 0.1),
        "volatility": (0.1, 0.6),
        "maturity": (0.1, 3),
    }
    columns = {name: rng.uniform(*bounds[name], count).astype(np.float32) for name in NUMBERS}
    return {**columns, "is_call": rng.integers(0, 2, count).astype(bool)}


def evaluate(method: str, columns: Columns) -> Columns:
    declared = model.methods[method]
    assert isinstance(declared, Method)
    return {name: np.asarray(value) for name, value in jax.jit(declared.function)(None, **columns).items()}


def with_seeds(columns: Columns, seeds: Any) -> Columns:
    return {**columns, "seed": np.asarray(seeds, np.uint32)}


def test_prices_agree_with_the_closed_form() -> None:
    columns = usual_columns(200)
    expected = [option.price for option in rounded(columns)]
    np.testing.assert_allclose(evaluate("price", columns)["price"], expected, rtol=1e-5, atol=5e-5)


def test_a_known_price_from_the_textbook() -> None:
    # Hull, "Options, Futures, and Other Derivatives": S 42, K 40, r 10%, volatility 20%, six months.
    call = Option(42, 40, 0.1, 0.2, 0.5, is_call=True)
    put = Option(42, 40, 0.1, 0.2, 0.5, is_call=False)
    np.testing.assert_allclose(evaluate("price", columns_of([call, put]))["price"], [4.76, 0.81], atol=0.005)


def test_greeks_agree_with_the_closed_form() -> None:
    columns = usual_columns(200)
    expected = [option.greeks for option in rounded(columns)]
    for name, values in evaluate("greeks", columns).items():
        np.testing.assert_allclose(values, [row[name] for row in expected], rtol=5e-5, atol=2e-4, err_msg=name)


def test_greeks_agree_with_finite_differences_of_the_price() -> None:
    columns = usual_columns(50)
    found = evaluate("greeks", columns)
    for index, option in enumerate(rounded(columns)):
        differences = {
            "delta": option.slope("spot", 1e-3),
            "gamma": option.curvature(1e-2),
            "vega": option.slope("volatility", 1e-5),
            "theta": -option.slope("maturity", 1e-5),
            "rho": option.slope("rate", 1e-5),
        }
        for name, expected in differences.items():
            assert found[name][index] == pytest.approx(expected, rel=1e-4, abs=2e-4), (name, option)


def test_every_corner_of_the_allowed_inputs_gives_finite_answers() -> None:
    bounds = [(CONTRACT[name].low, CONTRACT[name].high) for name in NUMBERS]
    corners = [Option(*numbers, is_call=kind) for *numbers, kind in itertools.product(*bounds, (False, True))]  # type: ignore[arg-type, misc]
    columns = columns_of(corners)
    answers = {
        **evaluate("price", columns),
        **evaluate("greeks", columns),
        **evaluate("monte_carlo", with_seeds(columns, range(len(corners)))),
    }
    assert [name for name, values in answers.items() if not np.isfinite(values).all()] == []
    prices = [option.price for option in rounded(columns)]
    np.testing.assert_allclose(evaluate("price", columns)["price"], prices, rtol=1e-4, atol=5e-3)


def test_simulated_prices_lie_around_the_closed_form_as_their_standard_errors_say() -> None:
    columns = usual_columns(128)
    found = evaluate("monte_carlo", with_seeds(columns, range(128)))
    expected = np.array([option.price for option in rounded(columns)])
    likely = expected > 1  # of an option that almost never pays, 4,096 paths see too few payments for a standard error
    assert likely.sum() > 100
    deviations = (found["price"] - expected)[likely] / found["standard_error"][likely]
    assert np.abs(deviations).max() < 4
    assert 0.8 < deviations.std() < 1.2
    assert (found["standard_error"] < 0.02 * columns["spot"]).all()


def test_a_seed_gives_the_same_bits_in_every_batch_and_beside_every_neighbour() -> None:
    columns = with_seeds(usual_columns(16), range(100, 116))
    together = evaluate("monte_carlo", columns)
    for start, stop in ((0, 1), (5, 6), (3, 7), (8, 16)):
        part = evaluate("monte_carlo", {name: column[start:stop] for name, column in columns.items()})
        for name, values in part.items():
            np.testing.assert_array_equal(values, together[name][start:stop])
    turned = evaluate("monte_carlo", {name: column[::-1] for name, column in columns.items()})
    np.testing.assert_array_equal(turned["price"][::-1], together["price"])


def test_seeds_decide_the_draws() -> None:
    one = {name: np.repeat(column[:1], 4) for name, column in usual_columns(1).items()}
    prices = evaluate("monte_carlo", with_seeds(one, [1, 2, 1, 2**32 - 1]))["price"]
    assert prices[0] == prices[2]
    assert len(set(prices.tolist())) == 3


@pytest.mark.parametrize("method", ["price", "greeks", "monte_carlo"])
def test_padding_rows_of_zeros_do_not_disturb_the_others(method: str) -> None:
    columns = usual_columns(5)
    if method == "monte_carlo":
        columns = with_seeds(columns, range(5))
    padded = {name: np.concatenate([column, np.zeros(11, column.dtype)]) for name, column in columns.items()}
    exact = evaluate(method, columns)
    for name, values in evaluate(method, padded).items():
        np.testing.assert_allclose(values[:5], exact[name], rtol=model.tolerance.rtol, atol=model.tolerance.atol)
