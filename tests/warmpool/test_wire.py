import json
import math
import struct
from typing import Literal

import ml_dtypes
import numpy as np
import pytest
import tritonclient.http as client
from hypothesis import given
from hypothesis import strategies as st

from warmpool import wire
from warmpool.errors import BadInput, NotFound
from warmpool.wire import DATATYPES, InferRequest, InferResponse, Output, Tensor

HEADER = "Inference-Header-Content-Length"
FLOAT_BITS: dict[str, Literal[16, 32, 64]] = {"FP16": 16, "FP32": 32, "FP64": 64}


def numpy_of(tensor):
    """View a tensor as the front does."""
    dtype = np.dtype(ml_dtypes.bfloat16) if tensor.datatype == "BF16" else DATATYPES[tensor.datatype].dtype
    return np.frombuffer(tensor.data, dtype).reshape(tensor.shape)


def float32(word):
    return struct.unpack("<f", struct.pack("<I", word))[0]


def items(datatype):
    """Python numbers that the datatype holds exactly."""
    if datatype == "BOOL":
        return st.booleans()
    if datatype == "BF16":
        return st.integers(0, 2**16 - 1).map(lambda upper: float32(upper << 16)).filter(
            lambda value: not math.isnan(value)
        ) | st.just(math.nan)
    if datatype in FLOAT_BITS:
        return st.floats(width=FLOAT_BITS[datatype], allow_nan=False) | st.just(math.nan)
    bounds = np.iinfo(DATATYPES[datatype].dtype)
    return st.integers(int(bounds.min), int(bounds.max))


@st.composite
def tensors(draw):
    datatype = draw(st.sampled_from(sorted(DATATYPES)))
    shape = draw(st.lists(st.integers(0, 3), max_size=4))
    count = math.prod(shape)
    return Tensor.of(datatype, draw(st.lists(items(datatype), min_size=count, max_size=count)), shape)


names = st.text(max_size=8)
scalars = (
    st.text(max_size=5)
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
)
requests = st.builds(
    InferRequest,
    inputs=st.dictionaries(names, tensors(), max_size=4),
    outputs=st.lists(
        st.builds(Output, names, st.none() | st.booleans()), max_size=3, unique_by=lambda output: output.name
    ).map(tuple),
    parameters=st.dictionaries(names, scalars, max_size=3),
    id=names,
)
responses = st.builds(
    InferResponse,
    model_name=names,
    model_version=names,
    outputs=st.dictionaries(names, tensors(), max_size=4),
    parameters=st.dictionaries(names, scalars | st.none(), max_size=3),
    id=names,
)


@given(requests, st.booleans())
def test_a_request_round_trips_in_both_forms(request, binary):
    body, header_length = wire.encode_request(request, binary=binary)
    assert wire.decode_request(body, header_length) == request
    # A header travels as text.
    assert wire.decode_request(body, None if header_length is None else str(header_length)) == request


@given(responses, st.sets(names))
def test_a_response_round_trips_with_any_mix_of_the_forms(response, binary_names):
    body, header_length = wire.encode_response(response, binary_names.__contains__)
    assert wire.decode_response(body, header_length) == response
    assert (header_length is not None) == bool(binary_names & response.outputs.keys())


@given(tensors())
def test_numpy_sees_the_same_numbers(tensor):
    array = numpy_of(tensor)
    np.testing.assert_array_equal(array.astype(np.float64), np.array(tensor.tolist(), np.float64).reshape(tensor.shape))
    assert Tensor.of(tensor.datatype, tensor.tolist(), tensor.shape) == tensor
    assert tensor.nbytes == array.nbytes


# Half of them lie exactly between two neighbours.
words = st.integers(0, 2**32 - 1) | st.integers(0, 2**16 - 1).map(lambda upper: upper << 16 | 0x8000)


@given(st.lists(words.map(float32), max_size=20))
def test_bfloat16_is_rounded_as_others_round_it(values):
    expected = np.array(values, np.float32).astype(ml_dtypes.bfloat16)
    if np.isinf(expected.astype(np.float32)).sum() > np.isinf(values).sum():
        with pytest.raises(BadInput, match="range of BF16"):
            Tensor.of("BF16", values)
    else:
        np.testing.assert_array_equal(
            numpy_of(Tensor.of("BF16", values)).astype(np.float32), expected.astype(np.float32)
        )


