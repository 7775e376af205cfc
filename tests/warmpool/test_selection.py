"""What a bucket covers."""

from __future__ import annotations

import pytest

from warmpool.selection import covers, padding_share


def test_a_bucket_covers_what_is_no_larger_in_any_dimension():
    bucket = {"batch": 4, "seq": 16}
    assert covers(bucket, {"batch": 4, "seq": 16})
    assert covers(bucket, {"batch": 1, "seq": 1})
    assert covers(bucket, {})
    assert not covers(bucket, {"batch": 5, "seq": 1})
    assert not covers(bucket, {"batch": 1, "seq": 17})
    assert not covers(bucket, {"batch": 1, "length": 1})
    assert covers({}, {})


@pytest.mark.parametrize(("true", "padded", "share"), [(0, 0, 0.0), (5, 5, 0.0), (1, 4, 0.75), (0, 4, 1.0)])
def test_the_share_of_padding(true, padded, share):
    assert padding_share(true, padded) == share
