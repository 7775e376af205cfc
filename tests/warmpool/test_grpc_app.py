"""gRPC as callers meet it, by a client that others wrote: the documented statuses, and an instance that serves on."""

import asyncio
import contextlib
import re
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import ml_dtypes
import numpy as np
import pytest
from open_inference.grpc import protocol

from tests.edges import assert_same, inputs_for, sizes_of
from tests.instance_process import InstanceProcess, serving, tensors, wait_until, zygote_gate
from tests.ports import free_port
from tests.tiny import BATCH, METHODS
from tests.warmpool.stopped_lane import StoppedLane
from tests.warmpool.test_errors_status import ELSEWHERE, tree
from tests.warmpool.triton import Stub, client, messages
from warmpool import __version__, errors, grpc_app, grpc_messages
from warmpool.arena import dtype_of
from warmpool.datatypes import DATATYPES
from warmpool.errors import BadInput

BODY_BYTES_MAX = 1_000_000
CALL_S_MAX = 90.0
TRACE = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")

STATUS = {
    "BadInput": "INVALID_ARGUMENT",
    "NotFound": "NOT_FOUND",
    "TooLarge": "RESOURCE_EXHAUSTED",
    "Overloaded": "RESOURCE_EXHAUSTED",
    "Cancelled": "CANCELLED",
    "LaneFailed": "INTERNAL",
    "NotWarm": "UNAVAILABLE",
    "DeadlineExceeded": "DEADLINE_EXCEEDED",
}


@pytest.fixture(scope="module")
def instance(tiny_store, tmp_path_factory, port):
    log_file = tmp_path_factory.mktemp("instance") / "log"
    flags = ("--grpc-port", str(port), "--body-bytes-max", str(BODY_BYTES_MAX))
    with serving(tiny_store, log_file, *flags) as running:
        yield running
        assert "Traceback" not in running.log


@pytest.fixture(scope="module")
def stub(instance, port):
    with connected(port) as stub:
        yield stub


@pytest.fixture(scope="module")
def triton(stub, port):
    with contextlib.closing(client.InferenceServerClient(f"127.0.0.1:{port}")) as connection:
        yield connection


@pytest.fixture
def answers_on(instance, stub):
    """Whatever a test did, the instance answers right afterwards, over both protocols."""
    yield
    assert outputs_of(stub.ModelInfer(request("predict", x=[[1, 2, 3, 4]])))["sum"].tolist() == [10.0]
    assert instance.infer("predict", x=[[1, 2, 3, 4]]).outputs["sum"].tolist() == [10.0]


@pytest.fixture
def alone(tiny_store, tmp_path):
    """An instance of the test's own: what it measures of a lane that stands still is no other's delay."""
    port = free_port()
    with (
        serving(tiny_store, tmp_path / "log", "--grpc-port", str(port)) as instance,
        connected(port) as stub,
    ):
        yield instance, stub


@contextlib.contextmanager
def busy_lane(instance, stub):
    with StoppedLane(instance) as lane:
        first = stub.ModelInfer.future(request("count", steps=[1]), timeout=CALL_S_MAX)
        lane.wait_busy()
        yield lane
    assert outputs_of(first.result())["counted"].tolist() == [1]


@contextlib.contextmanager
def connected(port, host="127.0.0.1"):
    with grpc.insecure_channel(f"{host}:{port}", options=[("grpc.enable_http_proxy", 0)]) as channel:
        grpc.channel_ready_future(channel).result(CALL_S_MAX)
        yield Stub(channel)


def request(name, *, typed=False, **inputs):
    """A request for one of the tiny model's methods, in the client's own messages."""
    made = messages.ModelInferRequest(model_name=f"tiny:{name}")
    for tensor_name, tensor in tensors(name, inputs).items():
        given = made.inputs.add(name=tensor_name, datatype=tensor.datatype, shape=tensor.shape)
        if typed:
            getattr(given.contents, grpc_messages.CONTENTS[tensor.datatype]).extend(
                np.ravel(inputs[tensor_name]).tolist()
            )
        else:
            made.raw_input_contents.append(tensor.data)
    return made


