"""The server of GCS's protocol, on a port that no test beside it has."""

from __future__ import annotations

from pathlib import Path

from benchmarks.gameday import gcs_server
from tests.ports import free_port


class GcsServer(gcs_server.GcsServer):
    """Of a test."""

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__(free_port(), folder)
