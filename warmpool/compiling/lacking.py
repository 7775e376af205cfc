"""What is missing for an instance's lanes, and what it is missed for: looked up in the store, ranked."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from cache.errors import StoreUnavailable
from cache.fingerprint import Fingerprint
from cache.signed_store import SignedStore
from warmpool.catalog import ServedMethod, ServedModel
from warmpool.compiling.gaps import Gap
from warmpool.compiling.order import Demand, Ranked, ranked
from warmpool.compiling.protocol import Place
from warmpool.dataplane import DataPlane
from warmpool.lanes import LaneProxy
from warmpool.manifest import bucket_name
from warmpool.publishing.missing import Missing, missing_places
from warmpool.selection import Sizes
from warmpool.shape_sketch import HALF_LIFE_S
from warmpool.traffic_record import TrafficRecord, read_records

_PRIOR_S, _PRIOR_S_A_WEIGHT = 2.0, 0.05  # of a compile: with the number of a model's weights grows that of its layers
_US_AN_ELEMENT_A_BYTE = 2e-6  # of weights, which are multiplied with every element: measured of a sentence encoder


@dataclass(frozen=True, slots=True)
class _Held:
    """What a lane has of a method, as far as it is known: buckets with their run times; those that it cannot have."""

    warm: Sequence[tuple[Sizes, float]]
    cold: frozenset[str]


class Lacking:
    """Of one instance.

    Args:
        store: Where its versions are.
        lanes: The primary one first; they may come later.
        dataplane: Knows what it serves, and what callers sent.
        fingerprints: Of the lanes, by name, as they become known.
    """

    def __init__(
        self,
        store: SignedStore,
        lanes: Sequence[LaneProxy],
        dataplane: DataPlane,
        fingerprints: Mapping[str, Fingerprint],
    ) -> None:
        self._store = store
        self._lanes = lanes
        self._dataplane = dataplane
        self._fingerprints = fingerprints
        self._earlier: dict[str, list[TrafficRecord]] = {}

    @property
    def accelerator(self) -> bool:
        """Whether jax has to say what kind of machine the primary lane is."""
        return any(lane.mode == "jax" for lane in self._lanes)

    def concerns(self) -> frozenset[str]:
        """What a look is about: versions, and kinds of machine. Once it is another, another look is due."""
        return self.machines.union(self._dataplane.catalog.versions)

    @property
    def machines(self) -> frozenset[str]:
        """Digests of the kinds of machine that the lanes are, as far as they are known."""
        return frozenset(fingerprint.digest for fingerprint in self._fingerprints.values())

    def look(self) -> Callable[[], list[Ranked]]:
        """What finds out what is missing, in a thread, of how things are now. It raises StoreUnavailable."""
        versions = list(self._dataplane.catalog.versions.values())
        kinds: dict[str, tuple[Fingerprint, bool]] = {}
        for lane in self._lanes:
            if fingerprint := self._fingerprints.get(lane.name):
                kinds.setdefault(fingerprint.digest, (fingerprint, lane is self._lanes[0]))
        held = {
            (method, lane is not self._lanes[0]): _held(lane, method)
            for lane in self._lanes
            for version in versions
            for method in version.methods.values()
        }
        records = list(self._dataplane.traffic.records().values())
        return lambda: self._find(versions, kinds, held, records)

    def _find(
        self,
        versions: Sequence[ServedModel],
        kinds: Mapping[str, tuple[Fingerprint, bool]],
        held: Mapping[tuple[ServedMethod, bool], _Held],
        records: Sequence[TrafficRecord],
    ) -> list[Ranked]:
        if versions and not self._store.names("models"):
            gone = "nothing is published in it any more: it was moved, or it is not mounted"
            raise StoreUnavailable(gone, told=gone)
        gaps: list[Gap] = []
        demands: dict[Any, Demand] = {}
        for version in versions:
            for digest, (fingerprint, primary) in kinds.items():
                missing = missing_places(self._store, version.manifest, fingerprint, primary=primary)
                for one in missing:
                    method = version.methods[one.place.method]
                    ladder = one.ladder or not primary
                    known = held[method, ladder]
                    gap = _gap(version, method, digest, one, known, ladder=ladder)
                    gaps.append(gap)
                    if gap.side not in demands:
                        demands[gap.side] = Demand([bucket for bucket, _ in known.warm], self._needs(method, records))
        return ranked(gaps, demands)

    def _needs(self, method: ServedMethod, records: Sequence[TrafficRecord]) -> list[tuple[Sizes, float]]:
        """What callers sent: this instance's own, and what others left word of before it began."""
        if method.model not in self._earlier:
            self._earlier[method.model] = read_records(self._store, method.model)[0]
        now_s = time.time()
        found: list[tuple[Sizes, float]] = []
        for record in (*records, *self._earlier[method.model]):
            counted = record.methods.get(method.name) if record.model == method.model else None
            if counted and counted.dims == tuple(method.dims):
                aged = 0.5 ** (max(0.0, now_s - record.written_s) / HALF_LIFE_S)
                shapes = zip(counted.requests.shapes, counted.requests.weights, strict=True)
                found += [(dict(zip(counted.dims, shape, strict=True)), weight * aged) for shape, weight in shapes]
        return found


def _held(lane: LaneProxy, method: ServedMethod) -> _Held:
    plan = lane.held.load_plan
    own = [(number, one) for number, one in (plan.loadables.items() if plan else ()) if one.method is method]
    return _Held(
        [(one.candidate.bucket, one.candidate.cost_us) for number, one in own if not lane.held.trouble(number)],
        frozenset(bucket_name(one.candidate.bucket) for number, one in own if lane.held.trouble(number)),
    )


def _gap(
    version: ServedModel, method: ServedMethod, fingerprint: str, one: Missing, held: _Held, *, ladder: bool
) -> Gap:
    weights = version.manifest.weights
    measured = [cost_us / prod(bucket.values()) for bucket, cost_us in held.warm]
    return Gap(
        model=version.manifest.model,
        version=version.manifest.version,
        fingerprint=fingerprint,
        place=Place(*one.place),
        bucket=one.bucket,
        ladder=ladder,
        minimum=one.minimum,
        key=one.key,
        program=method.spec.program(one.bucket),
        batch=method.batch or "",
        us_an_element=statistics.median(measured) if measured else weights.size_bytes * _US_AN_ELEMENT_A_BYTE,
        told=one.place.bucket in held.cold,
        prior_s=_PRIOR_S + _PRIOR_S_A_WEIGHT * len(weights.tensors),
    )
