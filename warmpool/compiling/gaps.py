"""What the targets of an instance's versions lack, one value for each executable that is to be made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from warmpool.compiling.protocol import Place
from warmpool.manifest import bucket_name

Target = tuple[str, str, str]  # model, version, fingerprint
Side = tuple[Target, str, bool]


class Made(NamedTuple):
    """Executables of a version ("model/version") that the store has more of, for the CPU lane or the primary one."""

    version: str
    ladder: bool


@dataclass(frozen=True, slots=True)
class Gap:
    """An executable that is missing.

    Attributes:
        model: The model.
        version: Its version.
        fingerprint: Digest of the kind of machine.
        place: Where it belongs in the version's target.
        bucket: Size of each dimension.
        ladder: Whether it is the CPU lane's, beside another one.
        minimum: Whether a lane is not ready without it.
        key: What it is stored under.
        program: Digest of what it is compiled from.
        batch: Name of the dimension that rows are counted in, "" if the method has none.
        us_an_element: What running it takes for an element of its bucket, in microseconds, as far as is known.
        told: Whether a lane has been told of it, and cannot have it.
        prior_s: What making it is thought to take before one of its program was made, in seconds.
    """

    model: str
    version: str
    fingerprint: str
    place: Place
    bucket: Mapping[str, int]
    ladder: bool
    minimum: bool
    key: str
    program: str
    batch: str = ""
    us_an_element: float = 1.0
    told: bool = False
    prior_s: float = 2.0

    @property
    def closed(self) -> Made:
        """What there is more of once it is no gap any more."""
        return Made(f"{self.model}/{self.version}", self.ladder)

    @property
    def identity(self) -> tuple[Target, Place]:
        """Its place among all targets."""
        return self.target, self.place

    @property
    def target(self) -> Target:
        """The target that lacks it."""
        return self.model, self.version, self.fingerprint

    @property
    def side(self) -> Side:
        """Whose demand it is for: a target's, a method's, and whether it is the CPU lane's."""
        return self.target, self.place.method, self.ladder

    @property
    def title(self) -> str:
        """As people see it."""
        title = f"{self.model}:{self.place.method} {bucket_name(dict(self.bucket))}"
        return f"{title} (cpu lane)" if self.ladder else title

    @property
    def shape(self) -> tuple[tuple[str, int], ...]:
        """Its sizes but for its rows: what is compiled to prove one is shared by all of the same shape."""
        return tuple((name, size) for name, size in self.bucket.items() if name != self.batch)
