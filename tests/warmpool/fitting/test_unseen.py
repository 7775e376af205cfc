from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.fitting.segments import fit_boundaries
from warmpool.fitting.unseen import with_unseen
from warmpool.fitting.usage import elements, padding


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 100)), min_size=1, max_size=20), st.floats(0, 1))
def test_the_weight_stays_the_same_and_no_row_gets_another(seen: list[tuple[int, int]], share: float) -> None:
    weights = np.arange(1.0, len(seen) + 1)
    shapes, amounts = with_unseen(seen, weights, (8, 128), axes=(1,), share=share)
    assert amounts.sum() == pytest.approx(weights.sum())
    assert len(np.unique(shapes, axis=0)) == len(shapes)
    for rows in range(1, 9):
        before = weights[[one == rows for one, _ in seen]].sum()
        assert amounts[shapes[:, 0] == rows].sum() == pytest.approx(before)


def test_a_gap_where_nothing_was_gets_a_boundary() -> None:
    """Half of what comes is a little longer than anything that was."""
    seen = np.repeat([10, 20, 30], 1000)
    comes = np.concatenate([seen, np.repeat([200, 300], 30)])
    plain = fit_boundaries(seen, np.ones(len(seen)), 6, elements, largest=4096)
    spread = fit_boundaries(*with_unseen(seen, np.ones(len(seen)), (4096,)), 6, elements, largest=4096)
    assert plain == (10, 20, 30, 4096)
    assert {10, 20, 30, 4096} < set(spread)
    wasted = [padding(comes, np.ones(len(comes)), (ends,)).wasted for ends in (plain, spread)]
    assert wasted[1] < wasted[0] / 2
