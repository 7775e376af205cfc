"""How a change of what is served is told: in the rollout's record, the audit log and on the screen."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import msgspec

from cache.audit import Event as AuditEvent
from cache.signed_store import SignedStore
from warmpool.errors import printable
from warmpool.manifest import Serving
from warmpool.rollout.record import Event, Rollout, What, add_event, read_record, record_path
from warmpool.rollout.serving_change import change_serving
from warmpool.settings import add_store_flags


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of every command that changes what is served of a model."""
    add_store_flags(parser)
    parser.add_argument("model", metavar="MODEL", help="its name")
    parser.add_argument("--reason", default="", help="why, for people who read it later")


def change(
    store: SignedStore,
    args: argparse.Namespace,
    what: AuditEvent,
    changed: Callable[[Serving, float, str], Serving],
    seen: Serving | None = None,
) -> tuple[Serving, Serving]:
    """Serve something else from now on, and leave word in the audit log; what was served, and what is now.

    Only of the rollout that was `seen`, if one was. Raises as `change_serving` does.
    """
    now_s = time.time()
    before, after = change_serving(store, args.model, lambda serving: changed(serving, now_s, args.reason), seen)
    key_id = store.signer.key_id if store.signer else ""
    version = after.canary or after.stable
    store.audit.record(
        what,
        model=args.model,
        version=version,
        before=before.canary or before.stable,
        key_id=key_id,
        reason=args.reason,
    )
    return before, after


def note(store: SignedStore, args: argparse.Namespace, serving: Serving, what: What) -> Rollout | None:
    """Write into the record of a serving's rollout what a person did; None where it has none."""
    if serving.rollout is None:
        return None
    new = Rollout(model=args.model, stable=serving.stable, canary=serving.canary)
    event = Event(what=what, time_s=time.time(), who=store.audit.who, reason=args.reason or "by hand")
    return add_event(store, record_path(args.model, serving.rollout), new, event)


def noted_as_rolled_back(store: SignedStore, model: str, serving: Serving) -> str:
    """Why the canary was rolled back, though what is served still names it; "" if it was not."""
    if serving.rollout is None or not serving.canary:
        return ""
    found = read_record(store, record_path(model, serving.rollout))
    if found is None or found.state != "rolled back":
        return ""
    return (
        next((event.reason for event in found.events if event.what == "rollback"), "") or "for no reason that is given"
    )


def tell(args: argparse.Namespace, after: Serving, line: str) -> int:
    """Print what is served now; the status of success."""
    if args.json:
        print(msgspec.json.encode({"model": args.model, "serving": after}).decode())
    else:
        print(printable(line))
    return 0
