"""What a running instance does for its store, and because of it; never in a request's way.

Models of which the store had nothing for a lane, or that could not be read, are asked for again. What a lane could not
make warm is looked at again, by the front itself. An executable that is damaged, not trusted, or killed two lanes is
set aside with its reason, and asked for again (`cache.wanted`); as soon as the store has a sound one under the same
key, the lanes load it. A store that is away is asked again, less and less often.

The store also says which keys nobody trusts any more. Lanes hold executables that such a key signed, and their own copy
of the trust, so they are replaced, one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from cache.errors import CacheError, NotStored, StoreUnavailable
from cache.fingerprint import Fingerprint
from cache.quarantine import quarantine
from cache.sightings import mark
from cache.signed_store import SignedStore
from cache.verification import check
from cache.wanted import want
from warmpool.backoff import backoff_s
from warmpool.lanes import LaneProxy
from warmpool.load_plan import LoadPlan
from warmpool.manifest import executable_path

log = logging.getLogger(__name__)

LOOK_FIRST_S = 0.5
LOOK_S_MAX = 60.0
TRUST_EVERY_S = 60.0
REPLACED_S_MAX = 30.0


class Upkeep:
    """The upkeep of one instance.

    Attributes:
        quarantined: How many executables it set aside.
        store_trouble: Why the store could not be read or written when that was last tried, "" if it could.
    """

    def __init__(
        self, store: SignedStore, lanes: Sequence[LaneProxy], plan_missing: Callable[[LaneProxy], LoadPlan | None]
    ) -> None:
        self.quarantined = 0
        self.store_trouble = ""
        self._store = store
        self._lanes = lanes
        self._plan_missing = plan_missing
        self._news = asyncio.Event()
        self._tried: dict[str, str] = {}  # by key: the content that was given to a lane, or is not to be

    def notice(self) -> None:
        """Something is cold that was to be warm."""
        self._news.set()

    async def run(self, fingerprint: Fingerprint) -> None:
        """Until it is cancelled. The fingerprint is the primary lane's."""
        await self._asked(lambda: mark(self._store, fingerprint))
        async with asyncio.TaskGroup() as group:
            group.create_task(self._mend_for_ever())
            group.create_task(self._follow_trust())

    async def _mend_for_ever(self) -> None:
        looks = 0
        while True:
            if not self._lacking():
                await self._news.wait()
            if self._news.is_set():
                self._news.clear()
                looks = 0
            looks += 1
            for lane in self._lanes:
                await self._extend(lane)
            for key, reason in self._cold().items():
                await self._mend(key, reason)
            await _either(self._news, backoff_s(looks, LOOK_FIRST_S, LOOK_S_MAX))

    def _lacking(self) -> bool:
        return any(lane.load_plan is not None and (lane.load_plan.missing or lane.cold_reasons) for lane in self._lanes)

    async def _extend(self, lane: LaneProxy) -> None:
        """Give the lane the models that the store had nothing of for it, as far as that has changed."""
        before = lane.load_plan
        plan = await self._asked(lambda: self._plan_missing(lane))
        if plan and plan.loadables and lane.load_plan is before:
            lane.extend(plan)

    def _cold(self) -> dict[str, str]:
        """Why executables are cold, by key."""
        found: dict[str, str] = {}
        for lane in self._lanes:
            if lane.load_plan is not None:
                for number, reason in lane.cold_reasons.items():
                    found[lane.load_plan.loadables[number].message.key] = reason
        return found

    async def _mend(self, key: str, reason: str) -> None:
        deadly = any(lane.kills(key) for lane in self._lanes)
        file = await self._asked(lambda: self._sound_file(key, reason, deadly=deadly))
        if file is None:
            return
        for lane in self._lanes:
            for number in list(lane.cold_reasons):
                if lane.load_plan is not None and lane.load_plan.loadables[number].message.key == key:
                    log.info("executable is tried again", extra={"lane": lane.name, "key": key})
                    lane.retry(number, file)

    def _sound_file(self, key: str, reason: str, *, deadly: bool) -> Path | None:
        """A file with the executable, if it is sound and not the one that was tried before."""
        path = executable_path(key)
        self._store.discard(path)  # perhaps only the copy that is kept here is damaged
        try:
            checked = check(self._store, path)
            content = hashlib.sha256(self._store.inner.get(path)).hexdigest()
        except NotStored:
            if self._store.names("models"):  # else the whole store is away, and not to be begun again
                want(self._store, key, reason)
            return None
        if deadly and self._tried.get(key, content) == content:
            self._set_aside(path, reason)
        elif checked.fault:
            self._set_aside(path, checked.fault)
        elif self._tried.get(key) != content:
            self._tried[key] = content
            return self._store.local_path(path)
        return None

    def _set_aside(self, path: str, reason: str) -> None:
        kept = quarantine(self._store.bottom, path, reason)
        if kept is None:
            return
        log.error("executable is quarantined", extra={"key": kept.key, "reason": reason})
        self.quarantined += 1
        self._store.audit.record("quarantine", path=path, key=kept.key, reason=reason)
        want(self._store, kept.key, reason)

    async def _follow_trust(self) -> None:
        while True:
            new = await self._asked(self._store.refresh_trust)
            if new:
                log.error("keys are distrusted: lanes are replaced", extra={"keys": sorted(new)})
                for lane in self._lanes:
                    lane.replace(self._store.trust)
                    await _either(lane.warmed, REPLACED_S_MAX)
            await asyncio.sleep(TRUST_EVERY_S)

    async def _asked[R](self, ask: Callable[[], R]) -> R | None:
        """What the store answers, asked in a thread; None where it is in trouble, which is said once."""
        try:
            answer = await asyncio.to_thread(ask)
        except (CacheError, OSError) as error:
            trouble = str(error) if isinstance(error, StoreUnavailable) else f"{type(error).__name__}: {error}"
            if not self.store_trouble:
                log.warning("store cannot be used now", extra={"reason": trouble})
            self.store_trouble = trouble
            return None
        self.store_trouble = ""
        return answer


async def _either(event: asyncio.Event, wait_s_max: float) -> None:
    """Wait for the event, or the time to pass."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), wait_s_max)
