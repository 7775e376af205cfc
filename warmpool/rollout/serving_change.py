"""One change of what a store serves, on condition that nobody changed it meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from cache.errors import Damaged, NotStored
from cache.records import decoded
from cache.signed_store import SignedStore
from warmpool import manifest as stored
from warmpool.manifest import Manifest, Serving
from warmpool.rollout.changes import RolloutRefused, misfit


def read_serving(store: SignedStore, model: str) -> tuple[Serving, str]:
    """What is served of a model, and its generation.

    Raises:
        RolloutRefused: Nothing is.
        Damaged, Untrusted, StoreUnavailable: It cannot be known.
    """
    path = stored.serving_path(model)
    try:
        data, generation = store.get_versioned(path)
        return decoded(data, Serving), generation
    except NotStored:
        there = ", ".join(store.names("models")) or "none"
        raise RolloutRefused(f"model {model!r} is not served; models in the store: {there}") from None
    except msgspec.MsgspecError as error:
        raise Damaged(path, str(error)) from None


def change_serving(
    store: SignedStore, model: str, change: Callable[[Serving], Serving], seen: Serving | None = None
) -> tuple[Serving, Serving]:
    """Serve something else; what was served, and what is now.

    Args:
        store: Where.
        model: Of which model.
        change: From what is served to what is to be.
        seen: What the change was decided on, if something was: it holds for that rollout, and for no other.

    Raises:
        RolloutRefused: As `change` does, or somebody else changed it meanwhile.
        Untrusted: There is no key to sign it with.
    """
    before, generation = read_serving(store, model)
    if seen is not None and rollout_of(before) != rollout_of(seen):
        raise _changed_meanwhile(model)
    after = change(before)
    if store.put_if(stored.serving_path(model), stored.encode(after), generation) is None:
        now, _ = read_serving(store, model)
        if now != after:  # a put whose answer was lost, and which was tried again, is there
            raise _changed_meanwhile(model)
    return before, after


def rollout_of(serving: Serving) -> tuple[object, ...]:
    """Which rollout this is: stable, canary, and when it was started; whatever its shares are."""
    return serving.stable, serving.canary, serving.rollout.started_s if serving.rollout else None


def require_fit(store: SignedStore, model: str, stable: str, canary: str) -> None:
    """See that a version can take stable's place for its callers.

    Raises:
        RolloutRefused: It is not published, for no kind of machine, or differs in what callers have to know.
    """
    try:
        manifests = [decoded(store.get(stored.manifest_path(model, one)), Manifest) for one in (stable, canary)]
    except NotStored:
        there = ", ".join(name for name in store.names(f"models/{model}") if name != "serving.json")
        raise RolloutRefused(f"version {canary!r} of {model!r} is not published; there is {there}") from None
    except msgspec.MsgspecError as error:
        raise Damaged(stored.manifest_path(model, canary), str(error)) from None
    if not store.names(f"models/{model}/{canary}/targets"):
        raise RolloutRefused(
            f"version {canary!r} of {model!r} has executables for no kind of machine: publish it again"
        )
    if why := misfit(*manifests):
        advice = "callers of stable would not get what they ask for; publish it as another model"
        raise RolloutRefused(f"version {canary!r} cannot stand in for {stable!r}: {why}; {advice}")


def _changed_meanwhile(model: str) -> RolloutRefused:
    return RolloutRefused(f"somebody else changed what is served of {model!r} meanwhile: look at it, and try again")
