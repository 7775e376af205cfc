"""The data plane: what every protocol calls. Validates, splits, queues, reassembles, and says what happened."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from warmpool.arena import dtype_of
from warmpool.batcher import Batcher
from warmpool.batches import Array, Part, PartResult, joined
from warmpool.catalog import Catalog, ServedMethod, ServedModel
from warmpool.datatypes import OF_DTYPE
from warmpool.errors import NotFound, NotWarm
from warmpool.fallback import Step, together
from warmpool.manifest import TensorSpec
from warmpool.symbolic import shape_of
from warmpool.tensors import Tensor
from warmpool.traffic import Traffic
from warmpool.validation import chosen_outputs, validated
from warmpool.version_routing import Routing, Wish


@dataclass(frozen=True, slots=True)
class Answer:
    """Outputs by name, and the parts they came from (none for no rows). `validated_ns`: since the epoch."""

    method: ServedMethod
    outputs: dict[str, Array]
    parts: list[PartResult]
    rows: int
    validated_ns: int

    @property
    def step(self) -> Step:
        """The step of the fallback ladder that it took."""
        return together([part.step for part in self.parts])

    def tensors(self) -> dict[str, Tensor]:
        """The outputs as wire tensors."""
        names = {spec.name: OF_DTYPE[spec.dtype].name for spec in self.method.spec.outputs}
        return {
            name: Tensor(names[name], array.shape, memoryview(array.reshape(-1).view(np.uint8)))
            for name, array in self.outputs.items()
        }

    def served(self) -> dict[str, Any]:
        """What happened, as responses say it; of a split request the slowest part. Times in microseconds.

        Of the whole batch: rows that were asked for and rows of padding, and the same in elements of all its inputs.
        """
        if not self.parts:
            return {"rows": 0, "parts": 0, "step": self.step}
        slowest = max(self.parts, key=lambda part: part.received_ns - part.arrived_ns)
        return {
            "lane": slowest.lane,
            "bucket": slowest.bucket,
            "padding": round(slowest.padding, 4),
            "rows": self.rows,
            "batch_rows": slowest.batch_rows,
            "padded_rows": slowest.padded_rows,
            "elements": slowest.elements,
            "padded_elements": slowest.padded_elements,
            "parts": len(self.parts),
            "step": self.step,
            "cold": any(part.cold for part in self.parts),
            "queue_us": (slowest.formed_ns - slowest.arrived_ns) // 1000,
            "batch_us": (slowest.sent_ns - slowest.formed_ns) // 1000,
            "run_us": (slowest.run_end_ns - slowest.run_start_ns) // 1000,
        }


Answered = Callable[[ServedMethod, Mapping[str, Tensor], Answer | None, Exception | None, float], None]
"""Is told of a request: its method, inputs, answer or why there is none (neither: the caller has left), seconds."""


class DataPlane:
    """Models by name, and inference on them.

    Attributes:
        catalog: What is served.
        routing: By model, which version gets a request.
        warm: By model, the versions that are fully warm.
    """

    def __init__(self, batcher: Batcher) -> None:
        self.batcher = batcher
        self.traffic = Traffic()
        self.answered: Answered | None = None  # is told of each request that did not name its version
        self.catalog = self._unread = Catalog()
        self.read = asyncio.Event()
        self.routing: dict[str, Routing] = {}
        self.warm: dict[str, frozenset[str]] = {}

    def model(self, name: str, version: str | None = None) -> ServedModel:
        """A version that is served, without one the stable one.

        Raises:
            NotFound: There is none.
            NotWarm: That cannot be known yet, or it cannot be served.
        """
        current = self.catalog.models.get(name)
        if current is not None and (version is None or version == current.manifest.version):
            return current
        found = self._versions(name)
        if version is None:
            version = self.catalog.stable(name)
            if version not in found:  # others are: none of them is to get what is meant for it
                raise NotWarm(f"the stable version of model {name!r} is not here yet; see /v1/status")
        if version not in found:
            served = ", ".join(sorted(found))
            raise NotFound(f"version {version[:64]!r} of {name!r} is not served; served: {served}")
        return found[version]

    def method(self, path: str, version: str | None = None) -> ServedMethod:
        """The method that NAME (its default one) or NAME:METHOD means. Raises NotFound or NotWarm."""
        return _method(self.model(path.partition(":")[0], version), path)

    def candidates(self, path: str, version: str = "") -> list[ServedMethod]:
        """The methods that a request may get: of one version, or of all that may be chosen. Raises as `method`."""
        stable = self.method(path, version or None)
        name = stable.model
        others = () if version else self.warm.get(name, ())
        methods = [self._versions(name)[other].method(_named(path)) for other in others if other != stable.version]
        return [stable, *(method for method in methods if method)]

    def choose(self, path: str, wish: Wish) -> ServedMethod:
        """The method that a request gets, which is counted: what runs it has to be asked for at once.

        Raises:
            NotFound, NotWarm: As `method`.
        """
        name = path.partition(":")[0]
        warm = self.warm.get(name, frozenset())
        if wish.version:
            pinned = self.model(name, wish.version)
            if wish.version not in warm and wish.version != self.catalog.stable(name):
                raise NotWarm(f"version {wish.version[:64]!r} of {name!r} is not fully warm yet; see /v1/status")
            return _method(pinned, path)
        stable, routing = self.model(name), self.routing.get(name)
        if routing is None or not routing.serving.canary:
            return _method(stable, path)
        found = self._versions(name)
        having = {version for version in warm if found[version].method(_named(path))}
        return _method(found[routing.choose(wish, having)], path)

    def withdraw(self, model: ServedModel) -> None:
        """No request gets a version from now on; those that have it are still answered."""
        name, version = model.manifest.model, model.manifest.version
        self.catalog.others[model.key] = model
        self.catalog.retiring.add(model.key)
        if self.catalog.models.get(name) is model:
            del self.catalog.models[name]
            self.routing.pop(name, None)
        self.warm[name] = self.warm.get(name, frozenset()) - {version}

    def forget(self, model: ServedModel) -> None:
        """Nothing of a version that was withdrawn waits or runs, or ever will."""
        del self.catalog.others[model.key]
        self.catalog.retiring.discard(model.key)
        for method in model.methods.values():
            self.batcher.forget(method)
            self.traffic.forget(method)

    def _versions(self, name: str) -> dict[str, ServedModel]:
        """The versions of a model. Raises as `model`."""
        current, hidden = self.catalog.models.get(name), self.catalog.retiring
        others = [one for one in self.catalog.others.values() if one.manifest.model == name and one.key not in hidden]
        if current is not None or (others and name not in self.catalog.problems):
            return {model.manifest.version: model for model in (*([current] if current else ()), *others)}
        if self.catalog is self._unread:
            raise NotWarm("the instance is starting")
        if name in self.catalog.problems:
            raise NotWarm(f"model {name!r} is in the store but cannot be served; see /v1/status", retry_after_s=10.0)
        raise NotFound(f"model {name[:64]!r} is not served; served: {', '.join(sorted(self.catalog.models)) or 'none'}")

    async def known(self, wait_s_max: float) -> float:
        """Wait until it is known what is served, for so many seconds at most; the seconds that it took."""
        if self.read.is_set():
            return 0.0
        began_s = time.monotonic()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.read.wait(), wait_s_max)
        return time.monotonic() - began_s

    async def infer(
        self,
        method: ServedMethod,
        inputs: Mapping[str, Tensor],
        *,
        wanted: Sequence[str] = (),
        timeout_s: float,
        priority: int = 0,
        pinned: bool = False,
    ) -> Answer:
        """Run a method on a request's tensors.

        Args:
            method: what to run.
            inputs: every input of the method, by name.
            wanted: names of the outputs to return; none for all.
            timeout_s: how long the caller waits.
            priority: which of those that wait is sooner: 0 is normal, higher is sooner.
            pinned: whether the caller named the version, which was then given to it for another reason than to others.

        Raises:
            BadInput: the request is not what the manifest takes.
            TooLarge, Overloaded, NotWarm, DeadlineExceeded, LaneFailed: as `Batcher.run`.
        """
        began_s = time.monotonic()
        answer: Answer | None = None
        failure: Exception | None = None
        try:
            answer = await self._run(method, inputs, wanted, timeout_s, priority)
        except Exception as error:
            failure = error
            raise
        finally:
            if self.answered is not None and not pinned:
                self.answered(method, inputs, answer, failure, time.monotonic() - began_s)
        return answer

    async def repeat(
        self, method: ServedMethod, inputs: Mapping[str, Tensor], wanted: Sequence[str], timeout_s: float, priority: int
    ) -> Answer:
        """The same for a request that no caller waits for: it is no traffic, and nobody is told of it."""
        return await self._run(method, inputs, wanted, timeout_s, priority, counted=False)

    async def _run(
        self,
        method: ServedMethod,
        inputs: Mapping[str, Tensor],
        wanted: Sequence[str],
        timeout_s: float,
        priority: int,
        *,
        counted: bool = True,
    ) -> Answer:
        indices = chosen_outputs(method, wanted)
        arrays, sizes = validated(method, inputs)
        validated_ns = time.time_ns()
        rows = sizes[method.batch] if method.batch else 1
        if rows == 0:
            results: list[PartResult] = []
            outputs = [np.empty(shape_of(spec.shape, sizes), dtype_of(spec.dtype)) for spec in method.spec.outputs]
        else:
            if counted:
                self.traffic.saw(method, sizes)
            results = await self.batcher.run(self._parts(method, arrays, sizes, timeout_s, priority))
            outputs = joined(results)
        named = {method.spec.outputs[index].name: outputs[index] for index in indices}
        return Answer(method=method, outputs=named, parts=results, rows=rows, validated_ns=validated_ns)

    def _parts(
        self, method: ServedMethod, arrays: list[Array], sizes: dict[str, int], timeout_s: float, priority: int
    ) -> list[Part]:
        """One part, or as many as the largest bucket asks for."""
        for spec, array in zip(method.spec.inputs, arrays, strict=True):  # larger ones would lie where others' rows do
            shape = tuple([axis if isinstance(axis, int) else sizes[axis] for axis in spec.shape])
            assert array.shape == shape, (spec.name, array.shape, sizes)
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        whole = Part(
            method=method,
            need=sizes,
            inputs=arrays,
            deadline_s=now_s + timeout_s,
            arrived_ns=time.time_ns(),
            arrived_s=now_s,
            priority=priority,
            answer=loop.create_future(),
        )
        step = self.batcher.chunk_rows(method, sizes)
        if method.batch is None or whole.rows <= step:
            return [whole]
        return whole.cut_into(step)


def _named(path: str) -> str | None:
    return path.partition(":")[2] or None


def _method(model: ServedModel, path: str) -> ServedMethod:
    method = model.method(_named(path))
    if method is None:
        name, has = model.manifest.model, ", ".join(model.methods)
        raise NotFound(f"model {name!r} has no method {(_named(path) or '')[:64]!r}; it has: {has}")
    return method


def metadata(spec: TensorSpec) -> dict[str, Any]:
    """A tensor as V2 metadata has it: dimensions that vary are -1."""
    shape = [axis if isinstance(axis, int) else -1 for axis in spec.shape]
    return {"name": spec.name, "datatype": OF_DTYPE[spec.dtype].name, "shape": shape}
