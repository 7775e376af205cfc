"""What an instance says of its readiness, held against what else it says of itself, all the time."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, Self

LOOK_EVERY_S = 0.05


class Watched(Protocol):
    """An instance that can be asked."""

    def status(self) -> dict[str, Any]:
        """The document of /v1/status."""

    def answers(self, path: str) -> int:
        """The HTTP status of a GET, 0 where nothing listens."""


class Readiness:
    """Looks all the time, until the end of the block, and keeps what does not go together.

    Whether it is ready is asked between two looks at its status: where these agree, and no lane has changed, it has to
    agree with them.

    Attributes:
        looks: How often it was ready, and how often not.
        contradictions: What it said that cannot be true together.
    """

    def __init__(self, instance: Watched) -> None:
        self.looks: Counter[bool] = Counter()
        self.contradictions: list[Any] = []
        self._instance = instance
        self._stopping = threading.Event()
        self._executor = ThreadPoolExecutor(1)
        self._future = self._executor.submit(self._look_on)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._executor.shutdown()
        self._future.result()

    def _look_on(self) -> None:
        before = self._instance.status()
        while not self._stopping.is_set():
            ready = self._instance.answers("/v2/health/ready") == 200
            after = self._instance.status()
            self._compare(before, ready, after)
            before = after
            self._stopping.wait(LOOK_EVERY_S)

    def _compare(self, before: dict[str, Any], ready: bool, after: dict[str, Any]) -> None:  # noqa: FBT001  # as seen
        primary = after["lanes"][0]
        if after["ready"] is not (not after["reasons"]):
            self.contradictions.append(("reasons", after))
        if after["ready"] and (primary["state"] not in {"loading", "warm"} or not primary["warm"]):
            self.contradictions.append(("ready without a lane", after))
        if primary["circuit"]["state"] == "open" and "is down" not in str(after["reasons"]):
            self.contradictions.append(("no reason for a lane that is down", after))
        if _of_readiness(before) == _of_readiness(after):
            self.looks[ready] += 1
            if ready is not after["ready"]:
                self.contradictions.append(("health", before, ready, after))


def _of_readiness(status: dict[str, Any]) -> tuple[Any, ...]:
    primary = status["lanes"][0]
    return status["ready"], status["state"], primary["pid"], primary["state"], primary["warm"], primary["ended"]