def outputs_of(response):
    return {
        output.name: np.frombuffer(raw, dtype_of(DATATYPES[output.datatype].dtype)).reshape(output.shape)
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }


def refusal(call, *arguments, **options):
    """The status of a call that has to fail; nothing of our inside is in it."""
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, timeout=CALL_S_MAX, **options)
    assert not re.search(r"Traceback|File \"|\.py\b|site-packages|/home/|/tmp/|/usr/", caught.value.details() or "")
    return caught.value


def metric(instance, status):
    return instance.gauge("warmpool_requests_total", model="", method="", status=status)


# What the instance says of itself


def test_a_warm_instance_is_live_and_ready(triton):
    assert triton.is_server_live()
    assert triton.is_server_ready()
    assert triton.get_server_metadata().name == "warmpool"
    assert triton.get_server_metadata().version == __version__


@pytest.mark.parametrize(("model", "version"), [("tiny", ""), ("second", "1"), ("tiny:tokens", "1")])
def test_a_warm_model_is_ready(triton, model, version):
    assert triton.is_model_ready(model, version)


def test_metadata_of_a_method_gives_its_tensors(triton):
    found = triton.get_model_metadata("tiny:tokens")
    assert (found.name, list(found.versions), found.platform) == ("tiny:tokens", ["1"], "jax_stablehlo")
    described = [(tensor.name, tensor.datatype, list(tensor.shape)) for tensor in (*found.inputs, *found.outputs)]
    assert described == [
        ("ids", "INT32", [-1, -1]),
        ("mask", "INT32", [-1, -1]),
        ("total", "INT32", [-1]),
        ("doubled", "INT32", [-1, -1]),
    ]
    assert list(triton.get_model_metadata("tiny").inputs[0].shape) == [-1, 4]


@pytest.mark.parametrize("typed", [False, True])
def test_a_length_mask_may_be_left_out(stub, typed):
    ids = [[1, 2, 3], [4, 0, 6]]
    found = outputs_of(stub.ModelInfer(request("tokens", typed=typed, ids=ids)))
    assert found["total"].tolist() == [6, 10]
    masked = outputs_of(stub.ModelInfer(request("tokens", typed=typed, ids=ids, mask=[[1, 0, 1], [1, 1, 0]])))
    assert masked["total"].tolist() == [4, 4]
    error = refusal(stub.ModelInfer, request("tokens", typed=typed, mask=ids))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details() == "inputs: ids missing; tiny:tokens takes ids, mask (mask may be left out)"


@pytest.mark.parametrize(
    ("model", "version"), [("nope", ""), ("tiny:nope", ""), ("tiny", "2"), ("", ""), ("nope" * 5000, ""), ("ü", "")]
)
def test_what_does_not_exist_is_not_found(stub, answers_on, model, version):
    asked = request("predict", x=[[1, 2, 3, 4]])
    asked.model_name, asked.model_version = model, version
    calls = (
        (stub.ModelReady, messages.ModelReadyRequest(name=model, version=version)),
        (stub.ModelMetadata, messages.ModelMetadataRequest(name=model, version=version)),
        (stub.ModelInfer, asked),
    )
    for call, message in calls:
        error = refusal(call, message)
        assert error.code() is grpc.StatusCode.NOT_FOUND
        assert len(error.details()) < 300


def test_a_method_of_the_protocol_that_is_not_served_is_unimplemented(stub, answers_on):
    assert refusal(stub.TraceSetting, messages.TraceSettingRequest()).code() is grpc.StatusCode.UNIMPLEMENTED


def test_an_instance_without_models_is_live_and_not_ready(tmp_path, port):
    (tmp_path / "store").mkdir()
    other = free_port()
    with InstanceProcess(tmp_path / "store", tmp_path / "log", "--grpc-port", str(other)) as instance:
        with connected(other) as stub:
            assert stub.ServerLive(messages.ServerLiveRequest()).live
            assert not stub.ServerReady(messages.ServerReadyRequest()).ready
            assert refusal(stub.ModelReady, messages.ModelReadyRequest(name="tiny")).code() in {
                grpc.StatusCode.NOT_FOUND,
                grpc.StatusCode.UNAVAILABLE,
            }
        assert instance.stop() == 0


