"""Who makes which executable, where several publishes lack the same ones: each makes some, and takes the others' work.

An executable is claimed before it is compiled, and until it is proved and stored (`cache.single_flight`). Nobody waits
for others while it holds a claim that they may wait for, so no two publishes ever wait for each other.
"""

from __future__ import annotations

import builtins
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from types import TracebackType
from typing import Self

from cache.errors import CompileFailed
from cache.failures import Failure, reason_of
from cache.signed_store import SignedStore
from cache.single_flight import Flight, Found, Terms, Turn, pauses
from warmpool.errors import PublishError
from warmpool.forking import WorkerFailed
from warmpool.publishing.entries import Entry
from warmpool.publishing.machines import Limits

WALLS_WAITED_MAX = (
    4  # with no news at all: others have these limits too, and a key takes a compile, a reference, a trial
)


class Begun(Enum):
    """Where the work for an entry was begun."""

    HERE = auto()
    NOT_YET = auto()  # others are at it, or nobody is
    DONE = auto()  # by others


@dataclass(slots=True)
class _Wanted:
    """One key as we look at it."""

    flight: Flight[Path]
    pauses: Iterator[float] = field(default_factory=pauses)
    next_look_s: float = 0.0


class Claims:
    """One publish's claims on one kind of machine. A context manager, which gives up those that are left at its end.

    Args:
        store: Where executables are.
        find: A verified artifact in the store that nothing is left to do for.
        fingerprint: Digest of the kind of machine.
        limits: Of the children that compile.
        retry_failed: Whether what failed to compile before is compiled again.
        say: Told when it waits.
    """

    def __init__(
        self,
        store: SignedStore,
        find: Callable[[Entry], Path | None],
        *,
        fingerprint: str,
        limits: Limits,
        retry_failed: bool,
        say: Callable[[str], None],
    ) -> None:
        self._store = store
        self._find = find
        self._fingerprint = fingerprint
        self._limits = limits
        self._terms = Terms(retry_failed=retry_failed)
        self._say = say
        self._wanted: dict[str, _Wanted] = {}
        self._turns: dict[str, tuple[Turn, ExitStack]] = {}
        self._news_s = time.monotonic()
        self._said: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for key in list(self._turns):
            self.settle(key)

    def holds(self, key: str) -> bool:
        """Whether it is ours to make."""
        return key in self._turns

    def claim(self, entry: Entry, what: str) -> Path | bool:
        """A file with the entry's artifact, if others made it; else whether it is ours to make now.

        Raises:
            PublishError: It failed to compile before.
        """
        if entry.key in self._turns:
            return True
        wanted = self._wanted.get(entry.key) or self._want(entry, what)
        now_s = time.monotonic()
        if now_s < wanted.next_look_s:
            return False
        wanted.next_look_s = now_s + next(wanted.pauses)
        found = wanted.flight.look()
        if found is None:
            return False
        del self._wanted[entry.key]
        self._news_s = now_s
        match found:
            case Found(path):
                return path
            case Turn() as turn:
                stack = ExitStack()
                stack.enter_context(turn)
                self._turns[entry.key] = (turn, stack)
                return True
            case Failure() as failure:
                before = f"failed to compile before (at {failure.when} by {failure.by}): {failure.reason}"
                raise PublishError(f"{what} {before}; --retry-failed compiles it again")

    def failed(self, key: str, error: PublishError, *, machinery_alive: bool) -> None:
        """Record that what is ours failed to compile or to run, if that says something about it.

        A wrong answer does not: it may be that of the weights, and an executable is also that of versions with others.
        """
        if key not in self._turns or not machinery_alive:
            return
        cause = error.__cause__
        if isinstance(cause, WorkerFailed) and _is_about_program(cause):
            told = CompileFailed(key, f"{cause.reason}: {cause.detail} (it was allowed {self._limits})")
            self._turns[key][0].failed(reason_of(told))

    def settle(self, key: str, *, made: bool = False) -> None:
        """Give up a claim: it is stored, or somebody else may try."""
        turn, stack = self._turns.pop(key)
        with stack:
            if made:
                turn.succeeded()
        self._news_s = time.monotonic()

    def wait(self) -> None:
        """Wait until something may be worth a look again. Only allowed while nothing is ours.

        Raises:
            PublishError: Others have made nothing for too long.
        """
        assert not self._turns, "others may be waiting for us"
        wait_s_max = WALLS_WAITED_MAX * self._limits.wall_s_max
        holders = {one.flight.holder for one in self._wanted.values() if one.flight.holder}
        now_s = time.monotonic()
        if now_s - self._news_s > wait_s_max:
            who = ", ".join(sorted(holders)) or "nobody known"
            raise PublishError(f"others ({who}) have made nothing for {wait_s_max:g} s of what this publish waits for")
        for holder in sorted(holders - self._said):
            self._say(f"waiting for {holder}, which makes what is missing too")
        self._said |= holders
        time.sleep(max(min(one.next_look_s for one in self._wanted.values()) - now_s, 0.0))

    def _want(self, entry: Entry, what: str) -> _Wanted:
        flight = Flight(
            self._store,
            entry.key,
            lambda: self._find(entry),
            what=what,
            fingerprint=self._fingerprint,
            program=entry.ingredients.get("program", ""),
            terms=self._terms,
        )
        return self._wanted.setdefault(entry.key, _Wanted(flight))


def is_passing(error: PublishError) -> bool:
    """Whether a child's failure says nothing about what it was to do: another try may well end otherwise."""
    return isinstance(error.__cause__, WorkerFailed) and not _is_about_program(error.__cause__)


def _is_about_program(error: WorkerFailed) -> bool:
    """Not about a full disk, say, or a child that was told to end."""
    if error.reason == "exception":
        raised = getattr(builtins, error.detail.partition(":")[0], None)
        return not (isinstance(raised, type) and issubclass(raised, OSError))
    return not error.detail.startswith(("signal SIGTERM", "it was not even forked"))


def share[E](
    todo: Sequence[E],
    begin: Callable[[E], Begun],
    finish: Callable[[E], None],
    wait: Callable[[], None],
    *,
    begun_max: int,
) -> None:
    """Do of a list what others do not do.

    Args:
        todo: What is to be done, the most wanted first.
        begin: Begins one, unless others are at it or did it.
        finish: Finishes one that was begun; the first one first.
        wait: Waits a little for others; called only while nothing is begun, so that nobody who waits is waited for.
        begun_max: How many are begun at a time; others can begin the rest.
    """
    waiting, begun = list(todo), deque[E]()
    while waiting or begun:
        left = []
        for entry in waiting:
            how = begin(entry) if len(begun) < begun_max else Begun.NOT_YET
            if how is Begun.HERE:
                begun.append(entry)
            elif how is Begun.NOT_YET:
                left.append(entry)
        waiting = left
        if begun:
            finish(begun.popleft())
        elif waiting:
            wait()
