"""The named ingredients of an executable: what it is stored under is their digest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cache.fingerprint import Fingerprint

_MACHINE = "fingerprint."


def executable_ingredients(
    *,
    program: str,
    bucket: Mapping[str, int],
    fingerprint: Fingerprint,
    options: Mapping[str, str],
    donated: Sequence[int] = (),
) -> dict[str, str]:
    """The named ingredients of an executable's key.

    Args:
        program: The digest of what it was compiled from.
        bucket: The size of each dimension.
        fingerprint: Of the machine.
        options: What the compiler was told, by name.
        donated: Indices of the arguments whose memory it takes over. No ingredient if there are none.
    """
    ingredients = {
        **program_and_bucket(program, bucket),
        **{f"option.{name}": value for name, value in options.items()},
        **{f"{_MACHINE}{name}": value for name, value in fingerprint.ingredients.items()},
    }
    return ingredients | ({"donated": " ".join(map(str, sorted(donated)))} if donated else {})


def made_for(ingredients: Mapping[str, str]) -> dict[str, str]:
    """The fingerprint's ingredients among those of a key: the machine that it was made for."""
    return {name.removeprefix(_MACHINE): value for name, value in ingredients.items() if name.startswith(_MACHINE)}


def program_and_bucket(program: str, bucket: Mapping[str, int]) -> dict[str, str]:
    """The ingredients that say what is computed, for which shape; the others say where and how."""
    return {"program": program, **{f"bucket.{name}": str(size) for name, size in bucket.items()}}
