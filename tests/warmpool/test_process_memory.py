"""How a process keeps its memory: as its mappings show it."""

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.instance_process import serving

HEAP_BYTES = 64 << 20  # what glibc reserves for a heap of threads, at a multiple of it; most of it without any access
MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S{4}) ", re.MULTILINE)

ALLOCATE = """
import sys, threading
from pathlib import Path
from warmpool.process_memory import use_one_heap

if "one" in sys.argv:
    use_one_heap()
there, told = threading.Barrier(3), threading.Event()

def wait():
    there.wait()
    told.wait()

for _ in range(2):
    threading.Thread(target=wait).start()
there.wait()
print(Path("/proc/self/maps").read_text())
told.set()
"""


def heaps(maps):
    """How many heaps of threads there are among a process's mappings."""
    found = [(int(start, 16), int(end, 16), access) for start, end, access in MAPPING.findall(maps)]
    return sum(
        start % HEAP_BYTES == 0 and (start + HEAP_BYTES, end) == (last, beyond) and (used, reserved) == ("rw-p", "---p")
        for (start, end, used), (beyond, last, reserved) in pairwise(found)
    )


@pytest.mark.parametrize(("argument", "threads_have_heaps"), [("one", False), ("many", True)])
def test_with_one_heap_threads_have_none_of_their_own(argument, threads_have_heaps):
    command = [sys.executable, "-c", ALLOCATE, argument]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert bool(heaps(done.stdout)) is threads_have_heaps


def test_a_lane_has_one_heap_whatever_its_threads_load(tiny_store, tmp_path):
    with serving(tiny_store, tmp_path / "log") as instance:
        instance.wait_warm()
        assert heaps(Path(f"/proc/{instance.lane('primary')['pid']}/maps").read_text()) == 0
        assert heaps(Path(f"/proc/{instance.process.pid}/maps").read_text()) > 0
