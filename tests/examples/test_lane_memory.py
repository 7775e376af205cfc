"""The examples in less memory than they take: executables come and go, every answer is right, and nothing compiles."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp
import pytest

from examples.digits.model import model as digits
from examples.options.model import model as options
from tests.examples.exact import Exact, draw_contracts, draw_images, draw_seeded
from tests.instance_process import InstanceProcess, inferred, serving
from warmpool import wire
from warmpool.datatypes import OF_DTYPE

pytestmark = pytest.mark.slow

CALLERS = 4
PHASES = 12


@pytest.fixture(scope="module")
def exacts(checkpoint: Path) -> list[Exact]:
    with ocp.StandardCheckpointer() as checkpointer:
        trained = checkpointer.restore(checkpoint)
    return [
        Exact(digits, "predict", trained, 256, draw_images),
        Exact(options, "price", None, 256, draw_contracts),
        Exact(options, "greeks", None, 256, draw_contracts),
        Exact(options, "monte_carlo", None, 256, draw_seeded),
    ]


@pytest.fixture(scope="module")
def store(published: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The two models whose executables are large beside their weights."""
    copy = shutil.copytree(published, tmp_path_factory.mktemp("two") / "store")
    shutil.rmtree(copy / "models" / "embed")
    return copy


@pytest.fixture(scope="module")
def whole(store: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The status of the primary lane where there is no limit."""
    with serving(store, tmp_path_factory.mktemp("whole") / "log") as instance:
        primary: dict[str, Any] = instance.status()["lanes"][0]
    assert primary["memory"]["bytes_max"] == primary["memory"]["evicted"] == 0
    return primary


@pytest.fixture
def tight(store: Path, whole: dict[str, Any], tmp_path: Path) -> Iterator[InstanceProcess]:
    """An instance whose lanes may take half of that."""
    half = whole["memory"]["bytes"] // 2
    with serving(store, tmp_path / "log", "--lane-memory-bytes-max", str(half)) as instance:
        yield instance
        assert "Traceback" not in instance.log


def ask(instance: InstanceProcess, exact: Exact, rows: int) -> None:
    inputs, expected = exact.case(rows)
    given = {
        name: wire.Tensor(OF_DTYPE[str(array.dtype)].name, array.shape, array.tobytes())
        for name, array in inputs.items()
    }
    reply = instance.infer_reply(exact.title, given)
    assert reply.status == 200, reply.body
    exact.assert_right(inferred(reply), expected)


def primary(instance: InstanceProcess) -> dict[str, Any]:
    found: dict[str, Any] = instance.status()["lanes"][0]
    return found


def test_half_of_the_memory_holds_the_minimum_sets_and_what_else_fits(
    tight: InstanceProcess, whole: dict[str, Any]
) -> None:
    lane = primary(tight)
    states = lane["executables"]
    assert states.keys() == whole["executables"].keys()
    assert set(states.values()) == {"warm", "evicted"}
    assert all(state == "warm" for title, state in states.items() if title.endswith("batch=1"))
    memory = lane["memory"]
    assert memory["bytes"] <= memory["bytes_max"] == whole["memory"]["bytes"] // 2
    assert memory["evicted"] == sum(state == "evicted" for state in states.values()) > 0
    assert (lane["cold"], lane["warm"]) == ({}, len(states) - memory["evicted"])
    assert (memory["evictions"], memory["reloads"], memory["shortages"]) == (0, 0, 0)
    assert tight.answers("/v2/health/ready") == 200


def test_traffic_that_changes_is_answered_right_while_executables_come_and_go(
    tight: InstanceProcess, exacts: list[Exact]
) -> None:
    """Each phase is all of one method and shape, so that what is best for it has to come, and something else to go."""
    seen: set[frozenset[str]] = set()
    memory: dict[str, int] = {}
    shapes = list(itertools.product(exacts, (3, 40, 256)))
    random.Random(0).shuffle(shapes)
    for exact, rows in (shapes * 2)[:PHASES]:
        with ThreadPoolExecutor(CALLERS) as pool:
            list(pool.map(lambda _, exact=exact, rows=rows: ask(tight, exact, rows), range(24)))
        lane = primary(tight)
        memory = lane["memory"]
        assert memory["bytes"] <= memory["bytes_max"]
        assert lane["compiles"] == 0
        seen.add(frozenset(title for title, state in lane["executables"].items() if state == "warm"))
    assert memory["evictions"] > 0
    assert memory["reloads"] > 0
    assert len(seen) > 2, "what is warm followed the traffic"
    assert [one["compiles"] for one in tight.status()["lanes"]] == [0, 0]
    assert tight.gauge("warmpool_lane_evictions_total", lane="primary") == memory["evictions"]
    names = {trace["spans"][0]["name"] for trace in tight.get("/v1/traces?count=1000").json()}
    assert "primary lane reload" in names
