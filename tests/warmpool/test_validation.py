"""What a compiled call would not notice is refused, and the refusal names field, what came and what is allowed."""

from __future__ import annotations

import math
import re

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.warmpool.served import BATCH, SEQ, doubling, method, tensor
from warmpool.arena import dtype_of
from warmpool.datatypes import OF_DTYPE
from warmpool.errors import BadInput
from warmpool.tensors import Tensor
from warmpool.validation import chosen_outputs, validated

TOKENS = method(
    [
        tensor("ids", "int32", "batch", "seq", low=0, high=9),
        tensor("mask", "bool", "batch", "seq"),
        tensor("scale", "float32", 2),
    ],
    [tensor("a", "int32", "batch"), tensor("b", "int32", "batch")],
)


def wire(array):
    return Tensor(OF_DTYPE[array.dtype.name].name, array.shape, array.tobytes())


def inputs(rows=2, seq=3, **changes):
    """Right ones, but for the changes; None leaves an input away."""
    right = {
        "ids": wire(np.ones((rows, seq), np.int32)),
        "mask": wire(np.ones((rows, seq), bool)),
        "scale": wire(np.ones(2, np.float32)),
    }
    return {name: given for name, given in {**right, **changes}.items() if given is not None}


def refusal(served, given):
    with pytest.raises(BadInput) as caught:
        validated(served, given)
    return str(caught.value)


def bounded(dtype, **bounds):
    return method([tensor("x", dtype, "batch", **bounds)], [tensor("y", dtype, "batch")])


def test_right_inputs_become_arrays_in_the_manifests_order_and_sizes():
    given = dict(reversed(inputs(rows=2, seq=3).items()))
    arrays, sizes = validated(TOKENS, given)
    assert sizes == {"batch": 2, "seq": 3}
    assert list(sizes) == ["batch", "seq"]
    assert [(array.dtype.name, array.shape) for array in arrays] == [
        ("int32", (2, 3)),
        ("bool", (2, 3)),
        ("float32", (2,)),
    ]


def test_sizes_are_in_the_order_of_the_models_dimensions_whatever_the_inputs_order():
    served = method([tensor("table", "int8", "seq"), tensor("x", "int8", "batch")], [tensor("y", "int8", "batch")])
    _, sizes = validated(served, {"table": wire(np.ones(3, np.int8)), "x": wire(np.ones(2, np.int8))})
    assert list(sizes.items()) == [("batch", 2), ("seq", 3)]


def test_the_arrays_are_views_of_the_body():
    data = np.arange(3, dtype=np.int32)
    (array,), _ = validated(doubling(), {"x": Tensor("INT32", (3,), memoryview(data).cast("B"))})
    assert np.shares_memory(array, data)


@pytest.mark.parametrize("dtype", OF_DTYPE)
def test_every_dtype_keeps_its_bits(dtype):
    one = (
        np.frombuffer(bytes(range(1, 9)), np.uint8).view(dtype_of(dtype))
        if dtype != "bool"
        else np.array([True, False])
    )
    (array,), _ = validated(bounded(dtype), {"x": wire(one)})
    assert (array.dtype, array.tobytes()) == (one.dtype, one.tobytes())


def test_a_batch_without_rows_is_right():
    arrays, sizes = validated(TOKENS, inputs(rows=0))
    assert sizes == {"batch": 0, "seq": 3}
    assert arrays[0].shape == (0, 3)


def test_the_smallest_and_the_largest_sizes_are_right():
    validated(TOKENS, inputs(rows=BATCH.max, seq=SEQ.max))
    validated(TOKENS, inputs(rows=1, seq=1))


