"""The examples published for real, through a real instance and through their functions, against plain `jax.jit`."""

from __future__ import annotations

import itertools
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from benchmarks import spans
from examples.digits.model import model as digits
from examples.embed.files import REFERENCE
from examples.embed.model import load_params
from examples.embed.model import model as embed
from examples.loopback import get_or_post
from examples.options.model import model as options
from examples.questions import Answer, ask, questions
from tests.edges import edges
from tests.examples.exact import Arrays, Exact, draw_contracts, draw_images, draw_seeded, draw_tokens
from tests.instance_process import Inferred, InstanceProcess, Reply, inferred, serving, wait_until
from tests.ports import free_port
from tests.warmpool.command import warmpool
from tests.warmpool.stopped_lane import StoppedLane
from warmpool import wire
from warmpool.datatypes import OF_DTYPE
from warmpool.model import Dim

log = logging.getLogger(__name__)

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CALLERS = 8
CALLERS_UNDER_FIRE = 4  # enough to keep both lanes busy, and to leave the machine for the new one
COVERED_MIN = 0.9  # by leaves of a trace, on however busy a machine; the benchmark of cold starts asks for 0.97

Sizes = dict[str, int]


@pytest.fixture(scope="session")
def exacts(checkpoint: Path) -> list[Exact]:
    """Every method of every example."""
    with ocp.StandardCheckpointer() as checkpointer:
        trained = checkpointer.restore(checkpoint)
    draws = {"price": draw_contracts, "greeks": draw_contracts, "monte_carlo": draw_seeded}
    assert options.methods.keys() == draws.keys()
    return [
        Exact(embed, "predict", jax.device_put(load_params()), 9, draw_tokens),
        Exact(digits, "predict", trained, 256, draw_images),
        *(Exact(options, name, None, 4096, draw) for name, draw in draws.items()),
    ]


@pytest.fixture(scope="session")
def exact_embed(exacts: list[Exact]) -> Exact:
    return exacts[0]


