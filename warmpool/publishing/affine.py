"""Output shapes of a function that refuses symbolic dimensions, found from shapes at known sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

Sizes = Mapping[str, int]


def fitted(samples: Sequence[tuple[Sizes, int]]) -> int | str | None:
    """The one integer, or else the sum of multiples of dimensions and a constant, that every sample agrees with.

    Args:
        samples: Sizes of the named dimensions, the same names in each, and what an axis measures at them.

    Returns:
        An int, an expression such as "2*seq + 1" (see `warmpool.symbolic`), or None if nothing of this form fits.
    """
    found = np.array([size for _, size in samples])
    if (found == found[0]).all():
        return int(found[0])
    # A dimension that has a single size cannot be told from the constant.
    names = [name for name in samples[0][0] if len({sizes[name] for sizes, _ in samples}) > 1]
    known = np.array([[sizes[name] for name in names] + [1] for sizes, _ in samples])
    solution, *_ = np.linalg.lstsq(known, found, rcond=None)
    whole = np.rint(solution).astype(int)
    return _expression(names, whole.tolist()) if (known @ whole == found).all() else None


def _expression(names: Sequence[str], whole: Sequence[int]) -> str:
    *factors, constant = whole
    terms = [name if factor == 1 else f"{factor}*{name}" for name, factor in zip(names, factors, strict=True) if factor]
    if constant:
        terms.append(str(constant))
    return " + ".join(terms).replace("+ -", "- ")
