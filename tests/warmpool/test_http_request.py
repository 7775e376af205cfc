"""A body is read within its size and its caller's time, and what the reading took is no longer there for the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from starlette.requests import Request

from tests.warmpool.fake_lane import manual_clock, pass_s
from warmpool import wire
from warmpool.errors import BadInput, DeadlineExceeded, TooLarge
from warmpool.http_request import Call, read_body, timeout_s, whole_number
from warmpool.settings import DEADLINE_MS_MAX


def request(*pieces: tuple[float, bytes], ends: bool = True, **headers: str) -> Request:
    """A request whose body comes in pieces, each after some seconds."""
    left = list(pieces)

    async def receive() -> dict:
        if not left:
            await asyncio.Event().wait()
        wait_s, data = left.pop(0)
        await pass_s(wait_s)
        return {"type": "http.request", "body": data, "more_body": bool(left) or not ends}

    fields = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "POST", "headers": fields}, receive)


@manual_clock
async def test_a_body_in_pieces_is_put_together():
    assert await read_body(request((0, b"ab"), (1, b""), (1, b"c")), 3, 10) == b"abc"
    assert await read_body(request((0, b"")), 3, 10) == b""


@manual_clock
async def test_what_reading_took_is_no_longer_there_for_the_answer():
    call = Call(request((1, b"a"), (2.5, b"b"), x_warmpool_timeout_ms="5000"), "t")
    arrived_ns = call.start_ns
    body, left_s = await call.body(10, 1)
    assert (body, left_s) == (b"ab", 1.5)
    assert call.start_ns > arrived_ns, "its span begins when the body is there"


@manual_clock
async def test_a_body_that_takes_longer_than_the_caller_has_is_not_waited_for():
    with pytest.raises(DeadlineExceeded, match=r"^body: 1 bytes came within 4 s, and not its end$"):
        await Call(request((1, b"a"), (3.5, b"b")), "t").body(10, 4000)


@pytest.mark.parametrize("lengths", [[4], [1, 3], [3, 1], [2, 2]])
def test_a_body_beyond_its_size_is_refused_however_it_comes(lengths: Sequence[int]):
    async def story() -> None:
        with pytest.raises(TooLarge, match=r"^body: more than 3 bytes, allowed: 3$"):
            await read_body(request(*((0, b"a" * length) for length in lengths), ends=False), 3, 10)

    manual_clock(story)()


@manual_clock
async def test_a_body_that_says_to_be_too_large_is_refused_before_it_comes():
    with pytest.raises(TooLarge, match=r"^body: 4 bytes, allowed: 3$"):
        await read_body(request(content_length="4"), 3, 10)


@manual_clock
async def test_only_bodies_as_they_are_are_read():
    assert await read_body(request((0, b"a"), content_encoding="Identity"), 3, 10) == b"a"
    with pytest.raises(BadInput, match="content-encoding: got 'gzip'; allowed: identity"):
        await read_body(request(content_encoding="gzip"), 3, 10)


def test_a_caller_that_says_nothing_of_its_time_has_the_instances():
    assert timeout_s(request(), 250) == 0.25
    assert timeout_s(request(x_warmpool_timeout_ms="7"), 250) == 0.007
    with pytest.raises(BadInput, match=f"^{wire.TIMEOUT_HEADER}: got '0'; allowed: 1 to {DEADLINE_MS_MAX}$"):
        timeout_s(request(x_warmpool_timeout_ms="0"), 250)


@pytest.mark.parametrize("text", ["", "0", "11", "-1", "1.0", " 1", "\u0661", "9" * 5000])
def test_what_is_no_whole_number_in_bounds_is_named(text):
    with pytest.raises(BadInput, match=r"^field: got .*; allowed: 1 to 10$"):
        whole_number("field", text, 10)
    assert whole_number("field", "10", 10) == 10
