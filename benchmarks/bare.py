"""The bare compiled call: an executable of a store, loaded and run in this process as a lane would run it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from benchmarks.questions import Question
from benchmarks.stores import executable_of, model_in
from cache.artifact import unpack
from cache.executable import Runtime
from cache.signing import ANYONE
from warmpool.arena import aligned
from warmpool.weights import map_weights


class BareCall:
    """One executable with its weights on the device: numpy arrays in, a numpy array out."""

    def __init__(self, runtime: Runtime, store: Path, question: Question, bucket: dict[str, int]) -> None:
        model_name, _, method = question.model.partition(":")
        model = model_in(store, model_name)
        served = model.method(method or None)
        assert served is not None, question.model
        spec, artifact = executable_of(store, model, runtime.fingerprint(), served.name, bucket)
        _, payload = unpack(artifact, key=spec.key, trust=ANYONE)
        self._runtime = runtime
        # Kept, as XLA reads this memory where it is.
        self._arrays = map_weights(model.weights_file, model.manifest.weights)
        self._weights = [runtime.put(array) for array in self._arrays]
        self._inputs = [aligned(question.inputs[tensor.name]) for tensor in served.spec.inputs]
        self._executable = runtime.load(payload)

    def __call__(self) -> NDArray[Any]:
        inputs = [self._runtime.put(array) for array in self._inputs]
        return self._executable.run([*self._weights, *inputs])[0]
