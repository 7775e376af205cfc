"""What is proposed for one version on one kind of machine: a plan for each of its methods that traffic was seen of."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cache.store import Store
from warmpool.fitting.method_fit import MethodFit, TooFew, fit_method
from warmpool.fitting.observations import Seen, from_file, from_records
from warmpool.manifest import Manifest, PlanSpec, Target
from warmpool.publishing.buckets import buckets_over
from warmpool.publishing.plans import dims_of, problem_of_plan
from warmpool.traffic_record import TrafficRecord, read_records


class NothingToFit(ValueError):
    """No plan can be proposed; the message says why."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where shapes are from: the records of a store, or a file, which is about one method."""

    records: tuple[TrafficRecord, ...] = ()
    unread: int = 0
    file: Path | None = None

    @classmethod
    def of_store(cls, store: Store, model: str) -> Source:
        """What instances left. Raises StoreUnavailable."""
        records, problems = read_records(store, model)
        return cls(tuple(records), len(problems))

    def seen(self, manifest: Manifest, method: str) -> Seen:
        """What is known of a method. Raises BadTrace."""
        dims = dims_of(manifest, method)
        if self.file is not None:
            return from_file(self.file, dims)
        return from_records(self.records, method, dims, time.time())


@dataclass(frozen=True, slots=True)
class Proposal:
    """Fits by method, and why other methods have none."""

    fits: tuple[MethodFit, ...]
    skipped: tuple[str, ...]

    def plans(self) -> dict[str, PlanSpec]:
        """The plans that differ from today's and are predicted to take less."""
        return {fit.method: plan_of(fit) for fit in self.fits if fit.gain > 0}


def plan_of(fit: MethodFit) -> PlanSpec:
    """A fit as it is stored."""
    return PlanSpec(buckets=fit.buckets, fitted_s=time.time(), observations=round(fit.fitted_to.count, 3))


def buckets_today(manifest: Manifest, target: Target, method: str) -> list[dict[str, int]]:
    """The buckets that a method is planned for on this kind of machine."""
    plan = target.plans_by_method.get(method)
    return list(plan.buckets) if plan else [bucket.sizes for bucket in buckets_over(dims_of(manifest, method))]


def propose(manifest: Manifest, target: Target, source: Source, methods: Sequence[str], count: int | None) -> Proposal:
    """Fit these methods.

    Args:
        manifest: The version's.
        target: What it has on the kind of machine.
        source: What was seen.
        methods: Their names; of several, those that cannot be fitted are left out.
        count: How many buckets each may have; None: as many as it has.

    Raises:
        NothingToFit: None of them can be fitted.
        BadTrace: The file cannot be read.
        ValueError: The count is too small.
    """
    fits: list[MethodFit] = []
    skipped: list[str] = []
    for method in methods:
        try:
            fits.append(_fitted(manifest, target, source, method, count))
        except (NothingToFit, TooFew) as error:
            skipped.append(f"{method}: {error}")
    if not fits:
        raise NothingToFit("; ".join(skipped))
    return Proposal(tuple(fits), tuple(skipped))


def _fitted(manifest: Manifest, target: Target, source: Source, method: str, count: int | None) -> MethodFit:
    dims = dims_of(manifest, method)
    if not dims:
        raise NothingToFit("it has no dimensions")
    if not manifest.methods[method].symbolic:
        raise NothingToFit("it was exported once a bucket: give its dimensions other sizes and publish it")
    measured = [one for one in target.executables if one.method == method and not one.cpu_lane_only]
    if not measured:
        raise NothingToFit("nothing is measured of it on this kind of machine")
    today = buckets_today(manifest, target, method)
    fit = fit_method(method, dims, today, measured, source.seen(manifest, method), count=count)
    if problem := problem_of_plan(manifest, method, fit.buckets):
        raise NothingToFit(f"what fits it cannot be compiled: {problem}")
    return fit
