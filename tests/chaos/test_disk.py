"""A disk that is full, one way or the other: what is there can be read, and nothing be written until it is freed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.gameday import disk as gameday
from benchmarks.gameday.disk import LimitedFiles, MountedDisk, small_disk

WRITER = """
import sys
for path in sys.stdin:
    try:
        with open(path.strip(), "wb", buffering=0) as file:
            print(file.write(bytes(4096)), flush=True)
    except OSError as error:
        print(type(error).__name__, flush=True)
"""


@pytest.fixture
def writer():
    command = [sys.executable, "-c", WRITER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def written(writer, path):
    writer.stdin.write(f"{path}\n")
    writer.stdin.flush()
    return writer.stdout.readline().strip()


@pytest.mark.parametrize("mounts", [True, False], ids=["mounted", "limited"])
def test_nothing_can_be_written_until_it_is_freed(tmp_path, monkeypatch, writer, mounts):
    if not mounts:
        monkeypatch.setattr(gameday, "_mounted", lambda *_: False)
    folder = tmp_path / "disk"
    with small_disk(folder, lambda: [writer.pid], size_bytes=1 << 20) as disk:
        assert isinstance(disk, MountedDisk | LimitedFiles if mounts else LimitedFiles)
        assert written(writer, folder / "before") == "4096"
        disk.fill()
        assert written(writer, folder / "meanwhile") == "OSError"
        assert (folder / "before").read_bytes() == bytes(4096)
        disk.free()
        assert written(writer, folder / "after") == "4096"
