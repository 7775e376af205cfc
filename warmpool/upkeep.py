"""What a running instance does for its store, and because of it; never in a request's way.

What a lane could not make warm is looked at again, by the front itself. An executable that is damaged, not trusted, or
made two lanes crash is set aside with its reason, and asked for again (`cache.wanted`); as soon as the store has a
sound one under the same key that a lane has not tried, the lane loads it. One that lanes were killed at, which is no
proof against it, stays where it is and is tried again, less and less often; so is a store asked again that is away.

The store also says which keys nobody trusts any more. Lanes hold executables that such a key signed, and their own copy
of the trust, so they are replaced, one after the other. And it is told which kinds of machine use it, every day.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cache.errors import NotStored, StoreUnavailable
from cache.fingerprint import Fingerprint
from cache.sightings import MARK_EVERY_S, mark
from cache.signed_store import SignedStore
from cache.store import is_path
from cache.verification import check, set_aside
from cache.wanted import want
from warmpool.backoff import backoff_s
from warmpool.lanes import LaneProxy
from warmpool.load_queue import DIED
from warmpool.manifest import executable_path
from warmpool.store_calls import StoreCalls

log = logging.getLogger(__name__)

LOOK_FIRST_S = 0.5
LOOK_S_MAX = 60.0
TRUST_EVERY_S = 15.0
REPLACED_S_MAX = 30.0
REST_FIRST_S = 60.0  # between tries of what lanes were killed at
REST_S_MAX = 3600.0


class _Sound(NamedTuple):
    """A file with a sound executable, and the SHA-256 of its content."""

    file: Path
    content: str


class _Look(NamedTuple):
    """What is known of a cold executable: why it is, what lanes tried and died of (SHA-256), how large it may be."""

    key: str
    reason: str
    tried: frozenset[str]
    deadly: frozenset[str]
    bytes_max: int


class _Rest(NamedTuple):
    """Until when a content is not tried again (monotonic), and how often it was."""

    content: str
    tries: int
    until_s: float


class Upkeep:
    """The upkeep of one instance.

    Attributes:
        quarantined: How many executables it set aside.
        calls: Of the store, for whoever else asks it beside requests: its trouble is then told once.
        noticed: Told, too, when something is cold that was to be warm.
    """

    def __init__(self, store: SignedStore, lanes: Sequence[LaneProxy]) -> None:
        self.quarantined = 0
        self._store = store
        self._lanes = lanes
        self._news = asyncio.Event()
        self.calls = StoreCalls()
        self.noticed: Callable[[], None] = lambda: None
        self._rests: dict[str, _Rest] = {}  # by key, of what lanes were killed at
        self._marked_s: dict[str, float] = {}

    @property
    def store_trouble(self) -> str:
        """Why the store could not be read or written when that was last tried, "" if it could."""
        return next(iter(self.calls.troubles.values()), "")

    def notice(self) -> None:
        """Something is cold that was to be warm."""
        self._news.set()
        self.noticed()

    def stored(self) -> None:
        """The store has more than before: perhaps what is cold."""
        self._news.set()

    async def run(self, fingerprints: Mapping[str, Fingerprint]) -> None:
        """Until it is cancelled. The fingerprints are the lanes', by name, as they become known."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._mend_for_ever())
            group.create_task(self._follow(fingerprints))

    async def _mend_for_ever(self) -> None:
        looks = 0
        while True:
            if not self._cold():
                await self._news.wait()
            if self._news.is_set():
                self._news.clear()
                looks = 0
            looks += 1
            cold = self._cold()
            for key, reason in cold.items():
                await self._mend(key, reason)
            for settled in [
                asked for asked in self.calls.troubles if asked.startswith("key ") and asked[4:] not in cold
            ]:
                del self.calls.troubles[settled]
            await _either(self._news, backoff_s(looks, LOOK_FIRST_S, LOOK_S_MAX))

    def _cold(self) -> dict[str, str]:
        """Why executables are cold, by key."""
        found: dict[str, str] = {}
        for lane in self._lanes:
            if lane.held.load_plan is not None:
                for number, reason in lane.held.cold_reasons.items():
                    found[lane.held.load_plan.loadables[number].message.key] = reason
        return {key: reason for key, reason in found.items() if is_path(executable_path(key))}

    def _cold_in(self, key: str) -> list[tuple[LaneProxy, int]]:
        """The lanes in which an executable is cold, and its number there."""
        return [
            (lane, number)
            for lane in self._lanes
            for number in lane.held.cold_reasons
            if lane.held.load_plan is not None and lane.held.load_plan.loadables[number].message.key == key
        ]

    async def _mend(self, key: str, reason: str) -> None:
        lacking = self._cold_in(key)  # perhaps none any more
        if not lacking or any(
            lane.held.loads.holds(key) for lane in self._lanes
        ):  # a look discards the file of that lane
            return
        look = _Look(
            key,
            reason,
            tried=frozenset(lane.held.tried.get(number, "") for lane, number in lacking),
            deadly=frozenset[str]().union(*(lane.held.loads.deadly(key) for lane in self._lanes)),
            bytes_max=max(lane.held.loadable(number).message.bytes_max for lane, number in lacking),
        )
        sound = await self.calls.ask(f"key {key}", lambda: self._sound(look))
        if sound is None or self._rests_still(key, sound.content, other=bool(look.deadly)):
            return
        for lane, number in self._cold_in(key):
            if lane.retry(number, *sound):
                log.info("executable is tried again", extra={"lane": lane.name, "key": key})

    def _rests_still(self, key: str, content: str, *, other: bool) -> bool:
        """Whether it is too early for another try of what lanes were killed at; `other`: that was another content."""
        if not any(lane.held.loads.gave_up(key) for lane in self._lanes):
            return False
        now_s = time.monotonic()
        rest = self._rests.get(key)
        if rest is None or rest.content != content:
            first_s = 0.0 if other or rest else REST_FIRST_S
            rest = _Rest(content, 1, now_s + first_s)
        if still := now_s < rest.until_s:
            self._rests[key] = rest
        else:
            self._rests[key] = _Rest(content, rest.tries + 1, now_s + backoff_s(rest.tries, REST_FIRST_S, REST_S_MAX))
        return still

    def _sound(self, look: _Look) -> _Sound | None:
        """The executable, if it is sound, lanes did not crash of it, and it is not what all tried that lack it.

        One that is too large is not read and stays where it is: setting it aside would read it, too.
        """
        path = executable_path(look.key)
        self._store.discard(path)  # perhaps only the copy that is kept here is damaged
        try:
            data = self._store.inner.get(path, bytes_max=look.bytes_max + 1)
        except NotStored:
            if self._store.names("models"):  # else the whole store is away, and not to be begun again
                want(self._store, look.key, look.reason)
            return None
        if len(data) > look.bytes_max:
            return None
        content = _digest(data)
        checked = check(self._store, path, data)
        if content in look.deadly:
            self._set_aside_deadly(path, look.deadly)
        elif checked.unknown:  # perhaps only this instance lacks a key: what others trust is not its to move
            return None
        elif checked.fault:
            self._set_aside(path)
        elif look.tried != {content}:
            return _Sound(self._store.local_path(path), content)
        return None

    def _set_aside_deadly(self, path: str, deadly: frozenset[str]) -> None:
        """Set aside what lanes crashed of, and nothing that took its place meanwhile."""
        with contextlib.suppress(NotStored):
            generation = self._store.bottom.get_versioned(path)[1]
            if _digest(self._store.inner.get(path)) in deadly:
                self._set_aside(path, DIED, generation)

    def _set_aside(self, path: str, reason: str = "", generation: str | None = None) -> None:
        kept = set_aside(self._store, path, reason, generation)
        if kept:
            log.error("executable is quarantined", extra={"key": kept.key, "reason": kept.reason})
            self.quarantined += 1
            want(self._store, kept.key, kept.reason)

    async def _follow(self, fingerprints: Mapping[str, Fingerprint]) -> None:
        while True:
            new = await self.calls.ask("distrusted keys", self._newly_distrusted)
            if new:
                log.error("keys are distrusted: lanes are replaced", extra={"keys": sorted(new)})
                for lane in self._lanes:
                    lane.replace(self._store.trust)
                    if lane.started_ns:
                        await _either(lane.warmed, REPLACED_S_MAX)
            if new is not None:
                await self._mark({one.digest: one for one in fingerprints.values()})
            await asyncio.sleep(TRUST_EVERY_S)

    async def _mark(self, machines: Mapping[str, Fingerprint]) -> None:
        now_s = time.monotonic()
        for digest, machine in machines.items():
            if now_s - self._marked_s.get(digest, -math.inf) >= MARK_EVERY_S:
                asked = f"mark of {digest}"
                await self.calls.ask(asked, partial(mark, self._store, machine))
                if asked not in self.calls.troubles:
                    self._marked_s[digest] = now_s

    def _newly_distrusted(self) -> frozenset[str]:
        if any(lane.held.load_plan and lane.held.load_plan.loadables for lane in self._lanes) and not self._store.names(
            "models"
        ):
            gone = "nothing is published in it any more: it was moved, or it is not mounted"
            raise StoreUnavailable(gone, told=gone)
        return self._store.refresh_trust()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


async def _either(event: asyncio.Event, wait_s_max: float) -> None:
    """Wait for the event, or the time to pass."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), wait_s_max)
