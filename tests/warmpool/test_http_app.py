"""HTTP as callers meet it: the documents, the documented refusals, and an instance that serves on after each."""

import asyncio
import contextlib
import gc
import gzip
import json
import re
import socket
import struct
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as prometheus_families
from tritonclient.utils import InferenceServerException

from tests.instance_process import Reply, serving
from tests.tiny import BATCH, METHODS
from warmpool import errors, http_app, limits, wire
from warmpool.byte_budget import ByteBudget
from warmpool.http_messages import Request, Response
from warmpool.received_spans import EXPORT_SPANS_MAX

BODY_BYTES_MAX = 1_000_000
PREDICT_BYTES_MAX = BATCH.max * 4 * limits.NUMBER_BYTES_MAX + limits.REST_BYTES_MAX
INFER = "/v2/models/tiny:predict/infer"
PREDICT = "/v1/models/tiny:predict"
X = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
BINARY_X = {"name": "x", "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": 16}}
FLOATS = struct.pack("<4f", 1, 2, 3, 4)


@pytest.fixture(scope="module")
def instance(tiny_store, tmp_path_factory):
    log_file = tmp_path_factory.mktemp("instance") / "log"
    with serving(tiny_store, log_file, "--body-bytes-max", str(BODY_BYTES_MAX)) as running:
        yield running
        assert "Traceback" not in running.log


@pytest.fixture
def answers_on(instance):
    """Whatever a test did, the instance answers right afterwards."""
    yield
    assert instance.infer("predict", x=[[1, 2, 3, 4]]).outputs["sum"].tolist() == [10.0]


def assert_documented(reply, *statuses):
    """A refusal has its status and the one form of errors, and nothing of our inside."""
    assert reply.status in statuses, reply.body
    assert list(reply.json()) == ["error"]
    assert not re.search(r"Traceback|File \"|\.py\b|site-packages|/home/|/tmp/|/usr/", reply.body.decode())


def raw(instance, *pieces):
    """Send bytes as they are and read the response that comes, whether or not all was taken."""
    with socket.create_connection(("127.0.0.1", instance.port), timeout=60) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for piece in pieces:
                connection.sendall(piece)
        data = b""
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += connection.recv(65536)
        head = data[:end].decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
        body = data[end + 4 :]
        while len(body) < int(headers["content-length"]):
            body += connection.recv(65536)
    return Reply(int(head[0].split()[1]), headers, body)


def body_of(*inputs, **fields):
    return json.dumps({"inputs": list(inputs), **fields}).encode()


# Documents


def test_the_server_says_what_it_is(instance):
    document = instance.get("/v2").json()
    assert document["name"] == "warmpool"
    assert "binary_tensor_data" in document["extensions"]


def test_health_of_a_warm_instance(instance):
    assert instance.get("/v2/health/live").status == 200
    ready = instance.get("/v2/health/ready")
    assert (ready.status, ready.json()) == (200, {"ready": True, "reasons": {}})


def test_status_names_every_lane_with_its_process_and_state(instance):
    document = instance.get("/v1/status").json()
    assert document["ready"] is True
    assert [(lane["name"], lane["state"]) for lane in document["lanes"]] == [("primary", "warm"), ("cpu", "warm")]
    pids = {lane["pid"] for lane in document["lanes"]}
    assert len(pids | {document["zygote"]["pid"], document["front"]["pid"]}) == 4
    assert document["front"]["pid"] == instance.process.pid
    assert all(lane["warm"] == lane["planned"] > 0 for lane in document["lanes"])
    assert set(document["models"]) == {"tiny", "second"}
    assert document["models"]["tiny"]["ready"] is True


def test_metadata_of_a_method_gives_its_tensors_and_dimensions(instance):
    document = instance.get("/v2/models/tiny:tokens").json()
    assert document["versions"] == ["1"]
    assert document["inputs"] == [
        {"name": "ids", "datatype": "INT32", "shape": [-1, -1]},
        {"name": "mask", "datatype": "INT32", "shape": [-1, -1]},
    ]
    assert document["outputs"][1] == {"name": "doubled", "datatype": "INT32", "shape": [-1, -1]}
    assert document["parameters"]["dimensions"]["seq"] == {"max": 16, "sizes": [4, 8, 16]}
    assert document["parameters"]["optional"] == ["mask"]
    assert instance.get("/v2/models/tiny").json()["parameters"]["optional"] == []
    assert instance.get("/v2/models/tiny:tokens/versions/1").json() == document
    assert "tokens" in instance.get("/v2/models/tiny").json()["parameters"]["methods"]