@pytest.mark.parametrize("sign", [0, 0x80000000])
def test_a_bfloat16_does_not_disturb_its_neighbours(sign):
    """The NaN of all ones would carry into the next number, were its upper half rounded up."""
    words = [word | sign for word in (0x7FFFFFFF, 0, 0x7F800001, 0x7F7F7FFF, 0x7F800000, 0x7FFFFFFF)]
    array = numpy_of(Tensor.of("BF16", [float32(word) for word in words])).astype(np.float32)
    expected = np.array([*map(float32, words)], np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(array, expected)


@given(
    st.sampled_from(sorted(DATATYPES)),
    st.lists(st.booleans(), min_size=1, max_size=40).filter(lambda fits: not all(fits)),
    st.data(),
)
def test_the_first_number_that_does_not_fit_is_named(datatype, fits, data):
    good = data.draw(items(datatype))
    bad = data.draw(st.sampled_from([None, "x", 10**400, {}]))
    with pytest.raises(BadInput, match=rf"\(item {fits.index(False)}\): got "):
        Tensor.of(datatype, [good if fit else bad for fit in fits])


@pytest.mark.parametrize("datatype", ["FP16", "FP32"])
@given(st.lists(st.floats(-60000, 60000), max_size=20))
def test_floats_are_rounded_to_nearest_even(datatype, values):
    assert Tensor.of(datatype, values).data == np.array(values, DATATYPES[datatype].dtype).tobytes()


@given(requests.filter(lambda request: request.inputs), st.booleans(), st.data())
def test_a_damaged_body_is_refused_or_understood_but_never_anything_else(request, binary, data):
    body, header_length = wire.encode_request(request, binary=binary)
    damaged = bytearray(body)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(damaged)))
    for candidate in (bytes(damaged), bytes(damaged[:cut]), bytes(damaged) + b"\0"):
        try:
            understood = wire.decode_request(candidate, header_length)
        except BadInput:
            continue
        assert all(numpy_of(tensor).shape == tensor.shape for tensor in understood.inputs.values())


@given(st.binary(max_size=200), st.none() | st.integers(-2, 300))
def test_any_bytes_are_a_request_or_a_bad_one(body, header_length):
    try:
        wire.decode_request(body, header_length)
    except BadInput:
        return
    raise AssertionError("random bytes were taken for a request")


def test_who_accepts_a_request_sees_datatypes_and_shapes_before_a_number_is_converted():
    given = [{"name": name, "datatype": "INT8", "shape": [1], "data": [999]} for name in ("a", "b")]
    body = json.dumps({"inputs": given}).encode()
    seen: list[tuple] = []

    def accept(inputs):
        seen.extend((name, tensor.datatype, tensor.shape, tensor.data) for name, tensor in inputs.items())
        raise BadInput("not these")

    with pytest.raises(BadInput, match=r"^not these$"):
        wire.decode_request(body, accept=accept)
    assert seen == [("a", "INT8", (1,), b""), ("b", "INT8", (1,), b"")]
    with pytest.raises(BadInput, match="got 999"):
        wire.decode_request(body, accept=lambda inputs: None)


@pytest.mark.parametrize("field", ["inputs", "outputs"])
def test_a_message_of_very_many_tensors_is_refused(field):
    given = [{"name": "x", "datatype": "INT8", "shape": [1], "data": [9]}]
    many = [{"name": str(index)} | (given[0] if field == "inputs" else {}) for index in range(257)]
    with pytest.raises(BadInput, match=f"^{field}: got 257 tensors; allowed: up to 256$"):
        wire.decode_request(json.dumps({"inputs": given, field: many}).encode())


def test_decoded_tensors_are_views_of_the_body():
    body, header_length = wire.encode_request(InferRequest(inputs={"x": Tensor.of("FP32", [1.5, 2.5])}))
    tensor = wire.decode_request(body, header_length).inputs["x"]
    assert isinstance(tensor.data, memoryview)
    assert tensor.data.obj is body


def test_an_array_in_memory_is_a_tensor_without_a_copy():
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    assert Tensor("INT16", (2, 3), array.data).tolist() == [[0, 1, 2], [3, 4, 5]]
    body, header_length = wire.encode_request(InferRequest(inputs={"x": Tensor("INT16", (2, 3), array.data)}))
    assert wire.decode_request(body, header_length).inputs["x"].data == array.tobytes()


@pytest.mark.parametrize(
    ("values", "shape"),
    [(5, ()), ([], (0,)), ([[], []], (2, 0)), ([[[1]], [[2]]], (2, 1, 1)), (((1, 2), (3, 4)), (2, 2))],
)
def test_the_nesting_is_the_shape(values, shape):
    tensor = Tensor.of("INT32", values)
    assert tensor.shape == shape
    assert tensor.tolist() == np.array(values, np.int32).tolist()


