"""How an instance's decision gets into the store: the rollout's record, what is served, the audit log. In a thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from cache.errors import Untrusted
from cache.signed_store import SignedStore
from warmpool.manifest import Serving
from warmpool.rollout.changes import RolloutRefused, promoted, rolled_back
from warmpool.rollout.record import Event, Rollout, What, add_event, read_record
from warmpool.rollout.serving_change import change_serving, read_serving


@dataclass(frozen=True, slots=True)
class Decision:
    """About what was served of a model when, why (seconds since the epoch), by which figures; `path`: of the record."""

    model: str
    serving: Serving
    path: str
    time_s: float
    reason: str
    figures: dict[str, float]


@dataclass(frozen=True, slots=True)
class Told:
    """The decision is in the store. `serving`: what is served now, None if somebody else sees to it, or has to."""

    serving: Serving | None


def roll_back(store: SignedStore, decision: Decision) -> Told:
    """Take a canary back: by the record at once, and by what is served if there is a key.

    Raises:
        StoreUnavailable: It is not known, and may be done again.
    """
    if not _is_noted(store, decision, "rollback"):  # else that was done before, and what is served was not
        _note(store, decision, "rollback")
    try:
        store.require_signer("what is served")
        return _changed(store, decision, lambda now: rolled_back(now, decision.time_s, decision.reason))
    except Untrusted:  # what instances follow is the record
        return Told(None)


def promote(store: SignedStore, decision: Decision) -> Told:
    """Make a canary stable, and write that down.

    Raises:
        StoreUnavailable, Untrusted: It is not known, and may be done again, with the same decision.
    """
    mine = promoted(decision.serving, decision.time_s, decision.reason)

    def change(now: Serving) -> Serving:
        if _is_noted(store, decision, "rollback"):  # by who has no key, and could not change what is served
            raise RolloutRefused(f"version {now.canary!r} of {decision.model!r} was rolled back")
        return promoted(now, decision.time_s, decision.reason)

    told = _changed(store, decision, change)
    if told.serving is None and _is_served(store, decision.model, mine):  # that was done before
        told = Told(mine)
    if told.serving is not None and not _is_noted(store, decision, "promote"):
        _note(store, decision, "promote")
    return told


def _changed(store: SignedStore, decision: Decision, change: Callable[[Serving], Serving]) -> Told:
    try:
        _, after = change_serving(store, decision.model, change, decision.serving)
        return Told(after)
    except RolloutRefused:
        return Told(None)


def _is_served(store: SignedStore, model: str, serving: Serving) -> bool:
    try:
        return read_serving(store, model)[0] == serving
    except RolloutRefused:
        return False


def _is_noted(store: SignedStore, decision: Decision, what: What) -> bool:
    record = read_record(store, decision.path)
    return record is not None and any(event.what == what for event in record.events)


def _note(store: SignedStore, decision: Decision, what: Literal["promote", "rollback"]) -> None:
    stable, canary = decision.serving.stable, decision.serving.canary
    event = Event(
        what=what, time_s=decision.time_s, who=store.audit.who, reason=decision.reason, figures=decision.figures
    )
    add_event(store, decision.path, Rollout(model=decision.model, stable=stable, canary=canary), event)
    now, before = (stable, canary) if what == "rollback" else (canary, stable)
    store.audit.record(what, model=decision.model, version=now, before=before, reason=decision.reason)
