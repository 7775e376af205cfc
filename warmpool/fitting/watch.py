"""`warmpool buckets fit --watch`: looks again and again, and applies a plan where the rules say so."""

from __future__ import annotations

import time

from cache.errors import CacheError
from cache.signed_store import SignedStore
from warmpool.errors import PublishError
from warmpool.fitting.fit_run import FitRun, Options
from warmpool.fitting.hysteresis import Hysteresis
from warmpool.fitting.method_fit import TODAY
from warmpool.fitting.picture import milliseconds
from warmpool.fitting.proposal import NothingToFit
from warmpool.publishing.machines import Machine
from warmpool.publishing.progress import Progress


def watch(
    store: SignedStore,
    options: Options,
    machine: Machine,
    rules: Hysteresis,
    progress: Progress,
    *,
    every_s: float,
    times: int,
) -> None:
    """Look every so many seconds; so many times, 0: for ever.

    What may be otherwise at the next look is told and does not end it: too few requests, a store that is away, an
    executable that cannot be made.

    Raises:
        ValueError: What is asked for is not published, or not allowed.
    """
    looks = 0
    while True:
        looks += 1
        try:
            _look(FitRun(store, options, machine.fingerprint.digest), machine, rules, progress)
        except (CacheError, PublishError, NothingToFit) as error:
            progress.say(f"look {looks}: {error}")
        if looks == times:
            return
        time.sleep(every_s)


def _look(run: FitRun, machine: Machine, rules: Hysteresis, progress: Progress) -> None:
    gains = {fit.method: fit.gain for fit in run.proposal.fits}
    chosen = rules.look(gains, run.fitted_s(), time.time())
    for method, gain in gains.items():
        if method not in chosen:
            progress.say(f"{method}: another plan would save {gain:.1%} ({rules.progress(method)})")
    if not chosen:
        return
    for one in run.apply(machine, progress, methods=chosen).methods:
        if one.measured_us is not None:
            before = next(plan.time_us for plan in one.plans if plan.name == TODAY)
            taken = f"{milliseconds(one.measured_us)} instead of {milliseconds(before)}"
            progress.say(f"{one.method}: another plan is published, a batch takes {taken}")
