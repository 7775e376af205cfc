"""A disk that is full, one way or the other: what is there can be read, and nothing be written until it is freed."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

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


HOLDER = """
import sys
from pathlib import Path
from benchmarks.gameday.disk import small_disk
with small_disk(Path(sys.argv[1]), lambda: []) as disk:
    print(type(disk).__name__, flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def running(*program):
    command = [sys.executable, "-c", *program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def written(writer, path):
    writer.stdin.write(f"{path}\n")
    writer.stdin.flush()
    return writer.stdout.readline().strip()


@pytest.mark.parametrize("mounts", [True, False], ids=["mounted", "limited"])
def test_nothing_can_be_written_until_it_is_freed(tmp_path, monkeypatch, mounts):
    if not mounts:
        monkeypatch.setattr(gameday, "_mounted", lambda *_: False)
    folder = tmp_path / "disk"
    pids: list[int] = []
    with small_disk(folder, lambda: pids, size_bytes=1 << 20) as disk, running(WRITER) as writer:
        pids.append(writer.pid)
        assert isinstance(disk, MountedDisk | LimitedFiles if mounts else LimitedFiles)
        assert written(writer, folder / "before") == "4096"
        disk.fill()
        assert written(writer, folder / "meanwhile") == "OSError"
        assert (folder / "before").read_bytes() == bytes(4096)
        disk.free()
        assert written(writer, folder / "after") == "4096"


def test_a_disk_of_who_is_killed_leaves_no_mount_behind(tmp_path):
    """Or nobody could remove the folder, such as the next run of tests."""
    folder = tmp_path / "disk"
    with running(HOLDER, str(folder)) as holder:
        kind = holder.stdout.readline().strip()
        assert kind in {"MountedDisk", "LimitedFiles"}
        seen = Path(f"/proc/{holder.pid}/mounts").read_text()
        assert (str(folder) in seen) == (kind == "MountedDisk")
        holder.kill()
        holder.wait()
    assert str(folder) not in Path("/proc/self/mounts").read_text()
    folder.rmdir()
