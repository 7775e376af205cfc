"""Requests of stable that the canary answers too, once their callers have their answers, to compare the two.

They wait in a short queue, and what finds it full is not mirrored; one runs at a time, at the lowest priority, within a
deadline of its own. Nobody but the comparison gets the canary's answer.
"""

from __future__ import annotations

import asyncio
import logging
import math
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
BYTES_MAX = 8 << 20  # of the inputs of one request; larger ones are not mirrored
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
    """Of one instance. Of the requests it is offered for a version it takes the share that is asked for."""

    def __init__(self, dataplane: DataPlane) -> None:
        self._dataplane = dataplane
        self._waiting: asyncio.Queue[Mirrored] = asyncio.Queue(WAITING_MAX)
        self._offered = 0

    def offer(
        self, share: float, answer: Answer, inputs: Mapping[str, Tensor], to: Callable[[], Mirrored | None]
    ) -> None:
        """A request was answered: mirror it, if it is its turn, it is not too large, and not too many wait."""
        before = math.floor(self._offered * share)
        self._offered += 1
        due = math.floor(self._offered * share) > before
        small = sum(len(tensor.data) for tensor in inputs.values()) <= BYTES_MAX
        if due and small and answer.rows and not self._waiting.full() and (mirrored := to()):
            self._waiting.put_nowait(mirrored)

    async def run(self) -> None:
        """Run what waits, until cancelled."""
        while True:
            mirrored = await self._waiting.get()
            try:
                answer = await self._dataplane.repeat(
                    mirrored.method, mirrored.inputs, list(mirrored.outputs), TIMEOUT_S, PRIORITY_MIN
                )
            except (RetryLater, Abandoned):  # there is too much else to do, which says nothing of the version
                continue
            except WarmpoolError as error:
                log.warning("mirrored request failed", extra={"model": mirrored.method.model, "reason": str(error)})
                mirrored.told(Compared(differing=True))
            else:
                mirrored.told(compared(mirrored.rule, mirrored.outputs, answer.outputs))
