"""What a kind of machine needs for a version: the place of each executable, and what it is made of. Without jax."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from cache.fingerprint import Fingerprint
from cache.key import executable_ingredients
from warmpool.manifest import ExecutableSpec, bucket_name
from warmpool.publishing.machines import compile_options


class Place(NamedTuple):
    """Where an executable goes in a target: a method, a bucket's name, and whether it is for the CPU lane's ladder."""

    method: str
    bucket: str
    ladder: bool = False

    @classmethod
    def of(cls, spec: ExecutableSpec) -> Place:
        """That of what a target lists."""
        return cls(spec.method, bucket_name(spec.bucket))


def ingredients_of(program: str, bucket: Mapping[str, int], fingerprint: Fingerprint) -> dict[str, str]:
    """The ingredients of the key of an executable.

    Args:
        program: The digest of what it is compiled from.
        bucket: The size of each dimension.
        fingerprint: Of the machine.
    """
    options = compile_options(os.environ)
    return executable_ingredients(program=program, bucket=bucket, fingerprint=fingerprint, options=options)
