"""Rows and columns in JSON mean the tensors that the manifest says, and answers come in the form of the request."""

from __future__ import annotations

import json
import math

import ml_dtypes
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.warmpool.served import doubling, method, tensor
from warmpool import rows_form
from warmpool.dataplane import Answer
from warmpool.errors import BadInput

PAIR = method(
    [tensor("ids", "int32", "batch", "seq"), tensor("weight", "float32", "batch")],
    [tensor("sum", "int32", "batch"), tensor("each", "float32", "batch", "seq")],
)
UNBATCHED = method([tensor("x", "float32", "seq")], [tensor("y", "float32", "seq"), tensor("total", "float32")])


def decoded(served, document):
    form, tensors = rows_form.decode(served, rows_form.parse(json.dumps(document).encode()))
    return form, {name: (given.datatype, given.shape, given.tolist()) for name, given in tensors.items()}


def refusal(served, body):
    with pytest.raises(BadInput) as caught:
        rows_form.decode(served, rows_form.parse(body if isinstance(body, bytes) else json.dumps(body).encode()))
    return str(caught.value)


def answered(served, form, **outputs):
    answer = Answer(method=served, outputs=outputs, parts=[], rows=0, validated_ns=0)
    return json.loads(msgspec.json.encode(rows_form.encode(form, answer)))


def test_rows_of_objects_become_columns():
    rows = [{"ids": [1, 2], "weight": 0.5}, {"weight": 2, "ids": [3, 4]}]
    assert decoded(PAIR, {"instances": rows}) == (
        "instances",
        {"ids": ("INT32", (2, 2), [[1, 2], [3, 4]]), "weight": ("FP32", (2,), [0.5, 2.0])},
    )


def test_rows_of_a_single_input_may_be_bare():
    wanted = ("instances", {"x": ("INT32", (3,), [1, 2, 3])})
    assert decoded(doubling(), {"instances": [1, 2, 3]}) == wanted
    assert decoded(doubling(), {"instances": [{"x": 1}, 2, {"x": 3}]}) == wanted


def test_columns_are_taken_by_name_or_bare_where_there_is_one():
    assert decoded(PAIR, {"inputs": {"ids": [[1, 2]], "weight": [1]}}) == (
        "inputs",
        {"ids": ("INT32", (1, 2), [[1, 2]]), "weight": ("FP32", (1,), [1.0])},
    )
    assert decoded(UNBATCHED, {"inputs": [1, 2]}) == ("inputs", {"x": ("FP32", (2,), [1.0, 2.0])})


def test_a_scalar_input_is_a_number():
    scalar = method([tensor("x", "float32")], [tensor("y", "float32")])
    assert decoded(scalar, {"inputs": 2.5}) == ("inputs", {"x": ("FP32", (), 2.5)})


def test_no_rows_are_rows_too():
    form, tensors = decoded(PAIR, {"instances": []})
    assert form == "instances"
    assert [shape[0] for _, shape, _ in tensors.values()] == [0, 0]
    assert [len(shape) for _, shape, _ in tensors.values()] == [2, 1]


def test_numbers_that_json_lacks_have_names():
    _, tensors = decoded(UNBATCHED, {"inputs": ["NaN", "Infinity", "-Infinity", 1]})
    assert str(tensors["x"][2]) == "[nan, inf, -inf, 1.0]"


