"""Figures: samples of one number, what they should reach, and how a table and a JSON file show them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

Bound = Literal["at least", "at most"]


@dataclass(frozen=True, slots=True)
class Target:
    """What the median of a figure should reach."""

    bound: Bound
    value: float

    def met_by(self, value: float) -> bool:
        return value >= self.value if self.bound == "at least" else value <= self.value

    def __str__(self) -> str:
        return f"{'>=' if self.bound == 'at least' else '<='} {self.value:g}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One number, measured once a round; `unit` is "s", "ms", "x" for ratios, or "" for shares and counts."""

    name: str
    unit: str
    samples: tuple[float, ...]
    target: Target | None = None

    def __post_init__(self) -> None:
        assert self.samples, self.name
        assert all(map(math.isfinite, self.samples)), self

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def verdict(self) -> str:
        """Whether the target is "met" or "missed"; empty where there is none."""
        if self.target is None:
            return ""
        return "met" if self.target.met_by(self.median) else "missed"

    def document(self) -> dict[str, Any]:
        """The figure as JSON."""
        return {
            "name": self.name,
            "unit": self.unit,
            "median": self.median,
            "min": min(self.samples),
            "max": max(self.samples),
            "samples": self.samples,
            "target": str(self.target) if self.target else None,
            "verdict": self.verdict or None,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """What one benchmark found; `raw` explains the figures and fits into JSON, `pictures` are SVG by name."""

    name: str
    figures: list[Figure]
    raw: dict[str, Any]
    pictures: dict[str, str] = field(default_factory=dict)


def ratios(name: str, over: Sequence[float], under: Sequence[float], target: Target | None = None) -> Figure:
    """`over` / `under`, pair by pair: both of a pair were measured next to each other, under the same noise."""
    return Figure(name, "x", tuple(one / other for one, other in zip(over, under, strict=True)), target)


def differences(
    name: str, unit: str, minuend: Sequence[float], subtrahend: Sequence[float], target: Target | None = None
) -> Figure:
    """`minuend` - `subtrahend`, pair by pair."""
    return Figure(name, unit, tuple(one - other for one, other in zip(minuend, subtrahend, strict=True)), target)


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed (nearest rank)."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]


def show(console: Console, report: Report) -> None:
    """Draw a report's figures."""
    table = Table(title=report.name, title_justify="left", box=None, header_style="bold", title_style="bold")
    table.add_column("figure")
    for column in ("median", "min", "max", "target", "rounds"):
        table.add_column(column, justify="right")
    table.add_column("")
    for figure in report.figures:
        style = {"met": "green", "missed": "red"}.get(figure.verdict, "")
        numbers = (figure.median, min(figure.samples), max(figure.samples))
        table.add_row(
            figure.name,
            *(f"{number:.3f} {figure.unit}".rstrip() for number in numbers),
            str(figure.target or ""),
            str(len(figure.samples)),
            f"[{style}]{figure.verdict}[/]" if style else "",
        )
    console.print(table)
    console.print()
