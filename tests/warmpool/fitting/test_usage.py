from __future__ import annotations

import pytest

from warmpool.fitting.usage import elements, padding, usage


def test_padding_is_what_the_buckets_have_beyond_what_was_asked_for() -> None:
    found = padding([(1, 3), (2, 5)], [10, 1], ((1, 4), (4, 8)))
    assert (found.elements, found.padded_elements) == (10 * 3 + 10, 10 * 4 + 4 * 8)
    assert found.wasted == 32
    assert found.share == pytest.approx(32 / 72)


def test_one_dimension_is_a_plain_list() -> None:
    assert padding([3, 4], [1, 1], ((4,),)).wasted == 1


def test_nothing_seen_has_no_padding() -> None:
    assert padding([], [], ((4,),)).share == 0


def test_what_no_bucket_covers_is_an_error() -> None:
    with pytest.raises(ValueError, match="a value is 5, allowed: up to the last boundary, 4"):
        padding([5], [1], ((4,),))


def test_elements_multiply() -> None:
    assert elements([1, 2], [3, 4]).tolist() == [3, 8]


def test_a_shape_runs_in_the_cheapest_bucket_that_covers_it() -> None:
    """(1, 8) is the smallest, and yet (4, 8) takes less."""
    times = {(1, 8): 30.0, (4, 8): 20.0, (4, 16): 50.0}
    found = usage([(1, 5), (1, 8), (3, 9)], [1, 2, 1], list(times), lambda *_: list(times.values()))
    assert found.cost == 3 * 20.0 + 50.0
    assert (found.padding.elements, found.padding.padded_elements) == (5 + 2 * 8 + 27, 3 * 32 + 64)


def test_of_buckets_that_cost_the_same_the_smaller_one_runs() -> None:
    assert usage([(1,)], [1], [(8,), (4,)], lambda sizes: sizes * 0 + 1.0).padding.padded_elements == 4


def test_what_no_bucket_covers_in_every_dimension_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"\[3, 3\] is covered by no bucket"):
        usage([(3, 3)], [1], [(2, 9), (9, 2)], elements)
