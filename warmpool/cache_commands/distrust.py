"""`warmpool cache distrust KEY`: from now on nobody who uses the store trusts a key; `--undo` takes that back.

The store only names the key. Instances take that over when they start and while they run, so nothing has to be
deployed; what the key signed is refused, and set aside by `warmpool cache verify`. An undone distrust they take over
when they start.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from cache.document import signer_of
from cache.signed_store import DISTRUSTED
from cache.signing import KEY_ID_FORM, is_key_id, key_id_of, read_public_keys
from warmpool.cache_commands.opened import opened
from warmpool.settings import add_store_flags


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_store_flags(parser)
    parser.add_argument(
        "key_id",
        metavar="KEY",
        type=_key_id,
        help="its id, as `cache keygen` prints it, or the file of its public half",
    )
    parser.add_argument("--reason", default="", help="why, for people who read it later")
    parser.add_argument("--undo", action="store_true", help="trust the key again")


def main(args: argparse.Namespace) -> int:
    """Name the key in the store, or no more."""
    store = opened(args)
    path = f"{DISTRUSTED}/{args.key_id}"
    if args.undo:
        store.delete(path)
    else:
        since = datetime.now(UTC).isoformat(timespec="milliseconds")
        store.put(path, msgspec.json.encode({"since": since, "reason": args.reason}))
    signed = sum(signer_of(store.bottom.get(one.path)) == args.key_id for one in store.bottom.entries("models"))
    reason = f"undone: {args.reason}" if args.undo else args.reason
    store.audit.record("distrust", key_id=args.key_id, reason=reason)
    result = {"key_id": args.key_id, "distrusted": not args.undo, "documents_signed": signed}
    told = f"{args.key_id} is {'trusted again by who starts with its public half' if args.undo else 'distrusted'}"
    if not (signed or args.undo):
        told += ", but it signed no document in this store: is that the right id?"
    print(msgspec.json.encode(result).decode() if args.json else told)
    return 0


def _key_id(text: str) -> str:
    if is_key_id(text):
        return text
    try:
        (public,) = read_public_keys([Path(text)])
    except ValueError as error:  # of the file, or of how many keys are in it
        allowed = f"{KEY_ID_FORM}, or a file with one public key ({error})"
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: {allowed}") from None
    return key_id_of(public)
