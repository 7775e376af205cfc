"""A model that cannot be served says so in the same words each time it is loaded, and costs nobody else anything."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

from cache.artifact import pack, peek
from cache.local_store import LocalStore
from cache.store import Store
from tests.instance_process import Reply, descendants, wait_until
from tests.warmpool.line_versions import MODEL, Line, publish, serve
from tests.warmpool.lines_instance import Lines, Load
from warmpool import manifest as stored
from warmpool import wire
from warmpool.manifest import Manifest, Target, TensorSpec

LOADS = 3
ROUNDS = 6  # of loads and unloads of all of them, over which nothing may grow
SHAPES: Any = {"batch": (1,), "width": (4,)}


class Bad(NamedTuple):
    """A model of its own in a store, about to be spoilt."""

    store: Store
    manifest: Manifest
    target_path: str
    target: Target

    @classmethod
    def made(cls, store: Store, model: str, version: str, line: Line) -> Bad:
        manifest = publish(store, version, line, model)
        (entry,) = store.entries(f"models/{model}/{version}/targets")
        return cls(store, manifest, entry.path, msgspec.json.decode(store.get(entry.path), type=Target))

    @property
    def executable(self) -> str:
        return stored.executable_path(self.target.executables[0].key)

    @property
    def weights(self) -> str:
        return stored.weights_path(self.manifest.weights.digest)

    @property
    def program(self) -> str:
        return stored.program_path(next(iter(self.manifest.methods["predict"].programs.values())))

    def edit(self, path: str, change: Callable[[bytes], bytes]) -> None:
        self.store.put(path, change(self.store.get(path)))

    def put_manifest(self, **changes: Any) -> None:
        path = stored.manifest_path(self.manifest.model, self.manifest.version)
        self.store.put(path, stored.encode(msgspec.structs.replace(self.manifest, **changes)))

    def put_target(self, **changes: Any) -> None:
        self.store.put(self.target_path, stored.encode(msgspec.structs.replace(self.target, **changes)))


def without_a_target(bad: Bad) -> None:
    bad.store.delete(bad.target_path)


def with_the_executables_of_another(bad: Bad) -> None:
    """Whole ones, of a program that answers otherwise."""
    other = Bad.made(bad.store, bad.manifest.model, "2", Line(2.0, shift=-1.0, **SHAPES))
    bad.put_target(executables=other.target.executables)


def with_other_shapes(bad: Bad) -> None:
    """Its executables give something else than its manifest says."""
    method = bad.manifest.methods["predict"]
    outputs = (TensorSpec(name="y", dtype="float32", shape=("batch", "2*width")),)
    bad.put_manifest(methods={"predict": msgspec.structs.replace(method, outputs=outputs)})


def with_an_executable_that_is_none(bad: Bad) -> None:
    bad.edit(bad.executable, lambda data: pack(peek("it", data), b"no executable at all"))


# What is spoilt, and what of the reason has to be told. A damaged executable is set aside, and then it is missing.
BAD: dict[str, tuple[Callable[[Bad], None], str]] = {
    "no-executables": (lambda bad: bad.store.delete(bad.executable), "nothing is stored under"),
    "refused-by-xla": (with_an_executable_that_is_none, "XLA would not load"),
    "others-program": (with_the_executables_of_another, "program: wanted"),
    "other-shapes": (with_other_shapes, "result 0: wanted"),
    "no-target": (without_a_target, "not published for this kind of machine"),
    "torn-target": (lambda bad: bad.store.put(bad.target_path, b"{"), "is damaged"),
    "no-minimum": (lambda bad: bad.put_target(executables=()), "not published for this kind of machine"),
    "no-weights": (lambda bad: bad.store.delete(bad.weights), "nothing is stored under"),
    "short-weights": (lambda bad: bad.edit(bad.weights, lambda data: data[:-1]), "is damaged"),
    "other-weights": (lambda bad: bad.edit(bad.weights, lambda data: bytes(len(data))), "is damaged"),
    "no-program": (lambda bad: bad.store.delete(bad.program), "nothing is stored under"),
    "no-manifest": (
        lambda bad: bad.store.delete(stored.manifest_path(bad.manifest.model, "1")),
        "nothing is stored under",
    ),
    "torn-manifest": (
        lambda bad: bad.edit(stored.manifest_path(bad.manifest.model, "1"), lambda data: data[:-9]),
        "is damaged",
    ),
    "default-method": (lambda bad: bad.put_manifest(default_method="other"), "its default method 'other'"),
}


@pytest.fixture(scope="module")
def spoilt(lines, tmp_path_factory):
    """A store with a sound model and all the bad ones."""
    store = LocalStore(shutil.copytree(lines, tmp_path_factory.mktemp("spoilt") / "store"))
    for number, (name, (spoil, _)) in enumerate(BAD.items()):
        # Weights and programs of its own: what is spoilt is that of no other.
        spoil(Bad.made(store, name, "1", Line(10.0 + number, shift=1000.0 + number, **SHAPES)))
        serve(store, "1", model=name)
    return store


@pytest.fixture(scope="module")
def seen(spoilt, tmp_path_factory):
    """What an instance told of each bad model, each time that it was loaded; then what the next one told.

    Somebody asks the sound model all the while.
    """
    told: list[dict[str, Any]] = []
    folder = tmp_path_factory.mktemp("instances")
    with started(spoilt, folder) as instance, Load(instance) as load:
        pids = [lane["pid"] for lane in instance.status()["lanes"]]
        told += [of_all(loaded, instance) for _ in range(LOADS)]
        sizes = []
        for _ in range(ROUNDS):
            of_all(unloaded, instance)
            told.append(of_all(loaded, instance))
            sizes.append(sizes_of(instance))
        load.wait_more()
        assert load.wrong == []
        assert [lane["pid"] for lane in instance.status()["lanes"]] == pids
        assert instance.version_of() == "1"
    with started(spoilt, folder) as instance:
        told.append(of_all(loaded, instance))
        assert instance.version_of() == "1"
    return told, sizes


@contextlib.contextmanager
def started(store: LocalStore, folder: Path) -> Iterator[Lines]:
    """An instance that serves the sound model, and has tried the others."""
    with Lines(store, folder) as instance:
        wait_until(lambda: instance.answers(f"/v2/models/{MODEL}/ready") == 200)
        wait_until(lambda: [lane["state"] for lane in instance.status()["lanes"]] == ["warm", "warm"])
        yield instance


def said(reply: Reply) -> tuple[int, str]:
    return reply.status, "" if reply.status == 200 else str(reply.json()["error"])


def asked(instance: Lines, name: str) -> tuple[int, str]:
    x = np.ones((1, 3), np.float32)
    return said(instance.infer_reply(name, {"x": wire.Tensor("FP32", x.shape, x.tobytes())}))


def loaded(instance: Lines, name: str) -> dict[str, Any]:
    """Load a model, and what is told of that."""
    load = said(instance.post(f"/v2/repository/models/{name}/load", {}))
    (of_index,) = [one for one in instance.post("/v2/repository/index", b"").json() if one["name"] == name]
    return {
        "load": load,
        "infer": asked(instance, name),
        "index": (of_index["state"], of_index["reason"]),
        "ready": instance.answers(f"/v2/models/{name}/ready"),
    }


def unloaded(instance: Lines, name: str) -> None:
    assert instance.post(f"/v2/repository/models/{name}/unload", {}).status == 200
    assert asked(instance, name)[0] == 404


def of_all(what: Callable[[Lines, str], Any], instance: Lines) -> dict[str, Any]:
    """Do it with all bad models at once; what comes of each."""
    with ThreadPoolExecutor(len(BAD)) as pool:
        return dict(zip(BAD, pool.map(partial(what, instance), BAD), strict=True))


def sizes_of(instance: Lines) -> tuple[int, ...]:
    """Open files of front and lanes, its processes, and what its lanes keep of versions."""
    status = instance.status()
    pids = [instance.process.pid, *(lane["pid"] for lane in status["lanes"])]
    files = sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids)
    planned = sum(len(lane["cold"]) + len(lane["missing"]) + lane["planned"] for lane in status["lanes"])
    return files, len(descendants(instance.process.pid)), planned


@pytest.mark.parametrize("name", BAD)
def test_it_fails_the_same_way_each_time_it_is_loaded_and_after_a_restart(seen, name):
    first, *others = [told[name] for told in seen[0]]
    assert others == [first] * (LOADS + ROUNDS)
    reason = first["index"][1]
    assert BAD[name][1] in reason
    assert first["load"] == (503, f"model '{name}' cannot be served: {reason}")
    assert first["index"][0] == "UNAVAILABLE"
    assert (first["infer"][0], first["ready"]) == (503, 503)


def test_loads_that_fail_leave_nothing_behind(seen):
    """A file, a process or a plan that each of them left would be seen many times over."""
    half = len(seen[1]) // 2
    grown = [last - middle for last, middle in zip(seen[1][-1], seen[1][half - 1], strict=True)]
    assert max(grown) < len(BAD) * (ROUNDS - half) // 2, seen[1]