@pytest.mark.parametrize(
    ("served", "body", "message"),
    [
        (PAIR, b"", "body: "),
        (PAIR, b"{", "body: "),
        (PAIR, b"\xff", "body: "),
        (PAIR, [], "body: "),
        (PAIR, {}, "body: give either instances (a list of rows) or inputs (values by input name)"),
        (PAIR, {"instances": [], "inputs": {}}, "body: give either instances"),
        (PAIR, {"instances": [], "more": 1}, "body: "),
        (PAIR, {"instances": {"ids": 1}}, "body: "),
        (PAIR, {"instances": [], "signature_name": 1}, "body: "),
        (PAIR, {"instances": [], "parameters": []}, "body: "),
        (
            PAIR,
            {"instances": [], "parameters": {"top": 1}},
            "parameters: got 'top'; allowed: timeout, priority, sticky_key; what a method takes are its inputs",
        ),
        (PAIR, {"instances": [1]}, "instances[0]: got 1; allowed: an object with ids, weight"),
        (PAIR, {"instances": [{"ids": [1]}]}, "instances[0]: got {'ids': [1]}; allowed: an object with ids, weight"),
        (
            PAIR,
            {"instances": [{"ids": [1], "weight": 1}, {"ids": [1], "weight": 1, "x": 1}]},
            "instances[1]: got {'ids': [1], 'weight': 1, 'x': 1}; allowed: an object with ids, weight",
        ),
        (
            PAIR,
            {"instances": [{"ids": [1], "weight": 1}, {"ids": [1, 2], "weight": 1}]},
            "instances.ids (axis 1): got a list of 2; allowed: a list of 1",
        ),
        (
            PAIR,
            {"instances": [{"ids": [1], "weight": "much"}]},
            "instances.weight (item 0): got 'much'; allowed: a number in the range of FP32",
        ),
        (PAIR, {"instances": [{"ids": [1.5], "weight": 1}]}, "instances.ids (item 0): got 1.5; allowed: an integer"),
        (PAIR, {"instances": [{"ids": [2**31], "weight": 1}]}, "instances.ids (item 0): got 2147483648; allowed: "),
        (PAIR, {"instances": [{"ids": [True], "weight": 1}]}, "instances.ids (item 0): got True; allowed: "),
        (PAIR, {"inputs": [1]}, "inputs: got [1]; allowed: an object with ids, weight"),
        (PAIR, {"inputs": None}, "inputs: got None; allowed: an object with ids, weight"),
        (PAIR, {"inputs": {"ids": [[1]], "wait": [1]}}, "inputs: got 'wait'; allowed: ids, weight"),
        (UNBATCHED, {"instances": [1]}, "instances: tiny:predict has no batch dimension; send inputs instead"),
        (UNBATCHED, {"inputs": None}, "inputs.x.shape: got []; allowed: 1 dimensions, [seq]"),
        (UNBATCHED, {"inputs": "text"}, "inputs.x.shape: got []; allowed: 1 dimensions, [seq]"),
        (UNBATCHED, {"inputs": ["text"]}, "inputs.x (item 0): got 'text'; allowed: a number in the range of FP32"),
    ],
)
def test_what_is_neither_form_is_named(served, body, message):
    assert refusal(served, body).startswith(message)


@pytest.mark.parametrize(
    ("path", "signature", "meant"),
    [
        ("tiny", None, "tiny"),
        ("tiny", "", "tiny"),
        ("tiny", "scale", "tiny:scale"),
        ("tiny:scale", None, "tiny:scale"),
        ("tiny:scale", "", "tiny:scale"),
        ("tiny:scale", "scale", "tiny:scale"),
    ],
)
def test_the_signature_names_the_method_where_the_url_does_not(path, signature, meant):
    assert rows_form.named(path, rows_form.Body(instances=[], signature_name=signature)) == meant


def test_a_signature_that_is_not_the_method_of_the_url_is_refused():
    with pytest.raises(BadInput, match=r"signature_name: got 'predict'; allowed: scale, which the URL names, or none"):
        rows_form.named("tiny:scale", rows_form.Body(instances=[], signature_name="predict"))


@pytest.mark.parametrize("parameters", [None, {}, {"priority": 1, "timeout": 5}])
def test_parameters_may_be_empty_or_say_how_urgent_it_is(parameters):
    document = {"instances": [1, 2], "parameters": parameters}
    assert decoded(doubling(), document) == ("instances", {"x": ("INT32", (2,), [1, 2])})


def test_a_refusal_shows_little_of_what_came():
    assert len(refusal(PAIR, {"instances": ["x" * 10_000]})) < 200
    assert len(refusal(PAIR, {"inputs": {"x" * 10_000: 1}})) < 200


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["ids", "weight", "x"]), inner),
        max_leaves=8,
    )
)
def test_whatever_is_sent_is_decoded_or_refused(values):
    for served in (PAIR, UNBATCHED, doubling()):
        for document in ({"instances": values}, {"inputs": values}, values):
            try:
                rows_form.decode(served, rows_form.parse(json.dumps(document).encode()))
            except BadInput as error:
                assert str(error)  # noqa: PT017  # either outcome is right


def test_an_answer_to_rows_is_a_row_each():
    outputs = {"sum": np.array([3, 7], np.int32), "each": np.array([[1, 2], [3, 4]], np.float32)}
    assert answered(PAIR, "instances", **outputs) == {
        "predictions": [{"sum": 3, "each": [1.0, 2.0]}, {"sum": 7, "each": [3.0, 4.0]}]
    }


