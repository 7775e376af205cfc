"""A length mask from its declaration to an answer: published, served, left out by callers whose rows share a batch.

The model is an encoder as small as can be, so that every number of an answer can be computed by hand: the mean of two
numbers a token, and what it was told of a row's length.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from cache.settings import StoreSettings
from tests.instance_process import Inferred, InstanceProcess, inferred, serving, wait_until
from tests.warmpool.publishing.toy import Heard
from tests.warmpool.stopped_lane import StoppedLane
from warmpool import wire
from warmpool.publishing.publish import Options, publish

pytestmark = pytest.mark.slow

MODEL = """
import numpy as np
from warmpool.model import Dim, LengthMask, Method, Model, Tensor

batch = Dim("batch", max=16, sizes=(4,), batch=True)
seq = Dim("seq", max=8, sizes=(8,))

def encode(params, ids, mask):
    weights = mask[:, :, None].astype("float32")
    total = (params["table"][ids] * weights).sum(axis=1)
    return {"mean": total / weights.sum(axis=1).clip(1.0), "length": mask.sum(axis=1)}

def alone(params, x, mask):
    return {"sum": (x * mask).sum(), "length": mask.astype("int32").sum()}

model = Model(
    name="masked",
    methods={
        "encode": encode,
        "alone": Method(alone, inputs={"x": Tensor("float32", (seq,), pad=0.0), "mask": LengthMask(seq, "bool")}),
    },
    params={"table": np.stack([np.arange(10.0), 100.0 - np.arange(10.0)], axis=1).astype(np.float32)},
    inputs={"ids": Tensor("int32", (batch, seq), low=0, high=9), "mask": LengthMask(seq)},
)
"""


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InstanceProcess]:
    folder = tmp_path_factory.mktemp("masked")
    (folder / "model.py").write_text(textwrap.dedent(MODEL))
    store = folder / "store"
    settings = StoreSettings(store=str(store), allow_unsigned=True)
    publish(Options(model_file=folder / "model.py", store=settings), Heard())
    with serving(store, folder / "log") as running:
        yield running


def encoded(instance: InstanceProcess, ids: Any, mask: Any = None, *, binary: bool = True) -> Inferred:
    given = {"ids": wire.Tensor.of("INT32", ids)}
    if mask is not None:
        given["mask"] = wire.Tensor.of("INT32", mask)
    reply = instance.infer_reply("masked:encode", given, binary=binary)
    assert reply.status == 200, reply.body
    return inferred(reply)


def assert_means(found: Inferred, *rows: list[int]) -> None:
    assert found.outputs["length"].tolist() == [len(row) for row in rows]
    means = [[np.mean(row), 100 - np.mean(row)] for row in rows]
    np.testing.assert_allclose(found.outputs["mean"], means, rtol=1e-6)


@pytest.mark.parametrize("binary", [True, False])
def test_without_it_every_position_that_was_sent_counts_and_no_other(masked: InstanceProcess, binary: bool) -> None:
    for row in ([7], [1, 2, 9], [5] * 7, [1, 2, 3, 4, 5, 6, 7, 8]):
        assert_means(encoded(masked, [row], binary=binary), row)
    assert_means(encoded(masked, [[1, 2], [3, 9]], binary=binary), [1, 2], [3, 9])


def test_rows_of_different_lengths_bring_their_own(masked: InstanceProcess) -> None:
    found = encoded(masked, [[1, 2, 3], [4, 9, 9]], [[1, 1, 1], [1, 0, 0]])
    assert_means(found, [1, 2, 3], [4])


def test_rows_in_json_may_be_bare(masked: InstanceProcess) -> None:
    for rows in ([[1, 2, 6]], [{"ids": [1, 2, 6]}], [{"ids": [1, 2, 6], "mask": [1, 1, 1]}]):
        reply = masked.post("/v1/models/masked:encode", {"instances": rows})
        assert reply.json()["predictions"] == [{"mean": [3.0, 97.0], "length": 3}]
    reply = masked.post("/v1/models/masked:alone", {"inputs": [1.5, 2.5]})
    assert reply.json()["outputs"] == {"sum": 4.0, "length": 2}
    assert masked.post("/v1/models/masked:encode", {"inputs": {"mask": [[1]]}}).status == 400


def test_who_shares_a_batch_counts_its_own_positions_and_every_answer_says_what_was_padded(
    masked: InstanceProcess,
) -> None:
    rows = [[1, 2, 3, 4, 5, 6, 7, 8], [9, 8, 7], [5, 5, 5, 5, 6]]
    with ThreadPoolExecutor(4) as pool, StoppedLane(masked) as lane:
        first = pool.submit(encoded, masked, [[4]])
        lane.wait_busy()
        waiting = [pool.submit(encoded, masked, [row]) for row in rows]
        wait_until(lambda: masked.gauge("warmpool_rows_waiting") == len(rows))
        lane.go_on()
        for row, answer in zip(rows, waiting, strict=True):
            found = answer.result()
            assert_means(found, row)
            # Both inputs have 8, 3 and 5 elements in a bucket of 4 times 8.
            said = {name: found.parameters[name] for name in ("rows", "batch_rows", "padded_rows", "bucket")}
            assert said == {"rows": 1, "batch_rows": 3, "padded_rows": 1, "bucket": "batch=4,seq=8"}
            assert (found.parameters["elements"], found.parameters["padded_elements"]) == (2 * 16, 2 * 16)
            assert found.parameters["padding"] == 0.5
        alone = first.result()
    assert_means(alone, [4])
    assert (alone.parameters["rows"], alone.parameters["padded_rows"]) == (1, 3)
    assert (alone.parameters["elements"], alone.parameters["padded_elements"]) == (2, 2 * 32 - 2)


def test_a_request_that_is_split_says_what_its_slowest_part_padded(masked: InstanceProcess) -> None:
    rows = [[number, 9] for number in range(6)]
    found = encoded(masked, rows)
    assert_means(found, *rows)
    assert (found.parameters["rows"], found.parameters["parts"]) == (6, 2)
    padded = {4: 0, 2: 2}[found.parameters["batch_rows"]]
    elements = 2 * 2 * found.parameters["batch_rows"]
    assert found.parameters["padded_rows"] == padded
    assert (found.parameters["elements"], found.parameters["padded_elements"]) == (elements, 2 * 32 - elements)


def test_metadata_says_what_may_be_left_out(masked: InstanceProcess) -> None:
    document = masked.get("/v2/models/masked:encode").json()
    assert [one["name"] for one in document["inputs"]] == ["ids", "mask"]
    assert document["parameters"]["optional"] == ["mask"]