# Inference


@pytest.mark.parametrize("name", METHODS)
def test_answers_equal_jit_at_the_exact_shape_at_every_edge(stub, name):
    for sizes in sizes_of(name):
        inputs = inputs_for(name, sizes)
        assert_same(name, outputs_of(stub.ModelInfer(request(name, **inputs), timeout=CALL_S_MAX)), inputs)


@pytest.mark.parametrize("name", ["predict", "tokens", "scale", "invert", "count"])
def test_typed_contents_mean_what_raw_ones_do(stub, name):
    for sizes in sizes_of(name):
        inputs = inputs_for(name, sizes)
        asked = request(name, typed=True, **inputs)
        assert_same(name, outputs_of(stub.ModelInfer(asked, timeout=CALL_S_MAX)), inputs)


@pytest.mark.parametrize("name", METHODS)
def test_tritons_client_finds_its_way(triton, name):
    inputs = inputs_for(name, {dim.name: min(3, dim.max) for dim in METHODS[name].dims})
    given = []
    for spec in METHODS[name].inputs:
        array = np.asarray(inputs[spec.name], dtype_of(spec.dtype))
        given.append(client.InferInput(spec.name, list(array.shape), tensors(name, inputs)[spec.name].datatype))
        given[-1].set_data_from_numpy(array)
    wanted = [client.InferRequestedOutput(METHODS[name].outputs[-1].name)]
    result = triton.infer(f"tiny:{name}", given, outputs=wanted, request_id="a request", client_timeout=CALL_S_MAX)
    (only,) = result.get_response().outputs
    assert only.name == METHODS[name].outputs[-1].name
    assert result.get_response().id == "a request"
    expected = METHODS[name].reference(**inputs)[only.name]
    np.testing.assert_allclose(result.as_numpy(only.name).astype(expected.dtype), expected, rtol=1e-5)


def test_the_answer_says_which_model_answered_and_where_it_ran(stub):
    response = stub.ModelInfer(request("tokens", ids=np.ones((3, 5)), mask=np.ones((3, 5))))
    assert (response.model_name, response.model_version, response.id) == ("tiny:tokens", "1", "")
    served = {name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in response.parameters.items()}
    batch, seq = (int(size.partition("=")[2]) for size in served["bucket"].split(","))  # the cheapest, as measured
    assert (served["lane"], served["cold"], batch >= 3, seq >= 5) == ("primary", False, True, True)
    assert served["padding"] == pytest.approx(1 - 15 / (batch * seq), abs=1e-4)
    assert (served["rows"], served["batch_rows"], served["padded_rows"], served["parts"]) == (3, 3, batch - 3, 1)
    assert (served["elements"], served["padded_elements"]) == (30, 2 * batch * seq - 30)
    assert {"queue_us", "batch_us", "run_us"} <= served.keys()
    assert re.fullmatch("[0-9a-f]{32}", served["trace_id"])


def test_a_name_without_a_method_means_the_default_one(stub):
    asked = request("predict", x=[[1, 2, 3, 4]])
    asked.model_name = "tiny"
    assert outputs_of(stub.ModelInfer(asked))["sum"].tolist() == [10.0]


def test_no_rows_give_empty_results_of_the_right_shape(stub):
    for typed in (False, True):
        response = stub.ModelInfer(request("predict", typed=typed, x=np.zeros((0, 4))))
        assert {name: array.shape for name, array in outputs_of(response).items()} == {"y": (0, 3), "sum": (0,)}


def test_requests_that_come_together_share_a_batch_across_protocols(alone):
    instance, stub = alone
    with ThreadPoolExecutor(3) as pool:
        with busy_lane(instance, stub):
            over_http = [pool.submit(instance.infer, "predict", x=np.full((1, 4), index)) for index in range(3)]
            over_grpc = [stub.ModelInfer.future(request("predict", x=np.full((1, 4), index))) for index in range(3, 6)]
            wait_until(lambda: instance.gauge("warmpool_rows_waiting") == 6)
        sums = [future.result().outputs["sum"].item() for future in over_http]
        responses = [future.result() for future in over_grpc]
    assert sums + [outputs_of(response)["sum"].item() for response in responses] == [4.0 * index for index in range(6)]
    shared = [response.parameters["batch_rows"].int64_param for response in responses]
    assert max(shared) > 1, "how many share is decided by what they cost"


