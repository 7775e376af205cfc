"""What the import of a function may load: its cold start is paid by a caller who waits."""

import subprocess
import sys

import pytest

HEAVY = {
    "aiohttp",
    "cache",
    "flax",
    "grpc",
    "h2",
    "httpx",
    "jax",
    "jaxlib",
    "ml_dtypes",
    "numpy",
    "opentelemetry.exporter",
    "opentelemetry.proto",
    "opentelemetry.sdk",
    "orbax",
    "prometheus_client",
    "pydantic",
    "requests",
    "rich",
    "uvicorn",
}


@pytest.mark.parametrize("module", ["functions.inference", "functions.pool", "warmpool.wire", "warmpool.errors"])
def test_the_import_of_a_function_loads_nothing_heavy(module):
    code = f"import sys, {module}; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(result.stdout.split())
    assert module in loaded
    assert loaded & HEAVY == set()


def test_the_errors_import_nothing():
    code = "import sys; before = set(sys.modules); import warmpool.errors; print(*set(sys.modules) - before)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert set(result.stdout.split()) == {"warmpool", "warmpool.errors"}
