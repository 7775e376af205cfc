"""A body is read within its size and its caller's time, and what the reading took is no longer there for the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.warmpool.fake_lane import manual_clock, pass_s
from warmpool.byte_budget import ByteBudget, Held
from warmpool.errors import BadInput, DeadlineExceeded, Overloaded, TooLarge
from warmpool.http_messages import Request
from warmpool.http_request import Call, read_body


def request(*pieces: tuple[float, bytes], ends: bool = True, **headers: str) -> Request:
    """A request whose body comes in pieces, each after some seconds."""
    left = list(pieces)

    async def arrive(given: Request) -> None:
        while left:
            wait_s, data = left.pop(0)
            await pass_s(wait_s)
            given.feed(data)
        if ends:
            given.end()

    fields = [(name.replace("_", "-"), value) for name, value in headers.items()]
    arriving: list[asyncio.Task[None]] = []

    def wanted(given: Request) -> None:
        if not arriving:
            arriving.append(asyncio.get_running_loop().create_task(arrive(given)))

    return Request("POST", "/", "", fields, wanted=wanted)


def held(bytes_max: int = 1000) -> Held:
    return ByteBudget(bytes_max).hold()


def call(given: Request, default_ms: int = 4000) -> Call:
    return Call(given, "t", held(), default_ms)


@manual_clock
async def test_a_body_in_pieces_is_put_together():
    assert await read_body(request((0, b"ab"), (1, b""), (1, b"c")), 3, 10, held()) == b"abc"
    assert await read_body(request((0, b"")), 3, 10, held()) == b""


@manual_clock
async def test_what_reading_took_is_no_longer_there_for_the_answer():
    one = call(request((1, b"a"), (2.5, b"b"), x_warmpool_timeout_ms="5000"), 1)
    arrived_ns = one.start_ns
    assert await one.body(10) == b"ab"
    assert one.urgency({}) == (1.5, 0)
    assert one.start_ns > arrived_ns, "its span begins when the body is there"


@manual_clock
async def test_a_body_that_takes_longer_than_the_caller_has_is_not_waited_for():
    with pytest.raises(DeadlineExceeded, match=r"^body: 1 bytes came within 4 s, and not its end$"):
        await call(request((1, b"a"), (3.5, b"b"))).body(10)


@manual_clock
async def test_a_time_in_the_body_counts_from_the_first_byte_too_and_the_shorter_one_holds():
    silent, hurried = call(request((1, b"a"))), call(request((0, b"a"), x_warmpool_timeout_ms="2500"))
    await silent.body(10)
    assert silent.urgency({}) == (3.0, 0), "the instance's own, where the caller says nothing"
    assert silent.urgency({"timeout": 1_500_000}) == (0.5, 0)
    assert silent.urgency({"timeout": 900_000}) == (0.0, 0)
    assert silent.urgency({"timeout": 60_000_000}) == (59.0, 0), "longer than the instance's own"
    await hurried.body(10)
    assert hurried.urgency({"timeout": 60_000_000}) == (1.5, 0)


@manual_clock
async def test_the_priority_of_header_and_body_comes_along():
    one, other = call(request((0, b"a"))), call(request((0, b"a"), x_warmpool_priority="1"))
    await one.body(10)
    assert one.urgency({"priority": 6})[1] == -2
    await other.body(10)
    assert other.urgency({"priority": 6})[1] == 3


@pytest.mark.parametrize("lengths", [[4], [1, 3], [3, 1], [2, 2]])
def test_a_body_beyond_its_size_is_refused_however_it_comes(lengths: Sequence[int]):
    async def story() -> None:
        with pytest.raises(TooLarge, match=r"^body: more than 3 bytes, allowed: 3$"):
            await read_body(request(*((0, b"a" * length) for length in lengths), ends=False), 3, 10, held())

    manual_clock(story)()


@manual_clock
async def test_a_body_that_says_to_be_too_large_is_refused_before_it_comes():
    with pytest.raises(TooLarge, match=r"^body: 4 bytes, allowed: 3$"):
        await read_body(request(content_length="4"), 3, 10, held())


@manual_clock
async def test_bytes_are_held_from_the_moment_that_a_body_says_how_many_it_has():
    budget = ByteBudget(10)
    seen: list[int] = []

    def wanted(given: Request) -> None:
        seen.append(budget.held_bytes)
        given.feed(b"abcdef")
        given.end()

    def given() -> Request:
        return Request("POST", "/", "", [("content-length", "6")], wanted=wanted)

    with budget.hold() as one, budget.hold() as other:
        assert await read_body(given(), 10, 10, one) == b"abcdef"
        assert (seen, budget.held_bytes) == ([6], 6)
        with pytest.raises(Overloaded, match=r"^requests hold 6 bytes, 10 may$"):
            await read_body(given(), 10, 10, other)
        assert (seen, budget.held_bytes) == ([6], 6), "nothing of it was read"
    assert budget.held_bytes == 0


@manual_clock
async def test_a_body_that_does_not_say_how_long_it_is_is_counted_as_it_comes():
    budget = ByteBudget(10)
    with budget.hold() as one, budget.hold() as other:
        await read_body(request((0, b"abc"), (1, b"def")), 10, 10, one)
        assert budget.held_bytes == 6
        with pytest.raises(Overloaded, match=r"^requests hold 10 bytes, 10 may$"):
            await read_body(request((0, b"abcd"), (0, b"e"), ends=False), 10, 10, other)
    assert budget.held_bytes == 0


@manual_clock
async def test_only_bodies_as_they_are_are_read():
    assert await read_body(request((0, b"a"), content_encoding="Identity"), 3, 10, held()) == b"a"
    with pytest.raises(BadInput, match="content-encoding: got 'gzip'; allowed: identity"):
        await read_body(request(content_encoding="gzip"), 3, 10, held())
    assert await read_body(request((0, b"a"), transfer_encoding="Chunked"), 3, 10, held()) == b"a"
    with pytest.raises(BadInput, match="transfer-encoding: got 'gzip, chunked'; allowed: chunked"):
        await read_body(request(transfer_encoding="gzip, chunked"), 3, 10, held())
