import asyncio
import json
import logging

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from functions import inference
from functions.inference import STATUSES, inference_function
from functions.pool import Pool
from functions.settings import Settings
from tests.functions.fake_instance import DROP, HANG, Say
from warmpool import errors, wire

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"


class Reply:
    def __init__(self, messages):
        start, *rest = messages
        self.status = start["status"]
        self.headers = {name.decode(): value.decode() for name, value in start["headers"]}
        self.body = b"".join(message["body"] for message in rest)

    def json(self):
        return json.loads(self.body)


def call(author, settings, body=b"[1, 2]", headers=(), disconnect=False):
    """Send one request through the ASGI interface to a function, as its server does."""
    pool = Pool(settings)
    function = inference_function(model="twice", pool=pool)(author)
    app = Starlette(routes=[Route("/", function, methods=["POST"])])
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/",
        "raw_path": b"/",
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in headers],
    }
    incoming = [{"type": "http.disconnect"}] if disconnect else [{"type": "http.request", "body": body}]
    outgoing = []

    async def receive():
        return incoming.pop(0) if incoming else {"type": "http.disconnect"}

    async def send(message):
        outgoing.append(message)

    async def run():
        try:
            await app(scope, receive, send)
        finally:
            await pool.aclose()

    asyncio.run(run())
    return Reply(outgoing)


async def double(request, pool):
    result = await pool.infer({"x": wire.Tensor.of("FP32", await request.json(), field="body")})
    return {"doubled": result["output"].tolist(), "lane": result.served["lane"]}


def raising(error):
    async def author(request, pool):
        raise error

    return author


def returning(content):
    async def author(request, pool):
        return content

    return author


def test_a_dict_becomes_a_json_response(instance, settings_for):
    reply = call(double, settings_for(instance.url))
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    assert reply.json() == {"doubled": [2, 4], "lane": "primary"}


def test_a_response_passes_through_and_gets_the_trace_id():
    reply = call(returning(PlainTextResponse("hello", 201, headers={"x-mine": "1"})), Settings())
    assert (reply.status, reply.body, reply.headers["x-mine"]) == (201, b"hello", "1")
    assert len(reply.headers["x-warmpool-trace-id"]) == 32


def test_numbers_that_json_lacks_are_named_in_a_response():
    content = {"a": [float("nan"), float("inf"), (float("-inf"), 1.5)], "b": None}
    assert call(returning(content), Settings()).json() == {"a": ["NaN", "Infinity", ["-Infinity", 1.5]], "b": None}


def test_another_model_a_method_and_outputs_can_be_asked_for(instance, settings_for):
    async def author(request, pool):
        x = {"x": wire.Tensor.of("FP32", [1])}
        return (await pool.infer(x, model="other", method="gradient", outputs=["output"])).served

    assert call(author, settings_for(instance.url)).json()["model"] == "other"
    (received,) = instance.received
    assert received.path == "/v2/models/other:gradient/infer"
    header_length = received.headers["inference-header-content-length"]
    assert wire.decode_request(received.body, header_length).outputs == (wire.Output("output"),)


def test_the_trace_of_the_caller_goes_on_to_the_instance_and_back(instance, settings_for):
    reply = call(double, settings_for(instance.url), headers=[("traceparent", TRACEPARENT)])
    assert reply.headers["x-warmpool-trace-id"] == TRACE_ID
    assert instance.received[0].headers["traceparent"].startswith(f"00-{TRACE_ID}-")


@pytest.mark.parametrize("headers", [(), [("traceparent", "nonsense")]])
def test_a_request_without_a_trace_gets_one(instance, settings_for, headers):
    reply = call(double, settings_for(instance.url), headers=headers)
    trace_id = reply.headers["x-warmpool-trace-id"]
    assert int(trace_id, 16) > 0
    assert instance.received[0].headers["traceparent"].startswith(f"00-{trace_id}-")


def test_the_callers_time_goes_on_to_the_instance(instance, settings_for):
    call(double, settings_for(instance.url), headers=[("x-warmpool-timeout-ms", "20000")])
    assert 10_000 < int(instance.received[0].headers["x-warmpool-timeout-ms"]) <= 20_000


def test_without_a_callers_time_the_setting_holds(instance, settings_for):
    call(double, settings_for(instance.url, timeout_ms=40_000))
    assert 30_000 < int(instance.received[0].headers["x-warmpool-timeout-ms"]) <= 40_000


@pytest.mark.parametrize("value", ["0", "-1", "soon", "1.5", "", "9" * 30, "5001", "٣"])
def test_a_time_that_cannot_be_used_is_refused_by_name(instance, settings_for, value):
    settings = settings_for(instance.url, timeout_ms_max=5000)
    reply = call(double, settings, headers=[("x-warmpool-timeout-ms", value)])
    assert reply.status == 400
    assert reply.json()["error"].startswith("x-warmpool-timeout-ms: got ")
    assert instance.received == []


