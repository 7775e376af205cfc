from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from examples.loopback import HOST
from examples.run import Options, question_all, read_options
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
WAIT_S_MAX = 300


@pytest.fixture(scope="module")
def store(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the model with the fewest executables is published, whose network was trained before."""
    with pytest.MonkeyPatch.context() as changes:
        changes.setenv("WARMPOOL_DIGITS_CHECKPOINT", str(checkpoint))
        yield tmp_path_factory.mktemp("store")


@contextmanager
def started(store: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """The script with one small model and ports of its own."""
    ports = [free_port() for _ in range(3)]
    chosen = [
        text for pair in zip(("--port", "--http-port", "--grpc-port"), map(str, ports), strict=True) for text in pair
    ]
    command = [sys.executable, "-m", "examples.run", "--models", "digits", "--store", str(store), *chosen, *flags]
    environment = {name: value for name, value in os.environ.items() if name != "ONCE"}
    run = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield run, ports
    finally:
        run.terminate()
        run.communicate(timeout=WAIT_S_MAX)


def read_until(run: subprocess.Popen[str], words: str) -> str:
    """What the script printed up to the line that holds `words`."""
    assert run.stdout is not None
    said = ""
    for line in run.stdout:
        said += line
        if words in line:
            return said
    pytest.fail(f"ended without {words!r}, having said:\n{said}")


def assert_free(ports: list[int]) -> None:
    for port in ports:
        with socket.socket() as probe:
            assert probe.connect_ex((HOST, port)) != 0


def test_one_run_publishes_serves_asks_and_ends_and_the_next_compiles_nothing(store: Path) -> None:
    with started(store, "--once") as (run, ports):
        said, _ = run.communicate(timeout=WAIT_S_MAX)
        assert run.returncode == 0, said
        assert "2 of 2 answers are right" in said
        assert "primary lane, bucket batch=" in said
        assert "cold start" in said
        assert_free(ports)
    with started(store) as (run, ports):
        said = read_until(run, "Up: ")
        assert "nothing compiled" in said
        run.send_signal(signal.SIGTERM)
        rest, _ = run.communicate(timeout=WAIT_S_MAX)
        assert run.returncode == 0, rest
        assert_free(ports)


def test_an_instance_that_dies_ends_the_run(store: Path) -> None:
    with started(store) as (run, ports):
        read_until(run, "Up: ")
        children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text(encoding="ascii").split()
        (instance,) = (pid for pid in children if b"serve" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"))
        os.kill(int(instance), signal.SIGKILL)
        said, _ = run.communicate(timeout=WAIT_S_MAX)
        assert run.returncode == 1
        assert "make run: the instance was ended by signal SIGKILL" in said
        assert_free(ports)


def test_a_taken_port_ends_the_run_before_anything_starts(store: Path) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with started(store, "--http-port", str(port)) as (run, _):
            said, _ = run.communicate(timeout=WAIT_S_MAX)
    assert run.returncode == 1
    assert said.startswith(f"make run: HTTP_PORT: port {port} cannot be had")


def test_answers_that_do_not_come_are_counted_as_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    options = Options(port=port, http_port=1, grpc_port=2, store="", models=("embed", "digits", "options"), once=True)
    assert question_all(options) == 6
    assert "0 of 6 answers are right" in capsys.readouterr().out


def test_settings_come_from_flags_and_then_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "9000")
    monkeypatch.setenv("ONCE", "1")
    monkeypatch.delenv("GRPC_PORT", raising=False)
    options = read_options(["--http-port", "9001"])
    assert (options.port, options.http_port, options.grpc_port, options.once) == (9000, 9001, 8001, True)
    monkeypatch.setenv("ONCE", "0")
    assert not read_options([]).once


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--port", "0"], "got '0'; allowed: a port from 1 to 65535"),
        (["--models", "embed,nope"], "got 'embed,nope'; allowed: some of embed, digits, options"),
    ],
)
def test_settings_out_of_range_are_refused(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_options(flags)
    assert message in capsys.readouterr().err
