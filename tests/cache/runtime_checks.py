"""What has to be seen in a process of its own: `python -m tests.cache.runtime_checks CHECK [ARGUMENT ...]`.

A process has one PJRT client, may crash in native code, and may import jax or not, so each check gets a fresh one: or,
without a check, a fork of this one, which has imported what all of them need, and has no client, as a zygote has none.
It passes by ending with status 0; what it prints, one JSON object a line, is for the test that started it.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from msgspec import to_builtins
from msgspec.structs import replace

from cache.artifact import Calling, Header, TensorType, pack, peek, unpack
from cache.devices import Memory, memory_of
from cache.errors import CacheError, Foreign, Refused
from cache.executable import Executable, Runtime, calling_of, serialize, without_locations
from cache.ingredients import digest_ingredients
from cache.key import executable_ingredients
from cache.signing import ANYONE
from tests.cache import programs

ALIGNED_BYTES = 64
CHECK_S_MAX = 120


def publish(folder: Path, which: str = "NAMES") -> None:
    """Compile programs and store artifacts of them and their answers; serialised before the first run."""
    runtime = Runtime.open("jax", device_count(which))
    fingerprint = runtime.fingerprint()
    (folder / f"{which}.fingerprint").write_text(fingerprint.digest)
    names = getattr(programs, which)
    for name in names:
        lowered = without_locations(programs.lowered(name))
        compiled = lowered.compile()
        ingredients = executable_ingredients(program=name, bucket={}, fingerprint=fingerprint, options={})
        header = Header(
            key=digest_ingredients(ingredients), ingredients=ingredients, calling=calling_of(lowered, compiled)
        )
        (folder / name).write_bytes(pack(header, serialize(compiled)))
        programs.write_arrays(folder / f"{name}.answers", programs.answers(name, compiled))
    tell(compiles=runtime.compiles(), programs=len(names))


def load(folder: Path, mode: Any, which: str = "NAMES") -> None:
    """Load and run every published program, twice, and say whether the answers are the compile's to the bit."""
    runtime = Runtime.open(mode, device_count(which))
    executables = []  # held, so that the client has them all at once
    for name in getattr(programs, which):
        executable = loaded(runtime, folder, name)
        executables.append(executable)
        for _ in range(2):
            results = executable.run(placed_by(executable, programs.ARGUMENTS[name]))
            tell(program=name, answers="\n".join(map(programs.described, results)))
    tell(
        compiles=runtime.compiles(),
        jax=sys.modules.get("jax") is not None,
        fingerprint=runtime.fingerprint().digest,
    )


def device_count(which: str) -> int:
    return programs.DEVICES if which == "SPREAD" else 1


def stored(folder: Path, name: str) -> tuple[Calling, bytes]:
    """The calling convention and the payload in a program's artifact."""
    data = (folder / name).read_bytes()
    header, payload = unpack(data, key=peek(name, data).key, trust=ANYONE)
    assert header.calling
    return header.calling, bytes(payload)


def loaded(runtime: Runtime, folder: Path, name: str) -> Executable:
    calling, payload = stored(folder, name)
    return runtime.load(payload, calling)


def placed_by(executable: Executable, arrays: Sequence[np.ndarray]) -> list[Any]:
    return [executable.put(index, array) for index, array in enumerate(arrays)]


def dropped_executables_do_not_count_as_compiles(folder: Path) -> None:
    runtime = Runtime.open("jaxlib")
    for _ in range(3):
        executable = loaded(runtime, folder, "add")
        assert runtime.loaded == 1, runtime.loaded
        del executable
        gc.collect()
    assert (runtime.loaded, runtime.compiles()) == (0, 0)


def loads_and_drops_in_other_threads_do_not_count_as_compiles(folder: Path) -> None:
    runtime = Runtime.open("jaxlib")
    _, payload = stored(folder, "add")

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


def a_run_is_begun_by_no_other_thread(folder: Path) -> None:
    runtime = Runtime.open("jaxlib")
    executable = loaded(runtime, folder, "hungry")
    arguments = placed_by(executable, programs.ARGUMENTS["hungry"])
    executable.run(arguments)
    before = beginnings()
    for _ in range(10):
        executable.run(arguments)
    assert beginnings() - before < 10, (before, beginnings())


def beginnings() -> int:
    """How often threads that may begin runs have gone to sleep: other than this one, and those that run kernels."""
    others = [one for one in Path("/proc/self/task").iterdir() if int(one.name) != os.getpid()]
    folders = [one for one in others if "Eigen" not in (one / "comm").read_text()]
    assert len(folders) < len(others), "those that run kernels have another name"
    told = [(one / "status").read_text().partition("\nvoluntary_ctxt_switches:")[2] for one in folders]
    return sum(int(one.split()[0]) for one in told)


