"""Digests of weights that a fork works out while the front imports, on a core that has nothing to do yet.

The fork decides nothing. It says which digest a file of some identity has; whether that is the right one is for who has
verified the manifest. What it does not say, since it died or read another manifest, is worked out where it is needed.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from pathlib import Path

import msgspec

from cache.errors import CacheError
from cache.opening import raw_store
from cache.records import decoded
from cache.settings import StoreSettings
from cache.signed_store import SignedStore
from cache.signing import ANYONE
from warmpool.blob import Blob
from warmpool.forked_process import ForkedProcess, has_one_thread
from warmpool.manifest import Manifest, Serving, manifest_path, serving_path, weights_path
from warmpool.messages import Stage
from warmpool.parent_death import end_with_parent

SILENCE_S_MAX = 60.0


class Report(msgspec.Struct, frozen=True):
    """The digest of the file with this identity, and what it took."""

    identity: str
    digest: str
    stage: Stage


class EarlyDigests:
    """What the fork says, if there is one. Thread-safe.

    Args:
        process: The fork.
        descriptor: What it says is read from there.

    Attributes:
        stages: What it was heard to have done.
    """

    def __init__(self, process: ForkedProcess | None = None, descriptor: int | None = None) -> None:
        self.stages: list[Stage] = []
        self._process = process
        self._descriptor = descriptor
        self._heard = b""
        self._digests: dict[str, str] = {}
        self._hearing = threading.Lock()

    @classmethod
    def begin(cls, settings: StoreSettings) -> EarlyDigests:
        """Fork this process, unless it has threads, or what is served does not lie in a folder as it is read."""
        in_folder = "://" not in settings.store or settings.store.startswith("file://")
        if not in_folder or settings.encryption_key or not has_one_thread():
            return cls()
        ours, theirs = os.pipe()
        process = ForkedProcess.start(main, [str(theirs), settings.store], theirs)
        os.close(theirs)
        return cls(process, ours)

    def of(self, identity: str) -> str | None:
        """SHA-256 (hex) of the file with this identity, once the fork has said it; None if it never will.

        One that says nothing for 60 s is ended.
        """
        with self._hearing:
            while identity not in self._digests and self._descriptor is not None:
                ready, _, _ = select.select((self._descriptor,), (), (), SILENCE_S_MAX)
                if not (ready and self._hear(self._descriptor)):
                    self._end()
            return self._digests.get(identity)

    def close(self) -> None:
        """End the fork, if it is still there; whoever listens to it hears that."""
        if self._process:
            self._process.kill()
        with self._hearing:
            self._end()

    def _hear(self, descriptor: int) -> bool:
        """Whether it said something, and may say more."""
        data = os.read(descriptor, 1 << 16)
        *lines, self._heard = (self._heard + data).split(b"\n")
        for line in lines:
            report = decoded(line, Report)
            self._digests[report.identity] = report.digest
            self.stages.append(report.stage)
        return bool(data)

    def _end(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def main(arguments: list[str]) -> int:
    """In the fork, with a descriptor and the URI of a folder: a line of JSON for the weights of each served version."""
    descriptor, uri = arguments
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches the whole group
    end_with_parent()  # a store that does not answer would keep it for ever
    try:
        store = SignedStore(raw_store(uri), ANYONE)  # whoever signed what it reads: nothing is decided by it
        names = store.names("models")
    except (CacheError, OSError, ValueError):
        return 1  # who serves the store says what is wrong with it
    digested: set[Path] = set()
    for name in names:
        try:
            file = _weights_file(store, name)
            report = None if file in digested else _report(file)
        except (CacheError, msgspec.MsgspecError, OSError, ValueError):
            continue
        digested.add(file)
        try:
            os.write(int(descriptor), msgspec.json.encode(report) + b"\n" if report else b"")
        except BrokenPipeError:  # nobody is there to hear more
            return 1
    return 0


def _weights_file(store: SignedStore, name: str) -> Path:
    serving = decoded(store.get(serving_path(name)), Serving)
    manifest = decoded(store.get(manifest_path(name, serving.stable)), Manifest)
    return store.local_path(weights_path(manifest.weights.digest))


def _report(path: Path) -> Report | None:
    """None if the file was written to meanwhile."""
    start_ns = time.time_ns()
    with Blob(path) as file:
        identity = file.identity
        digest = file.digest()
        if file.identity != identity:
            return None
    return Report(identity, digest, Stage("digest", start_ns, time.time_ns()))
