"""A declaration is right, or says where it is wrong and what to change."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.errors import DeclarationError
from warmpool.model import Dim, LengthMask, Method, Model, Tensor, Tolerance

BATCH = Dim("batch", max=64, sizes=(1, 8), batch=True)
SEQ = Dim("seq", max=100, sizes=(10, 100))


def double(params: Any, x: Any) -> Any:
    return x * 2


def declare(**changes: Any) -> Model:
    declaration: dict[str, Any] = {
        "name": "toy",
        "methods": {"predict": double},
        "inputs": {"x": Tensor("float32", (BATCH, SEQ))},
    }
    return Model(**declaration | changes)


def test_importing_the_declaration_loads_neither_jax_nor_numpy() -> None:
    code = "import sys, warmpool.model; assert not {'jax', 'jaxlib', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_sizes_default_to_powers_of_two_and_the_maximum() -> None:
    assert Dim("seq", max=100).sizes == (1, 2, 4, 8, 16, 32, 64, 100)
    assert Dim("seq", max=8).sizes == (1, 2, 4, 8)
    assert Dim("seq", max=1).sizes == (1,)


@given(st.integers(1, 10**6))
def test_default_sizes_ascend_and_end_at_the_maximum(maximum: int) -> None:
    sizes = Dim("seq", max=maximum).sizes
    assert list(sizes) == sorted(set(sizes))
    assert sizes[0] == 1
    assert sizes[-1] == maximum


def test_a_batch_dimension_may_have_a_maximum_above_its_largest_size() -> None:
    assert BATCH.sizes[-1] < BATCH.max


def test_methods_are_resolved_to_their_inputs() -> None:
    own = {"y": Tensor("int8", (4,))}
    model = declare(methods={"first": double, "second": Method(lambda params, y: y, inputs=own)})
    assert list(model.method_inputs("first")) == ["x"]
    assert model.method_inputs("second") == own
    assert model.method_dims("first") == (BATCH, SEQ)
    assert model.method_dims("second") == ()
    assert model.default_method == "first"


def test_predict_is_the_default_method_wherever_it_stands() -> None:
    assert declare(methods={"other": double, "predict": double}).default_method == "predict"


def test_the_batch_dimension_comes_first_in_the_order_of_dimensions() -> None:
    inputs = {"table": Tensor("float32", (SEQ,)), "x": Tensor("float32", (BATCH,))}
    model = declare(methods={"predict": lambda params, table, x: x}, inputs=inputs)
    assert model.dims == (BATCH, SEQ)


def masked(params: Any, x: Any, mask: Any) -> Any:
    return x * mask


@pytest.mark.parametrize("dtype", ["int32", "uint8", "float32", "bfloat16", "bool"])
def test_a_length_mask_has_the_batch_of_its_method_ones_and_a_pad_of_zero(dtype: str) -> None:
    inputs = {"x": Tensor("float32", (BATCH, SEQ)), "mask": LengthMask(SEQ, dtype)}
    mask = declare(methods={"predict": masked}, inputs=inputs).method_inputs("predict")["mask"]
    assert isinstance(mask, LengthMask)
    assert (mask.dtype, mask.dims, mask.dim) == (dtype, (BATCH, SEQ), SEQ)
    assert (mask.pad, mask.low, mask.high) == ((False, None, None) if dtype == "bool" else (0, 0, 1))
    assert mask == LengthMask(SEQ, dtype, batch=BATCH)


def test_a_length_mask_is_int32_and_without_a_batch_where_its_method_has_none() -> None:
    inputs: dict[str, Tensor] = {"x": Tensor("float32", (SEQ,)), "mask": LengthMask(SEQ)}
    model = declare(methods={"predict": Method(masked, inputs=inputs), "batched": double})
    mask = model.method_inputs("predict")["mask"]
    assert (mask.dtype, mask.dims) == ("int32", (SEQ,))
    assert model.method_dims("predict") == (SEQ,)


@pytest.mark.parametrize(
    "function",
    [
        lambda params, x: x,
        lambda params, /, x: x,
        lambda params, *, x: x,
        lambda params, **inputs: inputs["x"],
        lambda params, x, scale=2.0: x * scale,
        functools.partial(lambda params, x, scale: x * scale, scale=2.0),
        functools.partial(lambda config, params, x: x, {}),
        functools.wraps(double)(lambda *args, **kwargs: double(args[0], **kwargs)),
    ],
)
def test_every_way_to_take_params_and_inputs_is_accepted(function: Callable[..., Any]) -> None:
    declare(methods={"predict": function})


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "dimension name": (lambda: Dim("sequence length", max=4), "dimension name 'sequence length' is not allowed"),
    "dimension word": (lambda: Dim("mod", max=4), "dimension 'mod': this word has a meaning"),
    "dimension keyword": (lambda: Dim("class", max=4), "dimension 'class': this word has a meaning"),
    "dimension maximum": (lambda: Dim("seq", max=0), "dimension 'seq': max is 0; it must be an int of at least 1"),
    "maximum of a wrong type": (lambda: Dim("seq", max=True), "dimension 'seq': max is True"),
    "sizes of a wrong type": (lambda: Dim("seq", max=4, sizes=(1.5, 4)), "dimension 'seq': sizes is (1.5, 4)"),  # type: ignore[arg-type]
    "size of zero": (lambda: Dim("seq", max=4, sizes=(0, 4)), "dimension 'seq': sizes (0, 4) must all be at least 1"),
    "sizes that descend": (lambda: Dim("seq", max=4, sizes=(4, 2)), "dimension 'seq': sizes (4, 2) must ascend"),
    "sizes that repeat": (lambda: Dim("seq", max=4, sizes=(4, 4)), "dimension 'seq': sizes (4, 4) must ascend"),
    "too many sizes": (lambda: Dim("seq", max=99, sizes=tuple(range(1, 100))), "dimension 'seq': 99 sizes; at most 64"),
    "size above maximum": (lambda: Dim("seq", max=4, sizes=(8,)), "the last size 8 is above max=4; raise max or drop"),
    "batch size above maximum": (lambda: Dim("b", max=4, sizes=(8,), batch=True), "the last size 8 is above max=4"),
    "maximum without a bucket": (lambda: Dim("seq", max=9, sizes=(8,)), "add 9 to sizes or set max=8"),
    "wide integer": (
        lambda: Tensor("int64", (4,)),
        "dtype 'int64' is not allowed: JAX computes in 32 bits by default; use 'int32'",
    ),
    "wide float": (lambda: Tensor("float64", (4,)), "use 'float32'"),
    "unknown dtype": (lambda: Tensor("string", (4,)), "dtype 'string' is not allowed; use one of bool, int8"),
    "dims of a wrong type": (lambda: Tensor("int8", 4), "dims is 4; it must be a tuple of Dim and int"),  # type: ignore[arg-type]
    "axis of zero": (lambda: Tensor("int8", (4, 0)), "axis 1 of dims is 0; it must be a Dim or an int of at least 1"),
    "axis by name": (lambda: Tensor("int8", ("seq",)), "axis 0 of dims is 'seq'; it must be a Dim"),  # type: ignore[arg-type]
    "batch on a later axis": (
        lambda: Tensor("int8", (SEQ, BATCH)),
        "dimension 'batch': a batch dimension must be axis 0, not axis 1",
    ),
    "pad too large": (
        lambda: Tensor("int8", (SEQ,), pad=300),
        "pad=300 is not representable in int8; use an int from -128 to 127",
    ),
    "pad with a fraction": (lambda: Tensor("int8", (SEQ,), pad=0.5), "pad=0.5 is not representable in int8"),
    "pad of a wrong type": (lambda: Tensor("float32", (SEQ,), pad=True), "pad=True is not representable in float32"),
    "pad not finite": (lambda: Tensor("float16", (SEQ,), pad=-1e30), "pad=-1e+30 is not representable in float16"),
    "pad of a bool": (lambda: Tensor("bool", (SEQ,), pad=0), "pad=0 is not representable in bool; use True or False"),
    "bounds of a bool": (lambda: Tensor("bool", (SEQ,), low=False), "low and high have no meaning for bool"),
    "bound not a number": (lambda: Tensor("float32", (SEQ,), high=float("nan")), "high=nan is not representable"),
    "bounds crossed": (lambda: Tensor("int8", (SEQ,), low=2, high=1), "low=2 is above high=1"),
    "pad below bounds": (lambda: Tensor("int8", (SEQ,), pad=0, low=1), "pad=0 is outside low=1 to high=None"),
    "pad above bounds": (lambda: Tensor("int8", (SEQ,), pad=9, high=8), "pad=9 is outside low=None to high=8"),
    "negative tolerance": (
        lambda: Tolerance(rtol=-1.0),
        "tolerance rtol=-1.0; it must be a finite number of at least 0",
    ),
    "infinite tolerance": (lambda: Tolerance(atol=float("inf")), "tolerance atol=inf"),
    "model name": (lambda: declare(name="Toy_1"), "model name 'Toy_1' is not allowed; use a name that matches [a-z]"),
    "no methods": (lambda: declare(methods={}), "model 'toy': methods is empty"),
    "method name": (lambda: declare(methods={"a:b": double}), "model 'toy': method name 'a:b' is not allowed"),
    "method not callable": (
        lambda: declare(methods={"predict": 3}),
        "model 'toy', method 'predict': 3 cannot be called",
    ),
    "no inputs": (lambda: declare(inputs={}), "model 'toy', method 'predict': no inputs; declare inputs="),
    "input name": (
        lambda: declare(inputs={"x y": Tensor("int8", ())}),
        "model 'toy', method 'predict': input name 'x y'",
    ),
    "input of a wrong type": (
        lambda: declare(inputs={"x": "int8"}),
        "method 'predict', input 'x': 'int8' is not a Tensor",
    ),
    "tolerance of a wrong type": (lambda: declare(tolerance=1e-5), "model 'toy': tolerance is 1e-05; use Tolerance("),
    "params as text": (
        lambda: declare(params="/checkpoint"),
        "params is the text '/checkpoint'; for a checkpoint folder use pathlib.Path",
    ),
    "no params parameter": (
        lambda: declare(methods={"predict": lambda x: x}),
        "model 'toy', method 'predict': the first parameter must be params, but is x; write it as f(params, x)",
    ),
    "no parameters": (
        lambda: declare(methods={"predict": lambda: 0}),
        "the first parameter must be params, but is missing",
    ),
    "params by keyword": (
        lambda: declare(methods={"predict": lambda *, params, x: x}),
        "the first parameter must be params",
    ),
    "missing input": (
        lambda: declare(methods={"predict": lambda params, y: y}),
        "method 'predict', input 'x': the function has no parameter 'x'; write it as f(params, x)",
    ),
    "input that cannot be named": (
        lambda: declare(methods={"predict": lambda params, x, /: x}),
        "has no parameter 'x'",
    ),
    "undeclared parameter": (
        lambda: declare(methods={"predict": lambda params, x, mask: x}),
        "method 'predict': the function's parameter 'mask' is no declared input; declare it in inputs or give",
    ),
    "dimension defined twice": (
        lambda: declare(
            methods={"predict": lambda params, x, y: x},
            inputs={"x": Tensor("int8", (Dim("n", max=4),)), "y": Tensor("int8", (Dim("n", max=8),))},
        ),
        "model 'toy', method 'predict', input 'y', dimension 'n': defined twice",
    ),
    "two batch dimensions": (
        lambda: declare(
            methods={"predict": lambda params, x, y: x},
            inputs={"x": Tensor("int8", (BATCH,)), "y": Tensor("int8", (Dim("rows", max=8, batch=True),))},
        ),
        "model 'toy': 2 batch dimensions (batch, rows); keep batch=True on one",
    ),
    "length mask of no dimension": (lambda: LengthMask(4), "a length mask is for a Dim, and not for 4"),  # type: ignore[arg-type]
    "length mask of the batch": (lambda: LengthMask(BATCH), "dimension 'batch': a length mask is for the dimension"),
    "length mask of a dtype": (lambda: LengthMask(SEQ, "int64"), "dtype 'int64' is not allowed"),
    "length mask alone": (
        lambda: declare(methods={"predict": lambda params, mask: mask}, inputs={"mask": LengthMask(SEQ)}),
        "model 'toy', method 'predict', input 'mask', dimension 'seq': no input but length masks has it",
    ),
    "length masks alone": (
        lambda: declare(
            methods={"predict": lambda params, x, one, two: x},
            inputs={"x": Tensor("int8", (BATCH,)), "one": LengthMask(SEQ), "two": LengthMask(SEQ)},
        ),
        "input 'one', dimension 'seq': no input but length masks has it, so nothing says how long a row is",
    ),
    "too many dimensions": (
        lambda: declare(inputs={"x": Tensor("int8", tuple(Dim(f"d{i}", max=1) for i in range(9)))}),
        "model 'toy': 9 named dimensions; at most 8",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_its_place_and_what_to_change(mistake: str) -> None:
    make, message = MISTAKES[mistake]
    with pytest.raises(DeclarationError) as caught:
        make()
    assert message in str(caught.value)


def test_a_path_is_taken_as_a_checkpoint_without_being_opened() -> None:
    assert declare(params=Path("/nowhere")).params == Path("/nowhere")
