"""The named ingredients of an executable: what it is stored under is their digest."""

from __future__ import annotations

from collections.abc import Mapping

from cache.fingerprint import Fingerprint


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
