"""Values of proofs are legal ones, the same in every process, and of every kind that may lie in a place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.manifest import TensorSpec
from warmpool.publishing.values import content, garbage, generator_of, is_mask, legal, number_of, one_sided


def tensor(name: str, *shape: int | str, dtype: str = "float32", **more: Any) -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=shape, **more)


TENSORS = st.sampled_from(
    [
        tensor("a", dtype="int8"),
        tensor("a", dtype="uint8", low=250),
        tensor("a", dtype="int32", low=-5, high=5),
        tensor("a", dtype="int16", high=-3),
        tensor("a", dtype="uint32", low=2**32 - 1),
        tensor("a", dtype="float16", low=-65504.0, high=65504.0),
        tensor("a", dtype="float32", low=0.25),
        tensor("a", dtype="bfloat16", high=-1.0),
        tensor("a", dtype="bool"),
    ]
)


@given(spec=TENSORS, seed=st.integers(0, 1000))
def test_random_values_stay_within_the_bounds(spec: TensorSpec, seed: int) -> None:
    for make in (legal, garbage):
        values = make(spec, (50,), generator_of(str(seed)))
        assert values.dtype.name == spec.dtype
        wide = values.astype(np.float64)
        assert np.isfinite(wide).all()
        assert spec.low is None or (wide >= spec.low).all()
        assert spec.high is None or (wide <= spec.high).all()


@pytest.mark.parametrize(
    ("spec", "mask"),
    [
        (tensor("mask", dtype="int32", low=0, high=1), True),
        (tensor("mask", dtype="bool", pad=False), True),
        (tensor("flag", dtype="bool"), False),
        (tensor("ids", dtype="int32", low=0, high=2), False),
        (tensor("share", dtype="float32", low=0.0, high=1.0), False),
    ],
)
def test_a_mask_is_all_ones_where_it_is_valid(spec: TensorSpec, mask: bool) -> None:
    assert is_mask(spec) == mask
    assert (legal(spec, (40,), generator_of("seed")) == 1).all() == mask


@pytest.mark.parametrize("side", [1, -1])
@given(spec=TENSORS, seed=st.integers(0, 1000), pad=st.sampled_from([None, 0, 1, -4]))
def test_values_on_one_side_of_the_padding_are_legal_and_are_on_that_side_where_there_is_room(
    side: int, spec: TensorSpec, seed: int, pad: int | None
) -> None:
    lowest = -np.inf if spec.low is None else spec.low
    highest = np.inf if spec.high is None else spec.high
    declared = spec if spec.dtype == "bool" or pad is None or not lowest <= pad <= highest else padded(spec, pad)
    values = legal(declared, (50,), generator_of(str(seed)))
    moved = one_sided(declared, values, side).astype(np.float64)
    assert (moved >= lowest).all()
    assert (moved <= highest).all()
    sided = (moved - float(declared.pad or 0)) * side >= 0
    assert sided.all() or (moved == values.astype(np.float64)).all()


@pytest.mark.parametrize("side", [1, -1])
def test_numbers_without_bounds_lie_on_either_side(side: int) -> None:
    values = legal(tensor("x"), (50,), generator_of("seed"))
    assert len({*np.sign(values)}) == 2
    assert (np.sign(one_sided(tensor("x"), values, side)) == side).all()
    assert one_sided(tensor("x"), values, 0) is values
    whole = tensor("x", dtype="int32", pad=3, low=-7, high=20)
    moved = one_sided(whole, legal(whole, (50,), generator_of("seed")), side)
    assert moved.dtype == np.int32
    assert (side * (moved - 3) >= 0).all()
    assert len(set(moved.tolist())) > 3


def padded(spec: TensorSpec, pad: int) -> TensorSpec:
    return TensorSpec(name=spec.name, dtype=spec.dtype, shape=spec.shape, pad=pad, low=spec.low, high=spec.high)


@pytest.mark.parametrize(
    ("spec", "nan", "infinities"),
    [
        (tensor("x"), True, {-np.inf, np.inf}),
        (tensor("x", dtype="bfloat16"), True, {-np.inf, np.inf}),
        (tensor("x", low=0.0), False, {np.inf}),
        (tensor("x", high=0.0), False, {-np.inf}),
        (tensor("x", low=0.0, high=1.0), False, {0.0}),
        (tensor("x", pad=2.0, low=0.0, high=3.0), False, {2.0}),
        (tensor("x", dtype="int32"), False, {0}),
        (tensor("x", dtype="bool"), False, {False}),
    ],
)
def test_what_no_caller_may_send_never_lies_anywhere(spec: TensorSpec, nan: bool, infinities: set[float]) -> None:
    filled = content(spec, "NaN", (40,), generator_of("seed"))
    assert filled.dtype.name == spec.dtype
    assert np.isnan(filled.astype(np.float64)).all() == nan
    assert {*content(spec, "infinity", (40,), generator_of("seed")).astype(np.float64)} == infinities
    assert content(spec, "infinity", (), generator_of("seed")).shape == ()


def test_numbers_drawn_from_names_are_the_same_in_every_release() -> None:
    assert number_of("inside", "digest", "seq=16") == 4507852392329269214
    assert number_of("a", "bc") != number_of("ab", "c")
