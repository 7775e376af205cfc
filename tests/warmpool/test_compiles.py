"""The promise itself: over a mixed run no process of an instance compiles, and the counters would see it if one did."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.edges import assert_same, inputs_for, sizes_of
from tests.instance_process import serving, wait_until, zygote_gate
from tests.tiny import METHODS


@pytest.fixture(scope="module", params=["none", "jax"])
def instance(request, tiny_store, tmp_path_factory):
    """A warm instance, the mode of its primary lane, and the file that new zygotes wait for."""
    folder = tmp_path_factory.mktemp("instance")
    gate, environment = zygote_gate(folder)
    gate.touch()
    with serving(tiny_store, folder / "log", "--accelerator", request.param, **environment) as running:
        yield running, "jax" if request.param == "jax" else "jaxlib", gate
        gate.touch()


def mixed_run(instance):
    """Every method at every edge, from many callers, so that batches of all kinds come together."""
    asked = [(name, inputs_for(name, sizes)) for name in METHODS for sizes in sizes_of(name)]
    order = np.random.default_rng(0).permutation(len(asked))

    def ask(index):
        name, inputs = asked[index]
        return instance.infer(name, binary=bool(index % 2), **inputs)

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, order))
    for index, answer in zip(order, answers, strict=True):
        assert_same(asked[index][0], answer.outputs, asked[index][1])
    return answers


def test_a_mixed_run_on_the_primary_lane_compiles_nothing(instance):
    running, mode, _ = instance
    answers = mixed_run(running)
    assert {answer.parameters["lane"] for answer in answers} == {"primary"}
    status = running.status()
    assert [lane["mode"] for lane in status["lanes"]] == [mode, "jaxlib"]
    assert [lane["compiles"] for lane in status["lanes"]] == [0, 0]
    assert status["front"]["jax_imported"] is False


def test_a_mixed_run_on_the_cpu_lane_compiles_nothing(instance):
    """The primary lane is gone for as long as the next zygote waits."""
    running, _, gate = instance
    status = running.status()
    gate.unlink()
    for pid in (status["zygote"]["pid"], status["lanes"][0]["pid"]):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: running.answers("/v2/models/tiny/ready") == 503)
    answers = mixed_run(running)
    compiles = running.lane("cpu")["compiles"]
    gate.touch()
    assert {answer.parameters["lane"] for answer in answers} == {"cpu"}
    assert compiles == 0
    running.wait_warm()
    assert running.lane("primary")["compiles"] == 0


@pytest.mark.parametrize("mode", ["jax", "jaxlib"])
def test_a_lane_whose_zygote_has_imported_jax_counts_what_jax_compiles(mode):
    code = f"""
import jax
from cache.executable import Runtime
runtime = Runtime.open("{mode}")
assert runtime.compiles() == 0
jax.jit(lambda x: x + 1)(1.0)
assert runtime.compiles() > 0
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
