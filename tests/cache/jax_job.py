"""A job that compiles with JAX's own cache in a folder, in a process of its own, and what it counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

JOB_S_MAX = 120.0

_CODE = """
import collections, hashlib, json
import jax, jax.numpy as jnp, numpy as np

counts = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **_: counts.update([event.rpartition("/")[2]]))

@jax.jit
def solved(x):
    return jnp.linalg.solve(x @ x.T + jnp.eye(8), x)

@jax.jit
def attended(x):
    return jax.nn.softmax(x @ x.T) @ x

x = np.sin(np.arange(64, dtype=np.float32)).reshape(8, 8)
results = [solved(x), attended(x), attended(x[:4])]
digest = hashlib.sha256(b"".join(bytes(memoryview(jax.device_get(one))) for one in results)).hexdigest()
print(json.dumps({"counts": counts, "digest": digest}))
"""


@dataclass(frozen=True)
class Job:
    """How often the cache was asked, how often it had the entry, a digest of the results, and what JAX warned of."""

    requests: int
    hits: int
    digest: str
    warnings: str


def run_job(folder: Path, **environment: str) -> Job:
    """Run the job with this folder as JAX's cache, which is to keep everything."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    settings = {
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    done = subprocess.run(
        [sys.executable, "-c", _CODE],
        capture_output=True,
        text=True,
        timeout=JOB_S_MAX,
        check=True,
        env=kept | settings | environment,
    )
    found = json.loads(done.stdout)
    counts = found["counts"]
    return Job(counts["compile_requests_use_cache"], counts.get("cache_hits", 0), found["digest"], done.stderr)