def test_an_answer_with_one_output_has_bare_rows():
    assert answered(doubling(), "instances", y=np.array([2, 4], np.int32)) == {"predictions": [2, 4]}


def test_an_answer_to_columns_is_columns():
    outputs = {"y": np.array([1, 2], np.float32), "total": np.array(3, np.float32)}
    assert answered(UNBATCHED, "inputs", **outputs) == {"outputs": {"y": [1.0, 2.0], "total": 3.0}}


def test_an_answer_without_rows_is_empty():
    outputs = {"sum": np.empty(0, np.int32), "each": np.empty((0, 3), np.float32)}
    assert answered(PAIR, "instances", **outputs) == {"predictions": []}
    assert answered(PAIR, "inputs", **outputs) == {"outputs": {"sum": [], "each": []}}


def test_numbers_that_json_lacks_are_answered_by_name_at_every_depth():
    outputs = {"sum": np.zeros(2, np.int32), "each": np.array([[1, math.inf], [-math.inf, math.nan]], np.float32)}
    answer = answered(PAIR, "inputs", **outputs)
    assert answer["outputs"]["each"] == [[1.0, "Infinity"], ["-Infinity", "NaN"]]
    total = {"y": np.zeros(1, np.float32), "total": np.array(math.nan, np.float32)}
    assert answered(UNBATCHED, "inputs", **total)["outputs"]["total"] == "NaN"


def test_bools_and_narrow_floats_are_answered():
    served = method(
        [tensor("x", "bool", "batch")],
        [tensor("b", "bool", "batch"), tensor("h", "float16", "batch"), tensor("f", "bfloat16", "batch")],
    )
    outputs = {
        "b": np.array([True, False]),
        "h": np.array([0.5, math.inf], np.float16),
        "f": np.array([1.5, math.nan], ml_dtypes.bfloat16),
    }
    assert answered(served, "inputs", **outputs) == {
        "outputs": {"b": [True, False], "h": [0.5, "Infinity"], "f": [1.5, "NaN"]}
    }
    assert answered(served, "instances", **outputs)["predictions"][1] == {"b": False, "h": "Infinity", "f": "NaN"}


MASKED = method(
    [
        tensor("ids", "int32", "batch", "seq"),
        tensor("mask", "int32", "batch", "seq", pad=0, low=0, high=1, length_mask=True),
    ],
    [tensor("sum", "int32", "batch")],
)
ALONE = method(
    [tensor("ids", "int32", "seq"), tensor("mask", "bool", "seq", pad=False, length_mask=True)],
    [tensor("y", "int32", "seq")],
)
IDS = ("INT32", (2, 2), [[1, 2], [3, 4]])


def test_a_length_mask_may_be_left_out_of_rows_and_columns_and_the_rest_be_bare():
    for rows in ([{"ids": [1, 2]}, {"ids": [3, 4]}], [[1, 2], [3, 4]], [[1, 2], {"ids": [3, 4]}]):
        assert decoded(MASKED, {"instances": rows}) == ("instances", {"ids": IDS})
    assert decoded(MASKED, {"inputs": {"ids": IDS[2]}}) == ("inputs", {"ids": IDS})
    assert decoded(MASKED, {"inputs": IDS[2]}) == ("inputs", {"ids": IDS})
    assert decoded(ALONE, {"inputs": [1, 2]}) == ("inputs", {"ids": ("INT32", (2,), [1, 2])})


def test_a_length_mask_that_is_sent_is_sent_with_every_row():
    mask = ("INT32", (2, 2), [[1, 1], [1, 0]])
    rows = [{"ids": [1, 2], "mask": [1, 1]}, {"mask": [1, 0], "ids": [3, 4]}]
    assert decoded(MASKED, {"instances": rows}) == ("instances", {"ids": IDS, "mask": mask})
    assert decoded(MASKED, {"inputs": {"ids": IDS[2], "mask": mask[2]}}) == ("inputs", {"ids": IDS, "mask": mask})
    for first, second, allowed in ((rows[0], {"ids": [3, 4]}, "ids, mask"), ({"ids": [1, 2]}, rows[1], "ids")):
        message = refusal(MASKED, {"instances": [first, second]})
        assert message.startswith("instances[1]: got {")
        assert message.endswith(f"; allowed: an object with {allowed}")
    assert "instances[0]" in refusal(MASKED, {"instances": [{"mask": [1, 1]}]})


def test_no_rows_are_rows_beside_a_length_mask_too():
    _, tensors = decoded(MASKED, {"instances": []})
    assert tensors["ids"][1][0] == 0
