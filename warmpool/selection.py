"""Executables as scheduling sees them, and what a bucket covers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """An executable: its bucket, and its run time in microseconds as it was measured at publish."""

    id: int
    bucket: dict[str, int]
    cost_us: float


def covers(bucket: Sizes, need: Sizes) -> bool:
    """Whether every needed size fits into the bucket."""
    return all(bucket.get(name, 0) >= size for name, size in need.items())


def padding_share(true_elements: int, padded_elements: int) -> float:
    """The share of a batch's input elements that is padding, 0 to 1."""
    return 1.0 - true_elements / padded_elements if padded_elements else 0.0
