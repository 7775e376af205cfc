"""How often each shape was seen, in bounded memory, the recent ones counting more. Pure: every call brings the time.

While distinct shapes are few, each is counted exactly. When they become too many, all sizes are rounded up to fewer
significant bits, which puts shapes that are nearly the same into one cell: cells of a constant relative width, as in
HdrHistogram (G. Tene, 2012), made coarser all at once, as in UDDSketch (I. Epicoco et al., IEEE Access 8, 2020). So
nothing that was counted is lost or counted twice: only its size becomes less exact, by a factor of at most
`error_max`, and never smaller.

A count halves every `half_life_s`. What is added later simply weighs more (forward decay: G. Cormode et al., ICDE
2009), so old counts are touched only once in a half-life.
"""

from __future__ import annotations

from collections.abc import Iterable

Shape = tuple[int, ...]

CELLS_MAX = 2048
HALF_LIFE_S = 2 * 24 * 3600.0
FAINT = 1 / 1024  # an observation that is ten half-lives old: less is forgotten

_BITS_FIRST = 8  # the first rounding that is tried: up to 256 sizes stay exact, then to 0.8%
_COARSEST = -4  # sizes up to 2^32 are one cell


class ShapeSketch:
    """Shapes of one method, each a size for every dimension, from 0.

    Attributes:
        seen: How many were added ever.
        resolution: None while counts are exact; n > 0: sizes have n significant bits; n <= 0: they are powers of
            2^2^(1-n), such as 4 and 16.
    """

    def __init__(self, cells_max: int = CELLS_MAX, half_life_s: float = HALF_LIFE_S) -> None:
        self.seen = 0
        self.resolution: int | None = None
        self._cells_max = cells_max
        self._half_life_s = half_life_s
        self._cells: dict[Shape, float] = {}
        self._since_s = 0.0  # what is added then weighs 1
        self._until_s = 0.0  # from when on weights are large enough to be divided

    def __repr__(self) -> str:
        return f"<ShapeSketch {self.seen} seen, {len(self._cells)} of {self._cells_max} cells, {self.resolution=}>"

    @property
    def error_max(self) -> float:
        """By how much a size may be too large, relative to the true one; 0.0 while it is exact."""
        if self.resolution is None:
            return 0.0
        if self.resolution > 0:
            return float(2.0 ** (1 - self.resolution))
        return float(2.0 ** (1 << 1 - self.resolution)) - 1.0

    def add(self, shape: Shape, now_s: float, weight: float = 1.0) -> None:
        """Count a shape, or a part of one."""
        if now_s >= self._until_s:
            self._divide(now_s)
        self.seen += 1
        if self.resolution is not None:
            shape = _rounded(shape, self.resolution)
        cells = self._cells
        cells[shape] = cells.get(shape, 0.0) + weight * 2.0 ** ((now_s - self._since_s) / self._half_life_s)
        if len(cells) > self._cells_max:
            self._coarsen()

    def cells(self, now_s: float) -> dict[Shape, float]:
        """How often each shape was seen, by what it counts now. No more than `cells_max` of them."""
        factor = 0.5 ** max(0.0, (now_s - self._since_s) / self._half_life_s)  # a clock may be set back
        return {shape: weight * factor for shape, weight in self._cells.items() if weight * factor >= FAINT}

    def _divide(self, now_s: float) -> None:
        self._cells = self.cells(now_s) if self._until_s else {}
        self._since_s, self._until_s = now_s, now_s + self._half_life_s

    def _coarsen(self) -> None:
        while len(self._cells) > self._cells_max and self.resolution != _COARSEST:
            self.resolution = _BITS_FIRST if self.resolution is None else self.resolution - 1
            self._cells = summed((_rounded(shape, self.resolution), weight) for shape, weight in self._cells.items())


def summed(weighed: Iterable[tuple[Shape, float]]) -> dict[Shape, float]:
    """The weights of each shape, added up."""
    total: dict[Shape, float] = {}
    for shape, weight in weighed:
        total[shape] = total.get(shape, 0.0) + weight
    return total


def _rounded(shape: Shape, resolution: int) -> Shape:
    return tuple([_rounded_up(size, resolution) for size in shape])


def _rounded_up(size: int, resolution: int) -> int:
    """The next size of so many significant bits, or the next power of 2^2^(1-resolution)."""
    if resolution > 0:
        excess = size.bit_length() - resolution
        return size if excess <= 0 else -(-size >> excess) << excess
    step = 1 << 1 - resolution
    exponent = (size - 1).bit_length()
    return 1 << -(-exponent // step) * step