@pytest.mark.parametrize("path", ["/v2/models/tiny/ready", "/v2/models/tiny/versions/1/ready", "/v1/models/tiny"])
def test_a_warm_model_is_ready(instance, path):
    assert instance.get(path).status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v3",
        "/v2/",
        "/v2/models",
        "/v2/models/nope",
        "/v2/models/nope/ready",
        "/v2/models/tiny:nope",
        "/v2/models/tiny:nope/ready",
        "/v2/models/tiny/versions/2",
        "/v2/models/tiny/versions/2/ready",
        "/v2/models/:",
        "/v2/models/%FF%00",
        "/v2/models/..%2f..%2fetc%2fpasswd",
        "/v1/models/nope",
        "/v1/models/tiny:nope",
    ],
)
def test_what_does_not_exist_is_a_404(instance, answers_on, path):
    assert_documented(instance.get(path), 404)


@pytest.mark.parametrize(
    "path",
    [
        "/v2/models/nope/infer",
        "/v2/models/tiny:nope/infer",
        "/v2/models/tiny/versions/2/infer",
        "/v1/models/nope:predict",
        "/v1/models/tiny:nope",
        f"/v2/models/{'x' * 5000}/infer",
        f"{INFER}/",
    ],
)
def test_inference_of_what_does_not_exist_is_a_404(instance, answers_on, path):
    assert_documented(instance.post(path, body_of(X)), 404)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", INFER, "POST"),
        ("DELETE", INFER, "POST"),
        ("PUT", "/v2", "GET, HEAD"),
        ("POST", "/v2/health/live", "GET, HEAD"),
        ("DELETE", "/v1/traces", "GET, HEAD, POST"),
        ("PATCH", "/v1/models/tiny:predict", "GET, HEAD, POST"),
        ("PUT", "/v2/models/%0a", "GET, HEAD"),
    ],
)
def test_a_method_that_is_not_allowed_is_a_405_that_says_which_are(instance, answers_on, method, path, allowed):
    reply = instance.ask(method, path)
    assert_documented(reply, 405)
    assert reply.headers["allow"] == allowed


def test_every_error_has_a_status():
    """The table is total: what the service raises on purpose is never an unexplained 500."""

    def leaves(kind):
        return [kind] if not kind.__subclasses__() else [leaf for sub in kind.__subclasses__() for leaf in leaves(sub)]

    answered = {*leaves(errors.RequestError), *leaves(errors.RetryLater), *leaves(errors.Abandoned), errors.LaneFailed}
    for kind in answered - {errors.PoolUnavailable}:  # the one that only clients of a pool raise
        response = http_app.error_response(kind("message"))
        assert response.status in {400, 404, 413, 429, 499, 503, 504} or kind is errors.LaneFailed
        assert ("retry-after" in response.headers) == issubclass(kind, errors.RetryLater)
        assert json.loads(bytes(response.body)) == {"error": "message"}


def test_a_failure_nobody_expected_has_the_form_of_every_error(caplog):
    async def broken(_: Request) -> Response:
        raise ZeroDivisionError("a secret")

    async def ask() -> Response:
        return await http_app.guarded(broken)(Request("GET", "/"))

    response = asyncio.run(ask())
    assert (response.status, json.loads(bytes(response.body))) == (500, {"error": "internal error"})
    assert "a secret" in caplog.text


class Recording:
    """What tracing a request needs of an instance."""

    def __init__(self) -> None:
        self.settings = SimpleNamespace(deadline_ms=1000)
        self.byte_budget = ByteBudget(1 << 20)
        self.dataplane = SimpleNamespace(read=asyncio.Event())
        self.dataplane.read.set()
        self.statuses: list[int] = []

    def record_request(self, *_: Any, status: int, **__: Any) -> None:
        self.statuses.append(status)


def test_what_a_request_leaves_is_freed_without_a_collection():
    """Else every few dozen of them there is one, and others wait for it."""

    async def ask() -> None:
        async def work(_):
            raise errors.NotFound("there is none")

        recording: Any = Recording()
        request = Request("GET", "/")
        response = await http_app.HttpApi(recording)._traced(request, "none", work)
        after = response.after
        assert after is not None
        after()
        assert recording.statuses == [404]
        left: list[weakref.ref[Any]] = [weakref.ref(response), weakref.ref(request)]
        del response, request, after
        assert [one() for one in left] == [None, None]

    gc.disable()
    try:
        asyncio.run(ask())
    finally:
        gc.enable()


