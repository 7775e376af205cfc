from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks.cpu_time import children_cpu_s, cpu_s

BUSY = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
# A child whose own child is busy, while it waits itself.
NESTED = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}], check=True)"


def test_the_time_of_a_process_and_of_all_that_descend_from_it_is_told_apart() -> None:
    before_s = children_cpu_s(os.getpid())
    command = [sys.executable, "-c", NESTED]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert children_cpu_s(process.pid) >= 0.29
        assert cpu_s(process.pid) < children_cpu_s(process.pid)
        assert children_cpu_s(os.getpid()) - before_s >= 0.29
        process.communicate(b"\n")
    with pytest.raises(OSError, match="No such"):
        cpu_s(process.pid)
