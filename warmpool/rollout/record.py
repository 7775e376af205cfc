"""What became of a rollout, for people and for instances: `rollouts/<model>/<when it started>.json`.

It is not signed, for instances that hold no key have to be able to write it: so it can only take away. A rollout that
it says was rolled back is so for every instance at once, whatever `serving.json` still says; nothing is served because
of it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

import msgspec

from cache.errors import NotStored, StoreUnavailable
from cache.records import coordinated
from cache.store import Store
from warmpool.manifest import TIME_S_MAX, RolloutSpec, Serving

log = logging.getLogger(__name__)

FOLDER = "rollouts"
EVENTS_MAX = 8  # with these bounds a record is never larger than one may be
EVENT_BYTES_MAX = 6000  # larger ones are kept without their figures
TEXT_MAX = 200
TRIES_MAX = 10

What = Literal["start", "promote", "rollback"]


class Event(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that was done or decided: when (seconds since the epoch), by whom, why, by which figures."""

    what: What
    time_s: float
    who: str
    reason: str = ""
    figures: dict[str, float] = {}


class Rollout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rollout, and what was done to it."""

    model: str
    stable: str
    canary: str
    events: tuple[Event, ...] = ()

    @property
    def state(self) -> str:
        """One of "running", "promoted" and "rolled back"; what was rolled back once is so for good."""
        whats = {event.what for event in self.events}
        return "rolled back" if "rollback" in whats else "promoted" if "promote" in whats else "running"

    @property
    def decision(self) -> Event | None:
        """What ended it, None if it runs."""
        return next((event for event in self.events if event.what != "start"), None)

    def with_event(self, event: Event) -> Rollout:
        """This, and what was done now, cut to what may be kept. Once it is full, only what is new of it is added."""
        if len(self.events) >= EVENTS_MAX and any(one.what == event.what for one in self.events):
            return self
        finite = {name: value for name, value in event.figures.items() if math.isfinite(value)}
        texts = {"who": event.who[:TEXT_MAX], "reason": event.reason[:TEXT_MAX]}
        kept = msgspec.structs.replace(event, figures=finite, **texts)
        if len(msgspec.json.encode(kept)) > EVENT_BYTES_MAX:
            kept = msgspec.structs.replace(kept, figures={})
        return msgspec.structs.replace(self, events=(*self.events, kept))


def spec_of(serving: Serving) -> RolloutSpec:
    """How the canary is judged; a canary of which that is not said is judged as usual."""
    return serving.rollout or RolloutSpec(started_s=min(max(serving.changed_s, 0.0), TIME_S_MAX - 1))


def record_path(model: str, spec: RolloutSpec) -> str:
    """Where the record of a rollout lies; in the order of names they are in that of time."""
    started = datetime.fromtimestamp(spec.started_s, UTC)
    return f"{FOLDER}/{model}/{started:%Y%m%dT%H%M%S}.{started.microsecond // 1000:03}Z.json"


def read_record(store: Store, path: str) -> Rollout | None:
    """The record, None if there is none or it cannot be read. Raises StoreUnavailable."""
    try:
        return coordinated(store.get(path), Rollout)
    except NotStored:
        return None
    except msgspec.MsgspecError as error:
        log.warning("record of a rollout cannot be read", extra={"path": path, "reason": str(error)})
        return None


def add_event(store: Store, path: str, new: Rollout, event: Event) -> Rollout:
    """Write that something was done, beside what others write meanwhile; the record as it is then.

    Args:
        store: Where.
        path: Of the record.
        new: What it begins with, where there is none that can be read.
        event: What was done.

    Raises:
        StoreUnavailable: It could not be written.
    """
    return _changed(store, path, lambda found: (found or new).with_event(event))


def _changed(store: Store, path: str, change: Callable[[Rollout | None], Rollout]) -> Rollout:
    for _ in range(TRIES_MAX):
        found, generation = None, None
        try:
            data, generation = store.get_versioned(path)
            found = coordinated(data, Rollout)
        except NotStored:
            pass
        except msgspec.MsgspecError as error:
            log.warning("record of a rollout is begun anew", extra={"path": path, "reason": str(error)})
        changed = change(found)
        if store.put_if(path, msgspec.json.encode(changed), generation) is not None:
            return changed
    busy = f"{path}: others wrote it {TRIES_MAX} times meanwhile"
    raise StoreUnavailable(busy, told=busy)
