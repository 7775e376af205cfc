"""What a fit found, as JSON and as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from rich.console import Console
from rich.table import Table

from warmpool.errors import printable
from warmpool.fitting.method_fit import FITTED, TODAY, MethodFit, PlanUse, named
from warmpool.fitting.picture import milliseconds
from warmpool.manifest import bucket_name

_PIPED_COLUMNS = 120


class PlanReport(msgspec.Struct, frozen=True, kw_only=True):
    """A plan: its buckets, the share of padding, and the predicted run time of a batch on average."""

    name: str
    buckets: tuple[dict[str, int], ...]
    padding: float
    time_us: float


class MethodReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was found for a method.

    Attributes:
        method: Its name.
        requests: How many were seen, the older ones counting less.
        batches: The same of batches that ran.
        refused: Requests larger than callers may send, which are not among them.
        exact: Whether no plan of the kind is predicted to take less with as many buckets.
        gain: The share of today's predicted time that the fitted plan saves.
        plans: Today's, the fitted one, and others beside them.
        applied: Whether the fitted plan was published.
        measured_us: What a batch then takes on average, by what was measured when it was; None if it was not.
    """

    method: str
    requests: float
    batches: float
    refused: float
    exact: bool
    gain: float
    plans: tuple[PlanReport, ...]
    applied: bool = False
    measured_us: float | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What was found for a version on one kind of machine; `unread`: records that could not be read."""

    model: str
    version: str
    fingerprint: str
    instances: int
    unread: int
    methods: tuple[MethodReport, ...]
    skipped: tuple[str, ...]
    compiled: int = 0


def method_report(fit: MethodFit, measured_us: float | None = None) -> MethodReport:
    """One method's part; `measured_us` if its plan was applied."""
    return MethodReport(
        method=fit.method,
        requests=round(fit.seen.requests.count, 3),
        batches=round(fit.seen.batches.count, 3),
        refused=round(fit.seen.requests.refused, 3),
        exact=fit.exact,
        gain=round(fit.gain, 6),
        plans=tuple(_plan(fit, plan) for plan in fit.plans),
        applied=measured_us is not None,
        measured_us=measured_us,
    )


def show(report: Report) -> None:
    """Print tables."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PIPED_COLUMNS
    for line in _lines(report):
        if isinstance(line, Table):
            console.print(line)
        else:
            console.print(printable(line), markup=False, soft_wrap=True)


def _lines(report: Report) -> Iterator[str | Table]:
    yield f"{report.model}/{report.version} on machines of the kind {report.fingerprint}"
    for method in report.methods:
        yield ""
        batches = f", {method.batches:,.0f} batches" if method.batches else ""
        yield f"{method.method}: {method.requests:,.0f} requests{batches}{_apart(report, method)}"
        yield _table(method)
        kind = "the best plan with as many buckets" if method.exact else "the best plan that was found"
        yield f"{FITTED} ({kind}):"
        yield from (f"  {line}" for line in rows_of(_named(method, FITTED).buckets))
        yield _outcome(method)
    yield from (f"not fitted: {line}" for line in report.skipped)
    if report.unread:
        yield f"{report.unread} records of traffic could not be read"


def _apart(report: Report, method: MethodReport) -> str:
    instances = f", counted by {report.instances} instances" if report.instances else ""
    refused = f", {method.refused:,.0f} of them too large for callers to send" if method.refused else ""
    return instances + refused


def _table(method: MethodReport) -> Table:
    table = Table("plan", box=None)
    for heading in ("buckets", "padding", "predicted time of a batch", "against today"):
        table.add_column(heading, justify="right")
    today = _named(method, TODAY).time_us
    for plan in method.plans:
        style = "bold" if plan.name == FITTED else None
        against = f"{plan.time_us / today - 1:+.1%}"
        table.add_row(
            plan.name, f"{len(plan.buckets)}", f"{plan.padding:.1%}", milliseconds(plan.time_us), against, style=style
        )
    return table


def rows_of(buckets: Sequence[dict[str, int]]) -> list[str]:
    """Buckets in few lines: of two dimensions a line for each size of the first one."""
    if not buckets or len(buckets[0]) != 2:
        return [" ".join(map(bucket_name, buckets))]
    first, second = buckets[0]
    by_first: dict[int, list[int]] = {}
    for bucket in buckets:
        by_first.setdefault(bucket[first], []).append(bucket[second])
    return [f"{first}={size}: {second}={','.join(map(str, sizes))}" for size, sizes in by_first.items()]


def _outcome(method: MethodReport) -> str:
    if method.applied and method.measured_us is not None:
        return f"published: by what was measured, a batch takes {milliseconds(method.measured_us)}"
    if method.gain <= 0:
        return "nothing is predicted to take less than today's plan"
    return f"it would save {method.gain:.1%} of the run time; --apply publishes it"


def _named(method: MethodReport, name: str) -> PlanReport:
    return next(plan for plan in method.plans if plan.name == name)


def _plan(fit: MethodFit, plan: PlanUse) -> PlanReport:
    return PlanReport(
        name=plan.name,
        buckets=tuple(named(fit.dims, bucket) for bucket in plan.buckets),
        padding=round(plan.padding, 6),
        time_us=round(plan.time_us, 3),
    )
