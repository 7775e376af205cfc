"""What the front and its compile worker tell each other: one JSON object a line, over the worker's standard streams.

    front   Open, once;  Job, while none runs                                          worker's stdin
    worker  Alive, now and then;  Placed for every place of a job, Done at its end     worker's stdout

The worker ends when its stdin does.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from cache.settings import StoreSettings

ALIVE_EVERY_S = 2.0
LINE_BYTES_MAX = 1 << 20
REASON_CHARACTERS_MAX = 2000


class Place(NamedTuple):
    """Where an executable belongs in a target: the method, the bucket's name, whether it is the CPU lane's own."""

    method: str
    bucket: str
    ladder: bool


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Base of all messages."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one compile may use: seconds on the clock and of the processor, bytes of memory (0: any)."""

    wall_s_max: float
    cpu_s_max: float
    memory_bytes_max: int


class Open(_Message, frozen=True, kw_only=True):
    """The store, and the limits of each child."""

    store: StoreSettings
    limits: Limits


class Job(_Message, frozen=True, kw_only=True):
    """Places of one target to make, the first one first.

    `fingerprint` is the digest of the kind of machine that the lane is, `accelerator` whether jax has to say what that
    is, `at_a_time` how many children run at a time.
    """

    number: int
    model: str
    version: str
    fingerprint: str
    accelerator: bool
    at_a_time: int
    places: tuple[Place, ...]


class Alive(_Message, frozen=True, kw_only=True):
    """The worker runs."""


class Placed(_Message, frozen=True, kw_only=True):
    """How the work for a place ended, after how many seconds, and why there is nothing, "" if it is filled.

    `visible` says whether lanes may see it now. Until its lane's minimum sets are whole they do not, and then they see
    all of it. `passing` says that the failure is one of this moment, such as a full disk.
    """

    job: int
    place: Place
    seconds: float
    failure: str
    visible: bool
    passing: bool = False


class Done(_Message, frozen=True, kw_only=True):
    """A job is over; `failure` says why what nothing was said of was not made, "" if that is nothing.

    `passing` says that the failure is one of this moment, such as a store that is away.
    """

    job: int
    failure: str
    passing: bool = False


ToWorker = Open | Job
FromWorker = Alive | Placed | Done


def line(message: ToWorker | FromWorker) -> bytes:
    """A message as it is sent."""
    return msgspec.json.encode(message) + b"\n"


def to_worker(data: bytes) -> ToWorker:
    """A message out of its line. Raises msgspec.MsgspecError."""
    return msgspec.json.decode(data, type=ToWorker)


def from_worker(data: bytes) -> FromWorker:
    """A message out of its line. Raises msgspec.MsgspecError."""
    return msgspec.json.decode(data, type=FromWorker)
