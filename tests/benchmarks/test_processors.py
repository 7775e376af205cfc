import os
import subprocess
import sys

from benchmarks.processors import confine, device_and_rest


def test_one_processor_is_the_device_and_the_others_are_left() -> None:
    device, rest = device_and_rest()
    assert len(device) == 1
    assert device | rest == os.sched_getaffinity(0)
    assert not device & rest


def test_all_threads_of_a_process_are_confined() -> None:
    code = "import threading, sys; threading.Thread(target=sys.stdin.read).start(); print(flush=True); sys.stdin.read()"
    device, _ = device_and_rest()
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        threads = [int(name) for name in os.listdir(f"/proc/{process.pid}/task")]  # noqa: PTH208
        assert len(threads) == 2
        confine(process.pid, device)
        assert [os.sched_getaffinity(thread) for thread in threads] == [device] * 2
        process.communicate()
