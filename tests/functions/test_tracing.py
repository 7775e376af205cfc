import asyncio
import itertools
import logging
import os
import subprocess
import sys

import pytest
from opentelemetry import trace as otel
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from functions import tracing
from functions.settings import Settings
from functions.tracing import Call, ComplaintFilter, RequestTrace
from tests.functions.fake_instance import CUTS, Say
from tests.functions.test_inference import TRACE_ID, TRACEPARENT, call, double, raising
from warmpool import wire
from warmpool.errors import BadInput
from warmpool.logged_spans import logged_traces
from warmpool.tracing import trace_context


@pytest.fixture
def spans(monkeypatch):
    """The spans that an SDK gets from the functions of this process, in the order in which they end."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "tracer", provider.get_tracer("test"))
    yield exporter.get_finished_spans
    provider.shutdown()


def leaves(finished):
    return [span for span in finished if span.name != "function"]


def test_a_request_has_a_span_for_each_part(instance, settings_for, spans):
    call(double, settings_for(instance.url), headers=[("traceparent", TRACEPARENT)])
    assert [span.name for span in spans()] == ["function.pre", "pool.infer", "function.post", "function"]
    root = spans()[-1]
    assert root.parent.span_id == int(TRACEPARENT.split("-")[2], 16)
    assert {span.parent.span_id for span in leaves(spans())} == {root.context.span_id}
    assert {otel.format_trace_id(span.context.trace_id) for span in spans()} == {TRACE_ID}


def test_the_instance_hangs_its_spans_below_the_call(instance, settings_for, spans):
    call(double, settings_for(instance.url))
    sent = instance.received[0].headers["traceparent"].split("-")[2]
    (infer,) = (span for span in spans() if span.name == "pool.infer")
    assert sent == otel.format_span_id(infer.context.span_id)
    assert infer.kind is SpanKind.CLIENT


def test_the_leaves_sum_to_the_whole(instance, settings_for, spans):
    async def author(request, pool):
        await double(request, pool)
        return await double(request, pool)

    call(author, settings_for(instance.url))
    finished = spans()
    assert [span.name for span in leaves(finished)] == [
        "function.pre",
        "pool.infer",
        "function.post",
        "pool.infer",
        "function.post",
    ]
    assert sum(span.end_time - span.start_time for span in leaves(finished)) == (
        finished[-1].end_time - finished[-1].start_time
    )


def test_calls_at_once_share_one_phase_around_them(instance, settings_for, spans):
    async def author(request, pool):
        x = {"x": wire.Tensor.of("FP32", [1])}
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(pool.infer(x))
        return {}

    call(author, settings_for(instance.url))
    assert sorted(span.name for span in spans()) == ["function", "function.post", "function.pre"] + 3 * ["pool.infer"]
    last_call_ns = max(span.end_time for span in spans() if span.name == "pool.infer")
    assert last_call_ns == next(span.start_time for span in spans() if span.name == "function.post")


@pytest.mark.parametrize("told", [Say(503, headers=("retry-after: 0",)), CUTS[-1]])
def test_a_call_says_how_it_was_served_once_however_often_it_was_tried(instance, settings_for, spans, told):
    instance.script.append(told)
    call(double, settings_for(instance.url))
    (infer,) = (span for span in spans() if span.name == "pool.infer")
    attributes = dict(infer.attributes)
    assert attributes == {
        "warmpool.model": "twice",
        "warmpool.method": "",
        "warmpool.retried": True,
        "warmpool.lane": "primary",
        "warmpool.cold": False,
        "warmpool.version": "7",
    }


@pytest.mark.parametrize(
    ("front_ns", "there_ns", "back_ns"),
    [
        ((1010, 1090), 1010, 1090),
        ((1000, 1100), 1000, 1100),
        ((1050, 1050), 1050, 1050),
        ((10, 90), 1010, 1090),  # another clock: 80 of the 100 were the instance's
        ((1080, 1120), 1030, 1070),
        ((0, 200), 1000, 1100),  # another clock, and one that runs fast
    ],
)
def test_the_ways_to_the_instance_and_back_are_spans_around_its_own(spans, front_ns, there_ns, back_ns):
    call = Call(None, 1000)
    call.answered(front_ns)
    call.end(end_ns=1100)
    request, response, infer = spans()
    assert [span.name for span in (request, response, infer)] == ["pool.request", "pool.response", "pool.infer"]
    assert {span.parent.span_id for span in (request, response)} == {infer.context.span_id}
    assert (infer.start_time, infer.end_time) == (1000, 1100)
    assert (request.start_time, request.end_time) == (1000, there_ns)
    assert (response.start_time, response.end_time) == (back_ns, 1100)


def test_an_instance_that_does_not_say_when_it_answered_leaves_the_call_whole(spans):
    call = Call()
    call.answered(None)
    call.end()
    assert [span.name for span in spans()] == ["pool.infer"]


def test_a_failure_is_marked_by_its_kind_and_without_its_text(spans):
    call(raising(BadInput("text: got 'hunter2'")), Settings())
    root = spans()[-1]
    assert root.status.status_code is StatusCode.ERROR
    assert root.attributes["error.type"] == "BadInput"
    assert root.attributes["http.response.status_code"] == 400
    assert root.events == ()
    assert "hunter2" not in root.to_json()


def test_a_cancelled_request_ends_its_spans(instance, settings_for, spans):
    async def author(request, pool):
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        call(author, settings_for(instance.url))
    assert [span.name for span in spans()] == ["function.pre", "function"]


def test_the_first_request_of_a_process_is_its_cold_start(monkeypatch, spans):
    monkeypatch.setattr(tracing, "_requests", itertools.count())
    RequestTrace("a", {}).finish(200)
    RequestTrace("a", {}).finish(200)
    assert [span.attributes["faas.coldstart"] for span in spans() if span.name == "function"] == [True, False]


def test_a_collector_that_is_away_is_mentioned_once_however_often_it_is_tried(dead_url):
    code = """
