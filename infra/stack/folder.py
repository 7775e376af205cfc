"""A stack's folder: what is running (its state), what it says (logs), and what it keeps (artifacts and keys).

state.json          the stack that is up: how it was asked for, its services; gone when it is down
supervisord.*       the supervisor's configuration and control socket; gone when the stack is down
copies/             what stands for the instances' own disks; gone when the stack is down
logs/               a file a process
artifacts/          the bucket
keys/               those who sign: publishers, and instances
prometheus/         what was scraped
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from examples.children import RunFailed

_STATE, _SOCKET, _CONFIGURATION, _PID = "state.json", "supervisord.sock", "supervisord.conf", "supervisord.pid"
_OF_A_RUN = (_STATE, _SOCKET, _CONFIGURATION, _PID, "prometheus.yml", "copies")
_UNFINISHED = (f"{_STATE}.", f"{_SOCKET}.")  # while one of them is made
_KEPT = ("logs", "artifacts", "keys", "prometheus", "lock")


class Folder:
    """The folder at `path`, which need not be there yet."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.state = self.path / _STATE
        self.socket = self.path / _SOCKET
        self.configuration = self.path / _CONFIGURATION
        self.pid_file = self.path / _PID
        self.prometheus_configuration = self.path / "prometheus.yml"
        self.logs = self.path / "logs"
        self.artifacts = self.path / "artifacts"
        self.keys = self.path / "keys"
        self.copies = self.path / "copies"
        self.metrics = self.path / "prometheus"

    @property
    def mark(self) -> str:
        """What all processes of a stack in this folder have in their environment, and no others."""
        return str(self.path.resolve())

    def log(self, name: str) -> Path:
        """Where a process writes what it says."""
        return self.logs / f"{name}.log"

    def make(self) -> None:
        """Make it and its subfolders.

        Raises:
            RunFailed: It cannot be made, or is not ours.
        """
        self._check()
        try:
            for folder in (self.logs, self.artifacts, self.keys, self.copies, self.metrics):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFailed(f"{self.path} cannot be made: {error.strerror}") from None
        self.keys.chmod(0o700)

    def forget_run(self) -> None:
        """Remove what a stack that is down leaves and the next does not need."""
        for name in _OF_A_RUN:
            _remove(self.path / name)

    def destroy(self) -> None:
        """Remove it with all that it keeps.

        Raises:
            RunFailed: It holds something that no stack made.
        """
        self._check()
        if self.path.is_dir():
            shutil.rmtree(self.path)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Be the only command that changes the stack, during a block.

        Raises:
            RunFailed: Another one does.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunFailed(f"{self.path}: another `up` or `down` is at work here; wait for its end") from None
            yield

    def _check(self) -> None:
        found = {entry.name for entry in self.path.iterdir()} if self.path.is_dir() else set()
        other = sorted(name for name in found - {*_OF_A_RUN, *_KEPT} if not name.startswith(_UNFINISHED))
        if other:
            raise RunFailed(f"{self.path} holds {other[0]}, which no stack made; choose another folder (STACK=...)")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
