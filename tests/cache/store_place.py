"""Where a store under test lies, so that other processes open the same one; and what those do with it."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from select import select

import msgspec

from cache.far_store import Remote
from cache.local_store import LocalStore
from cache.read_through import ReadThroughStore
from tests.cache.forks import Fork

ROOT = Path(__file__).resolve().parents[2]
CACHE_BYTES_MAX = 1 << 30


@dataclass(frozen=True, slots=True)
class Place:
    """A folder, or a bucket at an address; with a folder of copies before it, or without.

    Attributes:
        folder: Of a local store, "" for a bucket.
        url: Of the server that has the bucket.
        bucket: Its name.
        copies: Folder for copies, "" for none.
        bytes_max: Of the copies.
    """

    folder: str = ""
    url: str = ""
    bucket: str = ""
    copies: str = ""
    bytes_max: int = CACHE_BYTES_MAX

    def open(self) -> Remote | ReadThroughStore:
        remote = self._remote()
        return ReadThroughStore(remote, Path(self.copies), self.bytes_max) if self.copies else remote

    def _remote(self) -> Remote:
        if self.folder:
            return LocalStore(Path(self.folder))
        from benchmarks.gameday.gcs_server import client_of
        from cache.gcs_store import GcsStore

        return GcsStore(self.bucket, "some/folder", client_of(self.url))


def start(place: Place, command: str, *arguments: object) -> Fork:
    """One of `COMMANDS` in a process."""
    return Fork(f"{__name__}:run", msgspec.to_builtins(place), command, *map(str, arguments))


def run(place: dict[str, str], command: str, *arguments: str) -> None:
    """In that process."""
    COMMANDS[command](msgspec.convert(place, Place).open(), *arguments)


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201  the parent reads it


def write(store: Remote, path: str, letter: str) -> None:
    """Put objects of ever other sizes until our input ends: the size, then one letter over and over."""
    for turn in itertools.count():
        size_bytes = 9 + 7919 * (turn + ord(letter)) % 200_000
        store.put(path, b"%08d" % size_bytes + letter.encode() * (size_bytes - 8))
        if turn == 0:
            say("begun")
        if select([sys.stdin], [], [], 0)[0]:
            return


def race(store: Remote, path: str, name: str) -> None:
    """Wait for the start, then try to be first, and say whether we are."""
    say("ready")
    sys.stdin.readline()
    say("lost" if store.put_if(path, name.encode(), None) is None else "won")


def count(store: Remote, path: str, turns: str) -> None:
    """Add one to a number so many times, each in one conditional put, as often as that takes."""
    for _ in range(int(turns)):
        while True:
            data, generation = store.get_versioned(path)
            if store.put_if(path, b"%d" % (int(data) + 1), generation) is not None:
                break


def put_file(store: Remote, path: str, source: str) -> None:
    say("begun")
    store.put_file(path, Path(source))
    say("done")


def compare(store: LocalStore, path: str) -> None:
    """Hold the lock of those who compare and write, until killed."""
    with store._comparing(path):
        say("held")
        threading.Event().wait()


def local_path(store: Remote, path: str) -> None:
    """Say where the file is, and keep it until our input ends."""
    say("begun")
    say(os.fspath(store.local_path(path)))
    sys.stdin.read()


COMMANDS: dict[str, Callable[..., None]] = {
    command.__name__: command for command in (write, race, count, put_file, compare, local_path)
}