@pytest.fixture(scope="module", params=["jax", "jaxlib"])
def instance(
    request: pytest.FixtureRequest, published: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[InstanceProcess]:
    """A warm instance whose primary lane has imported jax, and one as it is by default without an accelerator."""
    flags = ("--accelerator", "jax") if request.param == "jax" else ()
    with serving(published, tmp_path_factory.mktemp("instance") / "log", *flags) as running:
        assert [lane["mode"] for lane in running.status()["lanes"]] == [request.param, "jaxlib"]
        yield running
        assert_nothing_compiled(running)
        assert "Traceback" not in running.log
        assert ("jax found no accelerator" in running.log) == (request.param == "jax")


by_default = pytest.mark.parametrize("instance", ["jaxlib"], indirect=True)


def assert_nothing_compiled(instance: InstanceProcess) -> None:
    status = instance.status()
    assert [(lane["name"], lane["compiles"]) for lane in status["lanes"]] == [("primary", 0), ("cpu", 0)]
    assert status["front"]["jax_imported"] is False


def infer_reply(instance: InstanceProcess, exact: Exact, inputs: Arrays) -> Reply:
    given = {
        name: wire.Tensor(OF_DTYPE[str(array.dtype)].name, array.shape, array.tobytes())
        for name, array in inputs.items()
    }
    return instance.infer_reply(exact.title, given)


def infer(instance: InstanceProcess, exact: Exact, inputs: Arrays) -> Inferred:
    reply = infer_reply(instance, exact, inputs)
    assert reply.status == 200, reply.body
    return inferred(reply)


def dims_of(exact: Exact) -> dict[str, Dim]:
    return {dim.name: dim for spec in exact.model.inputs.values() for dim in spec.dims if isinstance(dim, Dim)}


def shapes(exact: Exact, *, all_pairs: bool = True) -> Iterator[tuple[int, Sizes]]:
    """At, one under and one over every bucket's edge, of each dimension beside all of the others.

    Not all pairs: each beside some of the others, and every bucket at its edge.
    """
    dims = dims_of(exact)
    batch = dims.pop("batch")
    near = [size for size in edges(batch) if size <= exact.rows_most]
    over = [near, *map(edges, dims.values())]
    if all_pairs:
        chosen = set(itertools.product(*over))
    else:
        turns = range(max(map(len, over)))
        chosen = {tuple(sizes[turn % len(sizes)] for sizes in over) for turn in turns}
        chosen |= set(itertools.product(batch.sizes, *(dim.sizes for dim in dims.values())))
    for rows, *others in sorted(chosen):
        yield rows, dict(zip(dims, others, strict=True))
    if batch.max > exact.rows_most:
        yield batch.max, {name: dim.sizes[0] + 1 for name, dim in dims.items()}


def covers(bucket: str, sizes: Sizes) -> bool:
    found = {name: int(size) for name, _, size in (part.partition("=") for part in bucket.split(","))}
    return all(found[name] >= size for name, size in sizes.items())


# Answers


def test_a_mixed_run_over_every_edge_compiles_nothing_and_every_answer_is_that_of_jit(
    instance: InstanceProcess, exacts: list[Exact]
) -> None:
    by_default = instance.status()["lanes"][0]["mode"] == "jaxlib"
    asked = [(exact, rows, sizes) for exact in exacts for rows, sizes in shapes(exact, all_pairs=by_default)]
    assert len(asked) > (150 if by_default else 80)
    for exact, rows, sizes in random.Random(0).sample(asked, len(asked)):
        inputs, expected = exact.case(rows, **sizes)
        answer = infer(instance, exact, inputs)
        exact.assert_right(answer, expected)
        assert (answer.parameters["rows"], answer.parameters["lane"]) == (rows, "primary")
        assert covers(answer.parameters["bucket"], sizes)
        assert answer.parameters["cold"] is False
    assert_nothing_compiled(instance)


@by_default
def test_the_same_run_by_many_callers_at_once_shares_batches_and_every_answer_is_its_own(
    instance: InstanceProcess, exacts: list[Exact]
) -> None:
    asked = [(exact, rows, sizes) for exact in exacts for rows, sizes in shapes(exact, all_pairs=False) if rows <= 9]

    def check(case: tuple[Exact, int, Sizes]) -> bool:
        exact, rows, sizes = case
        inputs, expected = exact.case(rows, **sizes)
        answer = infer(instance, exact, inputs)
        exact.assert_right(answer, expected)
        return bool(answer.parameters["batch_rows"] > rows)

    with ThreadPoolExecutor(CALLERS) as pool:
        shared = list(pool.map(check, random.Random(1).sample(asked, len(asked))))
    assert any(shared)
    assert_nothing_compiled(instance)


@by_default
def test_a_batch_equals_its_rows_alone(instance: InstanceProcess, exacts: list[Exact]) -> None:
    for exact in exacts:
        rows, sizes = 8, {"seq": 33} if exact.model is embed else {}
        inputs, _ = exact.case(rows, **sizes)
        together = infer(instance, exact, inputs)
        for row in range(rows):
            alone = infer(instance, exact, {name: array[row : row + 1] for name, array in inputs.items()})
            exact.assert_right(alone, {name: array[row : row + 1] for name, array in together.outputs.items()})


@by_default
def test_a_simulation_is_the_same_bits_in_every_batch(instance: InstanceProcess, exacts: list[Exact]) -> None:
    (exact,) = (exact for exact in exacts if exact.method == "monte_carlo")
    inputs, _ = exact.case(257)
    together = infer(instance, exact, inputs).outputs["price"]
    for rows in (1, 3, 16, 65):
        few = infer(instance, exact, {name: array[:rows] for name, array in inputs.items()}).outputs["price"]
        np.testing.assert_array_equal(few, together[:rows])


def test_three_requests_of_different_lengths_that_arrive_together_get_their_own_answers(
    instance: InstanceProcess, exact_embed: Exact
) -> None:
    cases = [exact_embed.case(1, seq=seq) for seq in (5, 17, 64)]
    together = threading.Barrier(len(cases))

    def ask_at_once(case: tuple[Arrays, Arrays]) -> Inferred:
        together.wait(timeout=30)
        return infer(instance, exact_embed, case[0])

    with ThreadPoolExecutor(len(cases)) as pool:
        for _ in range(10):
            for answer, (_, expected) in zip(pool.map(ask_at_once, cases), cases, strict=True):
                exact_embed.assert_right(answer, expected)


@by_default
def test_three_requests_of_different_lengths_that_wait_for_a_lane_together_get_their_own_answers(
    instance: InstanceProcess, exacts: list[Exact]
) -> None:
    exact_embed, exact_digits, *_ = exacts
    cases = [exact_embed.case(1, seq=seq) for seq in (5, 17, 64)]
    picture, digit = exact_digits.case(1)
    with ThreadPoolExecutor(len(cases) + 1) as pool:
        with StoppedLane(instance) as lane:
            first = pool.submit(infer, instance, exact_digits, picture)
            lane.wait_busy()
            waiting = [pool.submit(infer, instance, exact_embed, inputs) for inputs, _ in cases]
            wait_until(lambda: instance.gauge("warmpool_rows_waiting") == len(cases))
        exact_digits.assert_right(first.result(), digit)
        for answer, (_, expected) in zip(waiting, cases, strict=True):
            exact_embed.assert_right(answer.result(), expected)


@by_default
def test_one_more_than_a_declared_maximum_is_refused_by_the_dimensions_name(
    instance: InstanceProcess, exacts: list[Exact]
) -> None:
    for exact in exacts:
        for name, dim in dims_of(exact).items():
            sizes = {other.name: other.sizes[0] for other in dims_of(exact).values()} | {name: dim.max + 1}
            reply = infer_reply(instance, exact, exact.draw(np.random.default_rng(0), sizes.pop("batch"), sizes))
            assert reply.status == 400
            for word in (f"'{name}'", f"got {dim.max + 1};", f"to {dim.max}"):
                assert word in reply.json()["error"], (exact.title, word)


# Through the functions


@contextmanager
def functions_before(instance: InstanceProcess, log_file: Path) -> Iterator[str]:
    """The URL of the examples' functions, whose pool and whose collector is the instance."""
    port, url = free_port(), f"http://127.0.0.1:{instance.port}"
    command = [sys.executable, "-m", "functions_framework", "--asgi", "--target", "main", "--host", "127.0.0.1"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "WARMPOOL_"))}
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            [*command, "--source", "examples/main.py", "--port", str(port)],
            cwd=ROOT,
            env={**kept, "WARMPOOL_URLS": url, "OTEL_EXPORTER_OTLP_ENDPOINT": url},
            stdout=log,
            stderr=log,
        )
    try:
        wait_until(lambda: answers(f"http://127.0.0.1:{port}/") or process.poll() is not None)
        assert process.poll() is None, log_file.read_text()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def answers(url: str) -> bool:
    try:
        with get_or_post(url, timeout_s=1.0):
            return True
    except OSError:
        return False