# Refusals


def edited(edit, *, typed=False):
    made = request("predict", typed=typed, x=[[1, 2, 3, 4]])
    edit(made)
    return made


def set_shape(made, *shape):
    made.inputs[0].shape[:] = shape


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (edited(lambda made: set_shape(made, 4)), ("inputs.x.shape", "[4]", "2 dimensions")),
        (edited(lambda made: set_shape(made, 4, 1)), ("x.shape[1]", "got 1;", "4")),
        (edited(lambda made: set_shape(made, -1, 4)), ("inputs[0].shape", "-1", "0 or more")),
        (edited(lambda made: set_shape(made, 2**40, 2**40)), ("inputs[0].shape", "elements")),
        (edited(lambda made: set_shape(made, *[1] * 9)), ("inputs[0].shape", "8 dimensions")),
        (edited(lambda made: set_shape(made, 2, 4)), ("raw_input_contents[0]", "16 bytes", "32 bytes")),
        (edited(lambda made: set_shape(made, 2, 4), typed=True), ("inputs[0].contents.fp32_contents", "4", "8")),
        (edited(lambda made: setattr(made.inputs[0], "datatype", "INT32")), ("x.datatype", "INT32", "FP32")),
        (edited(lambda made: setattr(made.inputs[0], "datatype", "float")), ("inputs[0].datatype", "float", "FP32")),
        (edited(lambda made: setattr(made.inputs[0], "datatype", "BYTES")), ("inputs[0].datatype", "BYTES")),
        (edited(lambda made: setattr(made.inputs[0], "datatype", "")), ("inputs[0].datatype", "''")),
        (
            edited(lambda made: setattr(made.inputs[0], "datatype", "FP16"), typed=True),
            ("inputs[0]", "FP16", "raw_input_contents"),
        ),
        (
            edited(lambda made: setattr(made.inputs[0], "datatype", "INT32"), typed=True),
            ("inputs[0].contents.fp32_contents", "4 numbers", "int_contents"),
        ),
        (
            edited(lambda made: made.inputs[0].contents.int_contents.append(1), typed=True),
            ("inputs[0].contents.int_contents", "fp32_contents"),
        ),
        (
            edited(lambda made: made.inputs[0].contents.fp32_contents.append(1)),
            ("inputs[0].contents", "raw_input_contents"),
        ),
        (edited(lambda made: setattr(made.inputs[0], "name", "z")), ("inputs", "x missing")),
        (edited(lambda made: setattr(made.inputs[0], "name", "ü" * 9999)), ("inputs", "x missing")),
        (edited(lambda made: made.ClearField("inputs")), ("raw_input_contents", "got 1;", "0")),
        (edited(lambda made: made.inputs.append(made.inputs[0])), ("raw_input_contents", "got 1;", "2")),
        (edited(lambda made: made.inputs.append(made.inputs[0]), typed=True), ("inputs[1].name", "'x'", "once")),
        (edited(lambda made: made.raw_input_contents.append(b"")), ("raw_input_contents", "got 2;", "1")),
        (edited(lambda made: made.outputs.add(name="z")), ("outputs", "'z'", "y, sum")),
        (messages.ModelInferRequest(model_name="tiny"), ("inputs", "x missing")),
        (request("tokens", ids=[[1, 10]], mask=[[1, 1]]), ("ids[0, 1]", "10", "0 to 9")),
        (request("tokens", ids=[[1, 2]], mask=[[1]]), ("mask.shape[1]", "'seq'", "2")),
        (request("tokens", ids=np.ones((1, 0)), mask=np.ones((1, 0))), ("'seq'", "got 0;", "1 to 16")),
        (request("predict", x=np.ones((BATCH.max + 1, 4))), ("'batch'", "got 21;", "0 to 20")),
    ],
)
def test_a_wrong_request_is_an_invalid_argument_that_names_the_field(stub, answers_on, made, words):
    error = refusal(stub.ModelInfer, made)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    for word in words:
        assert word in error.details()
    assert len(error.details()) < 300


