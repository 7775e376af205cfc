"""The bare process: it loads every executable of a plan, runs each once, and does nothing else.

It is what a start cannot do without: import numpy and jaxlib, open a client, map the weights, and let two threads load
and run. Nothing is verified and nothing served. It imports nothing of warmpool: `benchmarks.bare_start` has written
down beforehand where all bytes lie. That is why jaxlib's private interfaces are used here too, as
`cache/executable.py` uses them; it would add 5 ms of imports.
"""

from __future__ import annotations

import json
import mmap
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

LOADERS = 2  # as a lane has
Plan = dict[str, Any]  # as `benchmarks.bare_start` writes it


class Device:
    """A CPU client and its device."""

    def __init__(self) -> None:
        from jaxlib import _jax, xla_client

        self._jax = _jax
        client: Any = xla_client.make_cpu_client(asynchronous=False)  # as a lane's
        self._client = client
        (self._device,) = client.local_devices()
        self._devices = _jax.DeviceList((self._device,))
        self._sharding = _jax.SingleDeviceSharding(self._device)

    def put(self, array: Any) -> Any:
        """The array on the device, in its own memory where that is aligned."""
        zero_copy = self._jax.HostBufferSemantics.ZERO_COPY
        return self._jax.batched_device_put(
            _Aval(array), self._sharding, [array], [self._device], True, False, zero_copy, False
        )

    def load(self, payload: bytes) -> Any:
        """A loaded executable."""
        return self._client.deserialize_executable(payload, executable_devices=self._devices)


class _Aval:
    """The part of jax's ShapedArray that `batched_device_put` reads."""

    weak_type = False

    def __init__(self, array: Any) -> None:
        self.shape = array.shape
        self.dtype = array.dtype


class Warmed:
    """An executable that has run: what it answered, and how long both steps took."""

    def __init__(self, device: Device, weights: Sequence[Any], planned: Plan) -> None:
        import numpy as np

        begin_s = time.perf_counter()
        with open(planned["file"], "rb") as stream:  # noqa: PTH123  # a Path would be one more import
            self.executable = device.load(stream.read())
        loaded_s = time.perf_counter()
        inputs = [device.put(np.array(values, dtype)) for dtype, values in planned["inputs"]]
        result = self.executable.execute([*weights, *inputs])[0]
        self.answer = result._single_device_array_to_np_array_did_copy()[0]  # noqa: SLF001
        self.load_s = loaded_s - begin_s
        self.run_s = time.perf_counter() - loaded_s


def map_weights(device: Device, file: str, tensors: Sequence[tuple[str, Sequence[int], int]]) -> list[Any]:
    """The weights of a blob, each a dtype, a shape and where it begins, on the device and not copied."""
    import numpy as np

    with open(file, "rb") as stream:  # noqa: PTH123
        mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    return [device.put(np.ndarray(shape, dtype, mapped, offset)) for dtype, shape, offset in tensors]


def warm_all(device: Device, weights: Sequence[Any], executables: Sequence[Plan]) -> list[Warmed]:
    """Load and run them, two at a time, begun in their order."""
    waiting = deque(enumerate(executables))
    warmed: dict[int, Warmed] = {}

    def work() -> None:
        while waiting:
            try:
                number, planned = waiting.popleft()
            except IndexError:  # the other one was faster
                return
            warmed[number] = Warmed(device, weights, planned)

    threads = [threading.Thread(target=work) for _ in range(LOADERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [warmed[number] for number in range(len(executables))]  # KeyError where a thread failed


def main(arguments: Sequence[str]) -> None:
    """`PLAN STARTED_NS`, the latter by the monotonic clock: prints seconds since then, and every answer, as JSON."""
    plan_file, started_ns = arguments

    def since_exec_s() -> float:
        return (time.monotonic_ns() - int(started_ns)) / 1e9

    sys.modules["jax"] = None  # type: ignore[assignment]  # the C++ side imports jax where it can
    import numpy  # noqa: F401, ICN001
    from jaxlib import xla_client  # noqa: F401

    imported_s = since_exec_s()
    device = Device()
    client_s = since_exec_s()
    with open(plan_file, encoding="utf-8") as stream:  # noqa: PTH123
        plan: Plan = json.load(stream)
    weights = map_weights(device, *plan["weights"])
    mapped_s = since_exec_s()
    warmed = warm_all(device, weights, plan["executables"])
    warm_s = since_exec_s()
    times = {"imported_s": imported_s, "client_s": client_s, "mapped_s": mapped_s, "warm_s": warm_s}
    each = {"load_s": [one.load_s for one in warmed], "run_s": [one.run_s for one in warmed]}
    print(json.dumps({"times": {**times, **each}, "answers": [one.answer.tolist() for one in warmed]}))
