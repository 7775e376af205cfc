"""Padding that reaches an answer in one way only is found, and what ignores its padding is let through.

Each model here breaks the promise in exactly one way, so that a proof that tries all but one of them is noticed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.warmpool.publishing.proved import LONG, Function, edges_only, verdict
from warmpool.manifest import TensorSpec

Array = NDArray[Any]

FREE = TensorSpec(name="x", dtype="float32", shape=("batch", "seq"))  # any number, any padding
ZEROS = TensorSpec(name="x", dtype="float32", shape=("batch", "seq"), pad=0.0)
BOUNDED = TensorSpec(name="x", dtype="float32", shape=("batch", "seq"), low=-5.0, high=5.0)
MASK = TensorSpec(name="mask", dtype="int32", shape=("batch", "seq"), pad=0, low=0, high=1)
LONG_X = TensorSpec(name="x", dtype="float32", shape=("batch", "long"))
LONG_MASK = TensorSpec(name="mask", dtype="int32", shape=("batch", "long"), pad=0, low=0, high=1)

BUCKETS = ({"batch": 1, "seq": 8}, {"batch": 4, "seq": 8}, {"batch": 1, "seq": 4})
OF_X = "the padding of input 'x' along dimension 'seq' reaches it"


def selected(x: Array, mask: Array) -> Array:
    return np.where(mask == 1, x, 0).sum(axis=1)


def weighted(x: Array, mask: Array) -> Array:
    """NaN times 0 is NaN."""
    return (x * mask).sum(axis=1)


def clipped(x: Array, mask: Array) -> Array:
    """Infinity is clipped, and NaN is not."""
    return (np.clip(x, -1, 1) * mask).sum(axis=1)


def without_nan(x: Array, mask: Array) -> Array:
    """NaN is taken out, and infinity is not."""
    return selected(x, mask) + (np.where(np.isnan(x), 0, x) * 0).sum(axis=1)


@pytest.mark.parametrize("bucket", BUCKETS)
@pytest.mark.parametrize("function", [weighted, clipped, without_nan])
def test_what_only_nan_or_infinity_reveals_is_refused_where_it_may_lie_in_the_padding(
    function: Function, bucket: dict[str, int]
) -> None:
    _, failure = verdict(function, FREE, MASK, bucket=bucket)
    assert failure is not None
    assert "differs from the exact shape by more than any tolerance" in failure
    assert "NaN or infinity in the padding of input 'x' along dimension 'seq' reaches it; 'x' " in failure
    assert "'mask'" not in failure


@pytest.mark.parametrize("bucket", BUCKETS)
@pytest.mark.parametrize("x", [ZEROS, BOUNDED])
def test_where_a_pad_is_declared_or_bounds_are_no_nan_is_ever_in_the_padding(
    x: TensorSpec, bucket: dict[str, int]
) -> None:
    assert verdict(weighted, x, MASK, bucket=bucket)[1] is None


def test_without_a_lower_bound_infinity_from_below_is_what_may_lie_there() -> None:
    capped = TensorSpec(name="x", dtype="float32", shape=("batch", "seq"), high=3.0)

    def exponential(x: Array, mask: Array) -> Array:
        return (np.exp(-x) * mask).sum(axis=1)  # 0 where x is large, infinite where it is small

    assert verdict(lambda x, mask: (np.exp(np.clip(x, None, 3)) * mask).sum(axis=1), capped, MASK)[1] is None
    failure = verdict(exponential, capped, MASK)[1]
    assert failure is not None
    assert "padding of input 'x' along dimension 'seq' reaches it" in failure


def test_nan_in_the_padding_is_tried_without_a_batch_too_and_in_an_input_that_all_rows_share() -> None:
    alone = TensorSpec(name="x", dtype="float32", shape=("seq",))
    failure = verdict(lambda x: x + 0 * x[::-1], alone, output=("seq",))[1]
    assert failure is not None
    assert "of input 'x' along dimension 'seq' reaches it" in failure
    table = TensorSpec(name="table", dtype="float32", shape=("seq",))
    failure = verdict(lambda x, mask, table: selected(x, mask) + (mask * table).sum(axis=1), ZEROS, MASK, table)[1]
    assert failure is not None
    assert "NaN or infinity in the padding of input 'table' along dimension 'seq' reaches it" in failure


@pytest.mark.parametrize("length", [15, 17, 31, 1, 16])
def test_what_leaks_at_one_edge_only_is_refused_there(length: int) -> None:
    """One under both buckets, one over the first, the smallest size, and the first bucket's own within the second."""

    def leaks(x: Array, mask: Array) -> Array:
        return np.where(mask.sum(axis=1) == length, x.sum(axis=1), selected(x, mask))

    bucket = {"batch": 1, "long": 32 if length > 15 else 16}
    _, failure = verdict(leaks, LONG_X, LONG_MASK, bucket=bucket)
    assert failure is not None
    assert failure.startswith(f"output 'y' at long={length} in bucket batch=1,long={bucket['long']} ")
    assert "the padding of input 'x' along dimension 'long' reaches it" in failure


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_what_depends_on_how_many_rows_there_are_is_refused_at_every_lower_edge_of_the_batch(rows: int) -> None:
    """In a bucket of four rows: one, one more than the bucket below has, and one less than four."""

    def leaks(x: Array, mask: Array) -> Array:
        return selected(x, mask) + ((mask.sum(axis=1) > 0).sum() == rows) * (len(x) > 1)

    _, failure = verdict(leaks, BOUNDED, MASK)
    assert failure is not None
    assert "in bucket batch=4,seq=8 differs from the exact shape by 1 " in failure
    assert "what other rows hold in input 'mask' reaches this one along dimension 'batch'" in failure