from opentelemetry import trace
from functions import tracing
tracing.EXPORT_TIMEOUT_S = 0.05
tracing.prepare("a")()
for _ in range(5):
    tracing.RequestTrace("a", {}).finish(200)
    trace.get_tracer_provider().force_flush()
"""
    environment = dict(os.environ) | {"OTEL_EXPORTER_OTLP_ENDPOINT": dead_url}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("share", [0, 1])
def test_on_the_console_a_span_is_a_line_and_the_instance_hears_which_traces_are_sampled(share):
    code = """
import sys
from functions import tracing
tracing.prepare("embed")()
assert "requests" not in sys.modules
request = tracing.RequestTrace("embed", {"traceparent": f"00-{'a' * 32}-{'b' * 16}-00", "tracestate": "who=ada"})
call = request.begin_call()
request.end_call(call)
request.finish(200)
print(call.headers["traceparent"], file=sys.stderr)
"""
    told = {tracing.EXPORTER_VARIABLE: tracing.CONSOLE, "OTEL_TRACES_SAMPLER": "traceidratio"}
    kept = {name: text for name, text in os.environ.items() if not name.startswith("OTEL_")}
    result = subprocess.run(
        [sys.executable, "-c", code], env=kept | told | {"OTEL_TRACES_SAMPLER_ARG": str(share)}, capture_output=True,
        text=True, check=True, timeout=60,
    )  # fmt: skip
    trace_id, parent_id, sampled = trace_context(result.stderr.strip())
    assert sampled == bool(share)
    assert "ada" not in result.stdout
    traces = logged_traces(result.stdout).read(10)
    assert [trace.trace_id for trace in traces] == [trace_id] * share
    for trace in traces:
        assert {one.name for one in trace.spans} == {"function", "function.pre", "pool.infer", "function.post"}
        assert {one.attributes["service.name"] for one in trace.spans} == {"embed"}
        assert parent_id in {one.span_id for one in trace.spans if one.name == "pool.infer"}


def test_nothing_is_loaded_or_started_without_an_endpoint(monkeypatch):
    for name in (*tracing.ENDPOINT_VARIABLES, tracing.EXPORTER_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    tracing.prepare("a")()
    assert isinstance(otel.get_tracer_provider(), otel.ProxyTracerProvider)


def test_complaints_come_once_a_minute():
    now_s = 100.0
    complaints = ComplaintFilter(lambda: now_s)
    record = logging.LogRecord("exporter", logging.ERROR, __file__, 1, "collector is away", None, None)
    assert [complaints.filter(record) for _ in range(3)] == [True, False, False]
    now_s = 160.0
    assert [complaints.filter(record) for _ in range(3)] == [True, False, False]
