"""What callers of this instance send, and what runs, counted by shape and left in the store for whoever fits a plan."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from cache.signed_store import SignedStore
from warmpool.batches import Batch
from warmpool.catalog import ServedMethod
from warmpool.shape_sketch import ShapeSketch
from warmpool.store_calls import StoreCalls
from warmpool.traffic_record import METHODS_MAX, MethodTraffic, TrafficRecord, counts_of, encode_record, record_path

WRITE_EVERY_S = 300.0
LAST_WRITE_S_MAX = 2.0


class Traffic:
    """The shapes of one instance's methods. Versions of a model are counted together.

    Attributes:
        instance: What the instance calls itself in the store: nobody else does.
    """

    def __init__(self) -> None:
        self.instance = os.urandom(8).hex()
        self._of: dict[ServedMethod, _Shapes] = {}
        self._named: dict[tuple[str, str], _Shapes] = {}
        self._written: dict[str, int] = {}  # by path, how much was seen of what is written there

    def saw(self, method: ServedMethod, sizes: Mapping[str, int]) -> None:
        """A request came. Takes about a microsecond."""
        shapes = self._of.get(method) or self._shapes(method)
        shapes.requests.add(tuple([sizes[name] for name in shapes.dims]), time.time())

    def ran(self, batch: Batch) -> None:
        """A batch ran."""
        method = batch.method
        shapes = self._of.get(method) or self._shapes(method)
        now_s, rows = time.time(), batch.rows
        for part in batch.parts:
            shape = tuple([rows if name == method.batch else part.need[name] for name in shapes.dims])
            shapes.batches.add(shape, now_s, part.rows / rows)

    def forget(self, method: ServedMethod) -> None:
        """A version is gone; what was counted of it stays."""
        self._of.pop(method, None)

    def records(self) -> dict[str, TrafficRecord]:
        """What there is to write, by path."""
        now_s = time.time()
        models: dict[str, dict[str, MethodTraffic]] = {}
        for (model, name), shapes in self._named.items():
            if len(methods := models.setdefault(model, {})) < METHODS_MAX:
                methods[name] = shapes.written(now_s)
        return {
            record_path(model, self.instance): TrafficRecord(model=model, written_s=now_s, methods=methods)
            for model, methods in models.items()
        }

    async def keep(self, store: SignedStore, calls: StoreCalls) -> None:
        """Write it now and then, until cancelled."""
        while True:
            await asyncio.sleep(WRITE_EVERY_S)
            await self.write(store, calls)

    async def write_last(self, store: SignedStore, calls: StoreCalls) -> None:
        """Write it for the last time, unless the store takes too long."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.write(store, calls), LAST_WRITE_S_MAX)

    async def write(self, store: SignedStore, calls: StoreCalls) -> None:
        """Write what has changed. A store that is away, or may not be written to, is tried again the next time."""
        for path, record in self.records().items():
            seen = sum(one.requests.seen + one.batches.seen for one in record.methods.values())
            if self._written.get(path) != seen and await calls.ask(path, partial(_put, store, path, record)):
                self._written[path] = seen

    def _shapes(self, method: ServedMethod) -> _Shapes:
        dims = tuple(method.dims)
        shapes = self._named.get((method.model, method.name))
        if shapes is None or shapes.dims != dims:
            shapes = self._named[method.model, method.name] = _Shapes(dims)
        self._of[method] = shapes
        return shapes


@dataclass(frozen=True, slots=True)
class _Shapes:
    """Of one method; `dims` is their order."""

    dims: tuple[str, ...]
    requests: ShapeSketch = field(default_factory=ShapeSketch)
    batches: ShapeSketch = field(default_factory=ShapeSketch)

    def written(self, now_s: float) -> MethodTraffic:
        return MethodTraffic(
            dims=self.dims, requests=counts_of(self.requests, now_s), batches=counts_of(self.batches, now_s)
        )


def _put(store: SignedStore, path: str, record: TrafficRecord) -> bool:
    store.put(path, encode_record(record))
    return True
