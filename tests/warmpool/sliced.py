"""Whether slices of threads can be seen here."""

from __future__ import annotations

from warmpool import slices


def told_of() -> bool:
    """Whether the kernel takes slices from threads, and tells them (Linux 6.12)."""
    try:
        return slices.slice_s() > 0
    except OSError:
        return False
