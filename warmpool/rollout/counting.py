"""What an instance counts of the versions of a rollout, and which requests it mirrors."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from warmpool.batches import Batch
from warmpool.catalog import ServedMethod, ServedModel
from warmpool.dataplane import Answer, DataPlane
from warmpool.errors import DeadlineExceeded, LaneFailed, NotWarm, WarmpoolError
from warmpool.manifest import RolloutSpec, Serving
from warmpool.process_memory import own_bytes_of
from warmpool.rollout.comparison import Compared, Rule
from warmpool.rollout.judge import Judge, Policy
from warmpool.rollout.mirror import Mirror, Mirrored
from warmpool.rollout.record import record_path, spec_of
from warmpool.rollout.tally import Counts, Tally
from warmpool.tensors import Tensor
from warmpool.version_routing import place_of_turn

COMPARED_MIN = 20  # where requests are mirrored


class Lane(Protocol):
    """Of a lane what is asked here."""

    name: str

    @property
    def state(self) -> str: ...

    @property
    def pid(self) -> int | None: ...


@dataclass(slots=True)
class Watched:
    """A rollout under way.

    Attributes:
        serving: What is served here.
        path: Of the rollout's record.
        refused_s: Since when the canary is refused, None if it is not.
        waits: What its promotion waits for, beside the judge.
        deciding: Whether something was decided, and is being done.
        promoting: Whether its promotion was begun; while the store does not take that, it is judged as before.
        offered: How many requests might have been mirrored.
    """

    serving: Serving
    spec: RolloutSpec
    path: str
    tally: Tally
    judge: Judge
    refused_s: float | None = None
    waits: str = ""
    deciding: bool = False
    promoting: bool = False
    offered: int = 0

    @classmethod
    def of(cls, name: str, serving: Serving) -> Watched:
        """The rollout of a model's canary, with nothing known of it yet."""
        spec = spec_of(serving)
        clock = asyncio.get_running_loop().time
        return cls(serving, spec, record_path(name, spec), Tally(clock), Judge(_policy(spec, serving.mirror)))

    def follow(self, serving: Serving) -> None:
        """This is served from now on, as the same rollout: its shares may be others, and how it is judged."""
        self.serving, self.spec = serving, spec_of(serving)
        self.judge.policy = _policy(self.spec, serving.mirror)

    def judge_until_now(self) -> None:
        """Let the judge have all seconds that are over."""
        for second, counts in self.tally.take():
            stable, canary = (counts.get(version, Counts()) for version in (self.serving.stable, self.serving.canary))
            self.judge.add(second, stable, canary)

    def describe(self, now_s: float) -> dict[str, Any]:
        """Who is compared, what is concluded by now, and from which figures."""
        verdict = self.judge.verdict(now_s)
        return {
            "stable": self.serving.stable,
            "canary": self.serving.canary,
            "verdict": verdict.action,
            "reason": self.waits or verdict.reason,
            "figures": self.judge.figures(now_s),
        }

    def compared(self, found: Compared) -> None:
        """A mirrored request was answered."""
        counts = self.tally.of(self.serving.canary)
        counts.compared += 1
        counts.differing += found.differing
        counts.not_finite += found.not_finite


@dataclass(slots=True)
class Counting:
    """Of one instance. `watched`: the rollouts under way, by model."""

    dataplane: DataPlane
    watched: dict[str, Watched] = field(default_factory=dict)
    mirror: Mirror = field(init=False)
    _resident: dict[str, tuple[int | None, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.mirror = Mirror(self.dataplane)

    def answered(
        self,
        method: ServedMethod,
        inputs: Mapping[str, Tensor],
        answer: Answer | None,
        error: Exception | None,
        took_s: float,
    ) -> None:
        """A request that did not name its version was answered, or failed."""
        watched = self.watched.get(method.model)
        if watched is None or (answer is None and not _ours(error)):
            return
        watched.tally.of(method.version).request(method.name, took_s * 1e6, failed=answer is None)
        if answer is not None and method.version == watched.serving.stable:
            watched.offered += 1
            if place_of_turn(watched.offered) < watched.serving.mirror:
                self.mirror.offer(answer, inputs, partial(self._mirrored, watched, method, inputs, answer))

    def batch_ran(self, batch: Batch, lane: Lane) -> None:
        """A batch ran."""
        if not self.watched:
            return
        grown_bytes = self._grown_bytes(lane)
        if watched := self.watched.get(batch.method.model):
            counts = watched.tally.of(batch.method.version)
            counts.ran(batch.method.name, batch.bucket, batch.took_us)
            counts.grown_bytes += grown_bytes

    def batch_failed(self, batch: Batch, lane: Lane) -> None:
        """A batch failed; where its lane died of it, that counts."""
        if watched := self.watched.get(batch.method.model):
            counts = watched.tally.of(batch.method.version)
            counts.batches += 1
            counts.crashes += batch.begun and lane.state == "down"

    def _grown_bytes(self, lane: Lane) -> int:
        """What a lane has grown by since the batch before, 0 if it loaded something meanwhile or is another process."""
        now = (lane.pid if lane.state == "warm" else None, own_bytes_of(lane.pid))
        before, self._resident[lane.name] = self._resident.get(lane.name, (None, 0)), now
        return now[1] - before[1] if now[0] is not None and now[0] == before[0] else 0

    def _mirrored(
        self, watched: Watched, method: ServedMethod, inputs: Mapping[str, Tensor], answer: Answer
    ) -> Mirrored | None:
        """What is to be mirrored of a request, None while the canary cannot have it."""
        stable, canary = (
            self._version(method.model, method.version),
            self._version(method.model, watched.serving.canary),
        )
        other = canary.method(method.name) if canary else None
        warm = self.dataplane.warm.get(method.model, frozenset())
        if stable is None or canary is None or other is None or other.version not in warm:
            return None
        rule = Rule.of(watched.spec, stable.manifest, canary.manifest)
        return Mirrored(other, inputs, answer.outputs, rule, watched.compared)

    def _version(self, name: str, version: str) -> ServedModel | None:
        return self.dataplane.catalog.versions.get(f"{name}/{version}")


def _policy(spec: RolloutSpec, mirror: float) -> Policy:
    return Policy(bake_s=spec.bake_s, requests_min=spec.requests_min, compared_min=COMPARED_MIN if mirror else 0)


def _ours(error: Exception | None) -> bool:
    """Whether it is the service that failed; None: the caller has left."""
    ours = isinstance(error, NotWarm | LaneFailed | DeadlineExceeded)
    return ours or (error is not None and not isinstance(error, WarmpoolError))