def a_compile_is_counted_with_jax(folder: Path) -> None:
    runtime = Runtime.open("jax")
    assert runtime.compiles() == 0
    loaded(runtime, folder, "add")
    assert runtime.compiles() == 0
    programs.compiled("add")
    assert runtime.compiles() == 1, runtime.compiles()


def a_compile_is_counted_without_jax(folder: Path) -> None:
    """Nothing in such a process compiles by itself, so this goes to the client directly."""
    from jaxlib import xla_client

    runtime = Runtime.open("jaxlib")
    held = loaded(runtime, folder, "add")
    assert runtime.compiles() == 0
    text = "func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }"
    made = runtime._client.compile_and_load(
        f"module @m {{ {text} }}", runtime.devices.listed, xla_client.CompileOptions()
    )
    assert runtime.compiles() == 1, runtime.compiles()
    del held, made


def aligned_memory_is_aliased(folder: Path) -> None:
    runtime = Runtime.open("jaxlib")
    executable = loaded(runtime, folder, "add")
    x, y = placed(0, 1024), placed(0, 1024)
    buffers = [runtime.put(x), runtime.put(y)]
    x[:], y[:] = 3, 4  # after the put: an alias sees it
    assert (executable.run(buffers)[0] == 7).all()


def unaligned_memory_is_copied(folder: Path) -> None:
    runtime = Runtime.open("jaxlib")
    executable = loaded(runtime, folder, "add")
    x, y = placed(4, 1024), placed(4, 1024)
    x[:], y[:] = 1, 2
    buffers = [runtime.put(x), runtime.put(y)]
    executable.run(buffers)
    x[:], y[:] = 30, 40
    assert (executable.run(buffers)[0] == 3).all()


def a_buffer_keeps_its_array_alive(folder: Path) -> None:
    runtime = Runtime.open("jaxlib")
    executable = loaded(runtime, folder, "add")
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


def memory_is_told_by_a_loaded_executable_as_by_its_compile(folder: Path) -> None:
    runtime = Runtime.open("jax")
    told, found = programs.compiled("hungry").memory_analysis(), loaded(runtime, folder, "hungry").memory()
    wanted = Memory(
        told.generated_code_size_in_bytes,
        told.temp_size_in_bytes,
        told.argument_size_in_bytes,
        told.output_size_in_bytes,
    )
    assert found == wanted
    assert found.temp >= 256 << 20, found
    assert (found.arguments, found.outputs) == (8192 * 4, 8192 * 4), found
    assert runtime.devices.memory_bytes_max == 0, "a CPU has no memory of its own"


def memory_that_is_not_told_is_not_known(folder: Path) -> None:
    def unimplemented() -> None:
        raise RuntimeError("UNIMPLEMENTED: Retrieving CompiledMemoryStats is not supported")

    assert memory_of(SimpleNamespace(get_compiled_memory_stats=unimplemented)) == (0, 0, 0, 0)


