from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cache.errors import StoreUnavailable
from cache.local_store import LocalStore
from cache.signed_store import SignedStore
from cache.signing import ANYONE
from tests.warmpool.served import SEQ, doubling, method, part, tensor
from warmpool import traffic as traffic_module
from warmpool.batches import Batch
from warmpool.catalog import ServedMethod
from warmpool.selection import Candidate
from warmpool.store_calls import StoreCalls
from warmpool.traffic import Traffic
from warmpool.traffic_record import Counts, read_records


def in_a_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        async def main() -> None:
            async with asyncio.timeout(30):
                await test(*arguments, **named)

        asyncio.run(main())

    return run


def embed(**changes: Any) -> ServedMethod:
    return method([tensor("ids", "int32", "batch", "seq")], [tensor("y", "float32", "batch")], **changes)


def weighed(counts: Counts) -> dict[tuple[int, ...], float]:
    return {shape: round(weight, 3) for shape, weight in zip(counts.shapes, counts.weights, strict=True)}


def batch(served: ServedMethod, *needs: dict[str, int]) -> Batch:
    parts = [part(served, need, [np.zeros(1)]) for need in needs]
    return Batch(method=served, parts=parts, executable=Candidate(0, {}, 1.0), formed_ns=0)


@pytest.fixture
def store(tmp_path: Path) -> SignedStore:
    return SignedStore(LocalStore(tmp_path / "store"), ANYONE)


async def read(traffic: Traffic, store: SignedStore, model: str = "tiny") -> Any:
    await traffic.write(store, StoreCalls())
    (record,), problems = read_records(store, model)
    assert not problems
    return record.methods


@in_a_loop
async def test_requests_are_counted_as_they_came(store: SignedStore) -> None:
    traffic, served = Traffic(), embed()
    traffic.saw(served, {"seq": 5, "batch": 2})
    traffic.saw(served, {"batch": 2, "seq": 5})
    traffic.saw(served, {"batch": 1, "seq": 16})
    counted = (await read(traffic, store))["predict"]
    assert counted.dims == ("batch", "seq")
    assert weighed(counted.requests) == {(2, 5): 2.0, (1, 16): 1.0}


@in_a_loop
async def test_a_batch_weighs_one_and_its_parts_have_their_own_lengths(store: SignedStore) -> None:
    traffic, served = Traffic(), embed()
    traffic.saw(served, {"batch": 1, "seq": 5})
    traffic.ran(batch(served, {"batch": 1, "seq": 5}, {"batch": 3, "seq": 16}))
    traffic.ran(batch(served, {"batch": 4, "seq": 16}))
    counted = (await read(traffic, store))["predict"]
    assert weighed(counted.batches) == {(4, 5): 0.25, (4, 16): 1.75}


@in_a_loop
async def test_a_method_without_a_batch_has_sizes_alone(store: SignedStore) -> None:
    served = method([tensor("ids", "int32", "seq")], [tensor("y", "float32")], dims=(SEQ,))
    traffic = Traffic()
    traffic.ran(batch(served, {"seq": 7}))
    assert weighed((await read(traffic, store))["predict"].batches) == {(7,): 1.0}


@in_a_loop
async def test_versions_of_a_model_are_counted_together_and_models_apart(store: SignedStore) -> None:
    traffic, first, second = Traffic(), embed(), embed()
    traffic.saw(first, {"batch": 1, "seq": 1})
    traffic.saw(second, {"batch": 1, "seq": 1})
    traffic.saw(doubling(model="other"), {"batch": 3})
    assert weighed((await read(traffic, store))["predict"].requests) == {(1, 1): 2.0}
    assert weighed((await read(traffic, store, "other"))["double"].requests) == {(3,): 1.0}


@in_a_loop
async def test_instances_write_beside_each_other(store: SignedStore) -> None:
    for traffic in (Traffic(), Traffic()):
        traffic.saw(embed(), {"batch": 1, "seq": 1})
        await traffic.write(store, StoreCalls())
    assert len(read_records(store, "tiny")[0]) == 2


class Away(LocalStore):
    """Refuses to be written to while `away`, and counts what is written."""

    away = False
    puts = 0

    def put(self, path: str, data: bytes) -> None:
        if self.away:
            raise StoreUnavailable("away", told="away")
        self.puts += 1
        super().put(path, data)


@in_a_loop
async def test_only_what_has_changed_is_written_and_what_failed_is_tried_again(tmp_path: Path) -> None:
    inner = Away(tmp_path / "store")
    store, traffic = SignedStore(inner, ANYONE), Traffic()
    inner.away = True
    traffic.saw(embed(), {"batch": 1, "seq": 1})
    await traffic.write(store, StoreCalls())
    inner.away = False
    await traffic.write(store, StoreCalls())
    await traffic.write(store, StoreCalls())
    assert inner.puts == 1
    traffic.saw(embed(), {"batch": 1, "seq": 1})
    await traffic.write(store, StoreCalls())
    assert inner.puts == 2


@in_a_loop
async def test_it_is_written_now_and_then(store: SignedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic_module, "WRITE_EVERY_S", 0.001)
    traffic = Traffic()
    traffic.saw(embed(), {"batch": 1, "seq": 1})
    async with asyncio.TaskGroup() as group:
        keeping = group.create_task(traffic.keep(store, StoreCalls()))
        while not read_records(store, "tiny")[0]:  # noqa: ASYNC110  in a thread
            await asyncio.sleep(0.005)
        keeping.cancel()


@in_a_loop
async def test_the_last_write_waits_for_no_store_that_hangs(
    store: SignedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traffic_module, "LAST_WRITE_S_MAX", 0.01)
    traffic, calls, hangs = Traffic(), StoreCalls(), asyncio.Event()

    async def never(asked: str, call: Any) -> None:
        await hangs.wait()

    monkeypatch.setattr(calls, "ask", never)
    traffic.saw(embed(), {"batch": 1, "seq": 1})
    await traffic.write_last(store, calls)
