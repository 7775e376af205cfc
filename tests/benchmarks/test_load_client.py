from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmarks.connection import http_request
from benchmarks.load_client import load


class Echo(BaseHTTPRequestHandler):
    """Answers with the body that came, in two pieces, and keeps the connection."""

    protocol_version = "HTTP/1.1"
    seen: list[bytes]
    most: int
    running: int
    lock: threading.Lock

    def do_POST(self) -> None:
        kind = type(self)
        body = self.rfile.read(int(self.headers["content-length"]))
        with kind.lock:
            kind.seen.append(body)
            kind.running += 1
            kind.most = max(kind.most, kind.running)
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        self.wfile.write(head + body[:3])
        self.wfile.flush()
        with kind.lock:
            kind.running -= 1
        self.wfile.write(body[3:])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def echo() -> Iterator[type[Echo]]:
    kind = type("Kind", (Echo,), {"seen": [], "most": 0, "running": 0, "lock": threading.Lock()})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        kind.port = server.server_port  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield kind
        server.shutdown()
        thread.join()


def test_requests_are_sent_in_turn_and_each_response_belongs_to_its_request(echo: type[Echo]) -> None:
    bodies = [f"request {number}, {'x' * number * 1000}".encode() for number in range(4)]
    requests = [http_request("POST", "/", body) for body in bodies]
    done, responses = load(echo.port, requests, 3, 10)  # type: ignore[attr-defined]
    assert 10 <= len(done) <= 12  # what was under way is told too
    assert sorted(one["number"] for one in done) == list(range(len(done)))
    for one, response in zip(done, responses, strict=True):
        assert response.partition(b"\r\n\r\n")[2] == bodies[one["number"] % 4]
        assert one["sent_s"] < one["answered_s"]
    assert len(echo.seen) == len(done)


def test_there_is_never_more_than_one_request_on_a_connection(echo: type[Echo]) -> None:
    requests = [http_request("POST", "/", b"1234")]
    done, _ = load(echo.port, requests, 2, 40)  # type: ignore[attr-defined]
    assert echo.most <= 2
    answered = sorted(one["answered_s"] for one in done)
    assert [one["answered_s"] for one in done] == answered


def test_a_server_that_hangs_up_is_an_error(echo: type[Echo]) -> None:
    with pytest.raises(ConnectionError, match="closed a connection"):
        load(echo.port, [http_request("GET", "/")[:-4] + b"\r\nconnection: close\r\n\r\n"], 1, 5)  # type: ignore[attr-defined]
