from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from benchmarks.connection import Connection, http_request, poll


@contextmanager
def answering(*pieces: Sequence[bytes]) -> Iterator[int]:
    """A server that reads a request and sends the next answer, piece by piece, each on a connection of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answer in pieces:
                client, _ = listener.accept()
                with client:
                    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    client.recv(1 << 16)
                    for piece in answer:
                        client.sendall(piece)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(60)


OK = (b"HTTP/1.1 200 OK\r\nInference-Header-Content-Length: 2\r\nConte", b"nt-Length: 6\r\n\r", b"\n{}ab", b"cd")
BUSY = (b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n",)


def test_a_response_is_read_whole_however_it_is_cut() -> None:
    with answering(OK) as port, Connection(port) as connection:
        response = connection.exchange(http_request("GET", "/"))
    assert (response.status, response.body, response.json_bytes) == (200, b"{}abcd", 2)


def test_a_response_that_ends_early_is_an_error() -> None:
    with (
        answering(OK[:3]) as port,
        Connection(port) as connection,
        pytest.raises(ConnectionResetError, match="closed"),
    ):
        connection.exchange(http_request("GET", "/"))


def test_polling_goes_on_until_the_answer_is_wanted_and_says_when_that_was() -> None:
    with answering(BUSY, OK) as port:
        response, _ = poll(port, http_request("GET", "/"), 10.0, lambda response: response.status == 200)
    assert response.status == 200


def test_polling_ends_in_time_and_says_what_it_saw_last() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(TimeoutError, match="refused"):
        poll(port, http_request("GET", "/"), 0.05, lambda _: True)
