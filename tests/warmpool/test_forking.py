"""Jobs in forks of a zygote: whatever becomes of one is a result for its caller and nothing to anybody else."""

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.instance_process import alive, children_of, wait_until
from warmpool.datagram import MESSAGE_BYTES_MAX
from warmpool.errors import WarmpoolError
from warmpool.forking import WorkerFailed, Zygote

JOBS = "tests.warmpool.forked"
MIB = 1 << 20


@pytest.fixture(scope="module")
def zygote():
    with Zygote.start("jaxlib") as running:
        assert running.read_stages()  # so that a job's time is its own
        yield running


def run(zygote, name, argument=None, *, wall_s_max=60.0, **limits):
    return zygote.run(f"{JOBS}:{name}", argument or {}, wall_s_max=wall_s_max, **limits)


@pytest.fixture
def failure_of(zygote):
    """The failure of a job; the zygote runs the next one all the same."""

    def ask(name, argument=None, **limits):
        with pytest.raises(WorkerFailed) as failure:
            run(zygote, name, argument, **limits)
        assert run(zygote, "add", {"a": 1, "b": 2})["sum"] == 3
        assert str(failure.value).startswith(f"{name}: {failure.value.reason}: ")
        return failure.value.reason, failure.value.detail

    return ask


def test_a_job_gives_its_result_from_a_process_of_its_own(zygote):
    results = [run(zygote, "add", {"a": 1, "b": index}) for index in range(3)]
    assert [result["sum"] for result in results] == [1, 2, 3]
    assert len({result["pid"] for result in results} | {os.getpid(), zygote.process.pid}) == 5


def test_an_exception_is_told_with_its_text(failure_of):
    assert failure_of("fail") == ("exception", "ValueError: no such thing")


def test_a_crash_is_told_with_its_signal(failure_of):
    reason, detail = failure_of("crash")
    assert reason == "crash"
    assert "SIGSEGV" in detail


def test_a_job_that_leaves_is_told_with_its_status_and_last_words(failure_of):
    assert failure_of("leave") == ("crash", "exit status 3. last words")


@pytest.mark.parametrize("name", ["hang", "ignore_signals_and_hang"])
def test_a_job_over_its_time_is_killed(zygote, failure_of, tmp_path, name):
    started_s = time.monotonic()
    assert failure_of(name, {"file": str(tmp_path / "pid")}, wall_s_max=2.0) == ("timeout", "it ran longer than 2 s")
    assert time.monotonic() - started_s < 30.0
    wait_until(lambda: not children_of(zygote.process.pid))


def test_a_job_over_its_cpu_time_fails_alone(zygote, failure_of):
    """The fork's clock begins at nought: what its zygote used before is not counted."""
    assert run(zygote, "spin", {"cpu_s": 0.1, "ignores": False}, cpu_s_max=30.0)["cpu_s"] < 30.0
    assert failure_of("spin", {"cpu_s": 1e9, "ignores": False}, cpu_s_max=0.5) == ("cpu", "it used up its CPU time")
    reason, detail = failure_of("spin", {"cpu_s": 1e9, "ignores": True}, cpu_s_max=0.5)
    assert (reason, "SIGKILL" in detail) == ("crash", True)


def test_a_job_over_its_memory_fails_alone(zygote, failure_of):
    limit = 1024 * MIB
    assert run(zygote, "fill_memory", {"bytes": MIB}, memory_bytes_max=limit) == {"bytes": MIB}
    reason, _ = failure_of("fill_memory", {"bytes": 2 * limit}, memory_bytes_max=limit)
    assert reason == "memory"


def test_a_result_that_cannot_be_sent_is_a_failure(failure_of):
    for characters in (MESSAGE_BYTES_MAX, 8 * MESSAGE_BYTES_MAX):
        reason, detail = failure_of("answer_at_length", {"characters": characters})
        assert (reason, str(MESSAGE_BYTES_MAX) in detail) == ("exception", True)
    reason, detail = failure_of("answer_what_is_no_json")
    assert (reason, "TypeError" in detail) == ("exception", True)


def test_an_entry_that_does_not_exist_is_a_failure(zygote):
    for entry in ("tests.warmpool.no_such_module:add", f"{JOBS}:no_such_function"):
        with pytest.raises(WorkerFailed, match="exception"):
            zygote.run(entry, {}, wall_s_max=60.0)


def test_many_jobs_at_once_each_get_their_own_result(zygote):
    def ask(number):
        if number % 5 == 0:
            with pytest.raises(WorkerFailed):
                run(zygote, "crash")
            return None
        return run(zygote, "add", {"a": number, "b": number})["sum"]

    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(ask, range(40))) == [None if number % 5 == 0 else 2 * number for number in range(40)]


def test_a_fork_is_niced_and_has_neither_the_zygotes_signals_nor_its_files(zygote, tmp_path):
    with zygote.fork(f"{JOBS}:echo", {"suffix": ""}) as other:
        assert json.loads(other.recv(1000))["pid"]
        found = run(zygote, "describe", nice=7)
        assert found["nice"] == os.nice(0) + 7
        assert found["signals"] == {"SIGTERM": True, "SIGCHLD": True}
        assert found["threads"] == 1
        sockets = [file for file in found["files"] if file.startswith("socket:")]
        assert len(sockets) == 1  # its own channel: not the zygote's control, not the other child's
        assert not [file for file in found["files"] if file.startswith("pipe:") and file not in pipes_of_this_process()]


def pipes_of_this_process():
    """What the zygote got from whoever started the tests, such as their output."""
    return {str(Path(f"/proc/self/fd/{number}").readlink()) for number in (0, 1, 2)}


