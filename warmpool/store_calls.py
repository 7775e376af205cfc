"""Calls of a store that may take for ever, as of one on a network: each in a thread, with a deadline, and its trouble.

A call that is late is left behind, and nobody waits for its thread when the process ends. What it comes to is not used:
what it was about may be another by then. The same is not asked again before that, nor anything while many are left.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from cache.errors import CacheError, StoreUnavailable, told

log = logging.getLogger(__name__)

CALL_S_MAX = 120.0  # a large executable may take its time
LEFT_MAX = 16

_TROUBLES = (CacheError, OSError)


class StoreCalls:
    """The calls of one store.

    Attributes:
        troubles: By what was asked: why the store did not do it, until it does; no more than may be published.
    """

    def __init__(self) -> None:
        self.troubles: dict[str, str] = {}
        self._left: dict[str, Future[Any]] = {}

    async def ask[R](self, what: str, call: Callable[[], R]) -> R | None:
        """What the store answers; None where it is in trouble, which is logged once."""
        try:
            answer = await self._answer(what, call)
        except Exception as error:  # even of a mistake of ours the instance goes on serving what is warm
            known = isinstance(error, _TROUBLES)
            trouble = told(error) if known else f"it failed ({type(error).__name__}); the log says where"
            if not self.troubles or not (known or self.troubles.get(what) == trouble):
                reason = str(error) if isinstance(error, StoreUnavailable) else f"{type(error).__name__}: {error}"
                log.warning("store cannot be used now", extra={"reason": reason}, exc_info=not known)
            self.troubles[what] = trouble
            return None
        if self.troubles.pop(what, "") and not self.troubles:
            log.info("store can be used again")
        return answer

    async def _answer[R](self, what: str, call: Callable[[], R]) -> R:
        self._look_after_left()
        if what in self._left or len(self._left) >= LEFT_MAX:
            raise _late("and has not since")
        answer = _in_thread(call)
        waiting = asyncio.wrap_future(answer)
        try:
            await asyncio.wait([waiting], timeout=CALL_S_MAX)
            if waiting.done():
                return waiting.result()
        finally:
            waiting.cancel()
        self._left[what] = answer
        raise _late("and is still asked")

    def _look_after_left(self) -> None:
        """Forget calls that ended after all; of a mistake of ours the log says where."""
        for what in [what for what, answer in self._left.items() if answer.done()]:
            error = self._left.pop(what).exception()
            if error is not None and not isinstance(error, _TROUBLES):
                log.error("late call of the store failed", extra={"asked": what}, exc_info=error)


def _late(since: str) -> StoreUnavailable:
    late = f"the store did not answer within {CALL_S_MAX:g} s, {since}"
    return StoreUnavailable(late, told=late)


def _in_thread[R](call: Callable[[], R]) -> Future[R]:
    answer: Future[R] = Future()
    answer.set_running_or_notify_cancel()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001  raised by who waits for it
            answer.set_exception(error)

    threading.Thread(target=run, name="store call", daemon=True).start()
    return answer
