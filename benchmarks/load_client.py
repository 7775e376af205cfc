"""Clients that wait for their answers, each with a connection of its own, all in one process beside the server's.

`python -m benchmarks.load_client PLAN`: sends the requests of a plan in turn, over so many connections, until enough
are answered, prints when each was sent and answered, and writes the responses into a file. It computes nothing
meanwhile; `benchmarks.throughput` reads and checks the responses afterwards.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import sys
import time
from itertools import accumulate
from pathlib import Path
from typing import Any

from benchmarks.processors import confine
from examples.loopback import HOST

ANSWER_S_MAX = 60.0
_READ_BYTES = 1 << 18
_END = b"\r\n\r\n"
_LENGTH = b"\r\ncontent-length:"


class Client:
    """A connection with one request under way at a time."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection((HOST, port), timeout=ANSWER_S_MAX)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.number = -1
        self.sent_s = 0.0
        self._data = bytearray()
        self._wanted = 0

    def send(self, number: int, request: bytes, due_s: float | None = None) -> None:
        """Send the request with this number, which was due at a time (`time.perf_counter`; now, if not said)."""
        self.number = number
        self._data.clear()
        self._wanted = 0
        self.sent_s = time.perf_counter() if due_s is None else due_s
        self.socket.sendall(request)

    def read(self) -> bytes | None:
        """The whole response, if it is all there now. Raises ConnectionError where the server hangs up."""
        piece = self.socket.recv(_READ_BYTES)
        if not piece:
            raise ConnectionError("the server closed a connection")
        self._data += piece
        if not self._wanted and (end := self._data.find(_END)) >= 0:
            head = bytes(self._data[: end + 2]).lower()
            length = head.partition(_LENGTH)[2].partition(b"\r\n")[0]
            self._wanted = end + len(_END) + int(length)
        return bytes(self._data) if self._wanted and len(self._data) >= self._wanted else None


def load(port: int, requests: list[bytes], connections: int, answers: int) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Send requests in turn until so many are answered; of each answer its number and times (s), and the responses.

    What is under way then is still waited for, and told too.
    """
    done: list[dict[str, Any]] = []
    responses: list[bytes] = []
    with contextlib.ExitStack() as open_ones, selectors.DefaultSelector() as selector:
        clients = [Client(port) for _ in range(connections)]
        for number, client in enumerate(clients):
            open_ones.enter_context(client.socket)
            selector.register(client.socket, selectors.EVENT_READ, client)
            client.send(number, requests[number % len(requests)])
        following = connections
        while len(done) < following:
            ready = selector.select(ANSWER_S_MAX)
            if not ready:
                raise TimeoutError(f"no answer within {ANSWER_S_MAX:.0f} s")
            for key, _ in ready:
                one: Client = key.data
                if (response := one.read()) is None:
                    continue
                done.append({"number": one.number, "sent_s": one.sent_s, "answered_s": time.perf_counter()})
                responses.append(response)
                if len(done) < answers:
                    one.send(following, requests[following % len(requests)])
                    following += 1
    return done, responses


def read_plan(plan_file: str) -> tuple[dict[str, Any], list[bytes]]:
    """A plan, and the requests that it names: `requests` is a file, `sizes` cuts it."""
    plan: dict[str, Any] = json.loads(Path(plan_file).read_text(encoding="utf-8"))
    data = Path(plan["requests"]).read_bytes()
    ends = list(accumulate(plan["sizes"]))
    return plan, [data[end - size : end] for size, end in zip(plan["sizes"], ends, strict=True)]


def main(plan_file: str) -> None:
    """Carry out a plan: `port`, `requests` (a file) with `sizes`, `connections`, `answers`, `out` (a file).

    `processors`: that it may use; empty for all.
    """
    plan, requests = read_plan(plan_file)
    if plan["processors"]:
        confine(os.getpid(), plan["processors"])
    begin_s = time.process_time()
    done, responses = load(plan["port"], requests, plan["connections"], plan["answers"])
    cpu_s = time.process_time() - begin_s
    Path(plan["out"]).write_bytes(b"".join(responses))
    print(json.dumps({"done": done, "sizes": [len(response) for response in responses], "cpu_s": cpu_s}))


if __name__ == "__main__":
    main(sys.argv[1])
