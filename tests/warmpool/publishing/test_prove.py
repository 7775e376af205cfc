"""A promise that a model breaks is found, and laid at the door of the right input and dimension.

The models here are numpy functions, so that every number can be computed by hand.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.warmpool.publishing.proved import verdict
from warmpool.manifest import ProofSpec, TensorSpec, ToleranceSpec
from warmpool.publishing.prove import merged

X = TensorSpec(name="x", dtype="float32", shape=("batch", "seq"), low=1.0, high=2.0)
PADDED_X = TensorSpec(name="x", dtype="float32", shape=("batch", "seq"), pad=0.0)
MASK = TensorSpec(name="mask", dtype="int32", shape=("batch", "seq"), pad=0, low=0, high=1)


def masked_mean(x: NDArray[Any], mask: NDArray[Any]) -> NDArray[Any]:
    return np.where(mask == 1, x, 0).sum(axis=1) / np.maximum(mask.sum(axis=1), 1)


def test_a_masked_mean_keeps_every_promise() -> None:
    tally, failure = verdict(masked_mean, X, MASK)
    assert failure is None
    # Points 8, 5, 4, 7, 1, 6 and another one: two batches of four rows, and three rows, each of them twice; two rows
    # and one, as they are written.
    assert tally.cases == {"platforms": 25, "padding": 21, "batching": 25}
    assert max(tally.error_max.values()) < 1e-6


def test_a_bucket_of_one_row_proves_no_batching() -> None:
    tally, failure = verdict(masked_mean, X, MASK, bucket={"batch": 1, "seq": 8})
    assert failure is None
    # Seven points, and again beside garbage where anything is padded: not at 8.
    assert tally.cases == {"platforms": 13, "padding": 12}


def test_a_sum_that_relies_on_its_declared_pad_keeps_every_promise() -> None:
    assert verdict(lambda x: x.sum(axis=1), PADDED_X)[1] is None


def test_the_same_sum_without_a_declared_pad_is_refused_with_input_and_dimension() -> None:
    _, failure = verdict(lambda x: x.sum(axis=1), X)
    assert failure is not None
    assert failure.startswith("output 'y' at seq=5 in bucket batch=4,seq=8 differs from the exact shape by ")
    assert "the padding of input 'x' along dimension 'seq' reaches it; 'x' declares no pad: mask it" in failure


def test_an_input_read_in_its_padding_despite_a_pad_is_named() -> None:
    def softmax_like(x: NDArray[Any], mask: NDArray[Any]) -> NDArray[Any]:
        return np.exp(x).sum(axis=1)

    _, failure = verdict(softmax_like, PADDED_X, MASK)
    assert failure is not None
    assert "the padding of input 'x' along dimension 'seq' reaches it" in failure
    assert "'mask'" not in failure
    change = "mask it in the method, such as by a LengthMask, or declare a pad, or bounds, with which"
    assert failure.endswith(f"reaches it; {change} it changes nothing")


def test_a_mean_over_the_padded_size_is_laid_at_the_dimension() -> None:
    def averaged(x: NDArray[Any], mask: NDArray[Any]) -> NDArray[Any]:
        return np.where(mask == 1, x, 0).mean(axis=1)

    _, failure = verdict(averaged, X, MASK)
    assert failure is not None
    assert failure.endswith("the padded size of dimension 'seq' itself reaches it, as in a mean or a count over it")


def test_of_two_dimensions_the_leaking_one_is_named() -> None:
    image = TensorSpec(name="image", dtype="float32", shape=("batch", "seq", "width"), low=1.0, high=2.0)
    rows = TensorSpec(name="rows", dtype="int32", shape=("batch", "seq"), pad=0, low=0, high=1)

    def forgets_the_width(image: NDArray[Any], rows: NDArray[Any]) -> NDArray[Any]:
        return np.where(rows[:, :, None] == 1, image, 0).sum(axis=(1, 2))

    _, failure = verdict(forgets_the_width, image, rows)
    assert failure is not None
    assert "the padding of input 'image' along dimension 'width' reaches it" in failure
    assert "'seq'" not in failure


def test_sizes_of_two_dimensions_that_cancel_out_where_both_are_full_or_low_are_refused() -> None:
    left = TensorSpec(name="left", dtype="float32", shape=("batch", "seq"))
    right = TensorSpec(name="right", dtype="float32", shape=("batch", "twin"))

    def subtracts_sizes(left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
        return left[:, 0] + left.shape[1] - right.shape[1]

    _, failure = verdict(subtracts_sizes, left, right, tolerance=ToleranceSpec(rtol=1e-3, atol=1e-3))
    assert failure is not None
    assert failure.startswith("output 'y' at seq=5,twin=8 in bucket batch=4,seq=8,twin=8 differs")
    assert failure.endswith("the padded size of dimension 'seq' itself reaches it, as in a mean or a count over it")


def test_of_two_inputs_the_leaking_one_is_named() -> None:
    weight = TensorSpec(name="weight", dtype="float32", shape=("batch", "seq"), low=1.0, high=2.0)

    def forgets_the_weight(x: NDArray[Any], weight: NDArray[Any], mask: NDArray[Any]) -> NDArray[Any]:
        return np.where(mask == 1, x, 0).sum(axis=1) * weight.max(axis=1)

    _, failure = verdict(forgets_the_weight, X, weight, MASK)
    assert failure is not None
    assert "the padding of input 'weight' along dimension 'seq' reaches it" in failure
    assert "'x'" not in failure


def test_rows_that_see_each_other_are_refused_with_the_input() -> None:
    def normalised(x: NDArray[Any], mask: NDArray[Any]) -> NDArray[Any]:
        return masked_mean(x, mask) - masked_mean(x, mask).mean()

    _, failure = verdict(normalised, X, MASK)
    assert failure is not None
    assert "what other rows hold in input 'x' and 'mask' reaches this one along dimension 'batch'" in failure
    assert "compute every row by itself" in failure


@pytest.mark.parametrize("bounds", [{}, {"low": 0.0}, {"high": 0.0}])
def test_a_neighbours_nan_or_infinity_that_turns_others_into_nan_is_refused(bounds: dict[str, Any]) -> None:
    scalar = TensorSpec(name="x", dtype="float32", shape=("batch",), **bounds)
    other = TensorSpec(name="other", dtype="float32", shape=("batch",))

    def times_zero(x: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
        return x - 0 * x.mean()

    _, failure = verdict(times_zero, scalar, other)
    assert failure is not None
    assert "differs from the exact shape by more than any tolerance" in failure
    assert "what other rows hold in input 'x' reaches this one along dimension 'batch'" in failure


def test_a_leak_below_the_tolerance_is_refused_since_garbage_may_change_no_bit() -> None:
    wide = ToleranceSpec(rtol=10.0, atol=1e6)
    _, failure = verdict(lambda x: x[:, 0] + x.sum(axis=1), X, tolerance=wide)
    assert failure is not None
    assert failure.startswith("output 'y' at seq=5 in bucket batch=4,seq=8 changes by ")
    assert "with what has to be ignored: the padding of input 'x' along dimension 'seq' reaches it; 'x' decl" in failure
    _, failure = verdict(
        lambda x: x + 1e-3 * x.mean(),
        TensorSpec(name="x", dtype="float32", shape=("batch",), low=0, high=1),
        tolerance=wide,
    )
    assert failure is not None
    assert "what other rows hold in input 'x' reaches this one along dimension 'batch'" in failure


def test_an_executable_that_never_answers_the_same_twice_is_held_to_the_tolerance_only() -> None:
    noise = np.random.default_rng(0)
    _, failure = verdict(lambda x, mask: masked_mean(x, mask) + 1e-6 * noise.random(len(x)), X, MASK)
    assert failure is None


def test_where_nan_cannot_be_sent_it_is_no_concern() -> None:
    bounded = TensorSpec(name="x", dtype="float32", shape=("batch",), low=0.0, high=1.0)
    assert verdict(lambda x: x - 0 * x.mean(), bounded)[1] is None


def test_a_result_that_counts_the_rows_is_laid_at_the_batch() -> None:
    scalar = TensorSpec(name="x", dtype="float32", shape=("batch",))
    _, failure = verdict(lambda x: x / len(x), scalar)
    assert failure is not None
    assert failure.endswith("the size of dimension 'batch' itself reaches it, as in a mean or a count over it")


def test_an_executable_that_is_simply_wrong_is_told_apart_from_a_leak() -> None:
    scalar = TensorSpec(name="x", dtype="float32", shape=("batch",))
    _, failure = verdict(lambda x: x + 1, scalar, bucket={"batch": 1}, exact=lambda x: x)
    assert failure is not None
    assert "differs from the exact shape by 1 (allowed: 1e-05 + 1e-05 of the value)" in failure
    assert failure.endswith("nothing is padded or merged, so the executable disagrees with plain JAX")


def test_a_small_miss_may_be_rounding_and_the_message_says_what_then() -> None:
    scalar = TensorSpec(name="x", dtype="float32", shape=("batch",), low=1.0, high=2.0)
    _, failure = verdict(lambda x: x * 1.0001, scalar, bucket={"batch": 1}, exact=lambda x: x)
    assert failure is not None
    assert failure.endswith("(if it is mere rounding, raise the model's tolerance)")


def test_outputs_that_keep_a_padded_dimension_are_cut_before_they_are_compared() -> None:
    _, failure = verdict(lambda x, mask: np.where(mask == 1, x, 7), X, MASK, output=("batch", "seq"))
    assert failure is None


def test_an_output_that_is_no_prefix_of_the_padded_one_is_refused() -> None:
    _, failure = verdict(lambda x, mask: x[:, ::-1], X, MASK, output=("batch", "seq"))
    assert failure is not None
    assert "the padding of input 'x' along dimension 'seq' reaches it" in failure


def test_a_method_without_dimensions_is_compared_only() -> None:
    tally, failure = verdict(lambda x: x * 2, TensorSpec(name="x", dtype="float32", shape=(3,)), output=(3,))
    assert failure is None
    assert tally.cases == {"platforms": 1}


def test_a_large_integer_that_contains_the_padded_size_is_refused() -> None:
    _, failure = verdict(lambda x: np.full(len(x), 1_000_000 + x.shape[1]), X, dtype="int32")
    assert failure is not None
    assert "differs from the exact shape by 3 (int32 has to be equal): the padded size of dimension 'seq'" in failure


def test_proofs_of_many_buckets_are_added_up() -> None:
    proofs = [
        ProofSpec(method="a", kind="padding", cases=2, error_max=0.5),
        ProofSpec(method="b", kind="padding", cases=1, error_max=0.0),
        ProofSpec(method="a", kind="padding", cases=3, error_max=0.25),
    ]
    assert merged(proofs) == (ProofSpec(method="a", kind="padding", cases=5, error_max=0.5), proofs[1])