# Inference


def test_outputs_are_those_asked_for_in_the_form_asked_for(instance):
    asked = [{"name": "sum", "parameters": {"binary_data": True}}]
    reply = instance.post(INFER, body_of(X, outputs=asked, id="my-id"))
    length = int(reply.headers[wire.HEADER_LENGTH])
    document = json.loads(reply.body[:length])
    assert document["id"] == "my-id"
    assert (document["model_name"], document["model_version"]) == ("tiny:predict", "1")
    assert [output["name"] for output in document["outputs"]] == ["sum"]
    assert struct.unpack("<f", reply.body[length:]) == (10.0,)


def test_a_model_without_a_method_means_its_default_one(instance):
    reply = instance.post("/v2/models/tiny/infer", body_of(X))
    assert (reply.status, reply.json()["outputs"][1]["data"]) == (200, [10.0])


def test_what_happened_is_in_the_answer(instance):
    parameters = instance.post(INFER, body_of(X)).json()["parameters"]
    assert parameters["lane"] == "primary"
    rows = int(parameters["bucket"].removeprefix("batch="))  # which bucket is cheapest is measured
    assert (parameters["rows"], parameters["batch_rows"], parameters["parts"]) == (1, 1, 1)
    assert (parameters["padded_rows"], parameters["elements"], parameters["padded_elements"]) == (
        rows - 1,
        4,
        4 * rows - 4,
    )
    assert (parameters["padding"], parameters["cold"]) == (pytest.approx(1 - 1 / rows, abs=1e-4), False)
    assert all(parameters[name] >= 0 for name in ("queue_us", "batch_us", "run_us"))
    assert re.fullmatch("[0-9a-f]{32}", parameters["trace_id"])
    served = instance.post(PREDICT, {"instances": [[1, 2, 3, 4]]}).json()["served"]
    assert served.keys() == parameters.keys()


def test_instances_of_one_input_are_bare_values_or_objects(instance):
    bare = instance.post(PREDICT, {"instances": [[1, 2, 3, 4]]}).json()["predictions"]
    named = instance.post(PREDICT, {"instances": [{"x": [1, 2, 3, 4]}]}).json()["predictions"]
    assert bare == named == [{"y": [32.0, 20.0, 3.0], "sum": 10.0}]
    assert instance.post(PREDICT, {"inputs": [[1, 2, 3, 4]]}).json()["outputs"] == {"y": [[32, 20, 3]], "sum": [10]}


def test_a_client_that_others_wrote_is_served(instance):
    with contextlib.closing(triton.InferenceServerClient(f"127.0.0.1:{instance.port}")) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("tiny", "1")
        assert client.get_server_metadata()["name"] == "warmpool"
        assert client.get_model_metadata("tiny:predict")["inputs"][0]["datatype"] == "FP32"
        rows = np.arange(12, dtype=np.float32).reshape(3, 4)
        given = triton.InferInput("x", [3, 4], "FP32")
        for binary in (True, False):
            given.set_data_from_numpy(rows, binary_data=binary)
            asked = [triton.InferRequestedOutput("y", binary), triton.InferRequestedOutput("sum", not binary)]
            result = client.infer("tiny:predict", [given], outputs=asked, request_id="7")
            np.testing.assert_array_equal(result.as_numpy("y"), METHODS["predict"].reference(x=rows)["y"])
            np.testing.assert_array_equal(result.as_numpy("sum"), [6, 22, 38])
            assert result.get_response()["id"] == "7"
        with pytest.raises(InferenceServerException, match="not served") as failure:
            client.infer("nope", [given])
        assert failure.value.status() == "404"


# Refusals


