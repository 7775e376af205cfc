"""The zygote as a process: its stages, its channels, the signals it minds, and its end."""

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

import warmpool.zygote
from cache.signing import Signer, Trust
from tests.instance_process import alive, children_of, wait_until
from warmpool.forked_process import ForkedProcess
from warmpool.forking import Zygote
from warmpool.zygote import _Dead

ECHO = "tests.warmpool.forked:echo"


@pytest.fixture
def zygote():
    with Zygote.start("jaxlib") as running:
        yield running


def test_it_tells_its_stages_once_and_then_only_its_end(zygote):
    started_ns = time.time_ns()
    stages = zygote.read_stages()
    assert stages is not None
    assert [name for name, _, _ in stages] == ["zygote start", "import jaxlib"]
    (_, start_ns, imported_ns), (_, again_ns, ready_ns) = stages
    assert abs(start_ns - started_ns) < 1e9
    assert start_ns <= imported_ns == again_ns <= ready_ns <= time.time_ns()
    zygote.process.kill()
    assert zygote.read_stages() is None


def test_a_channel_begins_with_the_pid_and_ends_with_the_exit_status(zygote):
    with zygote.fork(ECHO, {"suffix": "?"}) as channel:
        pid = json.loads(channel.recv(1000))["pid"]
        assert pid in children_of(zygote.process.pid)
        channel.send(b"one")
        assert channel.recv(1000) == b"one?"
        os.kill(pid, signal.SIGKILL)
        assert json.loads(channel.recv(1000)) == {"exit": -signal.SIGKILL}
        assert channel.recv(1000) == b""
        wait_until(lambda: not children_of(zygote.process.pid))


def test_children_that_die_at_once_are_all_told_of(zygote):
    channels = [zygote.fork(ECHO, {"suffix": number}) for number in range(8)]
    pids = [json.loads(channel.recv(1000))["pid"] for channel in channels]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for channel in channels:
        with channel:
            assert json.loads(channel.recv(1000)) == {"exit": -signal.SIGKILL}


@pytest.mark.parametrize(("way", "status"), [("exit 3", 3), ("kill -KILL $$", -signal.SIGKILL)])
def test_the_end_of_a_child_is_told_at_once_and_its_process_id_is_free_only_later(way, status, monkeypatch):
    """Who collects it while its last thread still ends turns round in the kernel, for longer the more it is niced."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    dead = _Dead()
    with ours, subprocess.Popen(["sh", "-c", way]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        monkeypatch.setattr(warmpool.zygote, "_COLLECTED_AFTER_S", 1000.0)
        dead.tell({child.pid: theirs})
        assert json.loads(ours.recv(1000)) == {"exit": status}
        dead.collect()
        assert child.pid in children_of(os.getpid())
        assert 0 < (dead.due_s() or 0) <= 1000
        monkeypatch.setattr(warmpool.zygote, "_COLLECTED_AFTER_S", 0.0)
        dead.collect()
        assert child.pid not in children_of(os.getpid())
        assert dead.due_s() is None


def test_a_child_gets_the_descriptors_of_its_request(zygote):
    read, write = os.pipe()
    with zygote.fork(ECHO, {"suffix": ""}, descriptors=(write,)) as channel:
        os.close(write)
        assert json.loads(channel.recv(1000))["pid"]
        assert os.read(read, 100) == b"here"
    assert os.read(read, 100) == b""  # the zygote kept no copy, and the child is gone
    os.close(read)


@pytest.mark.parametrize("preload", ["jaxlib", "jax", "compiling"])
def test_its_forks_check_signatures_and_import_nothing_for_it(preload):
    signer = Signer.generate()
    digest, other = (hashlib.sha256(content).digest() for content in (b"one", b"other"))
    argument = {
        "trust": Trust.of([signer.public]).to_json(),
        "signature": msgspec.to_builtins(signer.sign("artifact", digest)),
        "digests": [digest.hex(), other.hex()],
    }
    with Zygote.start(preload) as zygote:
        told = [zygote.run("tests.warmpool.forked:check_signatures", argument, wall_s_max=30) for _ in range(3)]
        threads = len([*Path(f"/proc/{zygote.process.pid}/task").iterdir()])
    wrong = f"its signature is not that of the key {signer.key_id[:16]}"
    assert told == [{"answers": ["right", wrong], "imported": [], "threads": 1}] * 3
    assert threads == 1


def test_the_forks_of_one_for_compiling_import_nothing_large_to_compile():
    with Zygote.start("compiling") as zygote:
        told = zygote.run("tests.warmpool.forked:compile_one", {}, wall_s_max=120)
    assert told["threads"] == 1
    assert "scipy" not in told["imported"]


def test_the_signals_of_its_group_are_its_parents_to_act_on(zygote):
    zygote.read_stages()
    for number in (signal.SIGINT, signal.SIGTERM):
        zygote.process.send_signal(number)
    with zygote.fork(ECHO, {"suffix": "."}) as channel:
        assert json.loads(channel.recv(1000))["pid"]
        channel.send(b"on")
        assert channel.recv(1000) == b"on."


def test_it_ends_when_its_parent_dies_and_takes_its_workers_along(tmp_path):
    code = """