def test_a_scalar_is_right():
    served = method([tensor("x", "float32", low=0)], [tensor("y", "float32")])
    (array,), sizes = validated(served, {"x": wire(np.array(2.5, np.float32))})
    assert (array.shape, array.item(), sizes) == ((), 2.5, {})
    message = refusal(served, {"x": wire(np.array(-1, np.float32))})
    assert message == "inputs.x: got -1.0; allowed: 0 to any"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (inputs(mask=None), "inputs: mask missing; tiny:predict takes ids, mask, scale"),
        (inputs(mask=None, ids=None), "inputs: ids, mask missing; tiny:predict takes ids, mask, scale"),
        ({}, "inputs: ids, mask, scale missing; tiny:predict takes ids, mask, scale"),
        (
            inputs(more=wire(np.ones(1, np.int32))),
            "inputs: got 'more'; allowed: ids, mask, scale of tiny:predict",
        ),
        (inputs(ids=wire(np.ones((2, 3), np.int64))), "inputs.ids.datatype: got 'INT64'; allowed: INT32"),
        (inputs(ids=wire(np.ones((2, 3), np.uint32))), "inputs.ids.datatype: got 'UINT32'; allowed: INT32"),
        (inputs(mask=wire(np.ones((2, 3), np.uint8))), "inputs.mask.datatype: got 'UINT8'; allowed: BOOL"),
        (inputs(ids=wire(np.ones(6, np.int32))), "inputs.ids.shape: got [6]; allowed: 2 dimensions, [batch, seq]"),
        (
            inputs(ids=wire(np.ones((2, 3, 1), np.int32))),
            "inputs.ids.shape: got [2, 3, 1]; allowed: 2 dimensions, [batch, seq]",
        ),
        (inputs(ids=wire(np.array(1, np.int32))), "inputs.ids.shape: got []; allowed: 2 dimensions, [batch, seq]"),
        (inputs(scale=wire(np.ones(3, np.float32))), "inputs.scale.shape[0]: got 3; allowed: 2; the shape is [2]"),
        (inputs(scale=wire(np.ones(0, np.float32))), "inputs.scale.shape[0]: got 0; allowed: 2; the shape is [2]"),
        (inputs(seq=0), "inputs.ids.shape[1] (dimension 'seq'): got 0; allowed: 1 to 16"),
        (inputs(seq=17), "inputs.ids.shape[1] (dimension 'seq'): got 17; allowed: 1 to 16"),
        (inputs(rows=101), "inputs.ids.shape[0] (dimension 'batch'): got 101; allowed: 0 to 100"),
        (
            inputs(mask=wire(np.ones((2, 4), bool))),
            "inputs.mask.shape[1] (dimension 'seq'): got 4; allowed: 3, as in the other inputs",
        ),
        (
            inputs(mask=wire(np.ones((0, 3), bool))),
            "inputs.mask.shape[0] (dimension 'batch'): got 0; allowed: 2, as in the other inputs",
        ),
        (
            inputs(ids=wire(np.array([[1, 2, 3], [4, 10, -1]], np.int32))),
            "inputs.ids[1, 1]: got 10; allowed: 0 to 9",
        ),
        (inputs(ids=wire(np.array([[1, 2, 3], [4, 5, -1]], np.int32))), "inputs.ids[1, 2]: got -1; allowed: 0 to 9"),
        (
            inputs(mask=Tensor("BOOL", (2, 3), bytes((0, 1, 1, 0, 2, 1)))),
            "inputs.mask[1, 1]: got 2; allowed: 0 to 1",
        ),
    ],
)
def test_what_is_not_as_the_manifest_says_is_named_with_what_came_and_what_is_allowed(given, message):
    assert refusal(TOKENS, given) == message


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "float16", "bfloat16", "float32"])
def test_bounds_are_inclusive(dtype):
    served = bounded(dtype, low=2, high=5)
    validated(served, {"x": wire(np.array([2, 3, 5], dtype_of(dtype)))})
    for value in (1, 6):
        message = refusal(served, {"x": wire(np.array([2, value], dtype_of(dtype)))})
        shown = f"{float(value)}" if "float" in dtype else f"{value}"
        assert message == f"inputs.x[1]: got {shown}; allowed: 2 to 5"


@pytest.mark.parametrize(("bounds", "allowed"), [({"low": 0}, "0 to any"), ({"high": 7}, "any to 7")])
def test_a_single_bound_holds_alone(bounds, allowed):
    served = bounded("int32", **bounds)
    validated(served, {"x": wire(np.array([0, 7], np.int32))})
    wrong = -1 if "low" in bounds else 8
    assert refusal(served, {"x": wire(np.array([wrong], np.int32))}) == f"inputs.x[0]: got {wrong}; allowed: {allowed}"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("bounds", [{"low": 0.0}, {"high": 1.0}, {"low": 0.0, "high": 1.0}])
def test_what_is_not_a_number_is_within_no_bounds(dtype, bounds):
    message = refusal(bounded(dtype, **bounds), {"x": wire(np.array([0.5, math.nan], dtype_of(dtype)))})
    assert message.startswith("inputs.x[1]: got nan; allowed: ")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_without_bounds_every_number_is_right_finite_or_not(dtype):
    special = np.array([math.nan, math.inf, -math.inf, 0.0], dtype_of(dtype))
    (array,), _ = validated(bounded(dtype), {"x": wire(special)})
    assert array.tobytes() == special.tobytes()


def test_infinity_is_outside_a_finite_bound():
    served = bounded("float32", high=1e30)
    assert "got inf; allowed: any to 1e+30" in refusal(served, {"x": wire(np.array([math.inf], np.float32))})


@pytest.mark.parametrize("bound", [0.1, 1e-8, 65504.0])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_bound_that_the_dtype_rounds_is_itself_allowed(dtype, bound):
    """A caller who sends the declared bound means that bound, whatever its dtype makes of it."""
    for served in (bounded(dtype, low=bound), bounded(dtype, high=bound)):
        validated(served, {"x": wire(np.array([bound], dtype_of(dtype)))})


