"""Lines over a logarithmic axis, as SVG: how the share of answers in time falls with load."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from warmpool.fitting.svg import Drawing

WIDTH, HEIGHT = 760.0, 420.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, 220.0, 48.0, 56.0  # margins; names of lines stand at the right
COLORS = ("#c44e52", "#1f6fb2", "#55a868", "#8172b3", "#8c8c8c")
NAMES_APART = 15.0


@dataclass(frozen=True, slots=True)
class Line:
    """A named line through points; x more than 0."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True, slots=True)
class Chart:
    """Up to five lines. The y axis begins at 0 and is what the title says; `marked` values of it get a thin line."""

    title: str
    x_title: str
    lines: Sequence[Line]
    marked: Sequence[float] = ()

    def svg(self) -> str:
        """The picture."""
        drawing = Drawing(WIDTH)
        drawing.text(LEFT, 24, self.title, size=14)
        self._axes(drawing)
        for line, color in zip(self.lines, COLORS, strict=False):
            points = [(self._x(x), self._y(y)) for x, y in zip(line.x, line.y, strict=True)]
            for (x1, y1), (x2, y2) in itertools.pairwise(points):
                drawing.line(x1, y1, x2, y2, color, width=2)
            for x, y in points:
                drawing.circle(x, y, 3, color)
        self._names(drawing)
        return drawing.document(HEIGHT)

    @property
    def _reach(self) -> tuple[float, float, float]:
        """The least x, the largest x, and the largest y."""
        xs = [x for line in self.lines for x in line.x]
        ys = [y for line in self.lines for y in line.y]
        return min(xs), max(xs), max([*ys, *self.marked])

    def _x(self, value: float) -> float:
        low, high, _ = self._reach
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(value / low) / (math.log(high / low) or 1.0)

    def _y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / self._top

    @property
    def _step(self) -> float:
        """Between two marks of the y axis: 1, 2 or 5 times a power of ten, for three to six of them."""
        rough = self._reach[2] / 5
        power = 10.0 ** math.floor(math.log10(rough))
        return next(step * power for step in (1, 2, 5, 10) if step * power >= rough * (1 - 1e-9))

    @property
    def _top(self) -> float:
        """The end of the y axis."""
        return self._step * math.ceil(self._reach[2] / self._step - 1e-9)

    def _axes(self, drawing: Drawing) -> None:
        right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
        for number in range(round(self._top / self._step) + 1):
            value = self._step * number
            y = self._y(value)
            drawing.line(LEFT, y, right, y, "#e4e4e4")
            drawing.text(LEFT - 8, y + 4, f"{value:g}", anchor="end")
        for value in sorted({x for line in self.lines for x in line.x}):
            drawing.line(self._x(value), bottom, self._x(value), bottom + 4, "#888")
            drawing.text(self._x(value), bottom + 17, f"{value:g}", anchor="middle")
        for value in self.marked:
            drawing.line(LEFT, self._y(value), right, self._y(value), "#333")
            drawing.text(LEFT + 4, self._y(value) - 4, f"{value:g}", size=10)
        drawing.line(LEFT, bottom, right, bottom, "#888")
        drawing.text((LEFT + right) / 2, HEIGHT - 16, self.x_title, anchor="middle")

    def _names(self, drawing: Drawing) -> None:
        """At the ends of the lines, moved apart where they would lie on each other."""
        ends = sorted((self._y(line.y[-1]), line.name, color) for line, color in zip(self.lines, COLORS, strict=False))
        free = TOP
        for y, name, color in ends:
            place = max(y, free)
            drawing.text(WIDTH - RIGHT + 10, place + 4, name, fill=color)
            free = place + NAMES_APART