def test_bytes_that_are_no_booleans_are_an_invalid_argument(stub, answers_on):
    made = request("kinds", flag=[1], byte=[1], half=[1], brain=[1])
    made.raw_input_contents[0] = b"\2"
    error = refusal(stub.ModelInfer, made)
    assert (error.code(), "flag[0]" in error.details()) == (grpc.StatusCode.INVALID_ARGUMENT, True)


@pytest.mark.parametrize("method", ["ModelInfer", "ModelReady", "ModelMetadata"])
def test_bytes_that_are_no_message_are_an_invalid_argument(port, answers_on, method):
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.enable_http_proxy", 0)]) as channel:
        garbled: Any = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
        error = refusal(garbled, b"\xff" * 100)
    assert (error.code(), error.details()) == (grpc.StatusCode.INVALID_ARGUMENT, f"message: not a {method}Request")


def test_a_message_that_is_too_large_is_resource_exhausted(stub, answers_on):
    made = request("predict", x=[[1, 2, 3, 4]])
    made.raw_input_contents[0] = bytes(BODY_BYTES_MAX)
    error = refusal(stub.ModelInfer, made)
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(BODY_BYTES_MAX) in error.details()


def test_a_message_that_no_method_could_use_is_resource_exhausted(stub, answers_on):
    made = request("predict", x=[[1, 2, 3, 4]])
    made.raw_input_contents[0] = bytes(200_000)
    error = refusal(stub.ModelInfer, made)
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "allowed: 106496" in error.details()  # what 2 * 20 * 16 numbers may take


@pytest.mark.parametrize("field", ["inputs", "outputs"])
def test_very_many_tensors_are_an_invalid_argument(stub, answers_on, field):
    made = request("predict", x=[[1, 2, 3, 4]])
    made.ClearField("raw_input_contents")
    for index in range(300):
        getattr(made, field).add(name=f"x{index}")
    error = refusal(stub.ModelInfer, made)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert re.search(rf"{field}: got 30[01] tensors; allowed: up to 256", error.details())


def test_more_rows_than_may_ever_wait_are_resource_exhausted_and_the_limit_is_told(tiny_store, tmp_path):
    port = free_port()
    flags = ("--grpc-port", str(port), "--queue-rows-max", "2")
    with serving(tiny_store, tmp_path / "log", *flags), connected(port) as stub:
        error = refusal(stub.ModelInfer, request("predict", x=np.ones((3, 4))))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error.details() == "3 rows, allowed in one request: 2"


def test_a_deadline_that_passes_in_the_queue_is_told_counted_and_disturbs_no_neighbour(alone):
    instance, stub = alone
    with busy_lane(instance, stub):
        neighbour = stub.ModelInfer.future(request("predict", x=[[1, 2, 3, 4]]))
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(request("predict", x=[[5, 6, 7, 8]]), timeout=3.0)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        wait_until(lambda: metric(instance, "DEADLINE_EXCEEDED") + metric(instance, "CANCELLED") == 1)
    assert outputs_of(neighbour.result())["sum"].tolist() == [10.0]
    assert instance.gauge("warmpool_rows_waiting") == 0


def test_a_caller_that_cancels_takes_its_rows_along_and_is_counted(alone):
    instance, stub = alone
    with busy_lane(instance, stub):
        leaving = stub.ModelInfer.future(request("predict", x=[[5, 6, 7, 8]]))
        neighbour = stub.ModelInfer.future(request("predict", x=[[1, 2, 3, 4]]))
        wait_until(lambda: instance.gauge("warmpool_rows_waiting") == 2)
        leaving.cancel()
        wait_until(lambda: instance.gauge("warmpool_rows_waiting") == 1)
    assert outputs_of(neighbour.result())["sum"].tolist() == [10.0]
    assert metric(instance, "CANCELLED") == 1


# Every datatype


def accepted(tensors):
    assert tensors.keys() == {"a"}


