"""What a bucket that nobody compiled yet would take, from those that were measured.

Between the measured sizes the logarithm of the run time is interpolated linearly over the logarithms of the sizes, in
all dimensions at once (multilinear): between two measured sizes a run then takes a power of the size, as work does that
grows with it. A larger bucket is never predicted to take less: where measured times say so, which is noise for the most
part, each is replaced by the geometric mean of the most that a smaller one took and the least that a larger one takes.
That is the measured time itself where times do grow.

Below the smallest measured size of a dimension the times go on falling as they do next to it, by the slope that is
least over the other dimensions. Where one size alone was measured nothing is known, and all sizes take the same, so
that no plan is predicted to save anything by others. No size above the largest is asked for.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from warmpool.fitting.segments import Floats, Ints


class MeasuredCost:
    """Predicts run times in microseconds; a `warmpool.fitting.segments.Cost`.

    Args:
        measured_us: Run times by bucket, one size for each dimension; not all combinations of the sizes have to be
            there. One at least.

    Raises:
        ValueError: None was measured, or one is not above 0.
    """

    def __init__[Bucket: tuple[int, ...]](self, measured_us: Mapping[Bucket, float]) -> None:
        if not measured_us:
            raise ValueError("no run time was measured, at least one is needed")
        if not all(0 < taken < float("inf") for taken in measured_us.values()):
            raise ValueError(f"a run took {min(measured_us.values())} us, allowed: more than 0")
        self.sizes = [np.unique(column) for column in np.array(list(measured_us), np.int64).T]
        """The measured sizes of each dimension."""
        self._knots = [np.log(sizes.astype(np.float64)) for sizes in self.sizes]
        table = np.full([len(sizes) for sizes in self.sizes], np.nan)
        for bucket, taken in measured_us.items():
            table[self._place(bucket)] = np.log(taken)
        self._table = _monotone(_filled(table))
        self._slopes = [self._first_slope(axis) for axis in range(len(self.sizes))]

    def __call__(self, *sizes: Any) -> Floats:
        """The predicted times of buckets: one array for each dimension, which broadcast."""
        given = np.broadcast_arrays(*(np.asarray(one, np.float64) for one in sizes))
        logs = [np.log(np.maximum(one, 1.0)) for one in given]
        below = np.zeros(given[0].shape)
        places: list[Ints] = []
        parts: list[Floats] = []
        for log, knots, slope in zip(logs, self._knots, self._slopes, strict=True):
            below += np.minimum(log - knots[0], 0.0) * slope
            inside = np.clip(log, knots[0], knots[-1])
            place = np.clip(np.searchsorted(knots, inside) - 1, 0, max(len(knots) - 2, 0))
            width = knots[np.minimum(place + 1, len(knots) - 1)] - knots[place]
            places.append(place)
            parts.append(np.divide(inside - knots[place], width, out=np.zeros(inside.shape), where=width > 0))
        total = np.zeros(given[0].shape)
        for corner in itertools.product((0, 1), repeat=len(places)):
            weight = np.ones(given[0].shape)
            for step, part in zip(corner, parts, strict=True):
                weight = weight * (part if step else 1.0 - part)
            ends = (len(knots) - 1 for knots in self._knots)
            indices = tuple(
                np.minimum(place + step, end) for place, step, end in zip(places, corner, ends, strict=True)
            )
            total += weight * self._table[indices]
        return np.exp(total + below)

    def _place(self, bucket: Sequence[int]) -> tuple[int, ...]:
        return tuple(int(np.searchsorted(sizes, size)) for sizes, size in zip(self.sizes, bucket, strict=True))

    def _first_slope(self, axis: int) -> float:
        knots = self._knots[axis]
        if len(knots) < 2:
            return 0.0
        first, second = np.take(self._table, 0, axis), np.take(self._table, 1, axis)
        return float(np.min(second - first) / (knots[1] - knots[0]))


def _filled(table: Floats) -> Floats:
    """Every entry that was not measured lies between the most of what is smaller and the least of what is larger.

    There is always one of both, since each size of a dimension was measured with some others.
    """
    most = _running_max(np.where(np.isnan(table), -np.inf, table))
    least = _running_min(np.where(np.isnan(table), np.inf, table))
    between = np.where(np.isinf(most), least, np.where(np.isinf(least), most, (most + least) / 2))
    return np.where(np.isnan(table), between, table)


def _monotone(table: Floats) -> Floats:
    return (_running_max(table) + _running_min(table)) / 2


def _running_max(table: Floats) -> Floats:
    for axis in range(table.ndim):
        table = np.maximum.accumulate(table, axis)
    return table


def _running_min(table: Floats) -> Floats:
    for axis in range(table.ndim):
        table = np.flip(np.minimum.accumulate(np.flip(table, axis), axis), axis)
    return table
