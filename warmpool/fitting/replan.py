"""Publishing another plan for this kind of machine, out of the store alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cache.signed_store import SignedStore
from warmpool.fitting.method_fit import MethodFit
from warmpool.fitting.usage import usage
from warmpool.manifest import Manifest, PlanSpec, Target
from warmpool.publishing.from_store import make_from_store
from warmpool.publishing.machines import Children, Limits, Machine
from warmpool.publishing.made import Made
from warmpool.publishing.progress import Progress


def this_machine(platform: str) -> Machine:
    """The kind of machine that is published for here first. Raises PublishError where the platform is not there."""
    with Children(Limits()) as children:
        return children.machines(platform)[0]


def replan(
    store: SignedStore,
    manifest: Manifest,
    machine: Machine,
    plans: Mapping[str, PlanSpec | None],
    progress: Progress,
    *,
    retry_failed: bool = False,
) -> Made:
    """Let these plans hold from now on, by method; None: the manifest's own. See `make_from_store`.

    Instances see it within a minute. They load what is new beside what they have, and give up what is planned no more
    once all else of its method is warm, or could be.
    """
    with Children(Limits()) as children:
        return make_from_store(
            store, manifest, machine, children, progress, why="another plan", replan=plans, retry_failed=retry_failed
        )


def measured_us(fit: MethodFit, target: Target) -> float:
    """What a batch takes on average in the plan of a target, by what was measured of each of its buckets."""
    names = [dim.name for dim in fit.dims]
    times = {
        tuple(spec.bucket[name] for name in names): spec.cost_us
        for spec in target.executables
        if spec.method == fit.method and not spec.cpu_lane_only
    }
    taken = np.array(list(times.values()))
    found = usage(fit.fitted_to.shapes, fit.fitted_to.weights, list(times), lambda *_: taken)
    return round(found.cost / fit.fitted_to.count, 3)
