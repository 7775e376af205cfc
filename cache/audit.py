"""Who did what to a store: one JSON object a line, for people who have to answer that long afterwards.

    {"time":"2026-11-30T06:03:09.412Z","event":"promote","who":"ada@build-7","pid":4242,"model":"embed",...}

A line is one write(2) to a file that was opened for appending, so processes share a file and lines stay whole; pipes
keep them whole too, since a line has at most `LINE_BYTES_MAX`. The file is opened for every line: it can be rotated at
any time. A log that cannot be opened at the start is a wrong setting and an error. Later it stops nothing: signatures
keep bad content out, this only tells, and a full disk must not take every instance out of service. What is lost is
counted, and reported when losing begins.
"""

from __future__ import annotations

import getpass
import logging
import os
import socket
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Literal, TypedDict, Unpack

import msgspec

log = logging.getLogger(__name__)

LINE_BYTES_MAX = 4096  # PIPE_BUF of Linux
WHO_CHARACTERS_MAX = 256  # which leave room for the fields, however they are written
STANDARD_OUTPUT = "-"

Event = Literal["publish", "rollout", "promote", "rollback", "load", "refuse", "quarantine", "restore", "distrust"]
"""A version became visible; the canary; the one that is served; no longer either; an executable became warm in a lane;
something stored was not taken; was set aside; was put back; a key is trusted no more."""


class Fields(TypedDict, total=False):
    """What a line may say besides its time, its event and who it was. Digests and ids are whole, in hex."""

    path: str
    """In the store."""
    key: str
    """Of an executable."""
    model: str
    version: str
    before: str
    """The version that was served until then."""
    method: str
    bucket: str
    lane: str
    fingerprint: str
    """Digest of the kind of machine."""
    key_id: str
    """Of the key that signed, or is distrusted."""
    reason: str


class Audit:
    """An audit log.

    Args:
        destination: A file, "-" for standard output, "" for nowhere.
        who: Who acts here, see `acting`; the first 256 characters.
        clock: The time of a line.

    Raises:
        ValueError: The file cannot be written.
    """

    def __init__(self, destination: str = "", who: str = "", clock: Callable[[], datetime] | None = None) -> None:
        self.destination = destination
        self.who = who[:WHO_CHARACTERS_MAX].encode(errors="replace").decode()  # an environment may hold any bytes
        self.lost = 0
        """Lines that could not be written."""
        self._clock = clock or _now
        self._losing = False
        self._torn = False  # half a line was written
        if destination not in {"", STANDARD_OUTPUT}:
            try:
                os.close(_opened(destination))
            except OSError as error:
                raise ValueError(f"audit_log {destination!r}: it cannot be written ({error.strerror})") from error

    def __repr__(self) -> str:
        return f"Audit({self.destination!r}, lost={self.lost})"

    def record(self, event: Event, **fields: Unpack[Fields]) -> None:
        """Write a line. It never raises for a log that cannot be written, and a pipe that is full costs the line."""
        if not self.destination:
            return
        time = self._clock().astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = _line({"time": time, "event": event, "who": self.who, "pid": os.getpid()}, dict[str, object](fields))
        try:
            self._write(line)
        except OSError as error:
            self.lost += 1
            if not self._losing:
                extra = {"audit_log": self.destination, "reason": error.strerror, "line": line.decode()}
                log.error("audit log cannot be written", extra=extra)  # noqa: TRY400  no trouble of the caller's
            self._losing = True
        else:
            self._losing = False

    def _write(self, line: bytes) -> None:
        data = b"\n" + line if self._torn else line
        descriptor = 1 if self.destination == STANDARD_OUTPUT else _opened(self.destination)
        try:
            written = os.write(descriptor, data)
        finally:
            if descriptor != 1:
                os.close(descriptor)
        self._torn = written < len(data)
        if self._torn:
            raise OSError(0, f"only {written} of {len(data)} bytes were written")


def acting(environment: Mapping[str, str]) -> str:
    """Who acts in this process: the revision on Cloud Run, user@host elsewhere."""
    if revision := environment.get("K_REVISION"):
        return revision
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id that has no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def _now() -> datetime:
    return datetime.now(UTC)


def _opened(path: str) -> int:
    """Not blocking: for a pipe that nobody reads, losing a line is better than waiting."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o640)


def _line(head: dict[str, object], fields: dict[str, object]) -> bytes:
    """The line, with the longest field cut (and an ellipsis put there) for as long as it is too long."""
    while True:
        line = msgspec.json.encode(head | fields) + b"\n"
        if len(line) <= LINE_BYTES_MAX:
            return line
        longest = max(fields, key=lambda name: len(str(fields[name])))
        fields[longest] = str(fields[longest])[: len(str(fields[longest])) // 2 - 1] + "…"