@pytest.mark.parametrize("name", grpc_messages.CONTENTS)
def test_numbers_of_every_datatype_that_has_typed_contents_become_its_bytes(name):
    values = [True, False] if name == "BOOL" else [0, 1, 100]
    made = protocol.ModelInferRequest()
    given = made.inputs.add(name="a", datatype=name, shape=[len(values)])
    getattr(given.contents, grpc_messages.CONTENTS[name]).extend(values)
    tensor = grpc_messages.tensors(made, accepted)["a"]
    assert (tensor.datatype, tensor.shape) == (name, (len(values),))
    assert bytes(tensor.data) == np.array(values, DATATYPES[name].dtype).tobytes()


@pytest.mark.parametrize("name", DATATYPES)
def test_raw_bytes_of_every_datatype_are_taken_as_they_are(name):
    data = np.arange(2).astype(ml_dtypes.bfloat16 if name == "BF16" else DATATYPES[name].dtype).tobytes()
    made = protocol.ModelInferRequest(raw_input_contents=[data])
    made.inputs.add(name="a", datatype=name, shape=[2, 1])
    tensor = grpc_messages.tensors(made, accepted)["a"]
    assert (tensor.datatype, tensor.shape, bytes(tensor.data)) == (name, (2, 1), data)


@pytest.mark.parametrize(("name", "value"), [("INT8", 128), ("INT16", -32769), ("UINT8", 256), ("UINT16", 65536)])
def test_a_number_beyond_its_datatype_is_refused_not_wrapped(name, value):
    made = protocol.ModelInferRequest()
    given = made.inputs.add(name="a", datatype=name, shape=[1])
    getattr(given.contents, grpc_messages.CONTENTS[name]).append(value)
    with pytest.raises(BadInput, match=rf"inputs\[0\]\.contents\.\w+ \(item 0\): got {value}; allowed: .*{name}"):
        grpc_messages.tensors(made, accepted)


def test_who_accepts_a_request_sees_datatypes_and_shapes_before_a_number_is_converted():
    made = protocol.ModelInferRequest()
    made.inputs.add(name="a", datatype="UINT8", shape=[1]).contents.uint_contents.append(999)

    def accept(tensors):
        assert [(tensor.datatype, tensor.shape) for tensor in tensors.values()] == [("UINT8", (1,))]
        raise BadInput("not this")

    with pytest.raises(BadInput, match=r"^not this$"):
        grpc_messages.tensors(made, accept)


# Statuses


def test_the_statuses_are_the_documented_ones():
    assert {kind.__name__: code.name for kind, code in grpc_app.STATUS.items()} == STATUS


def test_every_error_that_a_request_can_meet_has_a_status_and_the_others_are_internal():
    for kind in tree():
        if kind.__subclasses__() or kind.__name__ in ELSEWHERE:
            continue
        assert grpc_app._code(kind("x")).name == STATUS[kind.__name__]
    assert grpc_app._code(errors.PublishError("x")) is grpc.StatusCode.INTERNAL
    assert grpc_app._code(ZeroDivisionError()) is grpc.StatusCode.INTERNAL


def test_a_failure_nobody_expected_is_internal_and_its_words_are_the_logs_alone(caplog):
    class Aborted(Exception):
        pass

    class Context:
        async def abort(self, *status):
            raise Aborted(*status)

    async def broken(request, context):
        raise ZeroDivisionError("a secret")

    with pytest.raises(Aborted) as caught:
        asyncio.run(grpc_app.guarded(broken, protocol.ServerLiveRequest, lambda: 0)(b"", Context()))
    assert caught.value.args == (grpc.StatusCode.INTERNAL, "internal error", ())
    assert "a secret" in caplog.text


def test_a_caller_that_leaves_while_it_is_refused_is_no_failure(caplog):
    class Context:
        async def abort(self, *status):
            raise grpc.aio.InternalError("Failed to execute the batch: the call is gone")

    async def refused(request, context):
        raise BadInput("wrong")

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(grpc_app.guarded(refused, protocol.ServerLiveRequest, lambda: 0)(b"", Context()))
    assert caplog.text == ""


# Traces


