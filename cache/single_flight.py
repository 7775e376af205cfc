"""Single flight: of all who miss the same artifact at the same time, in a whole fleet, one makes it.

    look:  is it there?            it is the answer
           did it fail before?     so it does now, unless another try was asked for
           did its program, often? so it is not tried (see `cache.failures`)
           get the lease           look again, for it may have been made meanwhile; then make it, store it, release
           somebody else has it    wait a little, look again; a holder that died loses it (see `cache.lease`)

Where leases or failures cannot be read or written, one goes on alone: an artifact is addressed by its content's key, so
that making it twice is waste and no error, whereas giving up would turn a store's bad minute into failed work. A
warning is logged.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from cache import failures, lease
from cache.errors import CacheError, CompileFailed, NotMadeYet, Refused, StoreUnavailable
from cache.failures import Failure
from cache.lease import Contender, Lease
from cache.store import Store

log = logging.getLogger(__name__)

PAUSE_S_FIRST = 0.05
PAUSE_S_MAX = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How one flies.

    Attributes:
        ttl_s: After how long without a sign of life others take over from us; at most 300.
        wait_s_max: How long we wait for others.
        retry_failed: Whether a failure that is recorded at our first look does not count.
    """

    ttl_s: float = lease.TTL_S_DEFAULT
    wait_s_max: float = 3600.0
    retry_failed: bool = False


@dataclass(frozen=True, slots=True)
class Found[T]:
    """It is there."""

    value: T


class Turn:
    """It is ours to make, in the block of this context manager. Say how it ended before the block does.

    Attributes:
        lease: What keeps others from it; None where we go on alone.
    """

    def __init__(
        self, store: Store, failure: Callable[[str], Failure], lease: Lease | None, *, failed_before: bool
    ) -> None:
        self.lease = lease
        self._store = store
        self._failure = failure
        self._failed_before = failed_before
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if self.lease:
            self._stack.enter_context(self.lease)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def failed(self, reason: str) -> Failure:
        """Record that it cannot be made, unless others may be at it by now: they find out for themselves."""
        failure = self._failure(reason)
        if self.lease and self.lease.held:
            self._try(lambda: failures.record(self._store, failure))
        return failure

    def succeeded(self) -> None:
        """Forget that it failed before, if it did. What that is called we say, and not the record."""
        if self._failed_before:
            self._try(lambda: failures.forget(self._store, self._failure("")))

    def _try(self, write: Callable[[], None]) -> None:
        try:
            write()
        except StoreUnavailable as error:
            log.warning("the record of a failed compile could not be written: %s", error)


