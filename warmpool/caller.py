"""Whether the caller of a request is still there. Where it is not, what waits on its behalf ends at once.

The connection knows it first and the request's own task has to hear of it, in the middle of a wait. There is no task
that watches: the watching would cost every request more than the leaving of a few is worth.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

from warmpool.errors import Cancelled


class Caller:
    """The caller of one request. Around what is done for it: `with caller: ...`, in the request's own task."""

    __slots__ = ("_cancelling", "_left", "_task")

    def __init__(self) -> None:
        self._left = False
        self._task: asyncio.Task[Any] | None = None
        self._cancelling = 0

    def leave(self) -> None:
        """It is gone: end what is done for it, now or as soon as it is begun. Idempotent."""
        if not self._left and self._task is not None:
            self._task.cancel()
        self._left = True

    def __enter__(self) -> None:
        """Raises Cancelled if it has left already, and from what is inside if it leaves meanwhile."""
        if self._left:
            raise Cancelled("the caller went away")
        self._task = asyncio.current_task()
        assert self._task is not None
        self._cancelling = self._task.cancelling()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        assert task is not None
        # Of several that cancel a task, the last to take its own back sees that nobody else wants its end.
        if self._left and task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise Cancelled("the caller went away") from None
