"""A fit as a picture: what was seen, the buckets of today and the fitted ones over it, and what each plan makes of it.

Of two dimensions every shape is a disc, as large as its weight, and every bucket a square at its sizes, on a line that
goes down to the sizes that it is the least one for. Of any other number, each dimension is a row of bars with a mark
wherever a bucket ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from warmpool.errors import printable
from warmpool.fitting.method_fit import FITTED, TODAY, MethodFit, PlanUse
from warmpool.fitting.segments import Bucket, Floats, Ints
from warmpool.fitting.svg import Drawing, powers_of_two

_WIDTH, _MARGIN, _GAP = 920.0, 48.0, 64.0
_PANEL = 240.0  # height of a panel of two dimensions
_STRIP = 64.0  # height of a panel of one
_BAR = 20.0
_INK, _PALE, _GRID = "#222222", "#8a8a8a", "#e6e6e6"
_SEEN, _TODAY, _FITTED, _OTHER = "#7a93b8", "#b5542d", "#1d7a4d", "#a9a9a9"
_RADIUS_MAX = 11.0


def picture(title: str, fits: Sequence[MethodFit]) -> str:
    """An SVG document.

    Args:
        title: What it is about.
        fits: One at least, each gets a part.
    """
    drawing = Drawing(_WIDTH)
    drawing.text(_MARGIN, 30, printable(title), size=16)
    y = 50.0
    for fit in fits:
        y = _Part(drawing, fit).drawn(y)
    return drawing.document(y + 12)


class _Axis:
    """Sizes on a logarithmic axis of the drawing, from 1 to the largest."""

    def __init__(self, largest: int, start: float, end: float) -> None:
        self.largest = largest
        self.start, self.end = start, end

    def at(self, size: float) -> float:
        share = math.log2(max(size, 1.0)) / max(math.log2(self.largest), 1.0)
        return self.start + share * (self.end - self.start)


class _Part:
    """What is drawn of one method."""

    def __init__(self, drawing: Drawing, fit: MethodFit) -> None:
        self._drawing = drawing
        self._fit = fit
        self._shapes, self._weights = fit.fitted_to.shapes, fit.fitted_to.weights

    def drawn(self, y: float) -> float:
        """Draw it below y; where it ends."""
        fit = self._fit
        self._drawing.text(_MARGIN, y + 14, f"{fit.method}: {fit.fitted_to_what}", size=13)
        y += 40
        y = self._planes(y) if len(fit.dims) == 2 else self._strips(y)
        return self._bars(y)

    def _planes(self, y: float) -> float:
        rows, lengths = self._fit.dims
        width = (_WIDTH - 2 * _MARGIN - _GAP) / 2
        for place, (name, color) in enumerate(((TODAY, _TODAY), (FITTED, _FITTED))):
            left = _MARGIN + place * (width + _GAP)
            plan = self._fit.plan(name)
            self._drawing.text(left, y, f"{name}: {len(plan.buckets)} buckets", fill=color)
            across = _Axis(lengths.sizes[-1], left, left + width)
            up = _Axis(rows.sizes[-1], y + 12 + _PANEL, y + 12)
            self._frame(across, up, lengths.name, rows.name)
            self._discs(across, up)
            self._corners(plan.buckets, across, up, color)
        return y + _PANEL + 58

    def _frame(self, across: _Axis, up: _Axis, across_name: str, up_name: str) -> None:
        drawing = self._drawing
        for size in powers_of_two(across.largest):
            drawing.line(across.at(size), up.start, across.at(size), up.end, _GRID)
            drawing.text(across.at(size), up.start + 15, f"{size}", size=9, fill=_PALE, anchor="middle")
        for size in powers_of_two(up.largest):
            drawing.line(across.start, up.at(size), across.end, up.at(size), _GRID)
            drawing.text(across.start - 6, up.at(size) + 3, f"{size}", size=9, fill=_PALE, anchor="end")
        drawing.text((across.start + across.end) / 2, up.start + 30, across_name, size=10, fill=_PALE, anchor="middle")
        drawing.text(across.start - 6, up.end - 8, up_name, size=10, fill=_PALE, anchor="end")

    def _discs(self, across: _Axis, up: _Axis) -> None:
        scale = _RADIUS_MAX / math.sqrt(self._weights.max())
        for (rows, length), weight in zip(self._shapes.tolist(), self._weights.tolist(), strict=True):
            radius = max(0.8, scale * math.sqrt(weight))
            self._drawing.circle(across.at(length), up.at(rows), radius, _SEEN, opacity=0.35)

    def _corners(self, buckets: Sequence[Bucket], across: _Axis, up: _Axis, color: str) -> None:
        outer = sorted({rows for rows, _ in buckets})
        for rows in outer:
            below = max((other for other in outer if other < rows), default=1)
            longest = max(length for other, length in buckets if other == rows)
            self._drawing.line(across.start, up.at(rows), across.at(longest), up.at(rows), color, width=0.8)
            for length in (length for other, length in buckets if other == rows):
                x, top = across.at(length), up.at(rows)
                self._drawing.line(x, top, x, up.at(below), color, width=0.8)
                self._drawing.rect(x - 3, top - 3, 6, 6, color)

    def _strips(self, y: float) -> float:
        for axis, dim in enumerate(self._fit.dims):
            across = _Axis(dim.sizes[-1], _MARGIN, _WIDTH - _MARGIN)
            bottom = y + _STRIP
            self._histogram(self._shapes[:, axis], self._weights, across, bottom)
            for size in powers_of_two(across.largest):
                self._drawing.text(across.at(size), bottom + 14, f"{size}", size=9, fill=_PALE, anchor="middle")
            self._drawing.line(across.start, bottom, across.end, bottom, _PALE)
            self._drawing.text(_MARGIN, y - 4, dim.name, size=10, fill=_PALE)
            for place, (name, color) in enumerate(((TODAY, _TODAY), (FITTED, _FITTED))):
                line = bottom + 34 + place * 20
                sizes = sorted({bucket[axis] for bucket in self._fit.plan(name).buckets})
                self._drawing.line(across.start, line, across.end, line, _GRID)
                for size in sizes:
                    self._drawing.rect(across.at(size) - 1, line - 7, 2, 14, color)
                self._drawing.text(_WIDTH - _MARGIN + 6, line + 4, name, size=9, fill=color)
            y = bottom + 84
        return y

    def _histogram(self, sizes: Ints, weights: Floats, across: _Axis, bottom: float) -> None:
        cells = 80
        places = [
            min(int((across.at(size) - across.start) / (across.end - across.start) * cells), cells - 1)
            for size in sizes
        ]
        heights = np.bincount(places, weights=weights, minlength=cells)
        width = (across.end - across.start) / cells
        for cell, height in enumerate(heights / heights.max()):
            if height:
                tall = max(1.0, float(height) * _STRIP)
                self._drawing.rect(across.start + cell * width, bottom - tall, width - 0.6, tall, _SEEN)

    def _bars(self, y: float) -> float:
        """Predicted time and padding of every plan, side by side."""
        columns: list[tuple[str, Sequence[float], Sequence[str]]] = [
            (
                "predicted time of a batch",
                [plan.time_us for plan in self._fit.plans],
                [milliseconds(plan.time_us) for plan in self._fit.plans],
            ),
            (
                "padding",
                [plan.padding for plan in self._fit.plans],
                [f"{plan.padding:.0%}" for plan in self._fit.plans],
            ),
        ]
        left = _MARGIN + 180
        width = (_WIDTH - _MARGIN - left - _GAP) / 2
        for place, (label, values, shown) in enumerate(columns):
            x = left + place * (width + _GAP)
            self._drawing.text(x, y, label, size=10, fill=_PALE)
            largest = max(*values, 1e-12)
            for row, (plan, value, text) in enumerate(zip(self._fit.plans, values, shown, strict=True)):
                top = y + 8 + row * _BAR
                length = value / largest * (width - 60)
                self._drawing.rect(x, top, length, _BAR - 6, _color(plan))
                self._drawing.text(x + length + 6, top + 11, text, size=10)
        for row, plan in enumerate(self._fit.plans):
            name = f"{plan.name} ({len(plan.buckets)})"
            self._drawing.text(left - 10, y + 19 + row * _BAR, name, size=10, fill=_INK, anchor="end")
        return y + len(self._fit.plans) * _BAR + 36


def milliseconds(time_us: float) -> str:
    """'1.23 ms', to three digits."""
    return f"{time_us / 1000:.3g} ms"


def _color(plan: PlanUse) -> str:
    return {TODAY: _TODAY, FITTED: _FITTED}.get(plan.name, _OTHER)
