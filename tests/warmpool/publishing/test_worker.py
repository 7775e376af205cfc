"""Children on a GPU share what they found out about its kernels, and nothing else; elsewhere nothing at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from warmpool.publishing import worker


class Lowered:
    """Keeps the options that it is to be compiled with."""

    def __init__(self) -> None:
        self.options: list[Any] = []

    def compile(self, options: Any = None) -> None:
        self.options.append(options)


@pytest.mark.parametrize("platform", ["cuda", "rocm"])
def test_on_a_gpu_the_choice_of_kernels_is_kept_in_the_folder_of_the_publish(platform: str, tmp_path: Path) -> None:
    for _ in range(2):  # every child says the same
        options = worker.tuning(platform, tmp_path)
        assert options == {"xla_gpu_per_fusion_autotune_cache_dir": str(tmp_path / "autotuning")}
    assert (tmp_path / "autotuning").is_dir()


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_elsewhere_there_is_nothing_to_share(platform: str, tmp_path: Path) -> None:
    assert worker.tuning(platform, tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("platform", "shared"), [("cuda", True), ("cpu", False)])
def test_a_child_compiles_with_it_and_with_no_cache_of_executables(
    platform: str, shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lowered, fast = Lowered(), {"xla_backend_optimization_level": "1"}
    settings: dict[str, Any] = {}
    monkeypatch.setattr(worker, "_subject", lambda argument: (None, None))
    monkeypatch.setattr(worker, "_lowered", lambda *arguments: lowered)
    monkeypatch.setattr(worker, "_write_artifact", lambda *arguments: None)
    monkeypatch.setattr(jax.config, "update", settings.__setitem__)
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps({}))
    worker.compile_bucket(
        {"platform": platform, "bucket": {}, "manifest": str(manifest), "outputs": None, "options": fast}
    )
    (options,) = lowered.options
    tuned = {"xla_gpu_per_fusion_autotune_cache_dir": str(tmp_path / "autotuning")} if shared else {}
    assert options == {**tuned, **fast}
    assert settings["jax_enable_compilation_cache"] is False


def test_a_compile_that_cannot_run_as_a_reference_is_a_compile_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is recorded as a compile that failed nobody tries again."""

    def fail(*_: Any) -> None:
        raise RuntimeError("no room for it")

    monkeypatch.setattr(worker, "_subject", lambda argument: (None, None))
    monkeypatch.setattr(worker, "_lowered", lambda *arguments: Lowered())
    monkeypatch.setattr(jax.config, "update", lambda *setting: None)
    written: list[Any] = []
    monkeypatch.setattr(worker, "_write_artifact", lambda *arguments: written.append(arguments))
    monkeypatch.setattr(worker, "_run_exact", fail)
    argument = {
        "platform": "cpu",
        "bucket": {},
        "manifest": str(tmp_path / "manifest.json"),
        "outputs": "file",
        "options": {},
    }
    result = worker.compile_bucket(argument)
    assert (result["failure"], len(written)) == ("RuntimeError: no room for it", 1)


class Clocked:
    """An executable whose runs take what is written here, on a clock of its own, and wait besides, by their number."""

    def __init__(self, first_ms: int, others_ms: int, waits_ms: Callable[[int], int] = lambda _: 0) -> None:
        self.now_ns = self.computed_ns = 0
        self.runs = 0
        self.first_ms, self.others_ms, self.waits_ms = first_ms, others_ms, waits_ms

    def perf_counter_ns(self) -> int:
        return self.now_ns

    def cpu_ns(self) -> int:
        return self.computed_ns

    def run(self, arguments: list[Any]) -> list[Any]:
        taken_ms = self.others_ms if self.runs else self.first_ms
        self.computed_ns += taken_ms * 1_000_000
        self.now_ns += (taken_ms + self.waits_ms(self.runs)) * 1_000_000
        self.runs += 1
        return arguments


@pytest.mark.parametrize(
    ("first_ms", "others_ms", "proof_runs", "runs"),
    [
        (9, 1, 3, 1 + worker.TIMED_RUNS_MAX),  # those of the proof count, but for the first
        (9, 1, 40, 40),
        (300, 100, 2, 3),  # half a second is enough
        (900, 600, 1, 2),  # one that was not the first
        (900, 600, 5, 5),
    ],
)
def test_what_a_run_takes_is_of_the_proofs_runs_and_of_more_where_they_are_few(
    first_ms: int, others_ms: int, proof_runs: int, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocked = Clocked(first_ms, others_ms)
    assert cost_us(clocked, proof_runs, monkeypatch) == others_ms * 1000
    assert clocked.runs == runs


@pytest.mark.parametrize(
    ("waits_ms", "platform", "found_ms"),
    [
        (lambda run: run % 3, "cpu", 4),  # whoever else is there adds to a run
        (lambda run: 1 + run, "cpu", 6),  # half of it may be waiting
        (lambda run: 400, "cpu", 8),  # and no more
        (lambda run: 400, "tpu", 404),  # where a device computes, the CPU time says nothing
    ],
)
def test_what_others_take_of_the_machine_does_not_count(
    waits_ms: Callable[[int], int], platform: str, found_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cost_us(Clocked(9, 4, waits_ms), 3, monkeypatch, platform) == found_ms * 1000


def cost_us(clocked: Clocked, proof_runs: int, monkeypatch: pytest.MonkeyPatch, platform: str = "cpu") -> float:
    monkeypatch.setattr(worker, "time", clocked)
    monkeypatch.setattr(worker, "_cpu_ns", clocked.cpu_ns)
    loaded = object.__new__(worker._Loaded)
    runtime = SimpleNamespace(put=lambda array: array, platform=platform)
    loaded.executable, loaded.runtime = clocked, runtime  # type: ignore[assignment]
    loaded.weights, loaded._taken_ns, loaded._computed_ns = [], [], []
    inputs = [np.ones(2, np.float32)]
    for _ in range(proof_runs):
        (output,) = loaded.run(inputs)
        np.testing.assert_array_equal(output, inputs[0])
    return loaded.cost_us(inputs)


def test_xla_knows_the_option(tmp_path: Path) -> None:
    """On a CPU it does nothing; one that XLA does not know is an error."""
    lowered = jax.jit(lambda x: x + 1).lower(jnp.zeros(2))
    assert lowered.compile(worker.tuning("cuda", tmp_path))(jnp.ones(2)).tolist() == [2, 2]
    with pytest.raises(RuntimeError, match="xla_gpu_no_such_option"):
        lowered.compile({"xla_gpu_no_such_option": "x"})
