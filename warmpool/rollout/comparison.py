"""Whether two versions answered the same request alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warmpool.manifest import Manifest, RolloutSpec, ToleranceSpec

Array = NDArray[Any]

SIDES = 2  # each of the two answers may be off by the tolerance, from what both should be


@dataclass(frozen=True, slots=True)
class Rule:
    """What canary and stable may differ by; without a tolerance by anything that is finite."""

    tolerance: ToleranceSpec | None

    @classmethod
    def of(cls, spec: RolloutSpec, stable: Manifest, canary: Manifest) -> Rule:
        """What a rollout asks for; by itself the same answers where the weights are the same, else finite ones.

        The larger of the two tolerances counts.
        """
        same = stable.weights.digest == canary.weights.digest if spec.numerics == "auto" else spec.numerics == "same"
        if not same:
            return cls(None)
        both = stable.tolerance, canary.tolerance
        return cls(ToleranceSpec(rtol=max(one.rtol for one in both), atol=max(one.atol for one in both)))


@dataclass(frozen=True, slots=True)
class Compared:
    """What was found: answers beyond the tolerance, and numbers that are none where stable's are."""

    differing: bool = False
    not_finite: bool = False


def compared(rule: Rule, stable: Mapping[str, Array], canary: Mapping[str, Array]) -> Compared:
    """Compare the outputs that stable gave, by name. Another shape or dtype is a difference under any rule."""
    differing = not_finite = False
    for name, wanted in stable.items():
        found = canary.get(name)
        if found is None or (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
            differing = True
        elif found.dtype.kind in "biu":
            differing |= rule.tolerance is not None and not np.array_equal(found, wanted)
        else:
            got, want = found.astype(np.float64), wanted.astype(np.float64)
            finite = np.isfinite(want)
            not_finite |= bool((finite & ~np.isfinite(got)).any())
            differing |= rule.tolerance is not None and not _within(rule.tolerance, got, want)
    return Compared(differing, not_finite)


def _within(tolerance: ToleranceSpec, found: NDArray[np.float64], wanted: NDArray[np.float64]) -> bool:
    return np.allclose(found, wanted, SIDES * tolerance.rtol, SIDES * tolerance.atol, equal_nan=True)
