"""Named ingredients: what fingerprints and keys are made of.

Every ingredient is hashed with its name and both lengths, so that no two different sets of ingredients can run
together into the same bytes, and any difference between two sets can be told by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping


def digest_ingredients(ingredients: Mapping[str, str]) -> str:
    """SHA-256 (hex) over the sorted, length-prefixed names and values."""
    hasher = hashlib.sha256()
    for name, value in sorted(ingredients.items()):
        for part in (name.encode(), value.encode()):
            hasher.update(len(part).to_bytes(8, "little"))
            hasher.update(part)
    return hasher.hexdigest()


def differences(wanted: Mapping[str, str], found: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Ingredient -> (wanted, found), sorted, for those that differ or that one side lacks ("" there)."""
    return {
        name: (wanted.get(name, ""), found.get(name, ""))
        for name in sorted({*wanted, *found})
        if wanted.get(name) != found.get(name)
    }