def test_numbers_that_json_lacks_are_strings():
    request = InferRequest(inputs={"x": Tensor.of("FP32", [math.nan, math.inf, -math.inf, 1.5])})
    body, _ = wire.encode_request(request, binary=False)
    assert json.loads(body)["inputs"][0]["data"] == ["NaN", "Infinity", "-Infinity", 1.5]
    assert wire.decode_request(body) == request


def test_a_finite_sum_that_overflows_is_not_mistaken_for_infinity():
    request = InferRequest(inputs={"x": Tensor.of("FP64", [1.7e308, 1.7e308])})
    body, _ = wire.encode_request(request, binary=False)
    assert json.loads(body)["inputs"][0]["data"] == [1.7e308, 1.7e308]


@pytest.mark.parametrize(
    ("datatype", "values", "message"),
    [
        ("INT32", [1, 2.0], "values (item 1): got 2.0; allowed: an integer in the range of INT32"),
        ("INT32", [True], "values (item 0): got True; allowed: an integer in the range of INT32"),
        ("INT32", [2**31], "values (item 0): got 2147483648; allowed: an integer in the range of INT32"),
        ("UINT8", [0, -1], "values (item 1): got -1; allowed: an integer in the range of UINT8"),
        ("BOOL", [1], "values (item 0): got 1; allowed: true or false"),
        ("FP32", [False], "values (item 0): got False; allowed: a number in the range of FP32, or"),
        ("FP32", [1e39], "values (item 0): got 1e+39; allowed: a number in the range of FP32, or"),
        ("FP16", [1, 65520], "values (item 1): got 65520; allowed: a number in the range of FP16, or"),
        ("BF16", [3.4e38, 3.4e38], "values (item 0): got 3.4e+38; allowed: a number in the range of BF16, or"),
        ("FP64", [10**400], "values (item 0): got 1000"),
        ("FP32", ["nan"], "values (item 0): got 'nan'; allowed: a number in the range of FP32, or"),
        ("FP32", [None], "values (item 0): got None; allowed: a number in the range of FP32, or"),
        ("FP32", {"a": 1}, "values (item 0): got {'a': 1}; allowed: a number in the range of FP32, or"),
        ("INT32", ["x" * 500], "values (item 0): got 'xxxx"),
        ("INT32", [[1, 2], [3]], "values (axis 1): got a list of 1; allowed: a list of 2"),
        ("INT32", [[1, 2], 3], "values (axis 1): got 3; allowed: a list of 2"),
        ("INT32", [1, [2]], "values (item 1): got [2]; allowed: an integer in the range of INT32"),
        ("INT32", [[[[[[[[[1]]]]]]]]], "values.shape: got [1, 1, 1, 1, 1, 1, 1, 1, 1]; allowed: up to 8 dimensions"),
        ("BYTES", ["a"], "values.datatype: got 'BYTES'; allowed: BOOL, INT8"),
        ("float32", [1], "values.datatype: got 'float32'; allowed: BOOL, INT8"),
    ],
)
def test_values_that_do_not_fit_are_named(datatype, values, message):
    with pytest.raises(BadInput) as caught:
        Tensor.of(datatype, values)
    assert str(caught.value).startswith(message)
    assert len(str(caught.value)) < 300


def body_of(**changes):
    """A V2 request with one input of two numbers, changed."""
    tensor = {"name": "x", "shape": [2], "datatype": "INT32", "data": [1, 2]} | changes
    return json.dumps({"inputs": [{key: value for key, value in tensor.items() if value is not None}]}).encode()


BINARY = body_of(data=None, parameters={"binary_data_size": 8})
DEEP = b'{"inputs":[{"name":"x","shape":[2],"datatype":"INT32","data":' + b"[" * 100_000
TWICE = b'{"inputs":[%s,%s]}' % ((body_of()[12:-2],) * 2)