MALFORMED = {
    "empty": b"",
    "half an object": b'{"inputs": [',
    "no JSON": b"\xff\xfe",
    "a list": b"[]",
    "null": b"null",
    "invalid UTF-8": b'{"inputs": [{"name": "\xff", "datatype": "FP32", "shape": [1], "data": [1]}]}',
    "a lone surrogate": b'{"inputs": [{"name": "\\ud800", "datatype": "FP32", "shape": [1], "data": [1]}]}',
    "a bare NaN": body_of(X).replace(b"4]}", b"NaN]}"),
    "a number out of range": body_of(X).replace(b"4]}", b"1e400]}"),
    "lists nested deep": b'{"inputs": ' + b"[" * 60_000,
    "objects nested deep": b'{"inputs": ' * 6_000,
    "parameters nested deep": body_of({**X, "parameters": {"a": 0}}).replace(b"0}", b"[" * 30_000 + b"]" * 30_000),
    "data nested deep": body_of({**X, "data": 0}).replace(b'"data": 0', b'"data": ' + b"[" * 900 + b"]" * 900),
    "no inputs": b"{}",
    "no input": body_of(),
    "an unknown field": body_of(X, surprise=1),
    "an unknown input": body_of(X, {**X, "name": "z"}),
    "an input twice": body_of(X, X),
    "500 inputs": body_of(*({**X, "name": f"x{index}"} for index in range(500))),
    "500 outputs": body_of(X, outputs=[{"name": f"y{index}"} for index in range(500)]),
    "an unknown output": body_of(X, outputs=[{"name": "z"}]),
    "an output twice": body_of(X, outputs=[{"name": "y"}, {"name": "y"}]),
    "parameters of an odd type": body_of(X, parameters={"binary_data_output": "yes"}),
    **{f"without {field}": body_of({name: X[name] for name in X if name != field}) for field in X},
    **{
        f"shape {str(shape)[:30]}": body_of({**X, "shape": shape})
        for shape in (
            [4],
            [1, 4, 1],
            [2, 4],
            [1, 5],
            [-1, 4],
            [-1, -4],
            [],
            [0, 4],
            [1.5, 4],
            ["1", 4],
            [2**62, 4],
            [2**70, 4],
            [2**31, 2**33],
            [1] * 1000,
            None,
            "1,4",
            True,
        )
    },
    **{
        f"datatype {str(datatype)[:20]}": body_of({**X, "datatype": datatype})
        for datatype in ("FP64", "FP16", "INT32", "BYTES", "float32", "", None, 5, "X" * 10_000)
    },
    **{
        f"data {str(data)[:20]}": body_of({**X, "data": data})
        for data in (
            [1, 2, 3],
            [1, 2, 3, 4, 5],
            [1, 2, 3, "a"],
            [1, 2, 3, "nan"],
            [1, 2, 3, None],
            [1, 2, 3, True],
            [1, 2, 3, {}],
            [1, 2, 3, 1e39],
            [1, 2, 3, 10**400],
            [[1, 2], [3, 4]],
            [[1, 2, 3], [4]],
            "abcd",
            None,
            5,
        )
    },
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_request_is_a_400(instance, answers_on, body):
    assert_documented(instance.post(INFER, body), 400)


MALFORMED_ROWS = {
    "empty": b"",
    "neither form": b"{}",
    "both forms": b'{"instances": [[1, 2, 3, 4]], "inputs": [[1, 2, 3, 4]]}',
    "invalid UTF-8": b'{"instances": "\xff"}',
    "instances as a number": b'{"instances": 1}',
    "a short row": b'{"instances": [[1, 2, 3]]}',
    "ragged rows": b'{"instances": [[1, 2, 3, 4], [1]]}',
    "no row": b'{"instances": [null]}',
    "a row with more inputs": b'{"instances": [{"x": [1, 2, 3, 4], "y": 1}]}',
    "a row without its input": b'{"instances": [{}]}',
    "a scalar for a matrix": b'{"inputs": 5}',
    "no values": b'{"inputs": {}}',
    "an unknown input": b'{"inputs": {"z": 1}}',
    "null": b'{"inputs": null}',
    "an unknown field": b'{"instances": [[1, 2, 3, 4]], "surprise": 1}',
    "rows nested deep": b'{"instances": ' + b"[" * 30_000 + b"]" * 30_000 + b"}",
    "more rows than may be": b'{"instances": [' + b"[]," * 20_000 + b"[]]}",
}


@pytest.mark.parametrize("body", MALFORMED_ROWS.values(), ids=MALFORMED_ROWS)
def test_malformed_rows_are_a_400(instance, answers_on, body):
    assert_documented(instance.post(PREDICT, body), 400)


def test_rows_of_a_method_without_batch_dimension_are_a_400(instance, answers_on):
    reply = instance.post("/v1/models/tiny:scale", {"instances": [[1, 2]]})
    assert_documented(reply, 400)
    assert "batch dimension" in reply.json()["error"]


def test_a_signature_names_the_method_where_the_path_does_not(instance, answers_on):
    columns = {"inputs": {"x": [[1, 2, 3, 4]]}}
    by_path = instance.post(PREDICT, columns).json()["outputs"]
    assert instance.post("/v1/models/tiny", columns | {"signature_name": "predict"}).json()["outputs"] == by_path
    assert_documented(instance.post("/v1/models/tiny", columns | {"signature_name": "nope"}), 404)
    assert_documented(instance.post(PREDICT, columns | {"signature_name": "scale"}), 400)


HEAD = body_of(BINARY_X)


@pytest.mark.parametrize(
    "length",
    ["", "-1", "abc", "1e3", "+5", "1_0", "0x10", "\xb2", "0", "1", "9" * 18, "9" * 5000]
    + [str(len(HEAD) + step) for step in (-1, 1, 16, 17)],
    ids=lambda length: length[:20],
)
def test_a_header_length_that_is_not_the_jsons_is_a_400(instance, answers_on, length):
    assert_documented(instance.post(INFER, HEAD + FLOATS, {wire.HEADER_LENGTH: length}), 400)


def test_bytes_without_the_header_that_announces_them_are_a_400(instance, answers_on):
    assert_documented(instance.post(INFER, HEAD + FLOATS), 400)
    assert_documented(instance.post(INFER, HEAD), 400)


@pytest.mark.parametrize("tail", [b"", FLOATS[:-1], FLOATS + b"z", FLOATS * 2], ids=len)
def test_fewer_or_more_bytes_than_announced_are_a_400(instance, answers_on, tail):
    assert_documented(instance.post(INFER, HEAD + tail, {wire.HEADER_LENGTH: str(len(HEAD))}), 400)


@pytest.mark.parametrize("size", [-16, 0, 15, 17, 2**63, 16.0, "16", None, True, [16]])
def test_a_binary_size_that_is_not_the_tensors_is_a_400(instance, answers_on, size):
    head = body_of({**BINARY_X, "parameters": {"binary_data_size": size}})
    assert_documented(instance.post(INFER, head + FLOATS, {wire.HEADER_LENGTH: str(len(head))}), 400)


def test_a_compressed_body_is_a_400_that_says_so(instance, answers_on):
    for path in (INFER, PREDICT, "/v1/traces"):
        reply = instance.post(path, gzip.compress(body_of(X)), {"content-encoding": "gzip"})
        assert_documented(reply, 400)
        assert "content-encoding" in reply.json()["error"]
    for identity in ("identity", "Identity", " IDENTITY "):
        assert instance.post(INFER, body_of(X), {"content-encoding": identity}).status == 200


def test_data_as_json_and_as_bytes_at_once_is_a_400(instance, answers_on):
    head = body_of({**BINARY_X, "data": [1, 2, 3, 4]})
    assert_documented(instance.post(INFER, head + FLOATS, {wire.HEADER_LENGTH: str(len(head))}), 400)


def test_bytes_that_are_no_booleans_are_a_400(instance, answers_on):
    tensors = {
        "flag": wire.Tensor("BOOL", (1,), b"\x02"),
        "byte": wire.Tensor("UINT8", (1,), b"\x02"),
        "half": wire.Tensor("FP16", (1,), b"\0\0"),
        "brain": wire.Tensor("BF16", (1,), b"\0\0"),
    }
    assert_documented(instance.infer_reply("tiny:kinds", tensors), 400)


@pytest.mark.parametrize(
    "value", ["0", "-5", "abc", "1.5", "1e3", "", "\xb2", "86400001", "9" * 5000], ids=lambda value: value[:20]
)
def test_a_timeout_that_is_no_number_of_milliseconds_is_a_400(instance, answers_on, value):
    reply = instance.post(INFER, body_of(X), {"x-warmpool-timeout-ms": value})
    assert_documented(reply, 400)
    assert "x-warmpool-timeout-ms" in reply.json()["error"]


@pytest.mark.parametrize("count", ["0", "-1", "x", "", "%C2%B2", "1001", "9" * 5000], ids=lambda count: count[:20])
def test_a_count_of_traces_that_is_no_number_is_a_400(instance, answers_on, count):
    assert_documented(instance.get(f"/v1/traces?count={count}"), 400)


def test_spans_that_are_no_protobuf_are_a_400(instance, answers_on):
    assert_documented(instance.post("/v1/traces", b"\xff\xff\xff"), 400)


@pytest.mark.parametrize(("model", "status"), [("tiny:predict", 200), ("nope", 404)])
def test_a_caller_is_told_when_the_front_had_its_request_and_the_answer(instance, model, status):
    reply = instance.post(f"/v2/models/{model}/infer", body_of(X))
    assert reply.status == status
    traces = {trace["trace_id"]: trace["spans"] for trace in instance.get("/v1/traces?count=1000").json()}
    front = traces[reply.headers["x-warmpool-trace-id"]][0]
    assert front["name"] == "front"
    assert reply.headers["x-warmpool-front-ns"] == f"{front['start_ns']} {front['end_ns']}"


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        "garbage",
        f"00-{'0' * 32}-{'1' * 16}-01",
        f"00-{'a' * 32}-{'0' * 16}-01",
        f"ff-{'a' * 32}-{'1' * 16}-01",
        f"00-{'A' * 32}-{'1' * 16}-01",
        "9" * 5000,
    ],
    ids=lambda value: value[:20],
)
def test_a_malformed_traceparent_starts_a_trace_of_its_own(instance, traceparent):
    reply = instance.post(INFER, body_of(X), {"traceparent": traceparent})
    assert reply.status == 200
    assert re.fullmatch("(?!a{32}|A{32}|0{32})[0-9a-f]{32}", reply.headers["x-warmpool-trace-id"])


