"""Why an executable is not there: what the nearest one that is there was made of instead.

Pure: who looks for candidates, and how far, decides where they come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cache.ingredients import differences


@dataclass(frozen=True, slots=True)
class Difference:
    """An ingredient that one set has otherwise than another; "" where a set does not have it."""

    ingredient: str
    wanted: str
    found: str

    @property
    def only_wanted(self) -> tuple[str, ...]:
        """Words of the wanted value that the found one lacks, in order."""
        return _lacking(self.wanted, self.found)

    @property
    def only_found(self) -> tuple[str, ...]:
        """Words of the found value that the wanted one lacks, in order."""
        return _lacking(self.found, self.wanted)

    @property
    def words(self) -> int:
        """How many words make the difference: a list that one flag was added to is nearer than another list."""
        return len(self.only_wanted) + len(self.only_found)


@dataclass(frozen=True, slots=True)
class Nearest:
    """The candidate that differs least, and in what; in nothing at all if it is the one that is wanted."""

    key: str
    differences: tuple[Difference, ...]

    @property
    def distance(self) -> tuple[int, int, str]:
        """In how many ingredients it differs, in how many words of them, and its key, so that one is the nearest."""
        return len(self.differences), sum(one.words for one in self.differences), self.key


def nearest(wanted: Mapping[str, str], candidates: Mapping[str, Mapping[str, str]]) -> Nearest | None:
    """The candidate that differs from `wanted` in the fewest ingredients; None if there are no candidates.

    Args:
        wanted: The ingredients of what is not there.
        candidates: Ingredients of executables, by key.
    """
    found = (Nearest(key, differing(wanted, ingredients)) for key, ingredients in candidates.items())
    return min(found, key=lambda one: one.distance, default=None)


def differing(wanted: Mapping[str, str], found: Mapping[str, str]) -> tuple[Difference, ...]:
    """Every ingredient that is not the same in both, in the order of their names."""
    return tuple(Difference(name, *values) for name, values in differences(wanted, found).items())


def _lacking(these: str, those: str) -> tuple[str, ...]:
    there = set(those.split())
    return tuple(dict.fromkeys(word for word in these.split() if word not in there))