def test_a_hanging_pool_is_a_504_in_time(instance, settings_for, monkeypatch):
    monkeypatch.setattr(inference, "GRACE_S", 30.0)  # the pool's limit, however late a busy machine sees it
    instance.script.append(HANG)
    reply = call(double, settings_for(instance.url), headers=[("x-warmpool-timeout-ms", "100")])
    assert reply.status == 504
    assert "the pool did not answer" in reply.json()["error"]


def test_a_hanging_author_is_a_504_in_time():
    async def author(request, pool):
        await asyncio.Event().wait()

    reply = call(author, Settings(), headers=[("x-warmpool-timeout-ms", "50")])
    assert reply.status == 504
    assert reply.json()["error"] == "the function did not finish within 50 ms; retry with more time"


def test_an_authors_own_timeout_is_his_error():
    assert call(raising(TimeoutError("mine")), Settings()).status == 500


@pytest.mark.parametrize("body", [b"", b"{", b"nonsense", b"[NaN]", b'"\xff"', b"[" * 100_000])
def test_bad_json_of_the_caller_is_a_400_that_says_so(body):
    reply = call(double, Settings(), body=body)
    assert reply.status == 400
    assert reply.json()["error"].startswith("body: not valid JSON: ")


def test_a_value_that_does_not_fit_is_a_400_that_names_it():
    reply = call(double, Settings(), body=b'[1, "x"]')
    assert reply.status == 400
    assert reply.json()["error"].startswith("body (item 1): got 'x'; allowed: a number in the range of FP32")


def test_a_body_over_the_limit_is_a_413(settings_for):
    reply = call(double, settings_for("http://127.0.0.1:1", request_bytes_max=10), body=b"[1, 2, 3, 4]")
    assert reply.status == 413
    assert reply.json() == {"error": "body: got over 10 bytes; allowed: 10"}


def test_a_caller_who_left_is_a_499():
    assert call(double, Settings(), disconnect=True).status == 499


@pytest.mark.parametrize(
    ("error", "status", "retry_after"),
    [
        (errors.BadInput("text: got 3; allowed: a string"), 400, None),
        (errors.NotFound("no model 'x'"), 404, None),
        (errors.TooLarge("too much"), 413, None),
        (errors.Overloaded("busy", 2.1), 429, "3"),
        (errors.NotWarm("loading", 0.01), 503, "1"),
        (errors.PoolUnavailable("away"), 503, "1"),
        (errors.LaneFailed("twice"), 503, "1"),
        (errors.DeadlineExceeded("late"), 504, None),
        (errors.Cancelled("gone"), 499, None),
    ],
)
def test_every_error_that_is_meant_for_callers_has_its_status(error, status, retry_after):
    reply = call(raising(error), Settings())
    assert (reply.status, reply.json()) == (status, {"error": str(error)})
    assert reply.headers.get("retry-after") == retry_after


def test_every_error_of_the_tree_has_a_status():
    def below(kind):
        return [kind, *(deeper for child in kind.__subclasses__() for deeper in below(child))]

    tree = [kind for kind in below(errors.WarmpoolError) if kind.__module__ == errors.__name__]
    statuses = {kind: inference._status_of(kind("message")) for kind in tree}
    assert set(statuses.values()) == set(STATUSES.values())


def test_an_instances_refusal_reaches_the_caller(instance, settings_for):
    instance.script.append(Say(400, b'{"error": "inputs[0] (x).shape: got [2]; allowed: [3]"}'))
    reply = call(double, settings_for(instance.url))
    assert reply.status == 400
    assert reply.json() == {"error": "inputs[0] (x).shape: got [2]; allowed: [3]"}


def test_a_pool_that_sheds_is_a_429_with_its_pause(instance, settings_for):
    instance.script.append(Say(429, headers=("retry-after: 7",)))
    reply = call(double, settings_for(instance.url))
    assert (reply.status, reply.headers["retry-after"]) == (429, "7")
    assert len(instance.received) == 1


def test_a_dropped_connection_is_not_seen_by_the_caller(instance, other, settings_for):
    instance.script.append(DROP)
    assert call(double, settings_for(instance.url, other.url)).status == 200


@pytest.mark.parametrize("error", [RuntimeError("hunter2"), KeyError("hunter2"), errors.DeclarationError("hunter2")])
def test_an_authors_exception_goes_to_the_log_and_not_to_the_caller(error, caplog):
    with caplog.at_level(logging.ERROR):
        reply = call(raising(error), Settings(), headers=[("traceparent", TRACEPARENT)])
    assert reply.status == 500
    assert reply.json() == {"error": "internal error", "trace_id": TRACE_ID}
    (record,) = caplog.records
    assert "hunter2" in str(record.exc_info)
    assert record.trace_id == TRACE_ID


def test_a_response_that_is_no_json_is_the_authors_error(caplog):
    assert call(returning({"value": object()}), Settings()).status == 500
    assert "unsupported" in str(caplog.records[0].exc_info)


def test_a_plain_function_is_refused_when_decorated():
    def plain(request, pool):
        return {}

    with pytest.raises(errors.DeclarationError, match="got a plain function; allowed: async def"):
        inference_function(model="twice")(plain)
