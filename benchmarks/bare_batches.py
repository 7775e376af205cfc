"""A bare process that runs batches one after the other as fast as it can: what a server with these executables is over.

`python -m benchmarks.bare_batches PLAN`, with a plan of `benchmarks.bare_start`, warms every executable and then obeys
lines on standard input: a number runs each executable so often and prints microseconds, a file's name runs the batches
in it and prints seconds and those of CPU time. Batches lie padded in a file that is mapped, so nothing but running
them is left to do.
"""

from __future__ import annotations

import json
import mmap
import random
import sys
import time
from typing import Any

from benchmarks.bare_process import Device, Plan, Warmed, map_weights, warm_all
from warmpool.process_memory import use_one_heap


class Batches:
    """The executables of a plan, warm, with their weights."""

    def __init__(self, plan: Plan) -> None:
        self._device = Device()
        self._plan = plan
        self._weights = map_weights(self._device, *plan["weights"])
        self._warmed: list[Warmed] = warm_all(self._device, self._weights, plan["executables"])

    def costs_us(self, passes: int) -> list[list[float]]:
        """What each executable took, in a new order each time."""
        import numpy as np

        inputs = [
            [self._device.put(np.array(values, dtype)) for dtype, values in planned["inputs"]]
            for planned in self._plan["executables"]
        ]
        took_us: list[list[float]] = [[] for _ in self._warmed]
        generator = random.Random(0)
        for _ in range(passes):
            for place in generator.sample(range(len(self._warmed)), len(self._warmed)):
                begin_ns = time.perf_counter_ns()
                self._run(place, inputs[place])
                took_us[place].append((time.perf_counter_ns() - begin_ns) / 1e3)
        return took_us

    def run(self, planned: dict[str, Any]) -> tuple[float, float]:
        """Run `batches` over the file `data`, then write the first output of each into the file `out`.

        Seconds that running took, and seconds of CPU time.
        """
        import numpy as np

        with open(planned["data"], "rb") as stream:  # noqa: PTH123  # as in `bare_process`
            data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        batches = [
            (batch["executable"], [np.ndarray(shape, dtype, data, at) for dtype, shape, at in batch["inputs"]])
            for batch in planned["batches"]
        ]
        begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
        outputs = [self._run(place, [self._device.put(array) for array in arrays]) for place, arrays in batches]
        took_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - begin_cpu_s
        with open(planned["out"], "wb") as stream:  # noqa: PTH123
            stream.writelines(output.tobytes() for output in outputs)
        return took_s, cpu_s

    def _run(self, place: int, inputs: list[Any]) -> Any:
        result = self._warmed[place].executable.execute([*self._weights, *inputs])[0]
        return result._single_device_array_to_np_array_did_copy()[0]  # noqa: SLF001


def main(plan_file: str) -> None:
    """Obey until standard input ends."""
    use_one_heap()  # as lanes do
    sys.modules["jax"] = None  # type: ignore[assignment]  # the C++ side imports jax where it can
    with open(plan_file, encoding="utf-8") as stream:  # noqa: PTH123
        batches = Batches(json.load(stream))
    for line in sys.stdin:
        wanted = json.loads(line)
        if isinstance(wanted, int):
            answer: Any = batches.costs_us(wanted)
        else:
            with open(wanted, encoding="utf-8") as stream:  # noqa: PTH123
                answer = batches.run(json.load(stream))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
