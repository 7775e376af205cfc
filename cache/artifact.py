r"""The artifact: one file that holds one executable.

Layout, integers little-endian:

    8 bytes   magic b"WPXLA\x00\x00\x01" (the last byte is the format version)
    8 bytes   length of the header
    8 bytes   length of the payload
    header    JSON: key, ingredients, and what the payload is
    payload   the bytes PJRT serialised
    32 bytes  SHA-256 over everything before it

The digest covers the header too: nothing in the file can be changed without notice. Reading is pure, no byte of the
payload reaches XLA from here.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping

import msgspec

from cache.errors import Damaged, Foreign
from cache.ingredients import differences

MAGIC = b"WPXLA\x00\x00\x01"
_LENGTHS = struct.Struct("<8sQQ")
_DIGEST_BYTES = 32
HEADER_BYTES_MAX = 1 << 20


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an artifact says of itself: its key, and every named ingredient that the key was made of."""

    key: str
    ingredients: dict[str, str]


def pack(header: Header, payload: bytes) -> bytes:
    """The bytes of an artifact."""
    encoded = msgspec.json.encode(header, order="deterministic")
    body = b"".join((_LENGTHS.pack(MAGIC, len(encoded), len(payload)), encoded, payload))
    return body + hashlib.sha256(body).digest()


def unpack(data: bytes, *, key: str, ingredients: Mapping[str, str] | None = None) -> tuple[Header, memoryview]:
    """Header and payload of an artifact, verified.

    Args:
        data: the whole file.
        key: the key it was looked up by.
        ingredients: what the executable has to have been made of; None accepts those of the header.

    Raises:
        Damaged: the bytes are not those of a whole artifact.
        Foreign: it is whole, but of another key or made of other ingredients.
    """
    what = f"artifact {key[:16]}"
    if len(data) < _LENGTHS.size + _DIGEST_BYTES:
        raise Damaged(what, f"{len(data)} bytes are fewer than an artifact has")
    magic, header_bytes, payload_bytes = _LENGTHS.unpack_from(data)
    if magic[:-1] != MAGIC[:-1]:
        raise Damaged(what, "it does not begin with the magic of an artifact")
    if magic != MAGIC:
        raise Foreign(what, {"format": (str(MAGIC[-1]), str(magic[-1]))})
    if header_bytes > HEADER_BYTES_MAX or _LENGTHS.size + header_bytes + payload_bytes + _DIGEST_BYTES != len(data):
        raise Damaged(what, f"it is {len(data)} bytes long, its lengths say otherwise")
    view = memoryview(data)
    if hashlib.sha256(view[:-_DIGEST_BYTES]).digest() != view[-_DIGEST_BYTES:]:
        raise Damaged(what, "its digest does not match its content")
    try:
        header = msgspec.json.decode(view[_LENGTHS.size : _LENGTHS.size + header_bytes], type=Header)
    except msgspec.MsgspecError as error:
        raise Damaged(what, f"its header cannot be read: {error}") from error
    _check(what, header, key, ingredients)
    return header, view[_LENGTHS.size + header_bytes : -_DIGEST_BYTES]


def _check(what: str, header: Header, key: str, ingredients: Mapping[str, str] | None) -> None:
    if header.key != key:
        raise Foreign(what, {"key": (key, header.key)})
    if ingredients is not None and (differ := differences(ingredients, header.ingredients)):
        raise Foreign(what, differ)
