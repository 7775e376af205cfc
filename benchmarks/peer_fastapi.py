"""The peer: the server that a good engineer writes by hand today, FastAPI around `jax.jit` with JAX's persistent cache.

It is meant to be as fast as this design can be: every compile is kept on disk whatever it took, and uvicorn has its
fast parser and loop. The model is "flax", the very function and params that warmpool publishes, or "plain", the same
arithmetic written again without flax, from mapped weights. Without buckets it computes the exact shape that it is asked
for; with buckets it runs each of them before it listens, and pads requests into them.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import jax
import numpy as np
import uvicorn
from fastapi import Body, FastAPI, Response

from examples.loopback import HOST

MODELS = {"flax": "examples.embed.model", "plain": "benchmarks.peer_bert"}

Rows = Annotated[list[list[int]], Body()]


class Embedder:
    """The model on its device, and what of it is compiled."""

    def __init__(self, model: str, buckets: Sequence[tuple[int, int]]) -> None:
        module = importlib.import_module(MODELS[model])
        self.params = jax.device_put(module.load_params())
        self.jitted = jax.jit(module.predict)
        self.buckets = sorted(buckets, key=lambda bucket: bucket[0] * bucket[1])
        for bucket in self.buckets:
            self.run(np.zeros(bucket, np.int32), np.ones(bucket, np.int32))

    def run(self, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return np.asarray(self.jitted(self.params, ids, mask))

    def embed(self, input_ids: np.ndarray, attention_mask: np.ndarray) -> np.ndarray:
        """Vectors of [batch, seq] tokens, padded into a bucket where there are buckets."""
        rows, seq = input_ids.shape
        batch, length = self.covering(rows, seq)
        margins = [(0, batch - rows), (0, length - seq)]
        return self.run(np.pad(input_ids, margins), np.pad(attention_mask, margins))[:rows]

    def covering(self, rows: int, seq: int) -> tuple[int, int]:
        """The smallest bucket that holds the shape; the shape itself where none does."""
        fitting = (bucket for bucket in self.buckets if bucket[0] >= rows and bucket[1] >= seq)
        return next(fitting, (rows, seq))


class CompileCounts:
    """What JAX's monitoring says of its persistent cache."""

    def __init__(self) -> None:
        self.counts = {"cache_hits": 0, "cache_misses": 0}
        jax.monitoring.register_event_listener(self._listen)

    def _listen(self, event: str, **_: Any) -> None:
        name = event.rpartition("/")[2]
        if name in self.counts:
            self.counts[name] += 1


def make_app(embedder: Embedder, compiles: CompileCounts) -> FastAPI:
    """The application: POST /embed, GET /compiles."""
    app = FastAPI(openapi_url=None)

    @app.post("/embed")
    def embed(input_ids: Rows, attention_mask: Rows) -> Response:
        vectors = embedder.embed(np.array(input_ids, np.int32), np.array(attention_mask, np.int32))
        return Response(json.dumps({"vectors": vectors.tolist()}), media_type="application/json")

    @app.get("/compiles")
    def count() -> dict[str, int]:
        return compiles.counts

    return app


def main(arguments: Sequence[str]) -> None:
    """Serve until a signal."""
    parser = argparse.ArgumentParser(prog="peer")
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--cache", required=True, help="folder of JAX's persistent compilation cache")
    parser.add_argument("--buckets", nargs="*", default=[], help="BATCHxSEQ, each run before the server listens")
    options = parser.parse_args(arguments)
    jax.config.update("jax_compilation_cache_dir", options.cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compiles = CompileCounts()
    pairs = [bucket.split("x") for bucket in options.buckets]
    embedder = Embedder(options.model, [(int(batch), int(seq)) for batch, seq in pairs])
    app = make_app(embedder, compiles)
    uvicorn.run(
        app, host=HOST, port=options.port, loop="uvloop", http="httptools", log_level="warning", access_log=False
    )


if __name__ == "__main__":
    main(sys.argv[1:])
