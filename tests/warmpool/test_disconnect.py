"""HTTP callers leave at any point of their requests: theirs end there, the others get their answers.

First all of it but the sockets: connections, application and queue run on a loop that is interrupted at every one of
its steps, for every subset of the callers and every way to leave. Then a running instance and real sockets.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tests.instance_process import InstanceProcess, wait_until
from tests.warmpool.fake_lane import World
from tests.warmpool.served import doubling
from tests.warmpool.stepped_loop import SteppedLoop, subsets
from tests.warmpool.stopped_lane import StoppedLane
from tests.warmpool.test_http_protocol import Line, split
from warmpool.byte_budget import ByteBudget
from warmpool.catalog import Catalog
from warmpool.dataplane import DataPlane
from warmpool.http_app import http_app
from warmpool.http_beginning import BEGINNING
from warmpool.http_protocol import HttpProtocol
from warmpool.http_server import HttpServer
from warmpool.settings import Settings

DOUBLE = doubling()
RUN_S = 0.5
NOTICED_S = 0.002


class Socket(Line):
    """A connection's end here. Whoever closed the other one answers what is sent with a reset: the next write fails."""

    def __init__(self, loop: SteppedLoop) -> None:
        super().__init__()
        self.loop = loop
        self.protocol: HttpProtocol | None = None
        self.gone = False
        self.refused = False
        self.lost = False

    def write(self, data: Any) -> None:
        if self.closed:
            return
        if self.refused:
            self.closed = True
            self.loop.call_soon(self.lose, BrokenPipeError())
        elif self.gone:
            self.refused = True
        else:
            self.written += data

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.loop.call_soon(self.lose, None)

    def lose(self, error: Exception | None) -> None:
        assert self.protocol is not None
        if not self.lost:
            self.lost = True
            self.protocol.connection_lost(error)


class Visitor:
    """A caller with one request, which comes in pieces."""

    def __init__(self, front: Front, *values: int) -> None:
        self.socket = Socket(front.loop)
        self.protocol = HttpProtocol(front.server)
        self.socket.protocol = self.protocol
        self.values = list(values)
        body = json.dumps({"instances": values}).encode()
        head = f"POST /v1/models/tiny HTTP/1.1\r\nHost: here\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        self.pieces = [head, body[:5], body[5:]]
        self.left = ""
        self.left_s = math.inf
        front.visitors.append(self)

    def connect(self) -> None:
        self.protocol.connection_made(self.socket)

    def send(self) -> None:
        if not self.left and not self.socket.closed:
            self.protocol.data_received(self.pieces.pop(0))

    def leave(self, how: str) -> None:
        """End the connection from the other side, where it has not ended yet."""
        if self.socket.closed:
            return
        self.left, self.left_s = how, self.socket.loop.now_s
        if how == "reset":
            self.socket.closed = True
            self.socket.loop.call_soon(self.socket.lose, ConnectionResetError())
            return
        self.socket.gone = how == "closed"
        if not self.protocol.eof_received():
            self.socket.close()

    @property
    def answered(self) -> bool:
        """Whether it has its whole answer, and no other."""
        answers = list(split(self.socket.written)) if self.socket.written.endswith(b"}") else []
        predictions = [json.loads(body)["predictions"] for status, body in answers if status == 200]
        return len(answers) == 1 and predictions == [[2 * value for value in self.values]]


class Front:
    """What the application needs of an instance, with lanes that the test finishes."""

    def __init__(self, loop: Any) -> None:
        self.loop = loop
        self.world = World()
        self.world.primary.warms(DOUBLE, batch=4)
        self.settings = Settings(store="s", allow_unsigned=True)
        self.byte_budget = ByteBudget(self.settings.queue_bytes_max)
        self.dataplane = DataPlane(self.world.batcher)
        manifest = SimpleNamespace(version="1")
        served = SimpleNamespace(methods={"double": DOUBLE}, method=lambda _: DOUBLE, manifest=manifest)
        self.dataplane.catalog = Catalog(models={"tiny": cast("Any", served)})
        self.dataplane.read.set()
        self.recorded: list[int | str] = []
        self.visitors: list[Visitor] = []
        self.server = HttpServer(http_app(cast("Any", self)), 75)

    def record_request(self, *_: Any, status: int | str, **__: Any) -> None:
        self.recorded.append(status)

    def play(self, act: Callable[[], object]) -> None:
        """One thing and what follows; nothing waits any more for those who left, and that is noticed at once."""
        self.loop.settle(act)
        self.loop.now_s += NOTICED_S
        self.loop.settle()
        waiting = [part.inputs[0].tolist() for part in self.world.batcher.waiting()]
        for visitor in self.visitors:
            if visitor.left in {"reset", "closed"} and visitor.left_s + NOTICED_S <= self.loop.now_s:
                assert visitor.values not in waiting

    def finish(self) -> None:
        if self.world.primary.batch:
            self.loop.now_s += RUN_S
            self.world.primary.finish()


def story(leave: str, at: int = 0, gone: tuple[int, ...] = ()) -> Front:
    """Three visitors: one is served while the others' requests come, and those share a batch."""
    loop = SteppedLoop()
    fronts: list[Front] = []
    loop.settle(lambda: fronts.append(Front(loop)))
    (front,) = fronts
    visitors = [Visitor(front, *values) for values in ([1], [2, 3], [4])]

    def go() -> None:
        for number in gone:
            visitors[number].leave(leave)

    def connect() -> None:
        for visitor in visitors:
            visitor.connect()
        loop.count(at, go)

    acts: list[Callable[[], object]] = [connect]
    acts += [visitors[0].send] * 3
    acts += [visitor.send for _ in range(3) for visitor in visitors[1:]]
    acts += [front.finish] * 3
    for act in acts:
        front.play(act)
    return front


