"""One connection, byte by byte, on a clock that the test moves: what is answered, and when it is closed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.warmpool.fake_lane import manual_clock, pass_s, rest
from warmpool.errors import Cancelled
from warmpool.http_beginning import BEGIN_S, BEGINNING
from warmpool.http_messages import CallerGone, Request, Response
from warmpool.http_parser import HEAD_BYTES_MAX
from warmpool.http_protocol import HEAD_S_MAX, HttpProtocol
from warmpool.http_server import HttpServer

IDLE_S = 75
GET = b"GET /%d HTTP/1.1\r\nHost: here\r\n\r\n"
POST = b"POST /%d HTTP/1.1\r\nHost: here\r\nContent-Length: 3\r\n\r\nabc"


class Line(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False
        self.reading = True

    def write(self, data: Any) -> None:
        assert not self.closed
        self.written += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Connection:
    """A connection to an application that answers with path and body once the test lets it."""

    def __init__(self, *, held: bool = False, reads: bool = True) -> None:
        self.gate = asyncio.Event()
        if not held:
            self.gate.set()
        self._reads = reads
        self.left = 0  # requests whose caller is gone, as the application was told
        self.waiting = 0
        self.noted = 0  # requests of which it was told that their answers are sent, or never will be
        self.line = Line()
        self.server = HttpServer(self._app, IDLE_S)
        self.protocol = HttpProtocol(self.server)
        self.protocol.connection_made(self.line)

    async def _app(self, request: Request) -> Response:
        body = b""
        while self._reads and not request.ended:
            try:
                await request.more()
            except CallerGone:
                self.left += 1
                return Response(status=499)
            body += request.take()
        body += request.take() if self._reads else b""
        self.waiting += 1
        try:
            with request.caller:
                await self.gate.wait()
        except Cancelled:
            self.left += 1
            return Response(status=499)
        finally:
            self.waiting -= 1
        response = Response(request.path.encode() + b" " + body)
        response.after = self._note
        return response

    def _note(self) -> None:
        self.noted += 1

    async def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            if piece and not self.line.closed:
                self.protocol.data_received(piece)
                await rest()

    @property
    def answers(self) -> list[tuple[int, str]]:
        """Status and body of every response so far."""
        return list(split(self.line.written))


def split(data: bytes) -> Iterator[tuple[int, str]]:
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split()[0])
        body, data = data[:length].decode(), data[length:]
        yield int(head.split()[1]), body if head.startswith(b"HTTP/1.1 200") else json.loads(body)["error"]


# Upgrades


UPGRADES = {
    "h2c": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQ\r\n",
    "websocket": b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: a\r\nSec-WebSocket-Version: 13\r\n",
    "anything": b"Connection: keep-alive, upgrade\r\nUpgrade: tea/1, coffee\r\n",
}
BODIES = {
    "a length": b"Content-Length: 3\r\n\r\nabc",
    "chunks": b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("upgrade", UPGRADES.values(), ids=UPGRADES)
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_an_upgrade_that_is_not_taken_up_loses_nothing_of_the_request_or_of_those_after_it(upgrade, body):
    whole = POST % 0 + b"POST /1 HTTP/1.1\r\nHost: here\r\n" + upgrade + body + POST % 2

    async def in_pieces(step: int) -> None:
        connection = Connection()
        await connection.send(*(whole[start : start + step] for start in range(0, len(whole), step)))
        assert connection.answers == [(200, "/0 abc"), (200, "/1 abc"), (200, "/2 abc")]
        assert not connection.line.closed

    for step in (len(whole), 100, 7, 1):
        manual_clock(in_pieces)(step)


@manual_clock
async def test_connect_is_refused():
    connection = Connection()
    await connection.send(b"CONNECT here:443 HTTP/1.1\r\nHost: here\r\n\r\nxyz")
    assert [status for status, _ in connection.answers] == [400]
    assert connection.line.closed


# Half-closed connections


@manual_clock
async def test_a_caller_that_closed_its_sending_half_gets_every_answer_and_then_the_end():
    connection = Connection(held=True)
    await connection.send(POST % 0 + POST % 1)
    assert connection.protocol.eof_received() is True
    assert not connection.line.closed
    connection.gate.set()
    await rest()
    assert connection.answers == [(200, "/0 abc"), (200, "/1 abc")]
    assert connection.line.closed


@pytest.mark.parametrize("sent", [b"", b"POST /0 HTTP/1.1\r\n", POST[:-1] % 0, POST % 0], ids=len)
def test_a_caller_that_closes_in_the_middle_or_at_the_end_is_gone(sent):
    async def story() -> None:
        connection = Connection()
        await connection.send(sent)
        assert connection.protocol.eof_received() is False

    manual_clock(story)()


@manual_clock
async def test_to_a_caller_that_sends_no_more_the_answer_is_begun_and_nothing_of_it_comes_twice():
    assert len(BEGIN_S) == len(BEGINNING) - 1
    for bytes_begun in range(1, len(BEGINNING) + 1):
        connection = Connection(held=True)
        await connection.send(POST % 0 + GET % 1)
        assert connection.line.written == b"", "before that nothing is"
        assert connection.protocol.eof_received() is True
        for wait_s in BEGIN_S[: bytes_begun - 1]:
            await pass_s(wait_s)
        assert connection.line.written == BEGINNING[:bytes_begun]
        connection.gate.set()
        await rest()
        assert connection.answers == [(200, "/0 abc"), (200, "/1 ")]
        assert connection.line.closed
        written = connection.line.written
        await pass_s(sum(BEGIN_S))
        assert connection.line.written == written


@manual_clock
async def test_each_answer_to_a_caller_that_sends_no_more_is_begun_in_its_turn():
    connection = Connection(held=True)
    await connection.send(POST % 0 + POST % 1)
    connection.protocol.eof_received()
    first, connection.gate = connection.gate, asyncio.Event()
    first.set()
    await rest()
    assert connection.line.written.endswith(b"/0 abcH")
    connection.gate.set()
    await rest()
    assert connection.answers == [(200, "/0 abc"), (200, "/1 abc")]


@manual_clock
async def test_an_answer_that_has_begun_stays_so_however_long_it_takes():
    connection = Connection(held=True)
    await connection.send(POST % 0)
    connection.protocol.eof_received()
    for wait_s in (*BEGIN_S, 10 * IDLE_S):
        await pass_s(wait_s)
    assert connection.line.written == BEGINNING
    connection.gate.set()
    await rest()
    assert connection.answers == [(200, "/0 abc")]


@manual_clock
async def test_an_answer_that_has_begun_may_turn_out_to_be_to_no_http():
    connection = Connection(held=True)
    await connection.send(GET % 0 + b"GARBAGE\r\n\r\n")
    connection.protocol.eof_received()
    assert connection.line.written == b"H"
    connection.gate.set()
    await rest()
    assert [status for status, _ in connection.answers] == [200, 400]


@manual_clock
async def test_who_waits_to_be_told_to_go_on_is_told_once_and_only_where_something_is_to_come():
    head = b"POST /0 HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"
    waiting, hasty = Connection(), Connection()
    await waiting.send(head, b"a", b"bc")
    assert waiting.line.written.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 ")
    await hasty.send(head + b"abc")
    assert hasty.answers == [(200, "/0 abc")]


# Callers that leave


@pytest.mark.parametrize("error", [None, ConnectionResetError()], ids=["closed", "reset"])
@pytest.mark.parametrize("sent", [POST % 0, POST % 0 + POST % 1, GET % 0 + POST[:-1] % 1], ids=["one", "two", "half"])
def test_a_caller_that_leaves_ends_what_runs_for_it_and_nothing_else_is_begun(sent, error, caplog):
    async def story() -> None:
        connection = Connection(held=True)
        await connection.send(sent)
        assert connection.waiting == 1
        connection.line.closed = True
        connection.protocol.connection_lost(error)
        await rest()
        assert (connection.left, connection.waiting) == (1, 0)

    manual_clock(story)()
    assert caplog.records == [], "nothing was written"


@manual_clock
async def test_a_caller_that_leaves_after_it_closed_its_sending_half_is_sent_nothing_more():
    connection = Connection(held=True)
    await connection.send(POST % 0)
    connection.protocol.eof_received()
    connection.line.closed = True  # a write raises from now on
    connection.protocol.connection_lost(BrokenPipeError())
    await rest()
    assert (connection.left, connection.waiting) == (1, 0)
    await pass_s(sum(BEGIN_S))
    assert connection.line.written == b"H"


@manual_clock
async def test_a_caller_that_leaves_between_two_requests_leaves_nothing():
    connection = Connection()
    await connection.send(POST % 0)
    connection.line.closed = True
    connection.protocol.connection_lost(None)
    await rest()
    assert (connection.left, connection.waiting) == (0, 0)


@manual_clock
async def test_the_end_is_watched_for_while_an_answer_is_awaited_however_large_the_body_was():
    connection = Connection(held=True)
    await connection.send(b"POST /0 HTTP/1.1\r\nContent-Length: 200000\r\n\r\n", *[b"b" * 100_000] * 2)
    assert (connection.waiting, connection.line.reading) == (1, True)
    await connection.send(GET % 1)
    assert not connection.line.reading, "a second request waits in the socket"


@pytest.mark.parametrize(
    ("target", "path"),
    [("http://here:80/a?b#c", "/a"), ("http://here", "/"), ("http://here?b", "/"), ("/a%20%C3%A9%ff", "/a é\ufffd")],
)
def test_a_target_may_have_a_host_and_no_path_and_its_path_is_decoded(target, path):
    async def story() -> None:
        connection = Connection()
        await connection.send(f"GET {target} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
        assert connection.answers == [(200, f"{path} ")]

    manual_clock(story)()


# Many requests, and callers that do not take their answers


@manual_clock
async def test_what_comes_behind_several_requests_is_read_when_the_last_of_them_is_answered():
    connection = Connection(held=True)
    await connection.send(GET % 0 + GET % 1 + GET % 2)
    assert not connection.line.reading
    for number in range(2):
        first, connection.gate = connection.gate, asyncio.Event()
        first.set()
        await rest()
        assert len(connection.answers) == number + 1
        assert connection.line.reading == (number == 1), "else each answer would let in any number of others"
    connection.gate.set()
    await rest()
    assert connection.answers == [(200, f"/{number} ") for number in range(3)]


@manual_clock
async def test_what_waits_for_a_caller_that_takes_nothing_is_one_answer():
    connection = Connection()
    connection.protocol.pause_writing()
    await connection.send(GET % 0, GET % 1)
    assert (connection.answers, connection.line.reading) == ([], False)
    connection.protocol.resume_writing()
    await rest()
    assert connection.answers == [(200, "/0 "), (200, "/1 ")]


@manual_clock
async def test_an_answer_that_is_not_taken_when_the_server_ends_is_noted_all_the_same():
    connection = Connection()
    connection.protocol.pause_writing()
    await connection.send(GET % 0)
    assert connection.noted == 0
    await connection.server.drain(0.0)
    await rest()
    assert (connection.noted, connection.server.tasks) == (1, set())


# What is no HTTP


@manual_clock
async def test_what_is_no_http_is_told_after_the_answers_to_the_requests_before_it():
    connection = Connection(held=True)
    await connection.send(GET % 0 + GET % 1 + GET % 2 + b"GARBAGE\r\n\r\n", b"more")
    assert connection.answers == []
    connection.gate.set()
    await rest()
    assert [status for status, _ in connection.answers] == [200, 200, 200, 400]
    assert connection.line.closed


@manual_clock
async def test_a_request_that_cannot_be_read_to_its_end_is_refused_after_those_before_it():
    bad = b"POST /1 HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\nZZ\r\n"
    alone = Connection()
    await alone.send(bad)
    assert [status for status, _ in alone.answers] == [400]
    assert (alone.line.closed, alone.left) == (True, 1)
    behind = Connection(held=True)
    await behind.send(GET % 0 + bad, b"more")
    assert behind.answers == []
    assert behind.protocol.eof_received() is True
    behind.gate.set()
    await rest()
    assert [status for status, _ in behind.answers] == [200, 400]
    assert behind.line.closed


@given(st.binary(min_size=1, max_size=60), st.integers(1, 20))
def test_whatever_comes_is_answered_in_the_documented_form_or_waited_for(data, step):
    async def story() -> None:
        connection = Connection()
        await connection.send(*(data[start : start + step] for start in range(0, len(data), step)))
        assert connection.line.closed == any(status == 400 for status, _ in connection.answers)
        await pass_s(IDLE_S)
        assert connection.line.closed

    manual_clock(story)()


# Size


FIELD = b"x: " + b"a" * 1000 + b"\r\n"


@pytest.mark.parametrize(
    "head",
    [
        [b"GET /0 HTTP/1.1\r\n", *[FIELD] * 70],
        [b"GET /0 HTTP/1.1\r\n" + FIELD * 70],
        [b"GET /0 HTTP/1.1\r\nx: ", *[b"a" * 1000] * 70],
        [b"GET /", *[b"a" * 1000] * 70],
        [b"GET /0 HTTP/1.1\r\n", *[b"x:\r\n" * 100] * 20],
        [b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\n", FIELD * 30, b"\r\n"],
        [b"\r\n" * 1000] * 40,
        [b"POST /0 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", *[FIELD] * 70],
        [b"POST /0 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nx: ", *[b"a" * 1000] * 70],
        [b"POST /0 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;x=", *[b"a" * 1000] * 70],
    ],
    ids=[
        "fields",
        "one piece",
        "one field",
        "url",
        "many",
        "both",
        "empty lines",
        "trailers",
        "one trailer",
        "extension",
    ],
)
def test_what_is_around_a_body_is_bounded(head):
    async def story() -> None:
        connection = Connection()
        await connection.send(*head)
        ((status, message),) = connection.answers
        assert (status, str(HEAD_BYTES_MAX) in message) == (431, True)
        assert connection.line.closed

    manual_clock(story)()


@manual_clock
async def test_heads_below_the_bound_and_bodies_above_it_are_taken_again_and_again():
    connection = Connection()
    for _ in range(4):
        await connection.send(b"POST /0 HTTP/1.1\r\n", *[FIELD] * 60, b"Content-Length: 100000\r\n\r\n")
        await connection.send(*[b"b" * 1000] * 100)
    assert [status for status, _ in connection.answers] == [200] * 4


@manual_clock
async def test_any_number_of_requests_without_fields_is_taken():
    bare = b"GET /0 HTTP/1.1\r\n\r\n"
    connection = Connection()
    for _ in range(4):
        await connection.send(*[bare] * (HEAD_BYTES_MAX // len(bare) // 3))
    await connection.send(bare * (1 + HEAD_BYTES_MAX // len(bare)), bare)
    assert not connection.line.closed


# Time


@pytest.mark.parametrize(
    ("first", "drip"),
    [(b"G", b""), (b"\r\n", b"\r\n"), (b"GET /", b"a"), (b"GET /0 HTTP/1.1\r\n", b"a: b\r\n")],
    ids=["nothing more", "empty lines", "url", "fields"],
)
def test_a_head_that_is_not_there_in_time_ends_the_connection_however_it_drips(first, drip):
    async def story() -> None:
        for answered_before in (False, True):
            connection = Connection()
            if answered_before:
                await connection.send(GET % 9)
            await connection.send(first)
            for _ in range(int(HEAD_S_MAX) - 1):
                await pass_s(1)
                await connection.send(drip)
                assert not connection.line.closed
            await pass_s(1)
            assert connection.line.closed

    manual_clock(story)()


@manual_clock
async def test_a_connection_without_a_request_ends_when_it_has_been_idle_for_long():
    fresh, used = Connection(), Connection()
    await used.send(GET % 0)
    await pass_s(IDLE_S - 1)
    assert [connection.line.closed for connection in (fresh, used)] == [False, False]
    await pass_s(1)
    assert [connection.line.closed for connection in (fresh, used)] == [True, True]


@manual_clock
async def test_an_answer_may_take_longer_than_any_of_these_times():
    connection = Connection(held=True)
    await connection.send(*((POST % 0)[start : start + 9] for start in range(0, len(POST), 9)))
    await pass_s(10 * IDLE_S)
    assert not connection.line.closed
    connection.gate.set()
    await rest()
    assert connection.answers == [(200, "/0 abc")]


@manual_clock
async def test_a_body_that_comes_after_its_answer_has_little_time_and_then_the_connection_goes_on():
    dripping, whole = Connection(reads=False), Connection(reads=False)
    for connection in (dripping, whole):
        await connection.send(b"POST /0 HTTP/1.1\r\nHost: here\r\nContent-Length: 100\r\n\r\n")
        assert connection.answers == [(200, "/0 ")]
    for _ in range(int(HEAD_S_MAX) + 1):
        await dripping.send(b"a")
        await pass_s(1)
    assert dripping.line.closed
    await whole.send(b"a" * 50)
    await whole.send(b"a" * 50 + GET % 1)
    assert whole.answers == [(200, "/0 "), (200, "/1 ")]
    await pass_s(IDLE_S - 1)
    assert not whole.line.closed


@manual_clock
async def test_a_connection_is_idle_from_the_end_of_a_late_body_on():
    connection = Connection(reads=False)
    await connection.send(b"POST /0 HTTP/1.1\r\nHost: here\r\nContent-Length: 100\r\n\r\n", b"a" * 50)
    await pass_s(HEAD_S_MAX - 1)
    await connection.send(b"a" * 50)
    await pass_s(IDLE_S - 1)
    assert not connection.line.closed
    await pass_s(1)
    assert [connection.line.closed] == [True]


@manual_clock
async def test_a_slow_request_behind_a_late_body_is_not_cut_off():
    connection = Connection(reads=False)
    await connection.send(b"POST /0 HTTP/1.1\r\nHost: here\r\nContent-Length: 10\r\n\r\n")
    connection.gate.clear()
    await connection.send(b"a" * 10 + GET % 1)
    await pass_s(10 * IDLE_S)
    connection.gate.set()
    await rest()
    assert connection.answers == [(200, "/0 "), (200, "/1 ")]
