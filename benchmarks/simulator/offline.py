"""The best offline batching: all requests are known beforehand, none has to wait for another, the lane never idles.

No schedule of these requests on these executables takes less time, so their number over that time bounds what any
server can do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from warmpool.selection import Candidate


@dataclass(frozen=True, slots=True)
class OfflineBatch:
    """Places of the requests that run together, and on what."""

    places: tuple[int, ...]
    candidate: Candidate


@dataclass(frozen=True, slots=True)
class Offline:
    """Batches that hold every request once, and what they take together in microseconds."""

    batches: tuple[OfflineBatch, ...]
    total_us: float


def best_offline(
    lengths: Sequence[int], candidates: Sequence[Candidate], batch: str, length: str, way_us: float = 0.0
) -> Offline:
    """The cheapest batches of requests of one row each.

    Requests go from long to short; some best way runs neighbours together, since exchanging two requests so that the
    longer ones are together needs no larger executable. The best cost of the first i requests is then the least over
    all executables of its own cost, and the best of those before the ones that it takes: as many as it has rows for,
    but none that is too long for it. To take fewer would leave more to the others.

    Args:
        lengths: Of each request.
        candidates: What is compiled.
        batch: The dimension of rows.
        length: The other one; empty where there is none.
        way_us: What each batch takes beside its run.

    Raises:
        ValueError: Nothing covers the longest.
    """
    order = sorted(range(len(lengths)), key=lambda place: -lengths[place])
    sizes = np.array([lengths[place] for place in order])
    useful = _undominated(candidates, batch, length)
    rows = [one.bucket[batch] for one in useful]
    reach = [one.bucket.get(length, 1) if length else int(sizes[0]) for one in useful]
    if max(reach) < sizes[0]:
        raise ValueError(f"the longest request has {sizes[0]}, the largest executable {max(reach)}")
    costs = [one.cost_us + way_us for one in useful]
    longer = [int((sizes > far).sum()) for far in reach]
    least = [0.0] * (len(order) + 1)
    chosen = [(0, 0)] * (len(order) + 1)
    for end in range(1, len(order) + 1):
        best = float("inf")
        for number, (count, too_long, cost) in enumerate(zip(rows, longer, costs, strict=True)):
            start = max(end - count, too_long)
            if start < end and least[start] + cost < best:
                best, chosen[end] = least[start] + cost, (number, start)
        least[end] = best
    batches = []
    end = len(order)
    while end:
        number, start = chosen[end]
        batches.append(OfflineBatch(tuple(order[start:end]), useful[number]))
        end = start
    return Offline(tuple(reversed(batches)), least[-1])


def _undominated(candidates: Sequence[Candidate], batch: str, length: str) -> list[Candidate]:
    """Without those that another one covers and undercuts."""
    return [
        one
        for one in candidates
        if not any(
            other is not one
            and other.bucket[batch] >= one.bucket[batch]
            and other.bucket.get(length, 1) >= one.bucket.get(length, 1)
            and (other.cost_us, other.id) < (one.cost_us, one.id)
            for other in candidates
        )
    ]
