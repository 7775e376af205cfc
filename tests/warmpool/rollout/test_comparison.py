"""Answers of two versions side by side."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from cache.local_store import LocalStore
from tests.warmpool.stored_version import put
from warmpool.manifest import RolloutSpec, ToleranceSpec
from warmpool.rollout.comparison import Compared, Rule, compared

SAME = Rule(ToleranceSpec(rtol=0.1, atol=1.0))
FINITE = Rule(None)
NAN, INF = float("nan"), float("inf")


def answer(*values: float, dtype: str = "float32") -> dict[str, np.ndarray]:
    return {"y": np.array(values, dtype)}


@pytest.mark.parametrize(
    ("stable", "canary", "found"),
    [
        (answer(10, 0), answer(10, 0), Compared()),
        (answer(10, 0), answer(14, -2), Compared()),  # twice the tolerance, for both may be off by it
        (answer(10, 0), answer(14.1, 0), Compared(differing=True)),
        (answer(10, 0), answer(10, 2.1), Compared(differing=True)),
        (answer(1, NAN, INF), answer(1, NAN, INF), Compared()),
        (answer(1, NAN), answer(1, 5), Compared(differing=True)),  # where stable has no number none can be wrong
        (answer(1, INF), answer(1, -INF), Compared(differing=True)),
        (answer(1, 2), answer(1, NAN), Compared(differing=True, not_finite=True)),
        (answer(1, 2), answer(1, INF), Compared(differing=True, not_finite=True)),
        (answer(1, 2, dtype="int32"), answer(1, 3, dtype="int32"), Compared(differing=True)),
        (answer(1, dtype="bool"), answer(1, dtype="bool"), Compared()),
        (answer(1, 2), answer(1, 2, 3), Compared(differing=True)),
        (answer(1), answer(1, dtype="float16"), Compared(differing=True)),
        (answer(1), {"z": np.zeros(1)}, Compared(differing=True)),
    ],
)
def test_what_differs_and_what_is_no_number_where_stable_has_one(stable: Any, canary: Any, found: Compared) -> None:
    assert compared(SAME, stable, canary) == found


def test_other_weights_may_answer_otherwise_but_with_numbers_of_the_same_form() -> None:
    assert compared(FINITE, answer(1, 2), answer(1000, -5)) == Compared()
    assert compared(FINITE, answer(1, dtype="int32"), answer(2, dtype="int32")) == Compared()
    assert compared(FINITE, answer(1, NAN), answer(NAN, NAN)) == Compared(not_finite=True)
    assert compared(FINITE, answer(1), answer(1, 2)) == Compared(differing=True)


@pytest.mark.parametrize(
    ("numerics", "weights", "same"),
    [
        ("auto", b"sixteen bytes...", True),
        ("auto", b"others", False),
        ("same", b"others", True),
        ("finite", b"sixteen bytes...", False),
    ],
)
def test_by_itself_the_same_answers_are_asked_for_where_the_weights_are_the_same(
    tmp_path: Any, numerics: Any, weights: bytes, same: bool
) -> None:
    store = LocalStore(tmp_path)
    stable = put(store)
    canary = put(store, version="2", weights=weights, tolerance=ToleranceSpec(rtol=0.5, atol=0))
    rule = Rule.of(RolloutSpec(started_s=0, numerics=numerics), stable, canary)
    assert rule.tolerance == (ToleranceSpec(rtol=0.5, atol=0.0) if same else None)
    assert msgspec.structs.asdict(stable.tolerance) == {"rtol": 0, "atol": 0}
