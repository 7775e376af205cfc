"""Compiles that failed: one small object a key, `failures/<key>`, so that a fleet does not fail at it one by one.

A key holds the program and everything about the kind of machine, so another try gives the same error, unless it was one
of a limit or of the machine itself: who asks for another try gets it.

Where `FAILED_MAX` executables of one program failed on one kind of machine, the others will too: they are not tried. A
small object each, `breakers/<program>-<fingerprint>/<key>`, counts them with one listing. Another program or kind of
machine has a count of its own.
"""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime

import msgspec

from cache.errors import CompileFailed, NotStored
from cache.lease import this_process
from cache.records import READ_BYTES_MAX, coordinated
from cache.store import Store

log = logging.getLogger(__name__)

FOLDER = "failures"
BREAKERS = "breakers"
FAILED_MAX = 3
REASON_CHARACTERS_MAX = 2000
_FOLDERS = re.compile(r"(?<![\w./:)>])/(?:[\w.+@~-]+/)+")  # of an absolute path, and of nothing else that has slashes


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """What failed and how, when (RFC 3339), on which host and process.

    `fingerprint` and `program` are digests of the kind of machine and of what it is compiled from, "" where not known.
    """

    key: str
    what: str
    reason: str
    when: str
    by: str
    fingerprint: str
    program: str = ""

    @classmethod
    def now(cls, *, key: str, what: str, reason: str, fingerprint: str, program: str = "") -> Failure:
        """One of this process."""
        when, by = datetime.now(UTC).isoformat(timespec="seconds"), this_process()
        return cls(key=key, what=what, reason=reason, when=when, by=by, fingerprint=fingerprint, program=program)


def reason_of(error: Exception) -> str:
    """An error's text for a record: no folders of this machine, at most 2000 characters."""
    text = error.reason if isinstance(error, CompileFailed) else f"{type(error).__name__}: {error}"
    return _FOLDERS.sub("", text)[:REASON_CHARACTERS_MAX]


def record(store: Store, failure: Failure) -> None:
    """Keep a failure, in place of an earlier one."""
    store.put(f"{FOLDER}/{failure.key}", msgspec.json.encode(failure))
    if failure.program:
        store.put(f"{_breaker(failure.program, failure.fingerprint)}/{failure.key}", b"{}\n")


def recorded(store: Store, key: str, *, fingerprint: str = "", program: str = "") -> Failure | None:
    """The failure of a key.

    One that cannot be read, or says that it is of something else, is none: it costs a compile, and is then replaced.

    Args:
        store: Where records are. Anybody may have written them.
        key: Of the artifact.
        fingerprint: Digest of the kind of machine that the key is for, "" where not known.
        program: Digest of what it is compiled from, "" where not known.
    """
    path = f"{FOLDER}/{key}"
    try:
        failure = coordinated(store.get(path, bytes_max=READ_BYTES_MAX), Failure)
    except NotStored:
        return None
    except msgspec.MsgspecError as error:
        log.warning("%s cannot be read, it is ignored: %s", path, error)
        return None
    alike = failure.fingerprint in {"", fingerprint} or not fingerprint, failure.program in {"", program} or not program
    if failure.key != key or not all(alike):
        log.warning("%s says that it is of something else, it is ignored", path)
        return None
    return failure


def forget(store: Store, failure: Failure) -> None:
    """Let the next one try it; for its program it does not count any more. `failure`: one of this process."""
    store.delete(f"{FOLDER}/{failure.key}")
    if failure.program:
        store.delete(f"{_breaker(failure.program, failure.fingerprint)}/{failure.key}")


def failed_of(store: Store, program: str, fingerprint: str) -> list[str]:
    """The keys of a program's executables that failed on a kind of machine, as far as they count."""
    return store.names(_breaker(program, fingerprint))


def reset(store: Store, program: str, fingerprint: str) -> None:
    """Let a program be tried again on a kind of machine."""
    for key in failed_of(store, program, fingerprint):
        store.delete(f"{_breaker(program, fingerprint)}/{key}")


def _breaker(program: str, fingerprint: str) -> str:
    return f"{BREAKERS}/{program}-{fingerprint}"