# Below HTTP's own rules


def request_head(*headers, path=INFER):
    return "\r\n".join((f"POST {path} HTTP/1.1", "Host: here", *headers, "", "")).encode("latin-1")


@pytest.mark.parametrize(
    "data",
    [
        b"GARBAGE\r\n\r\n",
        request_head("Content-Length: -5"),
        request_head(f"Content-Length: {'9' * 5000}") + b"abc",
        request_head("Content-Length: 1", "Transfer-Encoding: chunked") + b"0\r\n\r\n",
        request_head("Transfer-Encoding: chunked") + b"ZZ\r\nabc\r\n",
        request_head("Content-Length: 0", path="/v2/models/\xff\xfe/infer"),
    ],
    ids=["no request", "negative length", "endless length", "two lengths", "no chunk", "path of bytes"],
)
def test_what_is_not_http_is_a_400(instance, answers_on, data):
    reply = raw(instance, data)
    assert_documented(reply, 400)


def test_a_body_that_declares_to_be_too_large_is_a_413(instance, answers_on):
    assert_documented(raw(instance, request_head(f"Content-Length: {BODY_BYTES_MAX + 1}")), 413)


def test_a_body_that_turns_out_too_large_is_a_413(instance, answers_on):
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    reply = raw(instance, request_head("Transfer-Encoding: chunked"), *[chunk] * (BODY_BYTES_MAX // 65536 + 1))
    assert_documented(reply, 413)
    assert str(PREDICT_BYTES_MAX) in reply.json()["error"]


def test_a_body_as_large_as_its_method_can_use_is_read_and_one_byte_more_is_a_413(instance):
    body = body_of(X)
    rows = b'{"instances": [[1, 2, 3, 4]]}'
    for path, least in ((INFER, body), (PREDICT, rows)):
        assert instance.post(path, least + b" " * (PREDICT_BYTES_MAX - len(least))).status == 200
        assert_documented(instance.post(path, least + b" " * (PREDICT_BYTES_MAX - len(least) + 1)), 413)
    # Without a method in its path the body may mean any, so that the largest counts.
    assert instance.post("/v1/models/tiny", rows + b" " * PREDICT_BYTES_MAX).status == 200


@pytest.mark.parametrize("path", ["/v2/models/nope/infer", "/v1/models/nope:predict", "/v1/models/tiny:nope"])
def test_what_does_not_exist_is_told_before_the_body_comes(instance, answers_on, path):
    assert_documented(raw(instance, request_head("Content-Length: 1000", path=path)), 404)


def test_numbers_of_a_wrong_shape_are_refused_without_a_look_at_them(instance, answers_on):
    """Each number is wrong too: whoever looks at the numbers first says so."""
    wrong = {**X, "shape": [1, 5], "data": [None] * 5}
    assert "shape" in instance.post(INFER, body_of(wrong)).json()["error"]
    assert "datatype" in instance.post(INFER, body_of({**X, "datatype": "INT8", "data": [999] * 4})).json()["error"]
    assert "shape" in instance.post(PREDICT, {"inputs": [[None] * 5]}).json()["error"]
    assert "20" in instance.post(PREDICT, {"instances": [[None] * 4] * 21}).json()["error"]


def test_spans_have_a_limit_of_their_own(instance, answers_on):
    empty = b"\x0a\x04\x12\x02\x12\x00"
    assert_documented(instance.post("/v1/traces", empty * (EXPORT_SPANS_MAX + 1)), 413)
    assert instance.post("/v1/traces", empty * EXPORT_SPANS_MAX).status == 200
    assert_documented(raw(instance, request_head(f"Content-Length: {BODY_BYTES_MAX + 1}", path="/v1/traces")), 413)


@pytest.mark.parametrize("path", [INFER, PREDICT, "/v1/traces"])
def test_a_body_that_does_not_come_in_time_is_a_504(instance, answers_on, path):
    head = request_head("Content-Length: 100", "x-warmpool-timeout-ms: 50", path=path)
    reply = raw(instance, head + b"abc")
    assert_documented(reply, 504)
    assert "3 bytes came within 0.05 s" in reply.json()["error"]


def test_an_upgrade_is_not_taken_up_and_its_request_answered(instance, answers_on):
    body = body_of(X)
    upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQ")
    reply = raw(instance, request_head(f"Content-Length: {len(body)}", *upgrade), body)
    assert (reply.status, reply.json()["outputs"][1]["data"]) == (200, [10.0])


def test_a_caller_that_closed_its_sending_half_gets_its_answer_and_the_end(instance, answers_on):
    body = body_of(X)
    with socket.create_connection(("127.0.0.1", instance.port), timeout=60) as connection:
        connection.sendall(request_head(f"Content-Length: {len(body)}") + body)
        connection.shutdown(socket.SHUT_WR)
        data = b""
        while piece := connection.recv(65536):
            data += piece
    assert data.startswith(b"HTTP/1.1 200 ")
    assert b"[10.0]" in data


def test_a_head_that_is_too_long_is_a_431(instance, answers_on):
    assert_documented(raw(instance, request_head(*["x: " + "a" * 1000] * 70)), 431)


def test_a_caller_that_leaves_in_the_middle_of_its_body_does_not_matter(instance, answers_on):
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", instance.port)) as connection:
            connection.sendall(request_head("Content-Length: 1000") + b"{")


# Metrics


def test_metrics_are_read_by_prometheus_own_parser(instance):
    before = instance.gauge("warmpool_requests_total", model="tiny", method="predict", status="200")
    instance.infer("predict", x=np.ones((3, 4)))
    reply = instance.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    families = {family.name: family for family in prometheus_families(reply.body.decode())}
    assert {"warmpool_requests", "warmpool_request_seconds", "warmpool_batch_rows", "warmpool_ready"} <= set(families)
    assert all(family.documentation for family in families.values())
    assert instance.gauge("warmpool_ready") == 1
    assert instance.gauge("warmpool_requests_total", model="tiny", method="predict", status="200") == before + 1
    assert instance.gauge("warmpool_lane_executables_warm", lane="primary") > 0


def test_refusals_are_counted_without_their_words_as_labels(instance):
    before = instance.gauge("warmpool_requests_total", model="", method="", status="404")
    assert instance.post("/v2/models/some-model-of-a-caller/infer", body_of(X)).status == 404
    assert instance.gauge("warmpool_requests_total", model="", method="", status="404") == before + 1
    assert b"some-model-of-a-caller" not in instance.get("/metrics").body


def test_openmetrics_carry_the_trace_ids_of_requests_as_exemplars(instance):
    trace_ids = {instance.infer("predict", x=np.ones((1, 4))).parameters["trace_id"] for _ in range(5)}
    unsampled = "e" * 32
    instance.infer("predict", x=np.ones((1, 4)), headers={"traceparent": f"00-{unsampled}-{'1' * 16}-00"})
    reply = instance.get("/metrics", accept="application/openmetrics-text; version=1.0.0")
    assert reply.headers["content-type"].startswith("application/openmetrics-text")
    families = {family.name: family for family in openmetrics_families(reply.body.decode())}
    exemplars = [sample.exemplar for sample in families["warmpool_request_seconds"].samples if sample.exemplar]
    found = {exemplar.labels["trace_id"] for exemplar in exemplars}
    assert found & trace_ids
    assert unsampled not in found  # it was exported nowhere
