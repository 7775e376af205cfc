"""Clients that send at fixed times, whether answers have come or not, all in one process beside the server's.

`python -m benchmarks.paced_client PLAN`: sends the requests of a plan in turn, one every `every_s`, each over a
connection that has nothing under way, until its standard input ends; prints when each was due and answered and how late
it was sent, and writes the responses into a file. A latency counts from when a request was due: a server that stops for
a while is charged with all that would have come meanwhile (G. Tene, How NOT to Measure Latency, 2013). How late it was
sent is told apart, since this process has to wait for a processor, too.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import sys
import time
from collections import deque
from pathlib import Path
from typing import IO, Any

from benchmarks.load_client import Client, read_plan

LATE_S_MAX = 60.0  # so long the last answers are waited for


def paced(
    port: int, requests: list[bytes], every_s: float, connections: int, until: IO[str]
) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Send requests in turn until a stream ends; of each its number, when due and answered, and how late sent (s).

    With them come the responses, in the same order.

    Raises:
        TimeoutError: Not all were answered.
    """
    done: list[dict[str, Any]] = []
    responses: list[bytes] = []
    late_s: list[float] = []  # by number
    with contextlib.ExitStack() as open_ones, selectors.DefaultSelector() as selector:
        free: deque[Client] = deque()
        for _ in range(connections):
            client = Client(port)
            open_ones.enter_context(client.socket)
            selector.register(client.socket, selectors.EVENT_READ, client)
            free.append(client)
        selector.register(until, selectors.EVENT_READ, None)
        begin_s, sent, over_s = time.perf_counter(), 0, 0.0
        while not over_s or len(free) < connections:
            while not over_s and free and (due_s := begin_s + sent * every_s) <= time.perf_counter():
                late_s.append(time.perf_counter() - due_s)
                free.popleft().send(sent, requests[sent % len(requests)], due_s)
                sent += 1
            wait_s = begin_s + sent * every_s - time.perf_counter() if free and not over_s else LATE_S_MAX
            ready = selector.select(max(0.0, wait_s))
            if over_s and not ready:
                raise TimeoutError(f"{connections - len(free)} requests were not answered within {LATE_S_MAX:.0f} s")
            for key, _ in ready:
                if key.data is None:
                    over_s = time.perf_counter()
                    selector.unregister(until)
                elif (response := key.data.read()) is not None:
                    now_s = time.perf_counter()
                    number = key.data.number
                    times = {"sent_s": key.data.sent_s, "late_s": late_s[number], "answered_s": now_s}
                    done.append({"number": number, **times})
                    responses.append(response)
                    free.append(key.data)
    return done, responses


def main(plan_file: str) -> None:
    """Carry out a plan: `port`, `requests` (a file) with `sizes`, `connections`, `every_s`, `out` (a file)."""
    plan, requests = read_plan(plan_file)
    done, responses = paced(plan["port"], requests, plan["every_s"], plan["connections"], sys.stdin)
    Path(plan["out"]).write_bytes(b"".join(responses))
    print(json.dumps({"done": done, "sizes": [len(response) for response in responses]}))


if __name__ == "__main__":
    main(sys.argv[1])
