"""Commands that ask an instance: whatever is at the URL, they give an answer or one line that says what is wrong."""

import contextlib
import http.server
import signal
import socket
import subprocess
import sys
import threading
from http import HTTPStatus

import pytest

from tests.instance_process import wait_until
from tests.ports import free_port
from tests.warmpool.command import assert_one_line, warmpool
from warmpool import asking
from warmpool.asking import InstanceSilent

ANSWERS = {
    "/list/v1/status": b"[]",
    "/text/v1/status": b'"ready"',
    "/null/v1/status": b"null",
    "/other/v1/status": b'{"ready": true}',
    "/page/v1/status": b"<html>",
    "/bytes/v1/status": b"\xff\xfe",
    "/empty/v1/status": b"",
}


class NoInstance(http.server.BaseHTTPRequestHandler):
    """A server of something else."""

    def do_GET(self):
        body = ANSWERS.get(self.path)
        self.send_response(HTTPStatus.NOT_FOUND if body is None else HTTPStatus.OK)
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def other():
    """The URL of a server that is no instance."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), NoInstance) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@contextlib.contextmanager
def saying(data):
    """The URL of a port where the first caller is told these bytes, whatever it asks, and no more."""

    def answer():
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(data)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def reason(url):
    with pytest.raises(InstanceSilent) as caught:
        asking.ask(url, "/v1/status", dict[str, str])
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("command", ["status", "traces"])
def test_without_an_instance_a_command_says_so_in_one_line_and_how_to_start_one(command):
    url = f"http://127.0.0.1:{free_port()}"
    assert_one_line(warmpool(command, "--url", url), command, url, "refused", "warmpool serve")
    assert_one_line(warmpool(command, "--url", url, "--json"), command, url, "refused", "warmpool serve")


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://localhost", "http://", "http://a b", "http://a\n"])
def test_what_is_no_http_address_is_told_with_what_is_allowed(url):
    assert reason(url) == f"--url is {url!r}, allowed: an http:// or https:// address"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://localhost:many", "nonnumeric port"),
        ("http://localhost:99999", ""),
        ("http://[::1", "IPv6"),
        ("http://no-such-host.invalid", ""),
        ("http://127.0.0.1:1/" + "a" * 70_000, ""),
    ],
)
def test_an_address_that_leads_nowhere_is_told(url, words):
    assert reason(url).startswith(f"no instance answers at {url} (")
    assert words in reason(url)


@pytest.mark.parametrize("path", ["/list", "/text", "/null", "/page", "/bytes", "/empty"])
def test_what_answers_with_another_document_is_no_instance(other, path):
    assert reason(other + path).startswith(f"what answers at {other}{path} is no warmpool instance, or another version")


def test_a_document_that_lacks_something_is_another_versions(other):
    for command in ("status", "traces"):
        assert_one_line(warmpool(command, "--url", f"{other}/other"), command, other, "another version")


def test_what_does_not_know_the_path_is_no_instance(other):
    assert reason(other) == f"{other}/v1/status answers 404: it is no warmpool instance, or another version"


@pytest.mark.parametrize("data", [b"\0\0\0\4\0\0\0\0\0\0\0\0\0\n", b"SSH-2.0\r\n", b""])
def test_what_does_not_speak_http_is_told(data):
    with saying(data) as url:
        assert reason(url).startswith(f"no instance answers at {url} (")


def test_a_body_that_breaks_off_is_told():
    with saying(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{}") as url:
        assert reason(url).startswith(f"no instance answers at {url} (")


def test_a_trailing_slash_of_the_url_does_not_matter(other):
    assert asking.ask(f"{other}/other/", "/v1/status", dict[str, bool]) == ({"ready": True}, {"ready": True})


def test_a_proxy_of_the_environment_is_not_asked_for_this_machines_own_addresses(other):
    away = f"http://127.0.0.1:{free_port()}"
    result = warmpool("status", "--url", f"{other}/other", http_proxy=away, HTTP_PROXY=away, no_proxy="")
    assert "another version" in result.stderr


def test_a_proxy_of_the_environment_is_asked_for_others(other):
    assert "404" in warmpool("status", "--url", "http://example.invalid", http_proxy=other, no_proxy="").stderr


def test_ctrl_c_ends_a_command_that_waits_without_a_word():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        command = [sys.executable, "-m", "warmpool.cli", "status", "--url", url]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        connection, _ = listener.accept()
        with connection:
            wait_until(lambda: connection.recv(65536))
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=30)
    assert (process.returncode, said) == (130, b"")
