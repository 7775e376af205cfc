"""A cold jit process: exec, `import jax`, the weights, trace and compile of one exact shape, and its answer. No server.

It is what a process that compiles has to do at least before it can answer again, and nothing else; JAX has no cache on
disk. The model is "flax", the very function and params that warmpool publishes, or "plain", the same arithmetic written
again without flax, whose import takes a part of the time.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.questions import Question

MODELS = {"flax": "examples.embed.model", "plain": "benchmarks.peer_bert"}
START_S_MAX = 180.0
CODE = "import sys; from benchmarks.cold_jit import main; main(sys.argv[1])"
_ROOT = Path(__file__).resolve().parents[1]


def first_answer_s(question: Question, model: str) -> float:
    """Seconds from the exec of such a process, with one of `MODELS`, to its answer.

    Raises:
        RuntimeError: It failed; the message has the end of what it said.
        WrongAnswer: It answered with something else than the reference.
    """
    asked = json.dumps([question.inputs[name].tolist() for name in ("input_ids", "attention_mask")])
    environment = {"PATH": os.environ.get("PATH", ""), "JAX_PLATFORMS": "cpu"}  # else jax looks for accelerators first
    started_s = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-c", CODE, MODELS[model]],
        cwd=_ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        answer, said = process.communicate(asked, START_S_MAX)
        took_s = time.perf_counter() - started_s
    if process.returncode != 0:
        raise RuntimeError(f"the cold jit process ended with status {process.returncode}; it said: {said[-2000:]}")
    question.check(np.array(json.loads(answer), np.float32), "the cold jit process")
    return took_s


def main(module: str) -> None:
    """Answer what standard input asks, once."""
    import jax

    model = importlib.import_module(module)
    inputs = [np.array(rows, np.int32) for rows in json.load(sys.stdin)]
    vectors = np.asarray(jax.jit(model.predict)(model.load_params(), *inputs))
    print(json.dumps(vectors.tolist()), flush=True)
    os._exit(0)  # what an orderly exit takes is no part of it
