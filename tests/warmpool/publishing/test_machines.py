"""What a machine allows its children, and what of the environment decides about what they compile."""

from __future__ import annotations

import os

import pytest

from warmpool.publishing.machines import compile_options, worker_threads


def test_only_one_child_at_a_time_opens_a_tpu() -> None:
    assert worker_threads("tpu") == 1
    assert worker_threads("cpu") == worker_threads("cuda") == min(2, os.cpu_count() or 1)
    assert worker_threads("cpu", 1) == worker_threads("tpu", 8) == 1
    assert worker_threads("cpu", 1000) == os.cpu_count()


@pytest.mark.parametrize(
    "name", ["JAX_DISABLE_MOST_OPTIMIZATIONS", "JAX_DEFAULT_MATMUL_PRECISION", "JAX_SOMETHING_YET_TO_COME"]
)
def test_what_changes_a_compile_or_may_is_an_option(name: str) -> None:
    assert compile_options({name: "1", "HOME": "/", "XLA_FLAGS": "--a=1"}) == {name: "1"}


@pytest.mark.parametrize(
    "name",
    [
        "JAX_PLATFORMS",
        "JAX_COMPILATION_CACHE_DIR",
        "JAX_ENABLE_COMPILATION_CACHE",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS",
        "JAX_LOG_COMPILES",
        "JAX_TRACEBACK_FILTERING",
    ],
)
def test_what_changes_no_compile_is_none(name: str) -> None:
    assert compile_options({name: "1"}) == {}
