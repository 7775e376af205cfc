"""Named ingredients: what fingerprints and keys are made of.

Every ingredient is hashed with its name and both lengths, so that no two different sets of ingredients can run
together into the same bytes, and any difference between two sets can be told by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping


def digest_ingredients(ingredients: Mapping[str, str]) -> str:
    """SHA-256 (hex) of `encoded_ingredients`."""
    return hashlib.sha256(encoded_ingredients(ingredients)).hexdigest()


def encoded_ingredients(ingredients: Mapping[str, str]) -> bytes:
    """Names and values in the order of the names, each UTF-8 after its length in bytes (8 bytes, little-endian)."""
    encoded = [text.encode() for item in sorted(ingredients.items()) for text in item]
    return b"".join(part for text in encoded for part in (len(text).to_bytes(8, "little"), text))


def differences(wanted: Mapping[str, str], found: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Ingredient -> (wanted, found), sorted, for those that differ or that one side lacks ("" there)."""
    return {
        name: (wanted.get(name, ""), found.get(name, ""))
        for name in sorted({*wanted, *found})
        if wanted.get(name) != found.get(name)
    }
