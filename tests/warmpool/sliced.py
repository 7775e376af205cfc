"""Whether slices of threads can be seen here."""

from __future__ import annotations

import math
import threading

from warmpool import slices


def told_of() -> bool:
    """Whether the kernel takes slices from threads, and tells them (Linux 6.12)."""
    found: list[float] = []

    def ask() -> None:
        slices.ask_for(slices.SHORT_S)
        found.append(slices.slice_s())

    try:
        slices.slice_s()
    except OSError:
        return False
    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return math.isclose(found[0], slices.SHORT_S)
