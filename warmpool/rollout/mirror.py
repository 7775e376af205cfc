"""Requests of stable that the canary answers too, once their callers have their answers, to compare the two.

They wait in a short queue, and what finds it full is not mirrored; one runs at a time, at the lowest priority, within a
deadline of its own. Nobody but the comparison gets the canary's answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from warmpool.batches import Array
from warmpool.catalog import ServedMethod
from warmpool.dataplane import Answer, DataPlane
from warmpool.errors import Abandoned, RetryLater, WarmpoolError
from warmpool.rollout.comparison import Compared, Rule, compared
from warmpool.tensors import Tensor
from warmpool.urgency import PRIORITY_MIN

log = logging.getLogger(__name__)

WAITING_MAX = 16
BYTES_MAX = 8 << 20  # of the inputs and outputs of one request; larger ones are not mirrored
TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Mirrored:
    """A request that stable answered, what it answered, and who is to answer it too."""

    method: ServedMethod
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Array]
    rule: Rule
    told: Callable[[Compared], None]


class Mirror:
    """Of one instance."""

    def __init__(self, dataplane: DataPlane) -> None:
        self._dataplane = dataplane
        self._waiting: asyncio.Queue[Mirrored] = asyncio.Queue(WAITING_MAX)

    def offer(self, answer: Answer, inputs: Mapping[str, Tensor], to: Callable[[], Mirrored | None]) -> None:
        """It is the turn of a request that was answered: mirror it, if it is not too large, and not too many wait."""
        given_bytes = sum(len(tensor.data) for tensor in inputs.values())
        small = given_bytes + sum(array.nbytes for array in answer.outputs.values()) <= BYTES_MAX
        if small and answer.rows and not self._waiting.full() and (mirrored := to()):
            self._waiting.put_nowait(mirrored)

    async def run(self) -> None:
        """Run what waits, until cancelled."""
        while True:
            mirrored = await self._waiting.get()
            try:
                answer = await self._dataplane.repeat(
                    mirrored.method, mirrored.inputs, list(mirrored.outputs), TIMEOUT_S, PRIORITY_MIN
                )
                found = await asyncio.to_thread(compared, mirrored.rule, mirrored.outputs, answer.outputs)
            except (RetryLater, Abandoned):  # there is too much else to do, which says nothing of the version
                continue
            except Exception as error:  # of a mistake of ours, or the version's, the instance goes on all the same
                known = isinstance(error, WarmpoolError)
                reason = str(error) if known else f"{type(error).__name__}: {error}"
                extra = {"model": mirrored.method.model, "reason": reason}
                log.warning("mirrored request failed", extra=extra, exc_info=not known)
                found = Compared(differing=True)
            mirrored.told(found)