def check(front: Front) -> None:
    for visitor in front.visitors:
        if not visitor.left:
            assert visitor.answered
        elif visitor.left == "half":
            sent_all = not visitor.pieces
            assert visitor.answered if sent_all else not visitor.socket.written
            assert visitor.socket.closed
        else:
            assert visitor.answered or BEGINNING.startswith(visitor.socket.written)
            assert visitor.socket.closed
    assert len(front.recorded) <= len(front.visitors)
    assert set(front.recorded) <= {200, 499}
    assert front.recorded.count(200) >= sum(visitor.answered for visitor in front.visitors)
    batcher = front.world.batcher
    assert (batcher.rows_waiting, batcher.waiting(), front.byte_budget.held_bytes) == (0, [], 0)
    assert front.world.primary.batch is None
    assert (front.server.tasks, asyncio.all_tasks(front.loop), front.loop.complaints) == (set(), set(), [])


@pytest.mark.parametrize("leave", ["reset", "closed", "half"])
def test_whoever_leaves_wherever_the_others_are_answered_and_nothing_is_left(leave, caplog):
    undisturbed = story(leave)
    check(undisturbed)
    assert undisturbed.recorded == [200, 200, 200]
    points = undisturbed.loop.steps
    undisturbed.loop.close()
    assert points > 20
    statuses: list[int | str] = []
    for at in range(1, points + 1):
        for gone in subsets(3):
            front = story(leave, at, gone)
            check(front)
            statuses += front.recorded
            front.loop.close()
    assert set(statuses) == {200, 499}, "who leaves in the middle of its request, sending no more, is gone"
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


# Real sockets


BODY = b'{"instances": [[1, 1, 1, 1]]}'
CLOSING_AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: what is closed is reset


def connected(instance: InstanceProcess, trace_id: str) -> socket.socket:
    """A caller that has sent its request."""
    connection = socket.create_connection(("127.0.0.1", instance.port), timeout=30)
    head = [
        "POST /v1/models/tiny:predict HTTP/1.1",
        "Host: here",
        f"Content-Length: {len(BODY)}",
        f"traceparent: 00-{trace_id}-{'1' * 16}-01",
    ]
    connection.sendall("\r\n".join([*head, "", ""]).encode() + BODY)
    return connection


def waiting(instance: InstanceProcess) -> float:
    return instance.gauge("warmpool_rows_waiting")


def statuses(instance: InstanceProcess) -> dict[str, object]:
    """What came of requests, by trace."""
    traces = instance.get("/v1/traces?count=1000").json()
    return {trace["trace_id"]: trace["spans"][0]["attributes"].get("warmpool.status") for trace in traces}


@pytest.mark.parametrize("how", ["closed", "reset"])
def test_the_rows_of_a_caller_that_leaves_leave_the_queue_and_its_neighbours_do_not(instance, how):
    before = instance.gauge("warmpool_requests_total", model="", method="", status="499")
    traces = [f"{'c' if how == 'closed' else 'd'}{number:031x}" for number in range(4)]
    with ThreadPoolExecutor(2) as pool:
        with StoppedLane(instance) as lane:
            first = pool.submit(instance.infer, "count", steps=[1])
            lane.wait_busy()
            leaving = [connected(instance, trace_id) for trace_id in traces]
            neighbour = pool.submit(instance.infer, "predict", x=np.full((1, 4), 7))
            wait_until(lambda: waiting(instance) == 5)
            assert instance.gauge("warmpool_request_bytes_held") > 4 * len(BODY)
            for connection in leaving:
                if how == "reset":
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, CLOSING_AT_ONCE)
                connection.close()
            wait_until(lambda: waiting(instance) == 1)
            assert not neighbour.done()
            wait_until(lambda: {statuses(instance).get(trace_id) for trace_id in traces} == {499})
        assert neighbour.result().outputs["sum"].tolist() == [28.0]
        first.result()
    assert instance.gauge("warmpool_requests_total", model="", method="", status="499") == before + 4
    assert (waiting(instance), instance.gauge("warmpool_request_bytes_held")) == (0, 0)
    assert "Traceback" not in instance.log


def test_a_caller_that_sends_no_more_but_listens_keeps_its_place_and_gets_its_whole_answer(instance):
    with ThreadPoolExecutor(1) as pool:
        with StoppedLane(instance) as lane:
            first = pool.submit(instance.infer, "count", steps=[1])
            lane.wait_busy()
            with connected(instance, "e" * 32) as listening, connected(instance, "f" * 32) as leaving:
                wait_until(lambda: waiting(instance) == 2)
                listening.shutdown(socket.SHUT_WR)
                leaving.close()
                wait_until(lambda: waiting(instance) == 1)
                assert listening.recv(1) == b"H"
                lane.go_on()
                rest = b"".join(iter(lambda: listening.recv(65536), b""))
        first.result()
    assert rest.startswith(b"TTP/1.1 200 OK\r\n")
    assert rest.count(b"HTTP/1.1") == 0
    assert json.loads(rest.partition(b"\r\n\r\n")[2])["predictions"][0]["sum"] == 4.0
