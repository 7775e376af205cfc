"""How an instance's decision gets into the store: the rollout's record, what is served, the audit log. In a thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from cache.errors import Untrusted
from cache.signed_store import SignedStore
from warmpool.manifest import Serving
from warmpool.rollout.changes import RolloutRefused, promoted, rolled_back
from warmpool.rollout.record import Event, Rollout, add_event, read_record
from warmpool.rollout.serving_change import change_serving


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
    record = read_record(store, decision.path)
    if record is None or record.state != "rolled back":  # else that was done before, and what is served was not
        _note(store, decision, "rollback")
    try:
        store.require_signer("what is served")
        return _changed(store, decision, lambda now: rolled_back(now, decision.time_s, decision.reason))
    except Untrusted:  # what instances follow is the record
        return Told(None)


def promote(store: SignedStore, decision: Decision) -> Told:
    """Make a canary stable.

    Raises:
        StoreUnavailable, Untrusted: It was not.
    """
    told = _changed(store, decision, lambda now: promoted(now, decision.time_s, decision.reason))
    if told.serving is not None:
        _note(store, decision, "promote")
    return told


def _changed(store: SignedStore, decision: Decision, change: Callable[[Serving], Serving]) -> Told:
    def changed(now: Serving) -> Serving:
        if _rollout(now) != _rollout(decision.serving):
            raise RolloutRefused(f"what is served of {decision.model!r} was changed meanwhile")
        return change(now)

    try:
        _, after = change_serving(store, decision.model, changed)
        return Told(after)
    except RolloutRefused:
        return Told(None)


def _rollout(serving: Serving) -> tuple[object, ...]:
    return serving.stable, serving.canary, serving.rollout.started_s if serving.rollout else None


def _note(store: SignedStore, decision: Decision, what: Literal["promote", "rollback"]) -> None:
    stable, canary = decision.serving.stable, decision.serving.canary
    event = Event(
        what=what, time_s=decision.time_s, who=store.audit.who, reason=decision.reason, figures=decision.figures
    )
    add_event(store, decision.path, Rollout(model=decision.model, stable=stable, canary=canary), event)
    now, before = (stable, canary) if what == "rollback" else (canary, stable)
    store.audit.record(what, model=decision.model, version=now, before=before, reason=decision.reason)
