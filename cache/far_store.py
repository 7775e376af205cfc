"""A store that may be away: whoever asks is told at once what it knows, and asks in vain for no longer than it must."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import BinaryIO, Protocol

from cache.errors import NotStored, StoreUnavailable, Unreadable
from cache.store import Store

log = logging.getLogger(__name__)

AWAY_S = 5.0  # for so long after a failure, what can be answered without the far store is


class Remote(Store, Protocol):
    """A store that can also be read into a stream."""

    def read_into(self, path: str, stream: BinaryIO) -> None:
        """Write the object's content to a stream that can seek; NotStored if there is none."""


class FarStore:
    """Asks a remote store, and remembers whether it answered.

    Args:
        remote: The store.
        hasty: The same with less patience, for questions to which there is another answer.
        clock: Monotonic, in seconds.
    """

    def __init__(self, remote: Remote, hasty: Remote | None, clock: Callable[[], float]) -> None:
        self._remote = remote
        self._hasty = hasty or remote
        self._clock = clock
        self._away_since_s: float | None = None

    @property
    def is_away(self) -> bool:
        """Whether it did not answer a moment ago."""
        return self._away_since_s is not None and self._clock() < self._away_since_s + AWAY_S

    def ask[T](self, question: Callable[[Remote], T], *, hastily: bool = False) -> T:
        """Its answer. Raises what the question does."""
        try:
            answer = question(self._hasty if hastily or self.is_away else self._remote)
        except Unreadable:  # of this object alone
            raise
        except StoreUnavailable as error:
            if self._away_since_s is None:
                log.warning("store is away: documents are those that it had last", extra={"reason": str(error)})
            self._away_since_s = self._clock()
            raise
        except NotStored:
            self._answered()
            raise
        self._answered()
        return answer

    def _answered(self) -> None:
        if self._away_since_s is not None:
            self._away_since_s = None
            log.info("store is back")
