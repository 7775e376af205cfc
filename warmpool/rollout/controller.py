"""The rollouts of one instance: what it decides of them, and how it follows what others decided.

Every instance judges what it sees itself. One that is convinced that a canary is bad stops giving it requests at once,
writes that into the rollout's record, which all instances read, and, if it has a key, takes the canary out of
`serving.json`. One that is convinced that it is good makes it stable; of several the store lets one do so. Without a
key it only says that it may be promoted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import msgspec

from cache.errors import Untrusted
from cache.signed_store import SignedStore
from warmpool.backoff import backoff_s
from warmpool.dataplane import DataPlane
from warmpool.manifest import Serving
from warmpool.rollout.changes import rolled_back
from warmpool.rollout.counting import Counting, Watched
from warmpool.rollout.decisions import Decision, promote, roll_back
from warmpool.rollout.record import read_record, record_path, spec_of
from warmpool.store_calls import StoreCalls

log = logging.getLogger(__name__)

TICK_S = 0.25
LOOK_FAR_S = 0.5  # between looks at the records of rollouts under way in a bucket; in a folder: every tick
REFUSED_S_MAX = 600.0  # how long a canary may be refused, as one is that is still being copied, or compiled
TRY_AGAIN_S_MAX = 10.0  # what the store did not take
SUPPRESS_S = 300.0  # how long alerts wait after a rollout


class Versions(Protocol):
    """Who follows what a store says is served, as `overrule` has it."""

    serving: dict[str, Serving]
    overrule: Callable[[str, Serving], Serving]

    def follow(self, name: str, serving: Serving) -> None:
        """This is served from now on."""


@dataclass(slots=True)
class Rollouts:
    """Of one instance.

    Attributes:
        counting: What is counted of the rollouts under way.
        state: How a version ("model/version") is here, and why, see `Repository.state`.
        far: Whether the store is on a network.
        decided: By model and what was decided, how often this instance did.
    """

    store: SignedStore
    counting: Counting
    versions: Versions
    state: Callable[[str], tuple[str, str]]
    calls: StoreCalls
    far: Callable[[], bool]
    decided: dict[tuple[str, str], int] = field(default_factory=dict)
    _known: set[str] = field(default_factory=set)  # records that were looked at
    _ended: set[str] = field(default_factory=set)  # of them, those of rollouts that were rolled back
    _active_s: dict[str, float] = field(default_factory=dict)  # by model, when a rollout was last under way

    @classmethod
    def of(
        cls,
        store: SignedStore,
        dataplane: DataPlane,
        versions: Versions,
        state: Callable[[str], tuple[str, str]],
        calls: StoreCalls,
        far: Callable[[], bool],
    ) -> Rollouts:
        """The rollouts of an instance, which are told of its requests, and have their say in what is served."""
        rollouts = cls(store, Counting(dataplane), versions, state, calls, far)
        dataplane.answered = rollouts.counting.answered
        versions.overrule = rollouts.overruled
        return rollouts

    async def run(self) -> None:
        """Watch, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.counting.mirror.run())
            group.create_task(self._look_at_records())
            while True:
                self._follow()
                for name, watched in list(self.counting.watched.items()):
                    watched.judge_until_now()
                    if not watched.deciding:
                        self._decide(name, watched, group)
                await asyncio.sleep(TICK_S)

    def overruled(self, name: str, serving: Serving) -> Serving:
        """What is served of a model here, which may be less than the store says: its signed word is not the last.

        A canary gets nothing before it is known that the rollout was not rolled back, and nothing where it was.
        """
        path = record_path(name, spec_of(serving))
        if serving.canary and path in self._ended:
            return rolled_back(serving, serving.changed_s, serving.reason)
        if serving.canary and path not in self._known:
            return msgspec.structs.replace(serving, share=0.0, mirror=0.0)
        return serving

    @property
    def models(self) -> list[str]:
        """The models of which a rollout was seen here."""
        return list(self._active_s)

    def is_active(self, name: str) -> bool:
        """Whether a rollout is under way, or was a short time ago: then alerts of the model wait."""
        last_s = self._active_s.get(name)
        return last_s is not None and _now_s() - last_s < SUPPRESS_S

    def status(self) -> dict[str, Any]:
        """The rollouts under way, by model, see `Watched.describe`."""
        return {name: watched.describe(_now_s()) for name, watched in self.counting.watched.items()}

    def _follow(self) -> None:
        """Watch the rollouts that are under way now, and no others."""
        under_way = self.counting.watched
        canaries = {name: serving for name, serving in self.versions.serving.items() if serving.canary}
        for name in under_way.keys() - canaries.keys():
            del under_way[name]
        for name, serving in canaries.items():
            known = under_way.get(name)
            if known is None or known.path != record_path(name, spec_of(serving)):
                under_way[name] = known = Watched.of(name, serving)
                log.info("rollout begins", extra={"model": name, "stable": serving.stable, "canary": serving.canary})
            known.follow(serving)
            self._active_s[name] = _now_s()

    def _decide(self, name: str, watched: Watched, group: asyncio.TaskGroup) -> None:
        """Begin to do what follows from what is known of a rollout."""
        verdict = watched.judge.verdict(_now_s())
        if refused := self._refused_for_long(name, watched):
            group.create_task(self._roll_back(name, watched, f"it cannot be taken up: {refused}"))
        elif verdict.action == "rollback":
            group.create_task(self._roll_back(name, watched, verdict.reason))
        elif verdict.action == "promote":
            watched.waits = self._what_forbids_promotion(watched)
            if not watched.waits and not watched.promoting:
                watched.deciding = watched.promoting = True
                group.create_task(self._promote(name, watched, verdict.reason))

    def _refused_for_long(self, name: str, watched: Watched) -> str:
        """Why the canary cannot be served here, once it could not be for long: it is damaged, or does not compile."""
        state, reason = self.state(f"{name}/{watched.serving.canary}")
        if state != "refused":
            watched.refused_s = None
            return ""
        watched.refused_s = watched.refused_s or _now_s()
        return reason if _now_s() - watched.refused_s >= REFUSED_S_MAX else ""

    def _what_forbids_promotion(self, watched: Watched) -> str:
        by_whom = "by hand" if watched.spec.by_hand else ""
        try:
            self.store.require_signer("what is served")
        except Untrusted:
            by_whom = by_whom or "by who has a key that signs"
        return by_whom and f"it may be promoted, {by_whom}: `warmpool rollout promote`"

    async def _roll_back(self, name: str, watched: Watched, reason: str) -> None:
        """Give the canary nothing more from this moment on; then tell the others, for as long as that takes."""
        canary = watched.serving.canary
        decision = self._decision(name, watched, reason)
        log.error("canary is rolled back", extra={"model": name, "canary": canary, "reason": reason})
        self._end(name, watched)
        self._count(name, "rollback")
        call = partial(roll_back, self.store, decision)
        tries = 0
        while (told := await self.calls.ask(f"rollback of {name}", call)) is None:
            tries += 1
            await asyncio.sleep(backoff_s(tries, TICK_S, TRY_AGAIN_S_MAX))
        if told.serving is not None:
            self.versions.follow(name, told.serving)

    async def _promote(self, name: str, watched: Watched, reason: str) -> None:
        """Make the canary stable; where that fails, for as long as it is found good here, tried less and less often."""
        call = partial(promote, self.store, self._decision(name, watched, reason))
        tries = 0
        while (told := await self.calls.ask(f"promotion of {name}", call)) is None or told.serving is None:
            watched.deciding = watched.path in self._ended
            tries += 1
            await asyncio.sleep(backoff_s(tries, TICK_S, TRY_AGAIN_S_MAX))
            if not self._goes_on(name, watched, refused=told is not None):
                watched.promoting = False
                return
            watched.deciding = True
        log.info("canary is promoted", extra={"model": name, "canary": watched.serving.canary, "reason": reason})
        self._count(name, "promote")
        self.versions.follow(name, told.serving)

    def _goes_on(self, name: str, watched: Watched, *, refused: bool) -> bool:
        """Whether a promotion is tried again that somebody else was before (it is refused), or the store in trouble."""
        if watched.path in self._ended:
            return False
        if self.counting.watched.get(name) is not watched:  # the store may have taken it, and be without a note of it
            return not refused
        good = watched.judge.verdict(_now_s()).action == "promote"
        return good and not self._what_forbids_promotion(watched)

    def _decision(self, name: str, watched: Watched, reason: str) -> Decision:
        figures = watched.judge.figures(_now_s())
        return Decision(name, watched.serving, watched.path, time.time(), reason, figures)

    def _end(self, name: str, watched: Watched) -> None:
        """A rollout was rolled back, here or elsewhere: the canary gets nothing more from this moment on."""
        watched.deciding = True
        self._ended.add(watched.path)
        self.versions.follow(name, self.overruled(name, watched.serving))

    def _count(self, name: str, what: str) -> None:
        self.decided[name, what] = self.decided.get((name, what), 0) + 1

    async def _look_at_records(self) -> None:
        """Follow what other instances, and people, say of rollouts under way."""
        while True:
            for name, watched in list(self.counting.watched.items()):
                over = await self.calls.ask(f"rollout of {name}", partial(_is_over, self.store, watched.path))
                if over is None or watched.path in self._ended:
                    continue
                self._known.add(watched.path)
                if over:
                    log.warning("canary was rolled back elsewhere", extra={"model": name, "record": watched.path})
                    self._end(name, watched)
            await asyncio.sleep(LOOK_FAR_S if self.far() else TICK_S)


def _is_over(store: SignedStore, path: str) -> bool:
    record = read_record(store, path)
    return record is not None and record.state == "rolled back"


def _now_s() -> float:
    return asyncio.get_running_loop().time()
