r"""The artifact: one file that holds one executable, or a program that executables are made of.

Layout, integers little-endian:

    8 bytes   magic b"WPXLA\x00\x00\x02" (the last byte is the format version)
    8 bytes   length of the header
    8 bytes   length of the payload
    header    JSON: what it is, its key and ingredients, and how an executable is called
    payload   the bytes PJRT serialised, or those of a program
    32 bytes  SHA-256 over everything before it
    32 bytes  id of the key that signed that digest, zeros if nobody did
    64 bytes  Ed25519 signature

Nothing in the file can be changed without notice: the digest covers the header too, the signature covers the digest.
Reading is pure: no byte of the payload reaches XLA from here, and nothing is ever unpickled. Format 1, which had no
signature and no calling convention, is still read.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping

import msgspec

from cache import layout
from cache.errors import Damaged, Foreign, Untrusted
from cache.ingredients import differences
from cache.records import decoded
from cache.signing import KEY_ID_BYTES, SIGNATURE_BYTES, Signature, Signer, Trust

MAGIC = b"WPXLA\x00\x00\x02"
HEADER_BYTES_MAX = 1 << 20
_LENGTHS = struct.Struct("<8sQQ")
_DIGEST_BYTES = 32
_TRAILER_BYTES = {1: _DIGEST_BYTES, 2: _DIGEST_BYTES + KEY_ID_BYTES + SIGNATURE_BYTES}
_UNSIGNED = bytes(KEY_ID_BYTES + SIGNATURE_BYTES)
_NO_ROOM = "its format is 1, which has no room for a signature: publish it again"

Kind = layout.Kind


class TensorType(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """dtype (numpy's name) and shape of one argument or result."""

    dtype: str
    shape: tuple[int, ...]


class Calling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an executable is called.

    Attributes:
        arguments: Of the program, in order.
        results: In order.
        kept: Indices of the arguments that the executable takes; the compiler may drop unused ones.
        donated: Indices of the arguments whose memory the results may take over.
        devices: How many devices it runs on; more than one: it is sharded over them.
    """

    arguments: tuple[TensorType, ...]
    results: tuple[TensorType, ...]
    kept: tuple[int, ...]
    donated: tuple[int, ...] = ()
    devices: int = 1


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an artifact says of itself: its key, and every named ingredient that the key was made of."""

    key: str
    ingredients: dict[str, str]
    kind: Kind = "executable"
    calling: Calling | None = None


def pack(header: Header, payload: bytes, signer: Signer | None = None) -> bytes:
    """The bytes of an artifact. Raises ValueError for a header that no reader would take."""
    encoded = msgspec.json.encode(header, order="deterministic")
    if len(encoded) > HEADER_BYTES_MAX:
        raise ValueError(f"the header has {len(encoded)} bytes, at most {HEADER_BYTES_MAX} are allowed")
    body = b"".join((_LENGTHS.pack(MAGIC, len(encoded), len(payload)), encoded, payload))
    return body + _trailer(hashlib.sha256(body).digest(), signer)


def sign(what: str, data: bytes, signer: Signer) -> bytes:
    """The same artifact, signed by another key.

    Raises:
        Damaged: it is not whole, or of format 1.
        Foreign: it is of a format that this release does not know.
    """
    version, _, _ = _layout(what, data)
    if version == 1:
        raise Damaged(what, _NO_ROOM)
    body_bytes = len(data) - _TRAILER_BYTES[version]
    return data[:body_bytes] + _trailer(_checked_digest(what, data, body_bytes), signer)


def verify(what: str, data: bytes, trust: Trust) -> str | None:
    """Check that an artifact is whole and trusted; the id of the key it names as its signer, None if it is not signed.

    Raises:
        Damaged: the bytes are not those of a whole artifact.
        Untrusted: it is whole, but nobody who is trusted has signed it.
        Foreign: it is of a format that this release does not know.
    """
    version, _, _ = _layout(what, data)
    signature = _check(what, data, version, trust)
    return signature.signed_by if signature else None


def unpack(
    data: bytes,
    *,
    key: str,
    trust: Trust,
    kind: Kind | None = None,
    ingredients: Mapping[str, str] | None = None,
) -> tuple[Header, memoryview]:
    """Header and payload of an artifact, verified.

    Args:
        data: the whole file.
        key: the key it was looked up by.
        trust: whose signature it has to bear.
        kind: what it has to be; None accepts anything. Format 1 does not say what it is.
        ingredients: what the executable has to have been made of; None accepts those of the header.

    Raises:
        Damaged: the bytes are not those of a whole artifact.
        Untrusted: it is whole, but nobody who is trusted has signed it.
        Foreign: it is whole, but of another key or made of other ingredients; or of a format that is not known.
    """
    what = f"artifact {key[:16]}"
    version, header_bytes, _ = _layout(what, data)
    _check(what, data, version, trust)
    view = memoryview(data)
    header = _header(what, view[_LENGTHS.size : _LENGTHS.size + header_bytes])
    if header.key != key:
        raise Foreign(what, {"key": (key, header.key)})
    if kind is not None and version > 1 and header.kind != kind:
        raise Foreign(what, {"kind": (kind, header.kind)})
    if ingredients is not None and (differ := differences(ingredients, header.ingredients)):
        raise Foreign(what, differ)
    return header, view[_LENGTHS.size + header_bytes : -_TRAILER_BYTES[version]]


def peek(what: str, start: bytes) -> Header:
    """The header at the start of an artifact, unverified: to list and compare, never to load by.

    Raises:
        Damaged: it is none, or not all of it is there (`HEADER_BYTES_MAX` and 24 bytes always suffice).
        Foreign: it is of a format that this release does not know.
    """
    _, header_bytes, _ = _lengths(what, start)
    if _LENGTHS.size + header_bytes > len(start):
        raise Damaged(what, f"{len(start)} bytes do not hold its header of {header_bytes}")
    return _header(what, memoryview(start)[_LENGTHS.size : _LENGTHS.size + header_bytes])


def _lengths(what: str, data: bytes) -> tuple[int, int, int]:
    """Format version, and the lengths of header and payload."""
    if len(data) < _LENGTHS.size:
        raise Damaged(what, f"{len(data)} bytes are fewer than an artifact has")
    magic, header_bytes, payload_bytes = _LENGTHS.unpack_from(data)
    if magic[:-1] != MAGIC[:-1]:
        raise Damaged(what, "it does not begin with the magic of an artifact")
    if magic[-1] not in _TRAILER_BYTES:
        raise Foreign(what, {"format": (str(MAGIC[-1]), str(magic[-1]))})
    if header_bytes > HEADER_BYTES_MAX:
        raise Damaged(what, f"its header has {header_bytes} bytes, at most {HEADER_BYTES_MAX} are allowed")
    return magic[-1], header_bytes, payload_bytes


def _layout(what: str, data: bytes) -> tuple[int, int, int]:
    """The same of a whole file, whose length agrees with them."""
    version, header_bytes, payload_bytes = _lengths(what, data)
    if _LENGTHS.size + header_bytes + payload_bytes + _TRAILER_BYTES[version] != len(data):
        raise Damaged(what, f"it is {len(data)} bytes long, its lengths say otherwise")
    return version, header_bytes, payload_bytes


def _check(what: str, data: bytes, version: int, trust: Trust) -> Signature | None:
    """The signature that it bears, once digest and signature are found to be right."""
    body_bytes = len(data) - _TRAILER_BYTES[version]
    digest = _checked_digest(what, data, body_bytes)
    if version == 1 and not trust.unsigned:
        raise Untrusted(what, _NO_ROOM)
    signature = _signature(data, body_bytes)
    trust.check(what, "artifact", digest, signature)
    return signature


def _checked_digest(what: str, data: bytes, body_bytes: int) -> bytes:
    digest = hashlib.sha256(memoryview(data)[:body_bytes]).digest()
    if digest != data[body_bytes : body_bytes + _DIGEST_BYTES]:
        raise Damaged(what, "its digest does not match its content")
    return digest


def _header(what: str, encoded: memoryview) -> Header:
    try:
        return decoded(encoded, Header)
    except msgspec.MsgspecError as error:
        raise Damaged(what, f"its header cannot be read: {error}") from error


def _signature(data: bytes, body_bytes: int) -> Signature | None:
    trailer = data[body_bytes + _DIGEST_BYTES :]
    if trailer in {b"", _UNSIGNED}:
        return None
    return Signature(signed_by=trailer[:KEY_ID_BYTES].hex(), signature=trailer[KEY_ID_BYTES:].hex())


def _trailer(digest: bytes, signer: Signer | None) -> bytes:
    if signer is None:
        return digest + _UNSIGNED
    signature = signer.sign("artifact", digest)
    return digest + bytes.fromhex(signature.signed_by) + bytes.fromhex(signature.signature)
