"""Every private name that cache/executable.py uses, against plain JAX, each in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from tests.cache.programs import NAMES

CHECKS = (
    "dropped_executables_do_not_count_as_compiles",
    "loads_and_drops_in_other_threads_do_not_count_as_compiles",
    "a_compile_is_counted_with_jax",
    "a_compile_is_counted_without_jax",
    "aligned_memory_is_aliased",
    "unaligned_memory_is_copied",
    "a_buffer_keeps_its_array_alive",
    "read_only_and_strided_arrays_can_be_put",
    "results_outlive_later_runs",
)


def started(check, folder, *rest, **environment):
    """A finished process that ran a check of `runtime_checks`, and what it told."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.cache.runtime_checks", check, str(folder), *rest],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "JAX_ENABLE_COMPILATION_CACHE": "false", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done, [json.loads(line) for line in done.stdout.splitlines()]


def passed(check, folder, *rest) -> list[dict[str, Any]]:
    done, told = started(check, folder, *rest)
    assert done.returncode == 0, done.stderr[-2000:]
    return told


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A folder with every program's bytes and answers, made in one process."""
    folder = tmp_path_factory.mktemp("published")
    (told,) = passed("publish", folder)
    assert told["compiles"] >= told["programs"] == len(NAMES)
    return folder


@pytest.fixture(scope="module", params=["jaxlib", "jax"])
def loaded(request, published):
    """What another process told that loaded them all."""
    _, told = started("load", published, request.param)
    return request.param, told


@pytest.mark.parametrize("program", NAMES)
def test_a_loaded_executable_answers_to_the_bit_as_its_compile_did(published, loaded, program):
    answers = [line["answers"] for line in loaded[1] if line.get("program") == program]
    assert answers == [(published / f"{program}.answers").read_text()] * 2


def test_loading_and_running_compiles_nothing(loaded):
    assert loaded[1][-1]["compiles"] == 0


def test_a_process_that_only_loads_never_imports_jax(loaded):
    mode, told = loaded
    assert told[-1]["jax"] is (mode == "jax")


def test_a_process_without_jax_has_the_fingerprint_of_the_one_that_compiled(published, loaded):
    assert loaded[1][-1]["fingerprint"] == (published / "fingerprint").read_text()


@pytest.mark.parametrize("check", CHECKS)
def test_in_a_process_of_its_own(published, check):
    passed(check, published)


def test_arguments_that_are_not_the_programs_are_refused_and_it_still_runs(published):
    refused = [line["refused"] for line in passed("wrong_arguments_are_refused", published)]
    assert len(refused) == 4
    assert all(message.startswith("the executable failed: ") for message in refused)
    assert "\n" not in "".join(refused)


@pytest.mark.parametrize("kind", ["empty", "text", "zeros", "half", "reversed"])
def test_bytes_that_are_no_executable_are_refused(published, kind):
    """XLA may die of them: that is why only verified bytes get this far, in a process that can be replaced."""
    done, told = started("garbage", published, kind)
    if done.returncode < 0:
        assert -done.returncode in {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS}
        return
    assert done.returncode == 0, done.stderr[-2000:]
    assert told[0]["refused"].startswith("XLA would not load the executable: ")
    assert (told[0]["loaded"], told[0]["compiles"]) == (0, 0)


@pytest.mark.parametrize("mode", ["jaxlib", "jax"])
def test_forks_of_a_process_without_a_backend_load_and_run(published, mode):
    assert [line["exit"] for line in passed("forks", published, mode, "20")] == [0] * 20
