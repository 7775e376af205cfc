"""How long to wait before something that died is started again."""

from __future__ import annotations

_DOUBLINGS_MAX = 30


def backoff_s(deaths: int, first_s: float, max_s: float) -> float:
    """Nothing after no deaths in a row, `first_s` after one, doubled with each further one up to `max_s`."""
    return min(first_s * 2.0 ** min(deaths - 1, _DOUBLINGS_MAX), max_s) if deaths > 0 else 0.0
