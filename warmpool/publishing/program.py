"""A program: exported StableHLO, and an identity that only its meaning changes.

The serialised bytes of one function differ between source lines, paths and processes. So a program is known by its text
without locations, and by what it takes and returns; moving code around then compiles nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import jax.export

from cache.artifact import Header, pack, unpack
from cache.ingredients import digest_ingredients
from cache.signing import ANYONE

_LOCATION_LINE = re.compile(r"^#loc\d*\s*=.*\n?", re.MULTILINE)
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\s?\bloc\(|[()]')


@dataclass(frozen=True, slots=True)
class Program:
    """A portable program.

    Attributes:
        digest: 64 hex digits; the same wherever and whenever the same function is exported.
        platforms: What it was lowered for.
        stored: The bytes to store: an artifact that verifies itself.
    """

    digest: str
    platforms: tuple[str, ...]
    stored: bytes = field(repr=False)


def program_of(exported: jax.export.Exported) -> Program:
    """The program of a `jax.export.Exported`."""
    ingredients = {
        "inputs": "; ".join(map(str, exported.in_avals)),
        "outputs": "; ".join(map(str, exported.out_avals)),
        "platforms": " ".join(exported.platforms),
    }
    digest = digest_ingredients({**ingredients, "mlir": without_locations(exported.mlir_module())})
    header = Header(key=digest, ingredients=ingredients, kind="program")
    return Program(digest, exported.platforms, pack(header, bytes(exported.serialize())))


def read_program(stored: bytes, digest: str) -> jax.export.Exported:
    """The exported function of stored bytes.

    Raises:
        Damaged: They are not those of a program.
        Foreign: They are those of another one.
    """
    _, payload = unpack(stored, key=digest, kind="program", trust=ANYONE)  # what a store gave has been checked by it
    return jax.export.deserialize(bytearray(payload))


def without_locations(text: str) -> str:
    """MLIR text without the source locations in it: neither the table of them nor `loc(...)` after an operation."""
    return "".join(_outside_locations(_LOCATION_LINE.sub("", text)))


def _outside_locations(text: str) -> Iterator[str]:
    kept_from, depth = 0, 0
    for token in _TOKEN.finditer(text):
        word = token.group()
        if word.startswith('"'):
            continue  # parentheses and words inside of strings mean nothing
        if depth:
            depth += {"(": 1, ")": -1}.get(word, 1)
            if depth == 0:
                kept_from = token.end()
        elif word.endswith("loc("):
            yield text[kept_from : token.start()]
            depth = 1
    yield text[kept_from:]