@given(st.lists(st.integers(-20, 20), min_size=1, max_size=8), st.integers(-10, 10), st.integers(0, 10))
def test_exactly_values_within_the_bounds_pass_and_the_first_other_one_is_named(values, low, width):
    served = bounded("int8", low=low, high=low + width)
    given = {"x": wire(np.array(values, np.int8))}
    wrong = [index for index, value in enumerate(values) if not low <= value <= low + width]
    if not wrong:
        validated(served, given)
        return
    assert refusal(served, given) == f"inputs.x[{wrong[0]}]: got {values[wrong[0]]}; allowed: {low} to {low + width}"


@given(st.lists(st.integers(0, 255), min_size=1, max_size=8))
def test_a_bool_is_a_byte_of_0_or_1(values):
    given = {"x": Tensor("BOOL", (len(values),), bytes(values))}
    if max(values) <= 1:
        (array,), _ = validated(bounded("bool"), given)
        assert array.tolist() == list(map(bool, values))
    else:
        assert re.fullmatch(r"inputs\.x\[\d\]: got \d+; allowed: 0 to 1", refusal(bounded("bool"), given))


def test_values_without_elements_are_not_looked_at():
    validated(bounded("bool"), {"x": Tensor("BOOL", (0,), b"")})
    validated(bounded("float32", low=0), {"x": Tensor("FP32", (0,), b"")})


def test_a_refusal_shows_little_of_what_came():
    long = Tensor("FP32", tuple([1] * 200), bytes(4))
    assert len(refusal(doubling(), {"x": Tensor("INT32", tuple([1] * 200), bytes(4))})) < 200
    assert len(refusal(doubling(), {"x" * 10_000: long, "x": wire(np.ones(1, np.int32))})) < 200


def test_outputs_are_all_or_those_that_are_wanted_in_their_order():
    assert chosen_outputs(TOKENS, ()) == [0, 1]
    assert chosen_outputs(TOKENS, ["b"]) == [1]
    assert chosen_outputs(TOKENS, ["b", "a"]) == [1, 0]
    with pytest.raises(BadInput, match=r"^outputs: got 'c'; allowed: a, b$"):
        chosen_outputs(TOKENS, ["a", "c"])


def test_bfloat16_is_the_dtype_that_ml_dtypes_registers():
    (array,), _ = validated(bounded("bfloat16"), {"x": Tensor("BF16", (1,), b"\x80\x3f")})
    assert array.dtype == ml_dtypes.bfloat16
    assert float(array[0]) == 1.0


MASKED = method(
    [
        tensor("mask", "bfloat16", "batch", "seq", pad=0, low=0, high=1, length_mask=True),
        tensor("ids", "int32", "batch", "seq", low=0, high=9),
        tensor("flags", "bool", "batch", "seq", pad=False, length_mask=True),
    ],
    [tensor("y", "int32", "batch")],
)


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_a_length_mask_that_was_left_out_is_ones_of_the_shape_of_the_others(rows):
    ids = np.full((rows, 5), 7, np.int32)
    (mask, found, flags), sizes = validated(MASKED, {"ids": wire(ids)})
    assert sizes == {"batch": rows, "seq": 5}
    for array, dtype in ((mask, "bfloat16"), (flags, "bool")):
        assert (array.dtype, array.shape) == (dtype_of(dtype), (rows, 5))
        assert (array == 1).all()
    np.testing.assert_array_equal(found, ids)


def test_a_length_mask_that_was_sent_is_taken_as_it_is_and_checked():
    ids, flags = wire(np.ones((2, 3), np.int32)), np.array([[True, False, False], [True, True, False]])
    (mask, _, found), _ = validated(MASKED, {"ids": ids, "flags": wire(flags)})
    np.testing.assert_array_equal(found, flags)
    assert (mask == 1).all()
    half = np.full((2, 3), 0.5, ml_dtypes.bfloat16)
    (mask, *_), _ = validated(MASKED, {"ids": ids, "mask": wire(half)})
    np.testing.assert_array_equal(mask, half)
    assert refusal(MASKED, {"ids": ids, "mask": wire(half * 4)}) == "inputs.mask[0, 0]: got 2.0; allowed: 0 to 1"
    short = refusal(MASKED, {"ids": ids, "flags": wire(flags[:, :2])})
    assert short == "inputs.flags.shape[1] (dimension 'seq'): got 2; allowed: 3, as in the other inputs"


@pytest.mark.parametrize("given", [{}, {"mask": wire(np.ones((2, 3), ml_dtypes.bfloat16))}])
def test_what_says_the_length_cannot_be_left_out_and_is_named(given):
    message = "inputs: ids missing; tiny:predict takes mask, ids, flags (mask, flags may be left out)"
    assert refusal(MASKED, given) == message
