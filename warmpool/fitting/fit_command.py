"""`warmpool buckets fit MODEL`: the bucket plan that fits what callers send, beside today's; `--apply` publishes it.

Shapes come from what instances counted and left in the store, or from a file. What runs take is what was measured of
the buckets that there are, on the kind of machine that the plan is for.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import msgspec

from warmpool.cache_commands.opened import opened
from warmpool.fitting.fit_run import FitRun, Options
from warmpool.fitting.hysteresis import EVERY_S, GAIN_MIN, LOOKS, REST_S, Hysteresis
from warmpool.fitting.replan import this_machine
from warmpool.fitting.report import Report, show
from warmpool.fitting.watch import watch
from warmpool.publishing.machines import CHOICES
from warmpool.publishing.progress import shown_on
from warmpool.settings import add_store_flags


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL[@VERSION]", help="which; by default the version that is served")
    add_store_flags(parser)
    parser.add_argument("--method", metavar="M", help="only this method; by default all that enough was seen of")
    parser.add_argument(
        "--count", type=_number(1, kind=int), metavar="K", help="how many buckets; by default as many as there are now"
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="shapes from a file instead of the store: CSV with a header that names the method's dimensions; that of "
        "rows may be missing, and a column `weight` says how many such requests there were",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="where a picture of it goes")
    parser.add_argument(
        "--fingerprint", metavar="F", default="", help="for which kind of machine, by first digits; by default this one"
    )
    parser.add_argument("--platform", choices=CHOICES, default="auto", help="which of this machine's is fitted for")
    parser.add_argument(
        "--apply",
        action="store_true",
        help="publish it for this kind of machine: compile what is missing, prove it all, then let instances have it",
    )
    parser.add_argument("--retry-failed", action="store_true", help="compile again what failed to compile before")
    by_itself = parser.add_argument_group(
        "by itself",
        "--watch looks again and again, and applies a plan only if it is predicted to save enough, at several looks in "
        "a row, and if the present one is not too young. Instances never compile: run it as a job beside them.",
    )
    by_itself.add_argument("--watch", action="store_true", help="do not end; implies --apply")
    by_itself.add_argument(
        "--every", type=_number(0.01), default=EVERY_S, metavar="S", help="seconds between looks (%(default)g)"
    )
    by_itself.add_argument("--times", type=_number(0, kind=int), default=0, metavar="N", help="end after so many looks")
    by_itself.add_argument(
        "--gain",
        type=_number(0, 1),
        default=GAIN_MIN,
        metavar="SHARE",
        help="of the run time, to be saved (%(default)g)",
    )
    by_itself.add_argument(
        "--looks", type=_number(1, kind=int), default=LOOKS, metavar="N", help="in a row that see it (%(default)d)"
    )
    by_itself.add_argument(
        "--rest-hours",
        type=_number(0),
        default=REST_S / 3600,
        metavar="H",
        help="age of a plan before another (%(default)g)",
    )


def main(args: argparse.Namespace) -> int:
    """Fit; 0 if there is a plan, whatever it saves."""
    store = opened(args)
    options = Options(model=args.model, method=args.method, count=args.count, trace=args.trace)
    if args.apply or args.watch:
        if args.fingerprint:
            raise ValueError("--fingerprint is not allowed with --apply or --watch: a plan is made on what it is for")
        store.require_signer()
        signal.signal(signal.SIGTERM, _end)  # others need not wait for what we claimed
    elif args.fingerprint:
        run = FitRun(store, options, args.fingerprint)
        return _shown(run, run.report(), args)
    machine = this_machine(args.platform)
    if args.watch:
        rules = Hysteresis(gain_min=args.gain, looks=args.looks, rest_s=args.rest_hours * 3600)
        with shown_on(sys.stderr) as progress:
            watch(store, options, machine, rules, progress, every_s=args.every, times=args.times)
        return 0
    run = FitRun(store, options, machine.fingerprint.digest)
    if not args.apply:
        return _shown(run, run.report(), args)
    with shown_on(sys.stderr) as progress:
        report = run.apply(machine, progress, retry_failed=args.retry_failed)
    return _shown(run, report, args)


def _shown(run: FitRun, report: Report, args: argparse.Namespace) -> int:
    if args.plot:
        args.plot.write_text(run.picture(), encoding="utf-8")
    if args.json:
        print(msgspec.json.encode(report).decode())
    else:
        show(report)
    return 0


def _end(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _number(low: float, high: float = float("inf"), kind: type = float) -> Callable[[str], Any]:
    """A number within bounds, as an argument."""

    def parse(text: str) -> Any:
        try:
            number = kind(text)
        except ValueError:
            number = low - 1
        if not low <= number <= high:
            allowed = f"{low:g} or more" if high == float("inf") else f"{low:g} to {high:g}"
            raise argparse.ArgumentTypeError(f"got {text!r}; allowed: a number, {allowed}")
        return number

    return parse
