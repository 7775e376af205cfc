"""The bytes of requests are bounded, over both protocols together, from the moment that they are announced or there."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest

from tests.instance_process import Reply, serving, wait_until
from tests.warmpool.stopped_lane import StoppedLane
from tests.warmpool.test_grpc_app import connected, outputs_of, request
from tests.warmpool.triton import messages

BYTES_MAX = 4000
ROW = b'{"instances": [[1, 2, 3, 4]]}'
INFER = "/v1/models/tiny:predict"


@pytest.fixture(scope="module")
def instance(tiny_store, tmp_path_factory, port):
    log_file = tmp_path_factory.mktemp("instance") / "log"
    flags = ("--grpc-port", str(port), "--queue-bytes-max", str(BYTES_MAX))
    with serving(tiny_store, log_file, *flags) as running:
        yield running
        assert "Traceback" not in running.log


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as executor:
        yield executor


def held(instance):
    return instance.gauge("warmpool_request_bytes_held")


def body_of(size):
    return ROW + b" " * (size - len(ROW))


def announced(instance, *fields, path=INFER):
    """What is answered to the head of a request, none of whose body is sent."""
    with socket.create_connection(("127.0.0.1", instance.port), timeout=30) as connection:
        head = "\r\n".join((f"POST {path} HTTP/1.1", "Host: here", "Connection: close", *fields, "", ""))
        connection.sendall(head.encode())
        data = b"".join(iter(lambda: connection.recv(65536), b""))
    lines, _, body = data.partition(b"\r\n\r\n")
    head_lines = lines.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head_lines[1:])
    return Reply(int(head_lines[0].split()[1]), headers, body)


def test_what_would_be_too_much_is_refused_unread_and_what_fits_is_answered(instance, pool):
    with StoppedLane(instance) as lane:
        waiting = [pool.submit(instance.post, INFER, body_of(1500)) for _ in range(2)]
        lane.wait_busy()
        wait_until(lambda: held(instance) == 3000)
        for path in (INFER, "/v2/models/tiny:predict/infer", "/v1/traces"):
            refused = announced(instance, "Content-Length: 1001", path=path)
            assert (refused.status, refused.headers["retry-after"]) == (429, "1")
            assert refused.json() == {"error": "requests hold 3000 bytes, 4000 may"}
        waiting.append(pool.submit(instance.post, INFER, body_of(1000)))
        wait_until(lambda: held(instance) == BYTES_MAX)
        assert instance.post(INFER, ROW).status == 429
        assert instance.get("/v2/health/live").status == 200
        status = instance.status()
        assert status["bytes_held"] == BYTES_MAX
    assert [reply.result().json()["predictions"][0]["sum"] for reply in waiting] == [10.0] * 3
    assert held(instance) == 0
    assert instance.post(INFER, body_of(BYTES_MAX)).status == 200


def test_what_can_never_fit_is_a_413_that_says_what_may(instance):
    reply = announced(instance, f"Content-Length: {BYTES_MAX + 1}")
    assert reply.status == 413
    assert reply.json() == {"error": f"body: {BYTES_MAX + 1} bytes, allowed in one request: {BYTES_MAX}"}
    assert held(instance) == 0


def test_a_body_that_is_announced_is_held_before_it_comes_and_not_after_its_caller_left(instance):
    with socket.create_connection(("127.0.0.1", instance.port), timeout=30) as connection:
        connection.sendall(f"POST {INFER} HTTP/1.1\r\nHost: here\r\nContent-Length: 3000\r\n\r\n".encode())
        wait_until(lambda: held(instance) == 3000)
        assert instance.post(INFER, body_of(1001)).status == 429
    wait_until(lambda: held(instance) == 0)


def test_a_body_that_does_not_say_how_long_it_is_is_held_as_it_comes(instance):
    chunk = b"%x\r\n" % 1500 + body_of(1500) + b"\r\n"
    with socket.create_connection(("127.0.0.1", instance.port), timeout=30) as connection:
        connection.sendall(
            f"POST {INFER} HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n".encode() + chunk
        )
        wait_until(lambda: held(instance) == 1500)
        connection.sendall(b"0\r\n\r\n")
        assert b" 200 " in connection.recv(65536).partition(b"\r\n")[0]
    wait_until(lambda: held(instance) == 0)


def test_whoever_is_refused_for_what_it_sent_holds_nothing_any_more(instance):
    for body in (b"{" * 2000, json.dumps({"instances": [[1, 2]] * 100}).encode()):
        assert instance.post(INFER, body).status == 400
        assert held(instance) == 0


def test_messages_count_too_and_their_callers_are_told_when_to_come_again(instance, port, pool):
    with connected(port) as stub:
        padded = request("predict", x=[[1, 2, 3, 4]])
        padded.id = "i" * 1500
        size = padded.ByteSize()
        with StoppedLane(instance) as lane:
            waiting = [stub.ModelInfer.future(padded) for _ in range(2)]
            lane.wait_busy()
            wait_until(lambda: held(instance) == 2 * size)
            with pytest.raises(grpc.RpcError) as caught:
                stub.ModelInfer(padded, timeout=30)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert caught.value.details() == f"requests hold {2 * size} bytes, {BYTES_MAX} may"
            trailing: Any = caught.value.trailing_metadata()
            assert dict(trailing)["retry-after"] == "1"
            assert stub.ServerLive(messages.ServerLiveRequest()).live
            over_http = pool.submit(instance.infer, "predict", x=np.ones((1, 4)))
            wait_until(lambda: held(instance) > 2 * size)
        assert [outputs_of(call.result())["sum"].tolist() for call in waiting] == [[10.0]] * 2
        assert over_http.result().outputs["sum"].tolist() == [4.0]
        assert instance.gauge("warmpool_requests_total", model="", method="", status="RESOURCE_EXHAUSTED") == 1
    assert held(instance) == 0
