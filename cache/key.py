"""Keys made of named ingredients.

Every ingredient is hashed with its name and both lengths, so that no two different sets of ingredients can run
together into the same bytes, and any difference between two entries can be told by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from cache.fingerprint import Fingerprint


def digest_ingredients(ingredients: Mapping[str, str]) -> str:
    """SHA-256 (hex) over the sorted, length-prefixed names and values."""
    hasher = hashlib.sha256()
    for name, value in sorted(ingredients.items()):
        for part in (name.encode(), value.encode()):
            hasher.update(len(part).to_bytes(8, "little"))
            hasher.update(part)
    return hasher.hexdigest()


def executable_ingredients(
    *, program: str, bucket: Mapping[str, int], fingerprint: Fingerprint, options: Mapping[str, str]
) -> dict[str, str]:
    """The named ingredients of an executable's key: program, dimensions, compile options, fingerprint."""
    return {
        "program": program,
        **{f"bucket.{name}": str(size) for name, size in bucket.items()},
        **{f"option.{name}": value for name, value in options.items()},
        **{f"fingerprint.{name}": value for name, value in fingerprint.ingredients.items()},
    }


def executable_key(
    *, program: str, bucket: Mapping[str, int], fingerprint: Fingerprint, options: Mapping[str, str]
) -> str:
    """The key (64 hex digits) under which the executable of `program` for `bucket` on this fingerprint is stored."""
    return digest_ingredients(
        executable_ingredients(program=program, bucket=bucket, fingerprint=fingerprint, options=options)
    )