def test_a_zygote_without_jax_has_numpy_and_cannot_import_jax(zygote, failure_of):
    found = run(zygote, "describe")
    assert (found["jax"], found["numpy"]) == (False, True)
    reason, detail = failure_of("import_jax")
    assert (reason, "jax" in detail) == ("exception", True)


def test_a_zygote_with_jax_has_no_backend_and_its_forks_can_have_one():
    with Zygote.start("jax") as zygote:
        found = run(zygote, "describe")
        assert (found["jax"], found["backends"]) == (True, 0)
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(lambda _: run(zygote, "use_jax"), range(4))) == [{"sum": 3.0}] * 4
        assert run(zygote, "describe")["backends"] == 0


def test_jobs_leak_neither_files_nor_processes(zygote):
    rounds = 20

    def files(pid):
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))

    run(zygote, "add", {"a": 1, "b": 1})
    before = files(os.getpid()), files(zygote.process.pid)
    for number in range(rounds):
        run(zygote, "add", {"a": 1, "b": number})
        with pytest.raises(WorkerFailed):
            run(zygote, "crash")
    # A file a round would be a leak; what else this process opens and closes meanwhile is none.
    now = files(os.getpid()), files(zygote.process.pid)
    assert max(now[0] - before[0], now[1] - before[1]) < rounds, (before, now)
    wait_until(lambda: not children_of(zygote.process.pid))


def test_the_death_of_the_zygote_is_told_to_who_waits(tmp_path):
    with Zygote.start("jaxlib") as zygote, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(run, zygote, "hang", {"file": str(tmp_path / "pid")})
        pid = int(wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()))
        zygote.process.kill()
        with pytest.raises(WorkerFailed, match="zygote it was forked from is gone"):
            waiting.result()
        wait_until(lambda: not alive(pid))
        with pytest.raises(WarmpoolError, match="zygote is gone"):
            run(zygote, "add", {"a": 1, "b": 1})


def test_closing_ends_workers_and_leaves_orphans_to_their_channel(tmp_path):
    zygote = Zygote.start("jaxlib")
    with zygote.fork(f"{JOBS}:echo", {"suffix": "!"}, orphan=True) as lane:
        lane_pid = json.loads(lane.recv(1000))["pid"]
        worker = zygote.fork("warmpool.forking:_call", hanging(tmp_path), descriptors=(lane.fileno(),))
        worker_pid = json.loads(worker.recv(1000))["pid"]
        wait_until((tmp_path / "pid").exists)
        zygote.close()
        assert zygote.process.returncode == 0
        wait_until(lambda: not alive(worker_pid))
        lane.send(b"alive")
        assert lane.recv(1000) == b"alive!"
    worker.close()
    wait_until(lambda: not alive(lane_pid))


def pid_of(channel):
    return json.loads(channel.recv(1000))["pid"]


@pytest.fixture
def idle_zygote():
    with Zygote.start("jaxlib") as running:
        assert running.read_stages()
        yield running


def test_a_lane_that_was_forked_ahead_is_taken_once_and_the_next_is_another(idle_zygote):
    idle_zygote.fork_ahead("jaxlib")
    (there,) = wait_until(lambda: children_of(idle_zygote.process.pid))
    with idle_zygote.fork_lane("jaxlib") as taken, idle_zygote.fork_lane("jaxlib") as next_one:
        assert pid_of(taken) == there
        assert pid_of(next_one) != there


def test_a_lane_of_another_mode_is_not_the_one_that_was_forked_ahead(idle_zygote):
    idle_zygote.fork_ahead("jaxlib")
    (there,) = wait_until(lambda: children_of(idle_zygote.process.pid))
    with idle_zygote.fork_lane("jax") as other:
        assert pid_of(other) != there


def test_of_those_that_are_forked_ahead_one_is_there_at_a_time_and_one_that_died_is_not_taken(idle_zygote):
    idle_zygote.fork_ahead("jaxlib")
    idle_zygote.fork_ahead("jaxlib")
    (there,) = wait_until(lambda: children_of(idle_zygote.process.pid))
    os.kill(there, signal.SIGKILL)
    wait_until(lambda: not alive(there))
    idle_zygote.ask()
    assert idle_zygote.read_stages() == []  # it has told of the death before it answers
    with idle_zygote.fork_lane("jaxlib") as taken:
        assert pid_of(taken) != there


def test_a_lane_that_nobody_took_ends_with_the_zygote_and_any_other_when_its_channel_closes(idle_zygote):
    taken = idle_zygote.fork_lane("jaxlib")
    pid = pid_of(taken)
    idle_zygote.fork_ahead("jaxlib")
    (nobodys,) = wait_until(lambda: set(children_of(idle_zygote.process.pid)) - {pid})
    idle_zygote.close()
    wait_until(lambda: not alive(nobodys))
    assert alive(pid)
    taken.close()
    wait_until(lambda: not alive(pid))


def hanging(folder):
    return {"entry": f"{JOBS}:hang", "argument": {"file": str(folder / "pid")}}


def test_closing_a_zygote_that_still_imports_ends_it():
    zygote = Zygote.start("jax")
    zygote.close()
    assert zygote.process.returncode == 0


def test_closing_a_zygote_that_hangs_kills_it():
    zygote = Zygote.start("jaxlib")
    assert zygote.read_stages()
    zygote.process.send_signal(signal.SIGSTOP)
    zygote.close(wait_s_max=0.2)
    assert zygote.process.returncode == -signal.SIGKILL
