"""The model repository extension: what is there and how it is; a model that is told to go, and to come back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cache.local_store import LocalStore
from tests.instance_process import wait_until
from tests.ports import free_port
from tests.warmpool.line_versions import MODEL, VERSIONS, Line, publish, serve
from tests.warmpool.lines_instance import Lines, Load, checked, planned
from tests.warmpool.stopped_lane import StoppedLane
from tests.warmpool.triton import client
from warmpool.manifest import weights_path

X = np.ones((2, 3), np.float32)


def index(instance: Lines, **asked: Any) -> dict[tuple[str, str], tuple[str, str]]:
    """State and reason by model and version."""
    reply = instance.post("/v2/repository/index", asked or b"")
    assert reply.status == 200, reply.body
    return {(one["name"], one["version"]): (one["state"], one["reason"]) for one in reply.json()}


def test_the_index_has_every_version_and_says_why_one_cannot_be_had(store: LocalStore, running: Lines) -> None:
    manifest = publish(store, "9", Line(9.0))
    store.delete(weights_path(manifest.weights.digest))
    serve(store, "1", canary="9", previous="2")
    wait_until(lambda: running.version("9")[0] == "refused" and running.version("2")[0] == "warm")
    found = index(running)
    assert {key: state for key, (state, _) in found.items()} == {
        (MODEL, "1"): "READY",
        (MODEL, "2"): "READY",
        (MODEL, "9"): "UNAVAILABLE",
    }
    assert found[MODEL, "9"][1].endswith(running.version("9")[1])
    assert set(index(running, ready=True)) == {(MODEL, "1"), (MODEL, "2")}


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"reddy": true}', b'{"ready": 1}'])
def test_an_index_that_is_asked_for_otherwise_is_refused(running: Lines, body: bytes) -> None:
    reply = running.post("/v2/repository/index", body)
    assert (
        reply.status,
        "allowed: nothing, or an object with ready" in reply.json()["error"],
    ) == (400, True)


def test_an_unloaded_model_is_gone_until_it_is_loaded_and_what_waited_is_answered(
    running: Lines,
) -> None:
    with ThreadPoolExecutor(4) as pool, StoppedLane(running) as lane:
        waiting = [pool.submit(running.ask_line, X)]
        lane.wait_busy()
        one_bytes = running.status()["bytes_held"]
        waiting += [pool.submit(running.ask_line, X) for _ in range(2)]
        wait_until(lambda: running.status()["bytes_held"] == 3 * one_bytes)
        assert running.post(f"/v2/repository/models/{MODEL}/unload", b"").status == 200
        assert running.ask_line(X).status == 404
        lane.go_on()
        assert [checked(each.result(), X) for each in waiting] == ["1"] * 3
    wait_until(lambda: [lane["warm"] for lane in running.status()["lanes"]] == [0, 0])
    assert index(running) == {(MODEL, "1"): ("UNAVAILABLE", "it was told to")}
    assert running.ask_line(X).status == 404
    assert running.post(f"/v2/repository/models/{MODEL}/load", {}).status == 200
    assert checked(running.ask_line(X), X) == "1", "it is warm when the load is over"
    assert running.loads("1") == {lane: 2 * count for lane, count in planned(VERSIONS["1"]).items()}
    assert running.compiles() == [0, 0]


def test_a_load_takes_up_what_the_store_says_by_now(store: LocalStore, running: Lines) -> None:
    with Load(running) as load:
        serve(store, "3", previous="1")
        assert running.post(f"/v2/repository/models/{MODEL}/load", b"").status == 200
        assert running.version_of() == "3"
        load.wait_more(version="3")
    assert load.wrong == []


def test_a_load_of_what_cannot_be_served_says_why(store: LocalStore, running: Lines) -> None:
    manifest = publish(store, "9", Line(9.0))
    store.delete(weights_path(manifest.weights.digest))
    serve(store, "9")
    replies = [running.post(f"/v2/repository/models/{MODEL}/load", b"") for _ in range(2)]
    assert [reply.status for reply in replies] == [503, 503]
    assert replies[0].json() == replies[1].json()
    assert "weights/" in replies[0].json()["error"]
    assert checked(running.ask_line(X), X) == "1"


@pytest.mark.parametrize("what", ["load", "unload"])
def test_a_model_that_is_not_in_the_store_is_not_found(running: Lines, what: str) -> None:
    reply = running.post(f"/v2/repository/models/nobody/{what}", b"")
    assert reply.status == 404
    assert reply.json()["error"] == "model 'nobody' is not in the store; it has: line"


def test_a_load_with_parameters_is_refused(running: Lines) -> None:
    reply = running.post(f"/v2/repository/models/{MODEL}/load", {"parameters": {"config": "{}"}})
    assert (reply.status, reply.json()["error"].partition(";")[0]) == (
        400,
        "parameters: got 'config'",
    )


@pytest.fixture
def grpc_client(store: LocalStore, tmp_path: Path) -> Iterator[tuple[Any, Lines]]:
    port = free_port()
    with Lines(store, tmp_path, "--grpc-port", str(port)) as instance:
        instance.wait_warm()
        with contextlib.closing(client.InferenceServerClient(f"127.0.0.1:{port}")) as triton:
            wait_until(lambda: _answers(triton))
            yield triton, instance


def _answers(triton: Any) -> bool:
    try:
        return bool(triton.is_server_live())
    except client.InferenceServerException:
        return False


def test_tritons_client_lists_unloads_and_loads_and_names_versions(
    store: LocalStore, grpc_client: tuple[Any, Lines]
) -> None:
    triton, instance = grpc_client
    serve(store, "1", canary="2", share=0.5, sticky=True)
    wait_until(lambda: instance.version("2")[0] == "serving")

    def asked(version: str = "", **headers: str) -> str:
        given = client.InferInput("x", [2, 3], "FP32")
        given.set_data_from_numpy(X)
        answer = triton.infer(MODEL, [given], model_version=version, headers=headers)
        found = str(answer.get_response().model_version)
        np.testing.assert_array_equal(answer.as_numpy("y"), VERSIONS[found].expected(X))
        return found

    listed = [(one.name, one.version, one.state) for one in triton.get_model_repository_index().models]
    assert listed == [(MODEL, "1", "READY"), (MODEL, "2", "READY")]
    assert [asked("1"), asked("2"), asked(**{"warmpool-version": "2"})] == [
        "1",
        "2",
        "2",
    ]
    assert len({asked(**{"warmpool-sticky-key": "me"}) for _ in range(4)}) == 1
    assert sorted(asked() for _ in range(4)) == ["1", "1", "2", "2"]
    triton.unload_model(MODEL)
    with pytest.raises(client.InferenceServerException, match="is not served") as refused:
        asked()
    assert refused.value.status() == "StatusCode.NOT_FOUND"
    triton.load_model(MODEL)
    assert asked("1") == "1"
    with pytest.raises(client.InferenceServerException, match="allowed: none"):
        triton.load_model(MODEL, config="{}")
