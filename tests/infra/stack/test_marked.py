from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from infra.stack import marked

SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]


@contextmanager
def sleeper(**environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has said that it is up."""
    with subprocess.Popen(SLEEPER, stdout=subprocess.PIPE, env={**os.environ, **environment}) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            yield process
        finally:
            process.kill()


def test_only_what_has_the_mark_is_found_and_ended() -> None:
    ours = {marked.VARIABLE: "mark-of-this-test"}
    with (
        sleeper(**ours) as one,
        sleeper(**ours) as two,
        sleeper(**{marked.VARIABLE: "mark-of-this-test-too"}) as longer,
        sleeper(OTHER="mark-of-this-test") as other,
    ):
        found = marked.marked("mark-of-this-test")
        assert set(found) == {one.pid, two.pid}
        assert "time.sleep(600)" in found[one.pid]
        assert not marked.wait_gone("mark-of-this-test", 0.0)
        assert marked.send("mark-of-this-test", signal.SIGTERM) == {one.pid, two.pid}
        assert one.wait(30) == two.wait(30) == -signal.SIGTERM
        assert marked.wait_gone("mark-of-this-test", 30.0)
        assert longer.poll() is other.poll() is None


def test_a_child_of_what_has_the_mark_has_it_too() -> None:
    script = "import os, time\npid = os.fork()\nif pid: print(pid, flush=True)\ntime.sleep(600)"
    environment = {**os.environ, marked.VARIABLE: "mark-of-a-family"}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert set(marked.marked("mark-of-a-family")) == {parent.pid, child}
        assert marked.send("mark-of-a-family", signal.SIGKILL) == {parent.pid, child}
    assert marked.wait_gone("mark-of-a-family", 30.0)


def test_the_process_that_asks_is_never_among_them(monkeypatch) -> None:
    environment = {**os.environ, marked.VARIABLE: "mark-of-the-asker"}
    script = (
        "import os, signal\nfrom infra.stack import marked\n"
        "print(marked.marked('mark-of-the-asker'), marked.send('mark-of-the-asker', signal.SIGKILL))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "{} set()"
