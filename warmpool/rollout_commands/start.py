"""`warmpool rollout start MODEL@VERSION`: the version gets a share of the requests, is watched, and goes on or back.

It has to be published (`warmpool publish --no-serve`), and take what stable takes. For a canary that is there already,
the command changes its shares.
"""

from __future__ import annotations

import argparse
import time

from warmpool.cache_commands.opened import opened
from warmpool.manifest import RolloutSpec, Serving
from warmpool.rollout.changes import SHARE_MAX, RolloutRefused, Start, rolled_back, started
from warmpool.rollout.serving_change import read_serving, require_fit
from warmpool.rollout_commands.telling import change, note, noted_as_rolled_back, tell
from warmpool.settings import add_store_flags


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_store_flags(parser)
    spec = RolloutSpec(started_s=0.0)
    parser.add_argument("named", metavar="MODEL@VERSION", help="which version")
    parser.add_argument("--share", type=float, default=0.1, help=f"of requests, 0 to {SHARE_MAX:g} (%(default)g)")
    parser.add_argument(
        "--mirror", type=float, default=0.05, help="of stable's requests that it answers too, to compare (%(default)g)"
    )
    parser.add_argument("--sticky", action="store_true", help="callers that send a key stay with one version")
    parser.add_argument("--bake-s", type=float, default=spec.bake_s, help="how long it is watched (%(default)g s)")
    parser.add_argument(
        "--requests-min", type=int, default=spec.requests_min, help="that an instance saw it answer (%(default)d)"
    )
    parser.add_argument(
        "--numerics",
        choices=("auto", "same", "finite"),
        default=spec.numerics,
        help="mirrored answers have to be the same as stable's within the tolerance, or only finite where those are; "
        "auto: the same where the weights are",
    )
    parser.add_argument("--by-hand", action="store_true", help="it is never promoted by itself")
    parser.add_argument("--reason", default="", help="why, for people who read it later")


def main(args: argparse.Namespace) -> int:
    """Start it."""
    args.model, _, version = args.named.partition("@")
    if not version:
        raise RolloutRefused(f"got {args.named!r}; allowed: MODEL@VERSION")
    start = Start(share=args.share, mirror=args.mirror, sticky=args.sticky, spec=_spec(args))
    store = opened(args)
    store.require_signer("what is served")
    before, _ = read_serving(store, args.model)
    require_fit(store, args.model, before.stable, version)

    def changed(serving: Serving, now_s: float, reason: str) -> Serving:
        over = noted_as_rolled_back(store, args.model, serving)
        return started(rolled_back(serving, now_s) if over else serving, version, start, now_s, reason)

    _, after = change(store, args, "rollout", changed, before)
    note(store, args, after, "start")
    how = "by hand" if args.by_hand else f"by itself after {args.bake_s:g} s and {args.requests_min} requests"
    line = f"{args.model}: {version} gets {args.share:.1%} of the requests beside {after.stable}; it is promoted {how}"
    return tell(args, after, line)


def _spec(args: argparse.Namespace) -> RolloutSpec:
    for name, value, allowed in (
        ("bake-s", args.bake_s, 0 <= args.bake_s <= 30 * 24 * 3600),
        ("requests-min", args.requests_min, 1 <= args.requests_min <= 10**9),
    ):
        if not allowed:
            raise RolloutRefused(f"--{name} is {value:g}, allowed: {'1 to 1e9' if name[0] == 'r' else '0 to 2592000'}")
    return RolloutSpec(
        started_s=round(time.time(), 3),
        bake_s=args.bake_s,
        requests_min=args.requests_min,
        numerics=args.numerics,
        by_hand=args.by_hand,
    )