@pytest.fixture(scope="module")
def functions(instance: InstanceProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with functions_before(instance, tmp_path_factory.mktemp("functions") / "log") as url:
        yield url


@pytest.fixture(scope="module")
def answered(functions: str, instance: InstanceProcess) -> list[Answer]:
    """Every question of the examples, asked twice: the first time functions import, and connect to the instance."""
    for question in questions():
        ask(functions, question)
    found = [ask(functions, question) for question in questions()]
    wait_until(lambda: all("function" in names(spans_of(traces(instance), answer)) for answer in found))
    return found


def traces(instance: InstanceProcess) -> dict[str, list[spans.Span]]:
    """The spans that `warmpool traces` prints, by trace."""
    result = warmpool("traces", "--json", "--count", "1000", "--url", f"http://127.0.0.1:{instance.port}")
    assert (result.returncode, result.stderr) == (0, "")
    return {trace["trace_id"]: trace["spans"] for trace in json.loads(result.stdout)}


def spans_of(found: dict[str, list[spans.Span]], answer: Answer) -> list[spans.Span]:
    return found[answer.served["trace_id"]]


def names(found: list[spans.Span]) -> set[str]:
    return {span["name"] for span in found}


@by_default
def test_every_question_through_the_functions_is_answered_right_by_a_warm_lane(answered: list[Answer]) -> None:
    assert len(answered) == 6
    for answer in answered:
        assert answer.verdict.right, (answer.question.title, answer.verdict.words)
        assert (answer.served["lane"], answer.served["cold"]) == ("primary", False)


@by_default
def test_texts_become_the_vectors_recorded_from_sentence_transformers(functions: str) -> None:
    recorded = json.loads(REFERENCE.read_text(encoding="utf-8"))
    with get_or_post(f"{functions}/embed", json.dumps({"texts": recorded["texts"]}).encode()) as response:
        answer = json.loads(response.read())
    np.testing.assert_allclose(answer["vectors"], recorded["vectors"], rtol=0, atol=1e-5)
    assert answer["tokens"] == recorded["tokens"]


@by_default
def test_one_trace_has_the_functions_spans_and_the_fronts_and_the_lanes_and_its_leaves_sum_to_the_whole(
    answered: list[Answer], instance: InstanceProcess
) -> None:
    found = traces(instance)
    for answer in answered:
        trace = spans_of(found, answer)
        by_id = {span["span_id"]: span["name"] for span in trace}
        assert {(by_id.get(span["parent_id"], ""), span["name"]) for span in trace} == {
            ("", "function"),
            ("function", "function.pre"),
            ("function", "pool.infer"),
            ("pool.infer", "pool.request"),
            ("pool.infer", "front"),
            ("front", "validate"),
            ("front", "queue"),
            ("front", "batch"),
            ("front", "lane"),
            ("lane", "handover"),
            ("lane", "run"),
            ("lane", "return"),
            ("front", "respond"),
            ("pool.infer", "pool.response"),
            ("function", "function.post"),
        }
        root = spans.root_of(trace)
        sum_ns = sum(leaf["end_ns"] - leaf["start_ns"] for leaf in spans.leaves(trace))
        assert sum_ns == pytest.approx(root["end_ns"] - root["start_ns"], rel=1 - COVERED_MIN), answer.question.title
        assert spans.coverage(trace) >= COVERED_MIN, answer.question.title


@by_default
def test_a_cold_starts_leaves_cover_the_whole(instance: InstanceProcess) -> None:
    start = spans.cold_start([{"spans": trace} for trace in traces(instance).values()])
    assert spans.coverage(start) >= COVERED_MIN
    assert {"interpreter", "import jaxlib", "fork", "client", "verify weights", "load", "first run"} <= names(start)


# A lane dies


@pytest.fixture
def embed_alone(published: Path, tmp_path: Path, exact_embed: Exact) -> Iterator[InstanceProcess]:
    """A warm instance that serves nothing but embed."""
    store, others = tmp_path / "store", shutil.ignore_patterns("digits", "options")
    shutil.copytree(published, store, ignore=others, copy_function=os.link)
    with serving(store, tmp_path / "log") as running:
        yield running
        assert_nothing_compiled(running)


def test_the_primary_lane_dies_under_load_and_no_request_is_lost(
    embed_alone: InstanceProcess, exact_embed: Exact
) -> None:
    cases = [exact_embed.case(rows, seq=seq) for rows in (1, 2, 3) for seq in (15, 33, 64)]
    stopping = threading.Event()
    lanes: list[str] = []

    def ask_on(caller: int) -> None:
        for inputs, expected in itertools.cycle(cases[caller:] + cases[:caller]):
            answer = infer(embed_alone, exact_embed, inputs)
            exact_embed.assert_right(answer, expected)
            lanes.append(answer.parameters["lane"])
            if stopping.is_set():
                return

    def warm() -> float:
        return embed_alone.gauge("warmpool_lane_executables_warm", lane="primary")

    planned, pid = warm(), embed_alone.lane("primary")["pid"]
    with ThreadPoolExecutor(CALLERS_UNDER_FIRE) as pool:
        callers = [pool.submit(ask_on, caller) for caller in range(CALLERS_UNDER_FIRE)]
        wait_until(lambda: len(lanes) >= 4 * CALLERS_UNDER_FIRE)
        os.kill(pid, signal.SIGKILL)
        killed_s = time.monotonic()
        wait_until(lambda: embed_alone.gauge("warmpool_lane_restarts", lane="primary") == 1)
        wait_until(lambda: embed_alone.answers("/v2/models/embed/ready") == 200)
        ready_s = time.monotonic() - killed_s
        wait_until(lambda: warm() == planned)
        warm_s = time.monotonic() - killed_s
        before = len(lanes)
        wait_until(lambda: lanes[before:].count("primary") >= 2 * CALLERS_UNDER_FIRE)
        stopping.set()
        for future in callers:
            future.result()
    log.info("warm again after %.2f s, all %d executables after %.2f s", ready_s, planned, warm_s)
    assert planned == 20
    assert "cpu" in lanes
