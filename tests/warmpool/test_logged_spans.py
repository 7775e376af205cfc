"""Spans in a log: as processes wrote them, as Google Cloud gives them back, among whatever else was written."""

import json

import pytest

from tests.warmpool.command import warmpool
from warmpool.logged_spans import NoLog, logged_traces
from warmpool.tracing import Span

LOGGED = {
    "name": "run",
    "context": {"trace_id": "0x" + "a" * 32, "span_id": "0x" + "b" * 16, "trace_state": "[]"},
    "kind": "SpanKind.INTERNAL",
    "parent_id": "0x" + "c" * 16,
    "start_time": "2026-11-30T06:03:09.412001Z",
    "end_time": "2026-11-30T06:03:09.413Z",
    "status": {"status_code": "UNSET"},
    "attributes": {"warmpool.cold": True, "rows": 3},
    "events": [],
    "links": [],
    "resource": {"attributes": {"service.name": "warmpool", "telemetry.sdk.name": "opentelemetry"}, "schema_url": ""},
}
AUDIT = {"time": "2026-11-30T06:03:09.412Z", "event": "load", "who": "ada", "pid": 1}
START_NS = 1796018589412001000


def entry(content):
    return {"insertId": "1", "jsonPayload": content, "resource": {"type": "cloud_run_revision"}}


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(map(json.dumps, (AUDIT, LOGGED))) + "\n\n",
        f"[2026-11-30 06:03:09 +0000] [1] [INFO] listening\n1 request\n{json.dumps(LOGGED)}\n",
        json.dumps([entry(AUDIT), entry(LOGGED), {"textPayload": "listening"}]),
        json.dumps([entry(LOGGED)], indent=2),
        json.dumps([LOGGED, 1, None]),
    ],
)
def test_what_is_a_span_is_found_among_what_is_none(text):
    (trace,) = logged_traces(text).read(10)
    assert trace.trace_id == "a" * 32
    assert trace.spans == [
        Span(
            name="run", span_id="b" * 16, parent_id="c" * 16, start_ns=START_NS, end_ns=START_NS + 999_000,
            attributes={"warmpool.cold": True, "rows": 3, "service.name": "warmpool"},
        )
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("listening\n{1\n", "line 2 is no JSON"),
        ("[{1,", "the list is no JSON"),
        (json.dumps(AUDIT) + "\n" + json.dumps(LOGGED | {"start_time": "soon"}), r"line 2 is no span: .*start_time"),
        (json.dumps([entry(LOGGED | {"context": {}})]), "entry 1 is no span: .*trace_id"),
    ],
)
def test_what_cannot_be_read_is_said_with_its_place(text, message):
    with pytest.raises(NoLog, match=message):
        logged_traces(text)


def test_the_command_draws_them_as_it_draws_an_instances(tmp_path):
    file = tmp_path / "log.json"
    file.write_text(json.dumps([entry(LOGGED), entry(LOGGED | {"parent_id": None, "name": "front"})]))
    drawn = warmpool("traces", "--file", str(file))
    assert drawn.returncode == 0, drawn.stderr
    assert f"trace {'a' * 32}  1.0 ms  cold" in drawn.stdout
    assert "front" in drawn.stdout
    missing = warmpool("traces", "--file", str(tmp_path / "none"))
    assert missing.returncode == 1
    assert "cannot be read" in missing.stderr
