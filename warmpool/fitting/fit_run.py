"""One look at what callers send a version: what plan would fit it on one kind of machine, and that plan applied."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from cache.signed_store import SignedStore
from warmpool.errors import PublishError
from warmpool.fitting.picture import picture
from warmpool.fitting.proposal import Proposal, Source, propose
from warmpool.fitting.replan import measured_us, replan
from warmpool.fitting.report import Report, method_report
from warmpool.manifest import Target
from warmpool.publishing.machines import Machine
from warmpool.publishing.progress import Progress
from warmpool.survey import Published, survey


class NoTarget(ValueError):
    """The version has nothing on the kind of machine that is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is fitted: a model, perhaps with its version; None: all methods, as many buckets, what instances counted."""

    model: str
    method: str | None = None
    count: int | None = None
    trace: Path | None = None


class FitRun:
    """What is proposed by now.

    Args:
        store: Where the version is, and what instances counted.
        options: What is fitted.
        kind: The fingerprint of the kind of machine, or its first digits.

    Attributes:
        version: As it is published.
        proposal: A plan for each method.

    Raises:
        NothingToFit: There is none.
        NoSuchVersion, NoTarget: What is asked for is not published.
        StoreUnavailable: The store cannot be read.
        ValueError: An option is not allowed.
    """

    def __init__(self, store: SignedStore, options: Options, kind: str) -> None:
        self.version = survey(store).named(options.model)
        self._store = store
        self._digest, self._target = _target(self.version, kind)
        manifest = self.version.manifest
        if options.method is not None and options.method not in manifest.methods:
            raise ValueError(f"method {options.method!r} is not one of {', '.join(manifest.methods)}")
        methods = [options.method] if options.method else list(manifest.methods)
        if options.trace is not None:
            methods = [options.method or manifest.default_method]
            self._source = Source(file=options.trace)
        else:
            self._source = Source.of_store(store, manifest.model)
        self.proposal: Proposal = propose(manifest, self._target, self._source, methods, options.count)

    def fitted_s(self) -> dict[str, float]:
        """When the present plans were fitted, by method."""
        return {method: plan.fitted_s for method, plan in self._target.plans_by_method.items()}

    def report(self) -> Report:
        """What was found."""
        return self._report(self._target, (), 0)

    def picture(self) -> str:
        """The same as SVG."""
        manifest = self.version.manifest
        return picture(f"{manifest.model}/{manifest.version} on machines {self._digest}", self.proposal.fits)

    def apply(
        self,
        machine: Machine,
        progress: Progress,
        *,
        methods: Collection[str] | None = None,
        retry_failed: bool = False,
    ) -> Report:
        """Publish the plans that are predicted to take less than today's; `methods`: only of these.

        Raises:
            PublishError: Something failed; nothing has changed then.
            CacheError: The store cannot be used.
        """
        if machine.fingerprint.digest != self._digest:
            raise PublishError(f"the plan is for machines of the kind {self._digest}, this is one of another")
        plans = {name: plan for name, plan in self.proposal.plans().items() if methods is None or name in methods}
        if not plans:
            return self.report()
        made = replan(self._store, self.version.manifest, machine, plans, progress, retry_failed=retry_failed)
        return self._report(made.target, tuple(plans), made.compiled)

    def _report(self, target: Target, applied: Collection[str], compiled: int) -> Report:
        return Report(
            model=self.version.manifest.model,
            version=self.version.manifest.version,
            fingerprint=self._digest,
            instances=len(self._source.records),
            unread=self._source.unread,
            methods=tuple(
                method_report(fit, measured_us(fit, target) if fit.method in applied else None)
                for fit in self.proposal.fits
            ),
            skipped=self.proposal.skipped,
            compiled=compiled,
        )


def _target(version: Published, kind: str) -> tuple[str, Target]:
    found = {digest: target for digest, target in version.targets.items() if digest.startswith(kind)}
    if len(found) != 1:
        there = ", ".join(version.targets) or "none"
        raise NoTarget(
            f"{len(found)} kinds of machine begin with {kind}, of those that {version.name} is published for: {there}; "
            "--fingerprint chooses another, `warmpool cache fill` publishes it on this one"
        )
    return next(iter(found.items()))
