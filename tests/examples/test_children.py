from __future__ import annotations

import http.server
import signal
import socket
import sys
import threading
from collections.abc import Iterator

import pytest

from examples.children import Child, RunFailed, await_death, await_ready, check_ports, run, running
from examples.loopback import HOST
from tests.ports import free_port

SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.listen()
        yield listener.getsockname()[1]


class AfterTwoRefusals(http.server.BaseHTTPRequestHandler):
    """503 twice, then 200, as an instance that becomes ready."""

    asked = 0

    def do_GET(self) -> None:
        type(self).asked += 1
        self.send_response(503 if self.asked <= 2 else 200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Stay silent."""


def test_a_taken_port_is_named_with_the_setting_that_changes_it(taken_port: int) -> None:
    port = free_port()
    check_ports({"PORT": port})
    with pytest.raises(RunFailed, match=f"HTTP_PORT: port {taken_port} cannot be had .* with HTTP_PORT="):
        check_ports({"PORT": port, "HTTP_PORT": taken_port})


def test_one_port_for_two_servers_is_refused() -> None:
    port = free_port()
    with pytest.raises(RunFailed, match=f"GRPC_PORT: port {port} is HTTP_PORT already"):
        check_ports({"HTTP_PORT": port, "GRPC_PORT": port})


def test_a_command_that_fails_ends_the_run() -> None:
    run("a good step", [sys.executable, "-c", ""])
    with pytest.raises(RunFailed, match="a bad step failed with status 3"):
        run("a bad step", [sys.executable, "-c", "raise SystemExit(3)"])


def test_a_child_ends_with_its_block() -> None:
    with running("the sleeper", SLEEPER) as child:
        child.check()
    assert child.process.returncode == -signal.SIGTERM


def test_a_child_that_dies_is_noticed_while_waiting_for_its_end() -> None:
    with running("the sleeper", SLEEPER) as sleeper, running("the mayfly", [sys.executable, "-c", "exit(4)"]) as mayfly:
        with pytest.raises(RunFailed, match="the mayfly ended with status 4"):
            await_death([sleeper, mayfly])
        sleeper.process.kill()
        with pytest.raises(RunFailed, match="the sleeper was ended by signal SIGKILL"):
            await_death([sleeper])


def test_a_child_that_dies_is_noticed_while_waiting_for_another() -> None:
    port = free_port()
    mayfly = running("the mayfly", [sys.executable, "-c", "exit(5)"])
    with mayfly as child, pytest.raises(RunFailed, match="the mayfly ended with status 5"):
        await_ready(f"http://{HOST}:{port}/", [child], wait_s_max=30)


def test_waiting_goes_on_over_refusals_and_has_an_end() -> None:
    port = free_port()
    nobody: list[Child] = []
    with pytest.raises(RunFailed, match=r"did not become ready within 1 s; it last answered: .*refused"):
        await_ready(f"http://{HOST}:{port}/", nobody, wait_s_max=1.0)
    with http.server.ThreadingHTTPServer((HOST, 0), AfterTwoRefusals) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            await_ready(f"http://{HOST}:{server.server_port}/", nobody, wait_s_max=30)
        finally:
            server.shutdown()
            thread.join()
    assert AfterTwoRefusals.asked == 3
