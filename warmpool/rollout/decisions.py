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
    if not _is_rolled_back(store, decision):  # else that was done before, and what is served was not
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

    def change(now: Serving) -> Serving:
        if _is_rolled_back(store, decision):  # by who has no key, and could not change what is served
            raise RolloutRefused(f"version {now.canary!r} of {decision.model!r} was rolled back")
        return promoted(now, decision.time_s, decision.reason)

    told = _changed(store, decision, change)
    if told.serving is not None:
        _note(store, decision, "promote")
    return told


def _changed(store: SignedStore, decision: Decision, change: Callable[[Serving], Serving]) -> Told:
    try:
        _, after = change_serving(store, decision.model, change, decision.serving)
        return Told(after)
    except RolloutRefused:
        return Told(None)


def _is_rolled_back(store: SignedStore, decision: Decision) -> bool:
    record = read_record(store, decision.path)
    return record is not None and record.state == "rolled back"


def _note(store: SignedStore, decision: Decision, what: Literal["promote", "rollback"]) -> None:
    stable, canary = decision.serving.stable, decision.serving.canary
    event = Event(
        what=what, time_s=decision.time_s, who=store.audit.who, reason=decision.reason, figures=decision.figures
    )
    add_event(store, decision.path, Rollout(model=decision.model, stable=stable, canary=canary), event)
    now, before = (stable, canary) if what == "rollback" else (canary, stable)
    store.audit.record(what, model=decision.model, version=now, before=before, reason=decision.reason)
