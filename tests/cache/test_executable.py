"""Every private name of JAX that the cache uses, against plain JAX, each in a process of its own."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cache.programs import DEVICES, NAMES, SPREAD

CHECKS = (
    "dropped_executables_do_not_count_as_compiles",
    "loads_and_drops_in_other_threads_do_not_count_as_compiles",
    "a_run_is_begun_by_no_other_thread",
    "a_compile_is_counted_with_jax",
    "a_compile_is_counted_without_jax",
    "aligned_memory_is_aliased",
    "unaligned_memory_is_copied",
    "a_buffer_keeps_its_array_alive",
    "a_buffer_that_is_gone_lets_go_of_its_array",
    "memory_is_told_by_a_loaded_executable_as_by_its_compile",
    "memory_that_is_not_told_is_not_known",
    "read_only_and_strided_arrays_can_be_put",
    "results_outlive_later_runs",
    "no_source_file_is_named_in_what_is_stored",
    "wiring_is_part_of_the_fingerprint",
)
EIGHT = {"JAX_NUM_CPU_DEVICES": str(DEVICES)}


COMMAND = (sys.executable, "-m", "tests.cache.runtime_checks")
SURROUNDINGS = {"OPENBLAS_NUM_THREADS": "1", "JAX_ENABLE_COMPILATION_CACHE": "false"}


class Done(NamedTuple):
    """How a check ended, and what it told."""

    returncode: int
    told: list[dict[str, Any]]
    stderr: str


class Checks:
    """A process that runs checks in forks of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            COMMAND, env={**os.environ, **SURROUNDINGS}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, arguments: Sequence[str], environment: Mapping[str, str]) -> Done:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        files = {name: self._folder / name for name in ("stdout", "stderr")}
        for file in files.values():
            file.write_bytes(b"")
        asked = {
            "arguments": arguments,
            "environment": environment,
            **{name: str(file) for name, file in files.items()},
        }
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        ended = json.loads(self._process.stdout.readline())
        stdout, stderr = (file.read_text() for file in files.values())
        return Done(ended["exit"], [json.loads(line) for line in stdout.splitlines()], stderr)

    def close(self) -> None:
        with self._process:  # its stdin ends
            pass
        assert self._process.returncode == 0


@pytest.fixture(scope="module")
def checks(tmp_path_factory):
    running = Checks(tmp_path_factory.mktemp("checks"))
    yield running
    running.close()


@pytest.fixture
def started(checks):
    """Runs a check."""
    return lambda check, folder, *rest, **environment: checks.run((check, str(folder), *rest), environment)


@pytest.fixture
def passed(started):
    """Runs a check that has to pass; what it told."""

    def run(check, folder, *rest, **environment):
        done = started(check, folder, *rest, **environment)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.told

    return run


@pytest.fixture
def refused(passed):
    """Runs a check; what it told of refusals."""
    return lambda check, folder, **environment: [line["refused"] for line in passed(check, folder, **environment)]


