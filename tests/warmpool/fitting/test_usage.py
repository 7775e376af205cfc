from __future__ import annotations

import pytest

from warmpool.fitting.usage import elements, padding


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