def leaks_inside(x: Array, mask: Array) -> Array:
    return np.where(mask.sum(axis=1) % 5 == 3, x.sum(axis=1), selected(x, mask))


def counts_inside(x: Array, mask: Array) -> Array:
    return selected(x, mask) + (x.shape[1] % 5 == 3)


@pytest.mark.parametrize(
    ("function", "cause"),
    [
        (leaks_inside, "the padding of input 'x' along dimension 'long' reaches it"),
        (counts_inside, "the padded size of dimension 'long' itself reaches it"),
    ],
)
@pytest.mark.parametrize("rows", [1, 4])
def test_what_is_wrong_at_every_fifth_size_but_at_no_edge_is_refused(function: Function, cause: str, rows: int) -> None:
    for size in LONG.sizes:
        bucket = {"batch": rows, "long": size}
        assert verdict(function, LONG_X, LONG_MASK, bucket=bucket, points=edges_only)[1] is None
    failures = [verdict(function, LONG_X, LONG_MASK, bucket={"batch": rows, "long": size})[1] for size in LONG.sizes]
    assert any(failure and cause in failure for failure in failures)


IMAGE = TensorSpec(name="image", dtype="float32", shape=("batch", "seq", "width"))
ROWS, COLUMNS = (
    TensorSpec(name=name, dtype="int32", shape=("batch", dim), pad=0, low=0, high=1)
    for name, dim in (("rows", "seq"), ("columns", "width"))
)


@pytest.mark.parametrize("leaking", ["seq", "width"])
def test_of_two_dimensions_the_one_whose_nan_leaks_is_named(leaking: str) -> None:
    def masked(image: Array, rows: Array, columns: Array) -> Array:
        high, wide = rows[:, :, None], columns[:, None, :]
        weight, chosen = (high, wide) if leaking == "seq" else (wide, high)
        return np.where(chosen == 1, image * weight, 0).sum(axis=(1, 2))

    failure = verdict(masked, IMAGE, ROWS, COLUMNS)[1]
    assert failure is not None
    assert f"in the padding of input 'image' along dimension '{leaking}' reaches it" in failure
    assert ("dimension 'width'" in failure) == (leaking == "width")


