"""The end of a server: idle connections at once, the others with their answers, and what hangs is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest
import uvloop

from tests.warmpool.test_http_protocol import Line
from warmpool import http_server
from warmpool.http_messages import Request, Response
from warmpool.http_protocol import HttpProtocol
from warmpool.http_server import HttpServer

LONG_S = 30.0
GET = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"


class Served:
    """A server on a real socket; its answers wait for `gate`."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.begun = asyncio.Event()
        self.server = HttpServer(self._answer, keep_alive_s=75)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.writers: list[asyncio.StreamWriter] = []

    async def _answer(self, request: Request) -> Response:
        self.begun.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            return Response(b"too late", 503)
        return Response(request.path.encode())

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self.listener.getsockname()[:2])
        self.writers.append(writer)
        return reader, writer


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[Served]:
    one = Served()
    await one.server.listen(one.listener)
    try:
        yield one
    finally:
        await one.server.drain(0.0)
        for writer in one.writers:
            writer.close()
            await writer.wait_closed()
        await asyncio.sleep(0)  # the other ends are told in the next turn


async def end(reader: asyncio.StreamReader) -> bytes:
    return await asyncio.wait_for(reader.read(), LONG_S)


def test_idle_connections_end_at_once_and_a_busy_one_with_its_answer_that_says_so():
    async def story() -> None:
        async with served() as one:
            idle, _idle_writer = await one.connect()
            busy, writer = await one.connect()
            writer.write(GET)
            await asyncio.wait_for(one.begun.wait(), LONG_S)
            async with asyncio.TaskGroup() as group:
                draining = group.create_task(one.server.drain(LONG_S))
                assert await end(idle) == b""
                assert not draining.done()
                one.gate.set()
                answer = await end(busy)
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert b"\r\nconnection: close\r\n" in answer
            assert answer.endswith(b"\r\n\r\n/")
            assert (one.server.connections, one.server.tasks) == (set(), set())

    asyncio.run(story())


def test_what_takes_longer_than_the_end_may_is_cancelled_and_answered_by_that():
    async def story() -> None:
        async with served() as one:
            busy, writer = await one.connect()
            writer.write(GET)
            await asyncio.wait_for(one.begun.wait(), LONG_S)
            await one.server.drain(0.0)
            answer = await end(busy)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert answer.endswith(b"too late")

    asyncio.run(story())


@pytest.mark.parametrize("more", [b"", b"Connection: close\r\n"], ids=["goes on", "closes"])
def test_who_takes_nothing_of_its_answer_is_cut_off_and_its_request_is_noted(more, monkeypatch):
    monkeypatch.setattr(http_server, "TAKE_MS_MAX", 300)
    noted: list[str] = []

    async def story() -> None:
        async def large(request: Request) -> Response:
            one.begun.set()
            response = Response(bytes(1 << 24))
            response.after = lambda: noted.append(request.path)
            return response

        async with served() as one:
            one.server.answer = large
            with socket.socket() as caller:
                caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                caller.connect(one.listener.getsockname())
                caller.sendall((GET[:-2] + more + b"\r\n") * 2)
                await asyncio.wait_for(one.begun.wait(), LONG_S)
                await one.server.drain(LONG_S)
            assert (one.server.connections, one.server.tasks) == (set(), set())
            assert noted == ["/"] * (1 if more else 2)

    uvloop.run(story())


def test_a_connection_that_was_taken_in_the_turn_in_which_the_end_began_ends_at_once():
    async def story() -> None:
        async with served() as one:
            await one.server.drain(0.0)
            late, line = HttpProtocol(one.server), Line()
            late.connection_made(line)
            assert line.closed
            late.connection_lost(None)

    asyncio.run(story())


def test_a_request_that_fails_without_an_answer_ends_its_connection_and_leaves_its_error_in_the_log(caplog):
    async def story() -> None:
        async def broken(_: Request) -> Response:
            raise ZeroDivisionError("ours")

        async with served() as one:
            one.server.answer = broken
            reader, writer = await one.connect()
            writer.write(GET)
            assert await end(reader) == b""

    asyncio.run(story())
    assert "ours" in caplog.text