@pytest.mark.parametrize(
    ("body", "header_length", "message"),
    [
        (b"", None, "body: not valid JSON: "),
        (b"{", None, "body: not valid JSON: "),
        (b"\xff", None, "body: not valid JSON: "),
        (DEEP, None, "body: not valid JSON: "),
        (body_of()[:-1] + b',"outputs":[NaN]}', None, "body: not valid JSON: "),
        (b"[]", None, "body: Expected `object`, got `array`"),
        (b"{}", None, "body: Object missing required field `inputs`"),
        (b'{"inputs":[],"verbose":true}', None, "body: Object contains unknown field `verbose`"),
        (b'{"inputs":[],"parameters":{"a":[]}}', None, "parameters[...]: Expected `bool | int | float | str`"),
        (body_of(name=3), None, "inputs[0].name: Expected `str`, got `int`"),
        (body_of(shape=[True]), None, "inputs[0].shape[0]: Expected `int`, got `bool`"),
        (body_of(shape=[2.0]), None, "inputs[0].shape[0]: Expected `int`, got `float`"),
        (body_of(shape=["2"]), None, "inputs[0].shape[0]: Expected `int`, got `str`"),
        (body_of(shape=2), None, "inputs[0].shape: Expected `array`, got `int`"),
        (body_of(shape=[-1, -2]), None, "inputs[0] (x).shape: got [-1, -2]; allowed: dimensions of 0 or more"),
        (body_of(shape=[2**31]), None, "inputs[0] (x).shape: got [2147483648]; allowed: up to 2147483647 elements"),
        (body_of(shape=[2**62] * 4), None, "inputs[0] (x).shape: got [46116860184273"),
        (body_of(shape=[10**40]), None, "inputs[0] (x).shape: got [1000000000"),
        (body_of(shape=[0, 2**62], data=[]), None, "inputs[0] (x).shape: got [0, 4611686018427387904]; allowed: up to"),
        (body_of(shape=[1] * 9), None, "inputs[0] (x).shape: got [1, 1, 1, 1, 1, 1, 1, 1, 1]; allowed: up to 8"),
        (body_of(shape=[3]), None, "inputs[0] (x) (axis 0): got a list of 2; allowed: a list of 3"),
        (
            body_of(shape=[2, 2], data=[[1, 2], [3]]),
            None,
            "inputs[0] (x) (axis 1): got a list of 1; allowed: a list of 2",
        ),
        (body_of(data=[1, "2"]), None, "inputs[0] (x) (item 1): got '2'; allowed: an integer in the range of INT32"),
        (body_of(data=5), None, "inputs[0].data: Expected `array`, got `int`"),
        (body_of(datatype="BYTES"), None, "inputs[0] (x).datatype: got 'BYTES'; allowed: BOOL"),
        (body_of(data=None), None, "inputs[0] (x): has both or neither of data and parameters.binary_data_size"),
        (body_of(parameters={"binary_data_size": 8}), None, "inputs[0] (x): has both or neither of data and"),
        (body_of(typo=1), None, "inputs[0]: Object contains unknown field `typo`"),
        (TWICE, None, "inputs[1].name: got 'x'; allowed: each name once"),
        (b'{"inputs":[],"outputs":[{"name":"o"},{"name":"o"}]}', None, "outputs[1].name: got 'o'; allowed: each name"),
        (
            b'{"inputs":[],"outputs":[{"name":"o","parameters":{"binary_data":1}}]}',
            None,
            "outputs[0].parameters.binary_data: got 1; allowed: true or false",
        ),
        (
            b'{"inputs":[],"outputs":[{"name":"o","parameters":{"classification":3}}]}',
            None,
            "outputs[0].parameters.classification: is not served",
        ),
        (
            b'{"inputs":[],"parameters":{"binary_data_output":"yes"}}',
            None,
            "parameters.binary_data_output: got 'yes'; allowed: true or false",
        ),
        (BINARY, None, f"{HEADER}: is missing; inputs[0] (x) has binary_data_size"),
        (BINARY + bytes(8), "", f"{HEADER}: got ''; allowed: a number from 0 to {len(BINARY) + 8}"),
        (BINARY + bytes(8), "many", f"{HEADER}: got 'many'; allowed: a number"),
        (BINARY + bytes(8), "-1", f"{HEADER}: got '-1'; allowed: a number"),
        (BINARY + bytes(8), -1, f"{HEADER}: got -1; allowed: a number"),
        (BINARY + bytes(8), "1.0", f"{HEADER}: got '1.0'; allowed: a number"),
        (BINARY + bytes(8), "²", f"{HEADER}: got '²'; allowed: a number"),
        (BINARY + bytes(8), "9" * 5000, f"{HEADER}: got '9999"),
        (BINARY + bytes(8), len(BINARY) + 9, f"{HEADER}: got {len(BINARY) + 9}; allowed: a number from 0 to"),
        (BINARY + bytes(8), 0, "body: not valid JSON: "),
        (BINARY + bytes(8), len(BINARY) - 1, "body: not valid JSON: "),
        (BINARY + bytes(7), len(BINARY), "body: got 7 bytes after the JSON; allowed: 8, where inputs[0] (x) ends"),
        (BINARY + bytes(9), len(BINARY), "body: got 9 bytes after the JSON; allowed: 8, the sum of binary_data_size"),
        (body_of() + b"\0", len(body_of()), "body: got 1 bytes after the JSON; allowed: 0"),
    ],
)
def test_a_malformed_request_is_refused_by_name(body, header_length, message):
    with pytest.raises(BadInput) as caught:
        wire.decode_request(body, header_length)
    assert str(caught.value).startswith(message)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("size", [0, 4, 7, 9, -8, 8.0, "8", True, [8], 2**70])