class Flight[T]:
    """One key, for one of those who want it.

    Args:
        store: Where leases and failures are, and what is made goes to.
        key: Of the artifact.
        found: The artifact if it is there and good, else None. What it raises at a first look is raised.
        what: Names it in a failure's text.
        fingerprint: Digest of the kind of machine, for the record of a failure.
        program: Digest of what it is compiled from, "" if that is not to count its failures.
        terms: How one flies.
        clock: Monotonic, in seconds.
    """

    def __init__(
        self,
        store: Store,
        key: str,
        found: Callable[[], T | None],
        *,
        what: str,
        fingerprint: str = "",
        program: str = "",
        terms: Terms = Terms(),  # frozen
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._key = key
        self._found = found
        self._what = what
        self._fingerprint = fingerprint
        self._program = program
        self._terms = terms
        self._contender = Contender(store, f"{lease.FOLDER}/{key}", ttl_s=terms.ttl_s, clock=clock)
        self._ignored: Failure | None = None
        self._looked = False

    @property
    def holder(self) -> str:
        """Who was making it at our last look, "" for nobody."""
        return self._contender.holder

    def look(self) -> Found[T] | Failure | Turn | None:
        """How it stands; None: somebody else makes it, look again later."""
        if (value := self._found()) is not None:
            return Found(value)
        try:
            return self._failed() or self._broken() or self._turn()
        except StoreUnavailable as error:
            log.warning("%s: others cannot be asked, it is made here whatever they do: %s", self._what, error)
            return Turn(self._store, self._failure, None, failed_before=self._ignored is not None)

    def _turn(self) -> Found[T] | Failure | Turn | None:
        taken = self._contender.acquire()
        if taken is None:
            return None
        with ExitStack() as stack:
            stack.callback(taken.release)
            if (value := self._found()) is not None:
                return Found(value)
            if failure := self._failed():
                return failure
            stack.pop_all()
        return Turn(self._store, self._failure, taken, failed_before=self._ignored is not None)

    def _failed(self) -> Failure | None:
        """The recorded failure, if it counts: one that others record after we asked for another try does."""
        failure = self._recorded(self._key)
        if not self._looked:
            self._looked = True
            self._ignored = failure if self._terms.retry_failed else None
        return failure if failure != self._ignored else None

    def _broken(self) -> Failure | None:
        """What is said in the place of a try, where so many others of its program failed that this one would too."""
        failed = failures.failed_of(self._store, self._program, self._fingerprint) if self._program else []
        if len(failed) < failures.FAILED_MAX or self._key in failed:
            return None
        known = next(filter(None, map(self._recorded, failed)), None)
        example = f"; one of them: {known.reason}" if known else ""
        return self._failure(f"it was not tried, since {len(failed)} others of its program failed{example}")

    def _recorded(self, key: str) -> Failure | None:
        return failures.recorded(self._store, key, fingerprint=self._fingerprint, program=self._program)

    def _failure(self, reason: str) -> Failure:
        return Failure.now(
            key=self._key, what=self._what, reason=reason, fingerprint=self._fingerprint, program=self._program
        )


def fetch_or_make[T](
    store: Store,
    key: str,
    found: Callable[[], T | None],
    make: Callable[[], T],
    *,
    what: str,
    fingerprint: str = "",
    terms: Terms = Terms(),  # frozen
) -> T:
    """What is stored under a key, made by one of all who ask for it at the same time.

    Args:
        store: Where leases and failures are.
        key: Of the artifact.
        found: The artifact if it is there and good, else None.
        make: Makes it and stores it. Its error is recorded for the fleet and raised as CompileFailed, except for what
            says nothing about the program: an interruption, an OSError, trouble with the store.
        what: Names it in a failure's text.
        fingerprint: Digest of the kind of machine, for the record of a failure.
        terms: How long to wait, and the like.

    Raises:
        CompileFailed: It cannot be made; the same text for all who asked.
        NotMadeYet: Somebody else was still making it after `terms.wait_s_max`.
    """
    flight = Flight(store, key, found, what=what, fingerprint=fingerprint, terms=terms)
    deadline_s = time.monotonic() + terms.wait_s_max
    for pause_s in pauses():
        match flight.look():
            case Found(value):
                return value
            case Failure() as failure:
                raise CompileFailed(failure.what, failure.reason)
            case Turn() as turn:
                return _made(turn, make)
        if time.monotonic() + pause_s > deadline_s:
            raise NotMadeYet(what, flight.holder, terms.wait_s_max)
        time.sleep(pause_s)
    raise AssertionError("pauses never end")


def pauses() -> Iterator[float]:
    """Seconds between looks: growing, so that a long compile costs few of them; drawn, so that waiters spread out."""
    pause_s = PAUSE_S_FIRST
    while True:
        yield pause_s * random.uniform(0.5, 1.0)  # noqa: S311  # nothing secret
        pause_s = min(pause_s * 1.5, PAUSE_S_MAX)


def _made[T](turn: Turn, make: Callable[[], T]) -> T:
    with turn:
        try:
            value = make()
        except OSError:
            raise
        except Exception as error:
            if isinstance(error, CacheError) and not isinstance(error, CompileFailed | Refused):
                raise
            failure = turn.failed(failures.reason_of(error))
            raise CompileFailed(failure.what, failure.reason) from error
        turn.succeeded()
    return value