def test_what_leaks_where_both_dimensions_are_padded_is_named_with_both() -> None:
    def corner(image: Array, rows: Array, columns: Array) -> Array:
        valid, beyond = ((rows[:, :, None] == flag) & (columns[:, None, :] == flag) for flag in (1, 0))
        return (np.where(valid, image, 0) + np.where(beyond, image, 0)).sum(axis=(1, 2))

    failure = verdict(corner, IMAGE, ROWS, COLUMNS)[1]
    assert failure is not None
    both = "of input 'image' along dimension 'seq' and of input 'image' along dimension 'width'"
    assert f"the padding {both} reaches it" in failure


def softmax(x: Array) -> Array:
    return np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)


@pytest.mark.parametrize("bucket", BUCKETS)
@pytest.mark.parametrize("x", [FREE, ZEROS])
@pytest.mark.parametrize(
    ("function", "output"),
    [
        (lambda x: x.max(axis=1), ("batch",)),
        (lambda x: x.min(axis=1), ("batch",)),
        (lambda x: x.mean(axis=1), ("batch",)),
        (softmax, ("batch", "seq")),
        (lambda x: x[:, ::-1], ("batch", "seq")),
    ],
    ids=["max", "min", "mean", "softmax", "reversed"],
)
def test_a_reduction_over_the_padding_is_refused_with_and_without_a_declared_pad(
    function: Function, output: tuple[int | str, ...], x: TensorSpec, bucket: dict[str, int]
) -> None:
    failure = verdict(function, x, output=output, bucket=bucket)[1]
    assert failure is not None
    assert OF_X in failure


def from_the_right(x: Array) -> Array:
    return x[:, ::-1].cumsum(axis=1)[:, ::-1]


@pytest.mark.parametrize("bucket", BUCKETS)
def test_a_sum_from_the_right_needs_zeros_in_its_padding_and_is_refused_unless_they_are_declared(
    bucket: dict[str, int],
) -> None:
    assert verdict(from_the_right, ZEROS, output=("batch", "seq"), bucket=bucket)[1] is None
    failure = verdict(from_the_right, FREE, output=("batch", "seq"), bucket=bucket)[1]
    assert failure is not None
    assert OF_X in failure


def test_whether_there_is_anything_in_the_padding_is_a_leak_too() -> None:
    failure = verdict(lambda x, mask: selected(x, mask) + np.where(mask == 0, x, 0).any(axis=1), BOUNDED, MASK)[1]
    assert failure is not None
    assert OF_X in failure


def masked_softmax(x: Array, mask: Array) -> Array:
    shifted = np.exp(np.where(mask == 1, x, -np.inf) - np.where(mask == 1, x, -np.inf).max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("bucket", BUCKETS)
@pytest.mark.parametrize(
    ("function", "output"),
    [
        (selected, ("batch",)),
        (lambda x, mask: np.where(mask == 1, x, -np.inf).max(axis=1), ("batch",)),
        (lambda x, mask: selected(x, mask) / mask.sum(axis=1), ("batch",)),
        (masked_softmax, ("batch", "seq")),
        (lambda x, mask: from_the_right(np.where(mask == 1, x, 0)), ("batch", "seq")),
        (lambda x, mask: x.cumsum(axis=1), ("batch", "seq")),
        (lambda x, mask: x * 2, ("batch", "seq")),
    ],
    ids=["sum", "max", "mean", "softmax", "from the right", "from the left", "each"],
)
def test_what_selects_its_valid_numbers_is_let_through_whatever_lies_beside_them(
    function: Function, output: tuple[int | str, ...], bucket: dict[str, int]
) -> None:
    tally, failure = verdict(function, FREE, MASK, output=output, bucket=bucket)
    assert failure is None
    assert tally.cases["padding"] > 0