def test_a_binary_size_must_be_that_of_the_shape(size):
    head = body_of(data=None, parameters={"binary_data_size": size})
    with pytest.raises(
        BadInput, match=r"inputs\[0\] \(x\).parameters.binary_data_size: got .*; allowed: 8, the bytes of"
    ):
        wire.decode_request(head + bytes(8), len(head))


def test_bytes_of_booleans_are_0_or_1():
    head = body_of(data=None, datatype="BOOL", parameters={"binary_data_size": 2})
    assert wire.decode_request(head + b"\0\1", len(head)).inputs["x"].tolist() == [False, True]
    with pytest.raises(BadInput, match="bytes other than 0 and 1"):
        wire.decode_request(head + b"\0\2", len(head))


def test_there_is_a_largest_number_of_tensors():
    record = body_of()[12:-2]
    with pytest.raises(BadInput, match="inputs: got 257 tensors; allowed: up to 256"):
        wire.decode_request(b'{"inputs":[' + b",".join([record] * 257) + b"]}")


def test_one_request_may_mix_the_forms():
    tensors = [
        {"name": "a", "shape": [1], "datatype": "INT32", "parameters": {"binary_data_size": 4}},
        {"name": "b", "shape": [1, 2], "datatype": "INT32", "data": [[3, 4]]},
        {"name": "c", "shape": [1], "datatype": "INT8", "parameters": {"binary_data_size": 1}},
    ]
    head = json.dumps({"inputs": tensors}).encode()
    inputs = wire.decode_request(head + struct.pack("<ib", 7, -1), str(len(head))).inputs
    assert {name: tensor.tolist() for name, tensor in inputs.items()} == {"a": [7], "b": [[3, 4]], "c": [-1]}


@pytest.mark.parametrize(
    ("outputs", "parameters", "wanted"),
    [
        ((), {}, False),
        ((), {"binary_data_output": True}, True),
        ((Output("o"),), {"binary_data_output": True}, True),
        ((Output("o", binary=False),), {"binary_data_output": True}, False),
        ((Output("o", binary=True),), {}, True),
        ((Output("other", binary=True),), {}, False),
    ],
)
def test_an_outputs_own_form_comes_before_the_requests(outputs, parameters, wanted):
    assert InferRequest(inputs={}, outputs=outputs, parameters=parameters).wants_binary("o") is wanted


def test_a_tensor_whose_bytes_do_not_fit_is_not_encoded():
    with pytest.raises(BadInput, match=r"outputs \(o\): got 7 bytes; allowed: 8, as INT32 \[2\] has"):
        wire.encode_response(
            InferResponse(model_name="m", outputs={"o": Tensor("INT32", (2,), bytes(7))}), lambda _: True
        )


def test_a_client_that_others_wrote_is_understood_and_understands():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    binary, text = client.InferInput("a", [2, 3], "FP32"), client.InferInput("b", [2, 3], "FP32")
    binary.set_data_from_numpy(array)
    text.set_data_from_numpy(array, binary_data=False)
    outputs = [client.InferRequestedOutput("o", binary_data=True), client.InferRequestedOutput("p", binary_data=False)]
    body, header_length = client.InferenceServerClient.generate_request_body([binary, text], outputs=outputs)
    request = wire.decode_request(body, header_length)
    assert [tensor.tolist() for tensor in request.inputs.values()] == [array.tolist()] * 2

    response = InferResponse(model_name="m", outputs={"o": request.inputs["a"], "p": request.inputs["b"]})
    body, header_length = wire.encode_response(response, request.wants_binary)
    result = client.InferenceServerClient.parse_response_body(body, header_length=header_length)
    np.testing.assert_array_equal(result.as_numpy("o"), array)
    np.testing.assert_array_equal(result.as_numpy("p"), array)


def test_who_routes_a_request_sees_its_parameters_before_its_inputs_are_looked_at():
    seen: list[object] = []
    tensor = {"name": "x", "shape": [1], "datatype": "NONE", "data": [1]}
    body = json.dumps({"parameters": {"sticky_key": "me"}, "inputs": [tensor]}).encode()
    with pytest.raises(BadInput, match="datatype"):
        wire.decode_request(body, route=seen.append)
    assert seen == [{"sticky_key": "me"}]

    def refuse(parameters):
        raise NotFound("no such version")

    with pytest.raises(NotFound):
        wire.decode_request(body, route=refuse)