def a_run_without_room_fails_alone(folder: Path, mode: Any) -> None:
    """The process may grow by a quarter of what the run takes: XLA really finds no room."""
    runtime = Runtime.open(mode)
    executables = [loaded(runtime, folder, name) for name in ("add", "hungry")]
    executables[0].run(placed_by(executables[0], programs.ARGUMENTS["add"]))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + (64 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    for _ in range(2):
        try:
            executables[1].run(placed_by(executables[1], programs.ARGUMENTS["hungry"]))
        except CacheError as error:
            tell(kind=type(error).__name__, message=str(error))
        executables[0].run(placed_by(executables[0], programs.ARGUMENTS["add"]))
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    executables[1].run(placed_by(executables[1], programs.ARGUMENTS["hungry"]))
    tell(kind="it runs again")


def a_buffer_that_is_gone_lets_go_of_its_array(folder: Path) -> None:
    """Where nothing else happens that makes jaxlib look: a mapped file would stay mapped."""
    runtime = Runtime.open("jaxlib")
    array = placed(0, 1024)
    gone = weakref.ref(array)
    buffer = runtime.put(array)
    del array
    assert gone() is not None
    del buffer
    runtime.devices.let_go()
    assert gone() is None


def read_only_and_strided_arrays_can_be_put(folder: Path) -> None:
    runtime = Runtime.open("jaxlib")
    executable = loaded(runtime, folder, "add")
    strided = np.arange(2048, dtype=np.float32)[::2]
    frozen = placed(0, 1024)
    frozen[:] = 1
    frozen.flags.writeable = False
    result = executable.run([runtime.put(strided), runtime.put(frozen)])[0]
    assert (result == np.arange(0, 2048, 2) + 1).all()


def results_outlive_later_runs(folder: Path) -> None:
    runtime = Runtime.open("jaxlib")
    executable = loaded(runtime, folder, "add")
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
    executable = loaded(runtime, folder, "add")
    good = runtime.put(np.ones(1024, np.float32))
    short = runtime.put(np.ones(1000, np.float32))
    for arguments in ([], [good], [good, good, good], [good, short]):
        tell(refused=refusal(lambda arguments=arguments: executable.run(arguments)))
    assert (executable.run([good, good])[0] == 2).all(), "it no longer runs"


def a_donated_argument_serves_one_run(folder: Path) -> None:
    """Its memory is taken over, which saves an allocation, and a second run says so instead of reading it."""
    runtime = Runtime.open("jaxlib")
    executable = loaded(runtime, folder, "donated")
    state, x = (aligned_copy(array) for array in programs.ARGUMENTS["donated"])
    before = state.copy()
    arguments = placed_by(executable, [state, x])
    taken_from = arguments[0]._buffer.unsafe_buffer_pointer()
    first = executable.run(arguments)
    assert first[0].ctypes.data == taken_from, "nothing was taken over, so this shows nothing"
    assert state.ctypes.data != taken_from
    assert (state == before).all(), "the caller's memory was written into"
    tell(refused=refusal(lambda: executable.run(arguments)))
    again = executable.run([executable.put(0, state), arguments[1]])
    assert [array.tobytes() for array in again] == [array.tobytes() for array in first]


def memory_of_a_caller_is_never_taken_over(folder: Path) -> None:
    """An aliased buffer where the executable would write: it does not get that far."""
    runtime = Runtime.open("jaxlib")
    executable = loaded(runtime, folder, "donated_and_dropped")
    arrays = [aligned_copy(array) for array in programs.ARGUMENTS["donated_and_dropped"]]
    before = arrays[3].copy()
    arguments = [*placed_by(executable, arrays)[:3], runtime.put(arrays[3])]
    assert arguments[3].unsafe_buffer_pointer() == arrays[3].ctypes.data, "it is not aliased: this shows nothing"
    tell(refused=refusal(lambda: executable.run(arguments)))
    assert (arrays[3] == before).all()
    results = executable.run([*arguments[:3], executable.put(3, arrays[3])])
    expected = (folder / "donated_and_dropped.answers").read_text()
    assert "\n".join(map(programs.described, results)) == expected
    assert (arrays[3] == before).all()


def aliased_memory_is_not_even_written_into_where_nothing_is_said(folder: Path) -> None:
    """An older artifact says nothing of donation. XLA then copies what is not its own, and that is relied on."""
    runtime = Runtime.open("jaxlib")
    _, payload = stored(folder, "donated")
    executable = runtime.load(payload)
    state, x = (aligned_copy(array) for array in programs.ARGUMENTS["donated"])
    before = state.copy()
    buffers = [runtime.put(state), runtime.put(x)]
    assert buffers[0].unsafe_buffer_pointer() == state.ctypes.data, "it is not aliased: this shows nothing"
    results = executable.run(buffers)
    assert "\n".join(map(programs.described, results)) == (folder / "donated.answers").read_text()
    assert (state == before).all()
    tell(refused=refusal(lambda: executable.run(buffers)))


def dropped_arguments_are_not_even_looked_at(folder: Path) -> None:
    runtime = Runtime.open("jaxlib")
    executable = loaded(runtime, folder, "dropped")
    _, x, _ = programs.ARGUMENTS["dropped"]
    results = executable.run([None, runtime.put(x), object()])
    assert "\n".join(map(programs.described, results)) == (folder / "dropped.answers").read_text()
    tell(refused=refusal(lambda: executable.run([runtime.put(x)])))


def an_argument_is_taken_only_as_what_it_was_placed_as(folder: Path) -> None:
    runtime = Runtime.open("jaxlib")
    executable = loaded(runtime, folder, "donated")
    state, x = programs.ARGUMENTS["donated"]
    kept, donated = executable.put(1, x), executable.put(0, state)
    tell(refused=refusal(lambda: executable.run([kept, kept])))
    tell(refused=refusal(lambda: executable.run([donated, donated])))
    tell(refused=refusal(lambda: executable.put(0, state[:7])))
    tell(refused=refusal(lambda: executable.put(1, x.astype(np.float64))))
    tell(refused=refusal(lambda: executable.put(2, x)))
    executable.run([donated, kept])  # what was refused has used nothing up


def another_number_of_devices_is_foreign(folder: Path) -> None:
    """Told before XLA sees a byte: these are none of an executable."""
    runtime = Runtime.open("jaxlib")
    calling, _ = stored(folder, "add")
    try:
        runtime.load(bytes(4096), replace(calling, devices=8))
    except Foreign as error:
        tell(differences=error.differences)


def jax_has_to_have_as_many_devices(folder: Path) -> None:
    try:
        Runtime.open("jax", 2)
    except ValueError as error:
        tell(refused=str(error))


def no_source_file_is_named_in_what_is_stored(folder: Path) -> None:
    """And it would be: this process compiles one both ways."""
    Runtime.open("jax")
    place = Path(programs.__file__).name.encode()
    assert place in serialize(programs.lowered("scan").compile()), "nothing to strip: this shows nothing"
    assert place not in serialize(without_locations(programs.lowered("scan")).compile())
    found = [name for name in programs.NAMES if place in (folder / name).read_bytes()]
    assert not found, found


def how_it_is_called(folder: Path) -> None:
    """Tell what the artifacts of these programs say."""
    for name in ("donated", "donated_and_dropped", "dropped", "e5m2"):
        tell(program=name, calling=to_builtins(stored(folder, name)[0]))


def spread_in_another_order(folder: Path) -> None:
    """A mesh of the devices backwards compiles, but would be loaded on the wrong ones."""
    runtime = Runtime.open("jax", programs.DEVICES)
    mesh = programs.mesh_of(runtime.devices.each[::-1])
    lowered = programs.lowered("spread_both_ways", mesh=mesh)
    try:
        calling_of(lowered, lowered.compile())
    except ValueError as error:
        tell(refused=str(error))


def spread_arguments_have_to_be_placed(folder: Path) -> None:
    """One in the wrong place would not fail but wait for ever, so XLA is not asked."""
    runtime = Runtime.open("jaxlib", programs.DEVICES)
    executable = loaded(runtime, folder, "spread_both_ways")
    x, *_ = arrays = programs.ARGUMENTS["spread_both_ways"]
    placed = placed_by(executable, arrays)
    tell(refused=refusal(lambda: executable.run([runtime.put(x), *placed[1:]])))
    tell(refused=refusal(lambda: executable.run([placed[0], placed[0], placed[2]])))
    tell(refused=refusal(lambda: loaded(runtime, folder, "spread_nowhere").run(placed[:2])))
    calling, payload = stored(folder, "spread_both_ways")
    odd = replace(calling, arguments=(TensorType("float32", (15, 32)), *calling.arguments[1:]))
    tell(refused=refusal(lambda: runtime.load(payload, odd)))
    one_more = replace(calling, results=(*calling.results, calling.results[0]))
    tell(refused=refusal(lambda: runtime.load(payload, one_more)))
    results = executable.run(placed)
    assert "\n".join(map(programs.described, results)) == (folder / "spread_both_ways.answers").read_text()


def spread_donated_memory_is_the_executables_own(folder: Path) -> None:
    runtime = Runtime.open("jaxlib", programs.DEVICES)
    executable = loaded(runtime, folder, "spread_donated")
    arrays = [aligned_copy(array) for array in programs.ARGUMENTS["spread_donated"]]
    before = [array.copy() for array in arrays]
    arguments = placed_by(executable, arrays)
    executable.run(arguments)
    assert all((one == other).all() for one, other in zip(arrays, before, strict=True))
    tell(refused=refusal(lambda: executable.run(arguments)))


def wiring_is_part_of_the_fingerprint(folder: Path) -> None:
    """No TPU is at hand: a client that says of its devices what one would."""
    runtime = Runtime.open("jaxlib")
    client = runtime._client

    class Wired:
        def devices(self) -> list[Any]:
            return [SimpleNamespace(id=0, process_index=0, coords=[0, 1, 2], core_on_chip=0)]

        def __getattr__(self, name: str) -> Any:
            return getattr(client, name)

    plain = runtime.fingerprint()
    runtime._client = Wired()
    assert runtime.fingerprint().differences(plain.ingredients) == {"topology": ("0:0,1,2/0", "")}


def garbage(folder: Path, kind: str) -> None:
    """Say how a load of bytes that are no executable was refused. XLA may end the process instead."""
    _, payload = stored(folder, "add")
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
    _, payload = stored(folder, "svd")
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


def aligned_copy(array: np.ndarray) -> np.ndarray:
    """The same, where a CPU client aliases it."""
    block = np.zeros(array.nbytes + ALIGNED_BYTES, np.uint8)
    start = -block.ctypes.data % ALIGNED_BYTES
    copy = block[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


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


def serve() -> None:
    """Run the checks that stdin names, each in a fork."""
    import jaxlib.xla_client  # noqa: F401

    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if pid == 0:
            signal.alarm(CHECK_S_MAX)
            _check(asked)
        tell(exit=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _check(asked: dict[str, Any]) -> None:
    status = 1
    try:
        for descriptor, file in ((1, asked["stdout"]), (2, asked["stderr"])):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), descriptor)
        os.environ.update(asked["environment"])
        check, folder, *rest = asked["arguments"]
        globals()[check](Path(folder), *rest)
        status = 0
    except BaseException:  # noqa: BLE001  as an interpreter would
        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        serve()
    else:
        check, folder, *rest = sys.argv[1:]
        globals()[check](Path(folder), *rest)