def alone(check, folder, *rest, **environment) -> list[dict[str, Any]]:
    """What a check told that ran in no fork, and passed."""
    done = subprocess.run(
        [*COMMAND, check, str(folder), *rest],
        env={**os.environ, **SURROUNDINGS, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A folder with every program's bytes and answers, made in one process."""
    folder = tmp_path_factory.mktemp("published")
    (told,) = alone("publish", folder)
    assert told["compiles"] >= told["programs"] == len(NAMES)
    return folder


@pytest.fixture(scope="module", params=["jaxlib", "jax"])
def loaded(request, published):
    """What another process told that loaded them all."""
    return request.param, alone("load", published, request.param)


@pytest.fixture(scope="module")
def spread(tmp_path_factory):
    """The same of the programs whose tensors are spread over devices."""
    folder = tmp_path_factory.mktemp("spread")
    (told,) = alone("publish", folder, "SPREAD", **EIGHT)
    assert told["programs"] == len(SPREAD)
    return folder


@pytest.fixture(scope="module", params=["jaxlib", "jax"])
def spread_loaded(request, spread):
    return alone("load", spread, request.param, "SPREAD", **(EIGHT if request.param == "jax" else {}))


@pytest.mark.parametrize("program", NAMES)
def test_a_loaded_executable_answers_to_the_bit_as_its_compile_did(published, loaded, program):
    answers = [line["answers"] for line in loaded[1] if line.get("program") == program]
    assert answers == [(published / f"{program}.answers").read_text()] * 2


def test_loading_and_running_compiles_nothing(loaded):
    assert loaded[1][-1]["compiles"] == 0


def test_a_process_that_only_loads_never_imports_jax(loaded):
    mode, told = loaded
    assert told[-1]["jax"] is (mode == "jax")


def test_a_process_without_jax_has_the_fingerprint_of_the_one_that_compiled(published, loaded):
    assert loaded[1][-1]["fingerprint"] == (published / "NAMES.fingerprint").read_text()


@pytest.mark.parametrize("check", CHECKS)
def test_in_a_process_of_its_own(published, check, passed):
    passed(check, published)


def test_arguments_that_are_not_the_programs_are_refused_and_it_still_runs(published, passed):
    refused = [line["refused"] for line in passed("wrong_arguments_are_refused", published)]
    assert len(refused) == 4
    assert all(message.startswith("the executable failed: ") for message in refused)
    assert "\n" not in "".join(refused)


@pytest.mark.parametrize("mode", ["jaxlib", "jax"])
def test_a_run_for_which_there_is_no_room_is_out_of_memory_and_later_ones_are_not(published, mode, passed):
    told = passed("a_run_without_room_fails_alone", published, mode)
    assert [line["kind"] for line in told] == ["OutOfMemory", "OutOfMemory", "it runs again"]
    assert all("RESOURCE_EXHAUSTED" in line["message"] for line in told[:2])


@pytest.mark.parametrize("kind", ["empty", "text", "zeros", "half", "reversed"])
def test_bytes_that_are_no_executable_are_refused(published, kind, started):
    """XLA may die of them: that is why only verified bytes get this far, in a process that can be replaced."""
    done = started("garbage", published, kind)
    if done.returncode < 0:
        assert -done.returncode in {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS}
        return
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.told[0]["refused"].startswith("XLA would not load the executable: ")
    assert (done.told[0]["loaded"], done.told[0]["compiles"]) == (0, 0)


@pytest.mark.parametrize("mode", ["jaxlib", "jax"])
def test_forks_of_a_process_without_a_backend_load_and_run(published, mode, passed):
    assert [line["exit"] for line in passed("forks", published, mode, "8")] == [0] * 8


@pytest.mark.parametrize("program", SPREAD)
def test_what_is_spread_over_eight_devices_answers_to_the_bit_as_its_compile_did(spread, spread_loaded, program):
    answers = [line["answers"] for line in spread_loaded if line.get("program") == program]
    assert answers == [(spread / f"{program}.answers").read_text()] * 2


def test_eight_devices_have_one_fingerprint_with_and_without_jax_and_it_is_not_that_of_one(
    published, spread, spread_loaded
):
    fingerprint = (spread / "SPREAD.fingerprint").read_text()
    assert spread_loaded[-1]["fingerprint"] == fingerprint != (published / "NAMES.fingerprint").read_text()
    assert spread_loaded[-1]["compiles"] == 0


def test_a_donated_argument_serves_one_run_in_place_and_leaves_the_callers_memory_alone(published, refused):
    assert refused("a_donated_argument_serves_one_run", published) == [
        "argument 0 was donated to an earlier run, which took its memory: place it again"
    ]


def test_an_aliased_buffer_is_not_taken_where_memory_is_donated(published, refused):
    assert refused("memory_of_a_caller_is_never_taken_over", published) == [
        "argument 3 is donated: only what this executable placed as it is taken"
    ]


def test_aliased_memory_is_not_written_into_where_an_artifact_does_not_speak_of_donation(published, refused):
    (message,) = refused("aliased_memory_is_not_even_written_into_where_nothing_is_said", published)
    assert message.startswith("the executable failed: ")
    assert "deleted or donated" in message


def test_arguments_that_the_compiler_dropped_may_be_anything_but_have_to_be_there(published, refused):
    assert refused("dropped_arguments_are_not_even_looked_at", published) == ["the executable takes 3 arguments, not 1"]


def test_an_argument_that_was_placed_as_another_is_refused_and_not_used_up(published, refused):
    assert refused("an_argument_is_taken_only_as_what_it_was_placed_as", published) == [
        "argument 0 is donated, this one was placed to be kept",
        "argument 1 is kept, this one was placed to be donated",
        "argument 0 is float32[7], the executable takes float32[1024]",
        "argument 1 is float64[1024], the executable takes float32[1024]",
        "there is no argument 2: the executable takes 2",
    ]


def test_what_is_for_another_number_of_devices_is_foreign_before_xla_sees_it(published, passed):
    (told,) = passed("another_number_of_devices_is_foreign", published)
    assert told == {"differences": {"devices": ["1", "8"]}}


def test_jax_has_to_have_as_many_devices_as_are_asked_for(published, refused):
    assert refused("jax_has_to_have_as_many_devices", published) == [
        "device_count is 2, jax finds 1 local devices; jax_num_cpu_devices makes more of a CPU"
    ]


def test_an_artifact_says_how_its_executable_is_called(published, passed):
    said = {line["program"]: line["calling"] for line in passed("how_it_is_called", published)}
    floats = ["float32", [1024]]
    assert said["donated"] == {
        "arguments": [floats, floats],
        "results": [floats, ["float32", []]],
        "kept": [0, 1],
        "donated": [0],
        "devices": 1,
    }
    assert (said["donated_and_dropped"]["kept"], said["donated_and_dropped"]["donated"]) == ([1, 3], [3])
    assert said["dropped"]["arguments"] == [["float32", [3]], ["float32", [40]], ["int8", [2]]]
    assert (said["dropped"]["kept"], said["dropped"]["donated"]) == ([1], [])
    assert said["e5m2"]["arguments"] == [["float8_e5m2", [8, 16]]]
    assert said["e5m2"]["results"] == [["float8_e5m2", [8, 8]], ["float8_e5m2", [8, 16]]]


def test_a_mesh_of_the_devices_in_another_order_is_refused_when_it_is_compiled(spread, refused):
    (message,) = refused("spread_in_another_order", spread, **EIGHT)
    assert message == (
        "the executable is sharded over the devices 7, 6, 5, 4, 3, 2, 1, 0: make the mesh of the first of "
        "jax.local_devices(), in their order"
    )


def test_arguments_that_are_spread_have_to_be_placed_and_their_tensors_to_be_those_of_the_artifact(spread, refused):
    assert refused("spread_arguments_have_to_be_placed", spread) == [
        "argument 0 is spread over 8 devices: only what this executable placed as it is taken",
        "argument 1 was placed as another argument, or for another executable",
        "argument 0 was placed as another argument, or for another executable",
        "a tensor of shape [15, 32] cannot be divided into [4, 1, 2] equal parts",
        "the executable has 3 tensors where its artifact says 4",
    ]


def test_donated_memory_that_is_spread_is_the_executables_own(spread, refused):
    assert refused("spread_donated_memory_is_the_executables_own", spread) == [
        "argument 1 was donated to an earlier run, which took its memory: place it again"
    ]


def test_only_two_files_use_private_interfaces_of_jax():
    """What they use is run above on both ends of the supported range; nothing else may break with a release."""
    root = Path(__file__).resolve().parents[2]
    private = {
        path.relative_to(root).as_posix()
        for folder in ("cache", "warmpool", "functions")
        for path in (root / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in imported(node)
        if name.split(".")[0] == "jaxlib" or name.startswith(("jax._src", "jax.interpreters", "jax.extend"))
    }
    assert private == {"cache/executable.py", "cache/devices.py"}


def imported(node):
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module else []


def test_importing_it_is_light():
    """A lane starts with it: neither jaxlib, nor what signatures need, nor what few executables need is imported."""
    code = "import sys; sys.modules['jax'] = None; import cache.executable; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    modules = set(done.stdout.split())
    assert {"cache.executable", "cache.devices", "numpy"} <= modules
    assert not {"jaxlib", "cryptography", "cache.arguments", "cache.store", "rich", "asyncio"} & modules
