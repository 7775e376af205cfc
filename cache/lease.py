"""Leases: who of a fleet does a thing now, as a small object in a store that its holder keeps renewing.

No clock of another machine is trusted, and the object names no time of day. A waiter takes a lease over once it has
seen one and the same generation of it for the ttl that the object names, measured by its own monotonic clock; that is
how the leader election of Kubernetes' client-go does it. Every renewal is another content, hence another generation.
A takeover is a put on condition of that very generation: of any number of waiters exactly one wins.

A lease is no lock. A holder that was suspended learns at its next renewal that it lost the lease, and may have gone on
until then: what is done under a lease has to be harmless when it is done twice.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Annotated, Self

import msgspec

from cache.errors import LeaseLost, NotStored, StoreUnavailable
from cache.records import coordinated
from cache.store import Store

log = logging.getLogger(__name__)

FOLDER = "leases"
TTL_S_DEFAULT = 15.0
TTL_S_MAX = 300.0  # a longer one in an object counts as this: whatever it says, it blocks nobody for ever
RENEWALS_A_TTL = 3  # one may fail, and one be late


class _Content(msgspec.Struct, frozen=True, kw_only=True):
    """What the object says. The nonce makes every acquisition another content, `renewals` every renewal."""

    owner: str
    nonce: str
    ttl_s: Annotated[float, msgspec.Meta(gt=0)]
    renewals: int = 0


class Lease:
    """A lease that this process got. A context manager: it is renewed in the block, and released at its end.

    Attributes:
        path: Of the object.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        content: _Content,
        generation: str,
        *,
        held_until_s: float,
        clock: Callable[[], float],
    ) -> None:
        self.path = path
        self._store = store
        self._content = content
        self._generation = generation
        self._held_until_s = held_until_s
        self._clock = clock
        self._gone = False
        self._turn = threading.RLock()
        self._ended = threading.Event()
        self._renewing: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"Lease({self.path!r}, owner={self._content.owner!r}, held={self.held})"

    def __enter__(self) -> Self:
        self._renewing = threading.Thread(target=self._renew_until_ended, name=f"lease {self.path}", daemon=True)
        self._renewing.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._renewing:
            self._renewing.join()
        self.release()

    @property
    def held(self) -> bool:
        """Whether nobody else can have it: it is not known to be lost, and its last renewal is younger than the ttl."""
        return not self._gone and self._clock() < self._held_until_s

    def renew(self) -> None:
        """Hold it for another ttl.

        Raises:
            LeaseLost: Somebody else has it now, or it was removed. That is for good.
            StoreUnavailable: It may be renewed later.
        """
        with self._turn:
            start_s = self._clock()
            content = msgspec.structs.replace(self._content, renewals=self._content.renewals + 1)
            generation = None if self._gone else _put(self._store, self.path, content, self._generation)
            if generation is None:
                self._gone = True
                raise LeaseLost(self.path)
            self._content, self._generation = content, generation
            self._held_until_s = start_s + content.ttl_s

    def release(self) -> None:
        """Let others have it at once. A lease that cannot be released goes stale by itself."""
        with self._turn:
            if self._gone:
                return
            try:
                if not self.held:
                    self.renew()  # not every store compares a generation when it deletes
                self._store.delete_if(self.path, self._generation)
            except LeaseLost:
                return
            except StoreUnavailable as error:
                log.warning("lease %s could not be released, it goes stale in %g s: %s", self.path, self._ttl_s, error)
            self._gone = True

    @property
    def _ttl_s(self) -> float:
        return self._content.ttl_s

    def _renew_until_ended(self) -> None:
        while not self._ended.wait(self._ttl_s / RENEWALS_A_TTL):
            try:
                self.renew()
            except LeaseLost as error:
                log.warning("%s", error)
                return
            except StoreUnavailable as error:
                log.warning("lease %s could not be renewed, it is tried again: %s", self.path, error)


class Contender:
    """One who wants a lease, and remembers for how long it has looked the same.

    Args:
        store: Where it is.
        path: Of its object, `leases/<key>` by custom.
        owner: Shown to those who wait; by default host and process.
        ttl_s: How long it is held without being renewed, once it is ours; at most 300.
        clock: Monotonic, in seconds.

    Attributes:
        holder: Who held it when we last looked, "" for nobody.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        *,
        owner: str = "",
        ttl_s: float = TTL_S_DEFAULT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 < ttl_s <= TTL_S_MAX:
            raise ValueError(f"ttl_s is {ttl_s!r}, allowed: more than 0 and at most {TTL_S_MAX:g}")
        self.holder = ""
        self._store = store
        self._path = path
        self._owner = owner or this_process()
        self._ttl_s = ttl_s
        self._clock = clock
        self._seen: str | None = None  # the generation
        self._seen_s = 0.0
        self._seen_ttl_s = 0.0

    def acquire(self) -> Lease | None:
        """The lease, if nobody has it or who had it has not renewed it for its ttl while we looked. Does not wait.

        Raises:
            StoreUnavailable: Nobody knows.
        """
        start_s = self._clock()
        try:
            data, generation = self._store.get_versioned(self._path)
        except NotStored:
            self._seen, self.holder = None, ""
            return self._put(start_s, None)
        if generation != self._seen:
            self._see(data, generation)
            return None
        if start_s - self._seen_s < self._seen_ttl_s:
            return None
        lease = self._put(self._clock(), generation)
        if lease:
            log.warning("lease %s: %s did not renew it for %g s", self._path, self.holder, start_s - self._seen_s)
        return lease

    def _see(self, data: bytes, generation: str) -> None:
        """Remember a generation from now on, which is after whoever wrote it did."""
        try:
            content = coordinated(data, _Content)
            self.holder, self._seen_ttl_s = content.owner, min(content.ttl_s, TTL_S_MAX)
        except msgspec.MsgspecError as error:
            log.warning("lease %s cannot be read, it counts for %g s: %s", self._path, TTL_S_DEFAULT, error)
            self.holder, self._seen_ttl_s = "somebody unknown", TTL_S_DEFAULT
        self._seen, self._seen_s = generation, self._clock()

    def _put(self, start_s: float, generation: str | None) -> Lease | None:
        content = _Content(owner=self._owner, nonce=secrets.token_hex(8), ttl_s=self._ttl_s)
        new = _put(self._store, self._path, content, generation)
        if new is None:
            return None
        until_s = start_s + self._ttl_s
        return Lease(self._store, self._path, content, new, held_until_s=until_s, clock=self._clock)


def this_process() -> str:
    """Host and process, as an owner is shown to others."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _put(store: Store, path: str, content: _Content, generation: str | None) -> str | None:
    """Put on that condition: the new generation; None if it did not hold.

    A put whose answer was lost looks refused when it is tried again, so what is refused is compared with what is there.
    """
    data = msgspec.json.encode(content)
    new = store.put_if(path, data, generation)
    if new is not None:
        return new
    try:
        found, new = store.get_versioned(path)
    except NotStored:
        return None
    return new if found == data else None
