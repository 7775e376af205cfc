"""How a target is to be made, and what came of the work for it and for each place of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from warmpool.manifest import Target
from warmpool.publishing.known import Known
from warmpool.publishing.machines import Machine
from warmpool.publishing.places import Place


@dataclass(frozen=True, slots=True)
class Made:
    """A target and what it took: executables compiled here, compiled by others meanwhile, and proved here.

    `references` were compiled here too, to prove them with. `failed` says why a place stays empty.
    """

    target: Target
    known: Known
    compiled: int
    taken: int
    proved: int
    references: int
    failed: Mapping[Place, str]


@dataclass(frozen=True, slots=True)
class PlaceMade:
    """How the work for one place ended.

    Attributes:
        place: The place.
        key: Of its executable.
        seconds: From its begin to its end; others may have been under way beside it.
        failure: Why there is none, "" if there is one, proved and stored.
        visible: Whether lanes may see it now: the target is stored, and lists it.
        passing: Whether the failure is one of this moment, such as a full disk.
    """

    place: Place
    key: str
    seconds: float
    failure: str
    visible: bool
    passing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How a target is to be made.

    Attributes:
        retry_failed: Whether what failed to compile before is compiled again.
        goes_on: Whether the others are made where one fails; else the first failure is the end.
        only: The places to make, of a visible version, and the minimum sets where its target has not all of them. What
            is done is stored in the target one by one. None: all.
        told: How the work for a place ended.
        primary: The primary lane's kind of machine, where another one than the CPU lane's is made for.
    """

    retry_failed: bool = False
    goes_on: bool = False
    only: Collection[Place] | None = None
    told: Callable[[PlaceMade], None] = lambda _: None
    primary: Machine | None = None
