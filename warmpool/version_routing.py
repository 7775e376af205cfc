"""Which version of a model gets a request: decisions over values, with a count in the place of chance.

1. A caller that names a version gets it.
2. While there is a canary, who sends a key (and the rollout asks for that) is kept to one version by it: a hash puts
   each key somewhere in [0, 1), and those below the share get the canary. A larger share takes callers along and sends
   none back; another canary has other callers first.
3. All others are counted, and a request gets the canary if its count, times the golden ratio, has a fraction below the
   share. That has no period with which traffic could keep step: of callers that alternate, each gets its part of the
   share. And it holds closely: of any N in a row the canary gets N times the share, give or take 3 + 3.6 ln N at most
   (L. Kuipers and H. Niederreiter, "Uniform Distribution of Sequences", 1974, chapter 2, theorem 3.4), and less than 4
   for N up to 300, as far as was tried. The product is taken modulo 2^64, as in D. Knuth's multiplicative hashing ("The
   Art of Computer Programming", volume 3, section 6.4).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from warmpool.errors import BadInput, NotFound
from warmpool.manifest import Serving

VERSION_HEADER = "warmpool-version"
STICKY_HEADER = "warmpool-sticky-key"
STICKY_PARAMETER = "sticky_key"
KEY_CHARACTERS_MAX = 256
VERSION_CHARACTERS_MAX = 256
GOLDEN = 0x9E3779B97F4A7C15  # the fraction of the golden ratio, times 2^64; odd


@dataclass(frozen=True, slots=True)
class Wish:
    """What a caller says of versions: the one it wants, and the key that keeps it to one; "" for nothing said."""

    version: str = ""
    sticky_key: str = ""

    @classmethod
    def of(cls, version: str, header: str, key: str) -> Wish:
        """What a path (or a message's own field) and two headers say.

        Raises:
            BadInput: Path and header name different versions, or one of them is too long.
        """
        if version and header and version != header:
            raise BadInput.about(VERSION_HEADER, header, f"{version[:64]}, which the path names, or none")
        return cls(_bounded(VERSION_HEADER, version or header, VERSION_CHARACTERS_MAX)).with_key(STICKY_HEADER, key)

    def with_key(self, field: str, key: object) -> Wish:
        """This and the key that stands in a field, if one does; the first one counts. Raises BadInput."""
        if key is None or self.sticky_key:
            return self
        return Wish(self.version, _bounded(field, key, KEY_CHARACTERS_MAX))

    def with_parameters(self, parameters: Mapping[str, object]) -> Wish:
        """This and the key among a request's parameters. Raises BadInput."""
        return self.with_key(f"parameters.{STICKY_PARAMETER}", parameters.get(STICKY_PARAMETER))


NOTHING_WISHED = Wish()


class Routing:
    """Of one model.

    Args:
        current: The version that is stable here, which may be another than the store's while that one is loaded.

    Attributes:
        serving: What the store says, as far as it holds here; `stable` is the current version.
    """

    def __init__(self, current: str) -> None:
        self.serving = Serving(stable=current)
        self._counted = 0

    def follow(self, serving: Serving) -> None:
        """From now on this holds. The count begins anew where canary or share are others."""
        if (serving.canary, serving.share) != (self.serving.canary, self.serving.share):
            self._counted = 0
        self.serving = serving

    def choose(self, wish: Wish, warm: Collection[str]) -> str:
        """The version that gets a request.

        Args:
            wish: What its caller says.
            warm: The versions that are fully warm. The current one is waited for if it is not; no other gets anything.

        Raises:
            NotFound: The version that is wanted is not among them.
        """
        serving = self.serving
        if wish.version:
            if wish.version != serving.stable and wish.version not in warm:
                served = ", ".join(dict.fromkeys((serving.stable, *sorted(warm))))
                raise NotFound(f"version {wish.version[:64]!r} is not served; served: {served}")
            return wish.version
        if not serving.canary or not serving.share or serving.canary not in warm:
            return serving.stable
        if serving.sticky and wish.sticky_key:
            chosen = position(serving.canary, wish.sticky_key) < serving.share
        else:
            self._counted += 1
            chosen = place_of_turn(self._counted) < serving.share
        return serving.canary if chosen else serving.stable


def position(canary: str, key: str) -> float:
    """Where in [0, 1) a key lies for a canary: the same on every instance, and evenly spread over all keys."""
    digest = hashlib.blake2b(f"{canary}\n{key}".encode(errors="surrogatepass"), digest_size=8).digest()
    return _fraction(int.from_bytes(digest, "big"))


def place_of_turn(count: int) -> float:
    """Where in [0, 1) the request of a count lies: those in a row are spread evenly, without a period."""
    return _fraction(count * GOLDEN % 2**64)


def _fraction(number: int) -> float:
    """Of 2^64, exactly enough that it stays below 1."""
    return (number >> 11) / 2.0**53


def _bounded(field: str, text: object, characters_max: int) -> str:
    if not isinstance(text, str) or len(text) > characters_max:
        raise BadInput.about(field, text, f"text of at most {characters_max} characters")
    return text
