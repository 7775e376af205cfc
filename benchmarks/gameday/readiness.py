"""What an instance says of its readiness, held against what it holds and what the store says it needs, all the time."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, Self

from warmpool.manifest import bucket_name
from warmpool.survey import Survey

LOOK_EVERY_S = 0.05

type MinimumSets = Mapping[str, Sequence[frozenset[str]]]
"""By "model/version": what its executables of a minimum set are called in a status, for each kind of machine."""


class Watched(Protocol):
    """An instance that can be asked."""

    def status(self) -> dict[str, Any]:
        """The document of /v1/status."""

    def answers(self, path: str) -> int:
        """The HTTP status of a GET, 0 where nothing listens."""


def minimum_sets(found: Survey) -> dict[str, list[frozenset[str]]]:
    """What a store says that its versions need."""
    return {
        version.name: [
            frozenset(
                f"{version.manifest.model}:{spec.method} {bucket_name(spec.bucket)}"
                for spec in target.executables
                if spec.minimum and spec.is_for(ladder_only=False)
            )
            for target in version.targets.values()
            if target.has_primary
        ]
        for version in found.versions
    }


class Readiness:
    """Looks all the time, until the end of the block, and keeps what does not go together.

    A status is of one moment: what it says of readiness has to be what it says of the primary lane. A model is ready
    if every executable of its served version's minimum set is warm there, and an instance that serves, if all are.
    Whether it is ready is asked besides, between two looks at its status: where these agree, it has to agree with them.

    Args:
        instance: Is looked at.
        minimum: What the versions need that it may serve, by what is in the store. It has as much memory as it wants.

    Attributes:
        looks: How often it was ready, and how often not.
        contradictions: What it said that cannot be true together.
    """

    def __init__(self, instance: Watched, minimum: MinimumSets) -> None:
        self.looks: Counter[bool] = Counter()
        self.contradictions: list[Any] = []
        self._instance = instance
        self._minimum = minimum
        self._stopping = threading.Event()
        self._executor = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        self._future = self._executor.submit(self._look_on)
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
            self.compare(before, ready, after)
            before = after
            self._stopping.wait(LOOK_EVERY_S)

    def compare(self, before: dict[str, Any], ready: bool, after: dict[str, Any]) -> None:  # noqa: FBT001  as seen
        """Judge one look: a status, whether it was ready then, and the next status."""
        primary = after["lanes"][0]
        if after["ready"] is not (not after["reasons"]):
            self.contradictions.append(("reasons", after))
        have = self._have_minimum(after)
        for name in (name for name, has in have.items() if after["models"][name]["ready"] is not has):
            self.contradictions.append((f"the model {name}", after))
        whole = bool(have) and all(have.values())
        if after["ready"] and not whole:
            self.contradictions.append(("ready without its minimum set", after))
        if whole and after["state"] == "serving" and not after["ready"]:
            self.contradictions.append(("not ready with its minimum set", after))
        if primary["circuit"]["state"] == "open" and "is down" not in str(after["reasons"]):
            self.contradictions.append(("no reason for a lane that is down", after))
        if _of_readiness(before) == _of_readiness(after):
            self.looks[ready] += 1
            if ready is not after["ready"]:
                self.contradictions.append(("health", before, ready, after))

    def _have_minimum(self, status: dict[str, Any]) -> dict[str, bool]:
        """By served model: whether the primary lane has its minimum set, for one kind of machine, warm."""
        primary = status["lanes"][0]
        warm = {title for title, state in primary["executables"].items() if state == "warm"}
        up = primary["state"] in {"loading", "warm"}
        return {
            name: up and any(_all_in(needed, warm, version) for needed in self._minimum.get(f"{name}/{version}", ()))
            for name, version in ((name, model["version"]) for name, model in status["models"].items())
            if version
        }


def _all_in(needed: frozenset[str], warm: set[str], version: str) -> bool:
    return all(warm & {title, f"{title} @{version}"} for title in needed)


def _of_readiness(status: dict[str, Any]) -> tuple[Any, ...]:
    primary = status["lanes"][0]
    held = primary["executables"]
    return status["ready"], status["state"], status["models"], primary["pid"], primary["state"], held, primary["ended"]
