"""What has to be seen in a process of its own: `python -m tests.cache.runtime_checks CHECK [ARGUMENT ...]`.

A process has one PJRT client, may crash in native code, and may import jax or not, so each check gets a fresh one. It
passes by ending with status 0; what it prints, one JSON object a line, is for the test that started it.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from cache.errors import Refused
from cache.executable import Runtime, serialize
from tests.cache import programs

ALIGNED_BYTES = 64


def publish(folder: Path) -> None:
    """Compile every program and store its bytes and its answers; serialised before the first run."""
    runtime = Runtime.open("jax")
    (folder / "fingerprint").write_text(runtime.fingerprint().digest)
    for name in programs.NAMES:
        compiled = programs.compiled(name)
        (folder / name).write_bytes(serialize(compiled))
        programs.write_arrays(folder / f"{name}.answers", programs.answers(name, compiled))
    tell(compiles=runtime.compiles(), programs=len(programs.NAMES))


def load(folder: Path, mode: Any) -> None:
    """Load and run every published program, twice, and say whether the answers are the compile's to the bit."""
    runtime = Runtime.open(mode)
    executables = []  # held, so that the client has them all at once
    for name in programs.NAMES:
        executable = runtime.load((folder / name).read_bytes())
        executables.append(executable)
        for _ in range(2):
            results = executable.run([runtime.put(array) for array in programs.ARGUMENTS[name]])
            tell(program=name, answers="\n".join(map(programs.described, results)))
    tell(
        compiles=runtime.compiles(),
        jax=sys.modules.get("jax") is not None,
        fingerprint=runtime.fingerprint().digest,
    )


def dropped_executables_do_not_count_as_compiles(folder: Path) -> None:
    runtime = Runtime.open("jaxlib")
    for _ in range(3):
        executable = runtime.load((folder / "add").read_bytes())
        assert runtime.loaded == 1, runtime.loaded
        del executable
        gc.collect()
    assert (runtime.loaded, runtime.compiles()) == (0, 0)


def loads_and_drops_in_other_threads_do_not_count_as_compiles(folder: Path) -> None:
    runtime = Runtime.open("jaxlib")
    payload = (folder / "add").read_bytes()

    def load_and_drop() -> None:
        for _ in range(30):
            held = [runtime.load(payload) for _ in range(4)]
            held.clear()

    threads = [threading.Thread(target=load_and_drop) for _ in range(2)]
    for thread in threads:
        thread.start()
    counts = set()
    while any(thread.is_alive() for thread in threads):
        counts.add(runtime.compiles())
    assert counts | {runtime.compiles()} == {0}, counts
    assert runtime.loaded == 0


def a_compile_is_counted_with_jax(folder: Path) -> None:
    runtime = Runtime.open("jax")
    assert runtime.compiles() == 0
    runtime.load((folder / "add").read_bytes())
    assert runtime.compiles() == 0
    programs.compiled("add")
    assert runtime.compiles() == 1, runtime.compiles()


def a_compile_is_counted_without_jax(folder: Path) -> None:
    """Nothing in such a process compiles by itself, so this goes to the client directly."""
    from jaxlib import xla_client

    runtime = Runtime.open("jaxlib")
    held = runtime.load((folder / "add").read_bytes())
    assert runtime.compiles() == 0
    text = "func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }"
    made = runtime._client.compile_and_load(f"module @m {{ {text} }}", runtime._devices, xla_client.CompileOptions())
    assert runtime.compiles() == 1, runtime.compiles()
    del held, made


def aligned_memory_is_aliased(folder: Path) -> None:
    runtime = Runtime.open("jaxlib")
    executable = runtime.load((folder / "add").read_bytes())
    x, y = placed(0, 1024), placed(0, 1024)
    buffers = [runtime.put(x), runtime.put(y)]
    x[:], y[:] = 3, 4  # after the put: an alias sees it
    assert (executable.run(buffers)[0] == 7).all()


def unaligned_memory_is_copied(folder: Path) -> None:
    runtime = Runtime.open("jaxlib")
    executable = runtime.load((folder / "add").read_bytes())
    x, y = placed(4, 1024), placed(4, 1024)
    x[:], y[:] = 1, 2
    buffers = [runtime.put(x), runtime.put(y)]
    executable.run(buffers)
    x[:], y[:] = 30, 40
    assert (executable.run(buffers)[0] == 3).all()


