"""Which warm executable runs which waiting rows: pure decisions over values, no clock and no I/O.

A bucket covers a need if every size is at least as large. Of those that cover, the one with the least predicted run
time wins. Waiting requests share a batch only while the cost table predicts that it is cheaper than running them
apart: batching is no law.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """An executable as selection sees it: its bucket and its predicted run time in microseconds."""

    id: int
    bucket: dict[str, int]
    cost_us: float


def covers(bucket: Sizes, need: Sizes) -> bool:
    """Whether every needed size fits into the bucket."""
    return all(bucket.get(name, 0) >= size for name, size in need.items())


def cheapest(candidates: Iterable[Candidate], need: Sizes) -> Candidate | None:
    """The covering candidate with the least predicted time, the smaller bucket if they tie; None if nothing covers."""
    covering = (candidate for candidate in candidates if covers(candidate.bucket, need))
    return min(covering, key=lambda candidate: (candidate.cost_us, tuple(candidate.bucket.values())), default=None)


def rows_max(candidates: Iterable[Candidate], need: Sizes, batch: str) -> int:
    """The most rows that one batch of this need (the batch dimension aside) can have; 0 if nothing covers it."""
    rest = {name: size for name, size in need.items() if name != batch}
    return max((candidate.bucket[batch] for candidate in candidates if covers(candidate.bucket, rest)), default=0)


def merged(needs: Iterable[Sizes], batch: str) -> dict[str, int]:
    """What a shared batch needs: rows add up, every other dimension is as large as the largest."""
    total: dict[str, int] = {}
    for need in needs:
        for name, size in need.items():
            total[name] = total.get(name, 0) + size if name == batch else max(total.get(name, 0), size)
    return total


def gather(
    waiting: Sequence[Sizes], candidates: Sequence[Candidate], batch: str | None
) -> tuple[list[int], Candidate] | None:
    """The batch to run now: indices into `waiting`, the first always among them, and the executable for it.

    Goes through the waiting requests in their order and takes each one that makes the batch no dearer than running it
    apart.

    Returns:
        None if nothing warm covers the first.
    """
    chosen = cheapest(candidates, waiting[0])
    if chosen is None:
        return None
    taken, need = [0], dict(waiting[0])
    if batch is None:
        return taken, chosen
    for index in range(1, len(waiting)):
        together = merged((need, waiting[index]), batch)
        candidate = cheapest(candidates, together)
        alone = cheapest(candidates, waiting[index])
        if candidate and alone and candidate.cost_us <= chosen.cost_us + alone.cost_us:
            taken.append(index)
            need, chosen = together, candidate
    return taken, chosen


def padding_share(true_elements: int, padded_elements: int) -> float:
    """The share of a batch's input elements that is padding, 0 to 1."""
    return 1.0 - true_elements / padded_elements if padded_elements else 0.0
