"""What a kind of machine needs for a version: the place of each executable, and what it is made of. Without jax."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from cache.fingerprint import Fingerprint
from cache.key import executable_ingredients
from warmpool.manifest import ExecutableSpec, bucket_name
from warmpool.publishing.buckets import Bucket

FAST_OPTIONS = {"xla_backend_optimization_level": "1"}
"""What the CPU lane's ladder is compiled with; see docs/adr/0015-the-cpu-lanes-own-ladder.md."""


class Place(NamedTuple):
    """Where an executable goes in a target: a method, a bucket's name, and whether it is for the CPU lane's ladder."""

    method: str
    bucket: str
    ladder: bool = False

    @classmethod
    def of(cls, spec: ExecutableSpec) -> Place:
        """That of what a target lists."""
        return cls(spec.method, bucket_name(spec.bucket), spec.cpu_lane_only)

    @property
    def other(self) -> Place:
        """The same bucket in the other lane."""
        return self._replace(ladder=not self.ladder)


def placed(
    planned: Iterable[tuple[str, Bucket]], fingerprint: Fingerprint, *, primary: bool
) -> list[tuple[str, Bucket, bool]]:
    """The executables of a plan on one kind of machine: method, bucket, whether it is for the CPU lane's ladder.

    Minimum sets come first, and of the two of a bucket the one of the primary lane.

    Args:
        planned: Method and bucket of all that is planned.
        fingerprint: Of the kind of machine.
        primary: Whether the primary lane is of this kind; on a CPU the CPU lane is in any case.
    """
    kinds = [False] * primary + [True] * (fingerprint.ingredients["platform"] == "cpu")
    found = [(method, bucket, ladder) for method, bucket in planned for ladder in kinds if bucket.ladder or not ladder]
    return sorted(found, key=lambda one: (not one[1].minimum, one[2], one[1].elements))


def ingredients_of(
    program: str,
    bucket: Mapping[str, int],
    fingerprint: Fingerprint,
    options: Mapping[str, str],
    *,
    ladder: bool = False,
) -> dict[str, str]:
    """The ingredients of the key of an executable.

    Args:
        program: The digest of what it is compiled from.
        bucket: The size of each dimension.
        fingerprint: Of the machine.
        options: What JAX is told by environment variables, see `compile_options`.
        ladder: Whether it is for the CPU lane's ladder.
    """
    told = {**options, **(FAST_OPTIONS if ladder else {})}
    return executable_ingredients(program=program, bucket=bucket, fingerprint=fingerprint, options=told)
