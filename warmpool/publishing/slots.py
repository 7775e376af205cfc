"""Turns on a machine: many jobs at a time, or one alone.

Compiles share the machine. A run that is measured has it for itself, or the cost table would hold its neighbours.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Slots:
    """Shared turns, and exclusive ones that shut out all others and are not kept waiting by new shared ones."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._shared = 0
        self._exclusive = False
        self._exclusive_waiting = 0

    @contextmanager
    def shared(self) -> Iterator[None]:
        """A turn beside others."""
        with self._changed:
            self._changed.wait_for(lambda: not self._exclusive and not self._exclusive_waiting)
            self._shared += 1
        try:
            yield
        finally:
            with self._changed:
                self._shared -= 1
                self._changed.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """A turn alone."""
        with self._changed:
            self._exclusive_waiting += 1
            try:
                self._changed.wait_for(lambda: not self._exclusive and not self._shared)
                self._exclusive = True
            finally:
                self._exclusive_waiting -= 1
        try:
            yield
        finally:
            with self._changed:
                self._exclusive = False
                self._changed.notify_all()