import os, sys
from warmpool.forking import Zygote
zygote = Zygote.start("jaxlib")
channel = zygote.fork("tests.warmpool.forked:echo", {"suffix": ""})
print(zygote.process.pid, channel.recv(1000).decode(), flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, _, told = parent.stdout.readline().partition(" ")
        child = json.loads(told)["pid"]
        assert alive(int(pid))
        assert alive(child)
        parent.kill()
    wait_until(lambda: not alive(int(pid)) and not alive(child))


FORK_OFF = """
import json, os, sys, threading
from pathlib import Path
from warmpool import zygote
from warmpool.forking import Zygote

def files(pid):
    return sorted({os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir() if os.path.lexists(file)})

other = open("/proc/self/stat")
if "thread" in sys.argv:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
zygote.import_shared()
with Zygote.fork_off("jaxlib", zygote.main) as running:
    assert running.read_stages()
    found = running.run("tests.warmpool.forked:describe", {}, wall_s_max=60)
    told = {
        "forked": Path(f"/proc/{running.process.pid}/cmdline").read_bytes() == Path("/proc/self/cmdline").read_bytes(),
        "files": [file for file in files(running.process.pid) if file.startswith("/proc/")],
        "stdin": os.readlink(f"/proc/{running.process.pid}/fd/0"),
        "threads": len(os.listdir(f"/proc/{running.process.pid}/task")),
        "jax": found["jax"],
        "here": [name for name in ("jax", "jaxlib") if name in sys.modules],
    }
gone = not os.path.exists(f"/proc/{running.process.pid}")
print(json.dumps(told | {"status": running.process.returncode, "gone": gone}))
"""


@pytest.mark.parametrize("thread", [False, True], ids=["one thread", "another thread"])
def test_a_process_with_one_thread_becomes_a_zygote_without_its_files_and_any_other_starts_one(thread):
    command = [sys.executable, "-c", FORK_OFF, *(["thread"] if thread else [])]
    done = subprocess.run(command, stdin=subprocess.PIPE, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "forked": not thread,
        "files": [],
        "stdin": "/dev/null",
        "threads": 1,
        "jax": False,
        "here": [],
        "status": 0,
        "gone": True,
    }


def forked(*, ends):
    """A child, but not a fork of this process, in which other tests leave threads: it ends with 3, or never."""
    command = ["sh", "-c", "exit 3" if ends else "exec sleep 1000"]
    return ForkedProcess(os.posix_spawn("/bin/sh", command, os.environ))


def test_a_forked_process_is_waited_for_and_killed_like_any_other():
    assert forked(ends=True).wait(60) == 3
    hanging = forked(ends=False)
    with pytest.raises(subprocess.TimeoutExpired):
        hanging.wait(0.01)
    assert (hanging.poll(), hanging.returncode) == (None, None)
    hanging.kill()
    assert hanging.wait() == hanging.returncode == -signal.SIGKILL
    hanging.kill()  # whose number may be another's by now


def test_a_forked_process_that_somebody_else_has_buried_is_gone():
    buried = forked(ends=True)
    assert os.waitpid(buried.pid, 0)[0] == buried.pid
    assert buried.wait(60) == 0


def test_its_import_costs_the_parent_nothing_heavy():
    code = "import sys, warmpool.forking; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert not {"jax", "jaxlib", "numpy", "msgspec", "asyncio"} & set(done.stdout.split())