def a_buffer_keeps_its_array_alive(folder: Path) -> None:
    runtime = Runtime.open("jaxlib")
    executable = runtime.load((folder / "add").read_bytes())
    x = placed(0, 1024).view(Watched)
    x[:] = 5
    alive = weakref.ref(x)
    buffer = runtime.put(x)
    del x
    gc.collect()
    assert alive() is not None
    assert (executable.run([buffer, runtime.put(np.ones(1024, np.float32))])[0] == 6).all()
    del buffer
    gc.collect()
    runtime.put(np.ones(1, np.float32))  # jaxlib lets go of what it no longer needs at its next put
    assert alive() is None, "the array is never given back"


def read_only_and_strided_arrays_can_be_put(folder: Path) -> None:
    runtime = Runtime.open("jaxlib")
    executable = runtime.load((folder / "add").read_bytes())
    strided = np.arange(2048, dtype=np.float32)[::2]
    frozen = placed(0, 1024)
    frozen[:] = 1
    frozen.flags.writeable = False
    result = executable.run([runtime.put(strided), runtime.put(frozen)])[0]
    assert (result == np.arange(0, 2048, 2) + 1).all()


def results_outlive_later_runs(folder: Path) -> None:
    runtime = Runtime.open("jaxlib")
    executable = runtime.load((folder / "add").read_bytes())
    one = runtime.put(np.ones(1024, np.float32))
    kept = []
    for number in range(20):
        kept.append(executable.run([one, runtime.put(np.full(1024, number, np.float32))])[0])
        gc.collect()
    del executable
    gc.collect()
    assert [result.tolist() for result in kept] == [[number + 1.0] * 1024 for number in range(20)]


def wrong_arguments_are_refused(folder: Path) -> None:
    runtime = Runtime.open("jaxlib")
    executable = runtime.load((folder / "add").read_bytes())
    good = runtime.put(np.ones(1024, np.float32))
    short = runtime.put(np.ones(1000, np.float32))
    for arguments in ([], [good], [good, good, good], [good, short]):
        tell(refused=refusal(lambda arguments=arguments: executable.run(arguments)))
    assert (executable.run([good, good])[0] == 2).all(), "it no longer runs"


def garbage(folder: Path, kind: str) -> None:
    """Say how a load of bytes that are no executable was refused. XLA may end the process instead."""
    payload = (folder / "add").read_bytes()
    data = {
        "empty": b"",
        "text": b"no executable at all",
        "zeros": bytes(4096),
        "half": payload[: len(payload) // 2],
        "reversed": payload[::-1],
    }[kind]
    runtime = Runtime.open("jaxlib")
    tell(refused=refusal(lambda: runtime.load(data)), loaded=runtime.loaded, compiles=runtime.compiles())


def forks(folder: Path, mode: Any, count: str) -> None:
    """Do as the zygote does: import, keep no backend, and fork lanes. A child that hangs is ended by its own alarm."""
    if mode == "jaxlib":
        sys.modules["jax"] = None  # type: ignore[assignment]
        import jaxlib.xla_client  # noqa: F401
    else:
        import jax  # noqa: F401
    payload = (folder / "svd").read_bytes()
    expected = (folder / "svd.answers").read_text()
    for _ in range(int(count)):
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            _lane(mode, payload, expected)
        tell(exit=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _lane(mode: Any, payload: bytes, expected: str) -> None:
    status = 1
    try:
        runtime = Runtime.open(mode)
        executable = runtime.load(payload)
        results = executable.run([runtime.put(array) for array in programs.ARGUMENTS["svd"]])
        status = 0 if "\n".join(map(programs.described, results)) == expected else 3
    finally:
        os._exit(status)


class Watched(np.ndarray):
    """An array that can be referred to weakly."""


def placed(offset: int, count: int) -> np.ndarray:
    """Float32 zeros whose memory begins `offset` bytes after an aligned address."""
    block = np.zeros(count * 4 + 2 * ALIGNED_BYTES, np.uint8)
    start = -block.ctypes.data % ALIGNED_BYTES + offset
    return block[start : start + count * 4].view(np.float32)


def refusal(call: Any) -> str | None:
    try:
        call()
    except Refused as error:
        return str(error)
    return None


def tell(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    check, folder, *rest = sys.argv[1:]
    globals()[check](Path(folder), *rest)