def test_the_callers_trace_goes_on_below_its_span(instance, stub):
    trace_id, parent_id = TRACE
    metadata = (("traceparent", f"00-{trace_id}-{parent_id}-01"), ("other-bin", b"\xff\0"))
    response = stub.ModelInfer(request("predict", x=[[1, 2, 3, 4]]), metadata=metadata)
    assert response.parameters["trace_id"].string_param == trace_id
    (trace,) = (trace for trace in instance.get("/v1/traces?count=1000").json() if trace["trace_id"] == trace_id)
    spans = {span["name"]: span for span in trace["spans"]}
    assert spans["front"]["parent_id"] == parent_id
    assert spans["front"]["attributes"]["warmpool.status"] == "OK"
    assert {"validate", "queue", "batch", "lane", "run", "respond"} < spans.keys()


def test_a_refused_call_has_its_trace_too(instance, stub):
    trace_id = "1" * 32
    refusal(
        stub.ModelInfer,
        messages.ModelInferRequest(model_name="nope"),
        metadata=(("traceparent", f"00-{trace_id}-{TRACE[1]}-00"),),
    )
    (trace,) = (trace for trace in instance.get("/v1/traces?count=1000").json() if trace["trace_id"] == trace_id)
    assert [(span["name"], span["attributes"]["warmpool.status"]) for span in trace["spans"]] == [
        ("front", "NOT_FOUND")
    ]


def test_a_malformed_traceparent_starts_a_trace_of_its_own(stub):
    response = stub.ModelInfer(request("predict", x=[[1, 2, 3, 4]]), metadata=(("traceparent", "00-xyz"),))
    assert re.fullmatch("[0-9a-f]{32}", response.parameters["trace_id"].string_param)


# Ports, and the end


def test_a_port_that_is_taken_while_it_starts_is_told_in_one_line_and_nothing_stays(tiny_store, tmp_path):
    port = free_port()
    gate, environment = zygote_gate(tmp_path)
    instance = InstanceProcess(tiny_store, tmp_path / "log", "--grpc-port", str(port), **environment)
    try:
        wait_until(lambda: instance.answers("/v2/health/live") == 200)
        instance.status()
        with socket.socket() as other:
            other.bind(("127.0.0.1", port))
            other.listen()
            gate.touch()
            assert instance.process.wait(CALL_S_MAX) == 1
    finally:
        instance.process.kill()
        instance.process.wait()
    last = instance.log.splitlines()[-1]
    assert last.startswith("warmpool serve: ")
    assert str(port) in last
    assert "--grpc-port" in last
    assert "Traceback" not in instance.log


def test_it_serves_on_an_ipv6_address(tiny_store, tmp_path):
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    port = free_port()
    with InstanceProcess(tiny_store, tmp_path / "log", "--host", "::1", "--grpc-port", str(port)) as instance:
        with connected(port, "[::1]") as stub:
            assert stub.ServerLive(messages.ServerLiveRequest()).live
        assert instance.stop() == 0


def test_a_signal_drains_running_calls_and_it_exits_0(tiny_store, tmp_path):
    port = free_port()
    with (
        serving(tiny_store, tmp_path / "log", "--grpc-port", str(port)) as instance,
        connected(port) as stub,
    ):
        with busy_lane(instance, stub):
            waiting = [stub.ModelInfer.future(request("predict", x=np.full((1, 4), index))) for index in range(4)]
            wait_until(lambda: instance.gauge("warmpool_rows_waiting") == len(waiting))
            instance.process.send_signal(signal.SIGTERM)
        assert [outputs_of(call.result())["sum"].item() for call in waiting] == [0.0, 4.0, 8.0, 12.0]
        assert instance.process.wait(CALL_S_MAX) == 0
        assert "Traceback" not in instance.log


def test_a_call_longer_than_the_drain_is_told_to_go_elsewhere(tiny_store, tmp_path):
    port = free_port()
    flags = ("--grpc-port", str(port), "--drain-s-max", "0.5")
    with serving(tiny_store, tmp_path / "log", *flags) as instance, connected(port) as stub:
        endless = stub.ModelInfer.future(request("count", steps=[2**31 - 2] * BATCH.sizes[-1]))
        wait_until(lambda: instance.gauge("warmpool_lane_busy", lane="primary") == 1)
        assert instance.stop() == 0
        assert endless.exception().code() is grpc.StatusCode.UNAVAILABLE
        assert "Traceback" not in instance.log
