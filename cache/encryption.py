r"""The envelope: how an object is encrypted, so that whoever can read a store learns no weights and no programs.

Layout, integers little-endian:

    8 bytes   magic b"WPENC\x00\x00\x01" (the last byte is the format version)
    4 bytes   length of the header
    header    JSON: which key wrapped the data key, the wrapped data key, the salt of this object
    chunks    1 MiB of content each, the last one 0 to 1 MiB, every one followed by its tag of 16 bytes

A data key may serve any number of objects: the key that encrypts one object, and the prefix of its nonces, are derived
from the data key with HKDF-SHA256 and 32 random bytes of salt, so that two objects share a key with a probability of
about 2**-256 a pair. Within an object every chunk has a nonce of its own: the prefix of 7 bytes, the chunk's number in
4 (big-endian), and whether it is the last in 1. That is the STREAM construction (Hoang, Reyhanitabar, Rogaway, Vizár,
"Online Authenticated-Encryption and its Nonce-Reuse Misuse-Resistance", CRYPTO 2015) over AES-256-GCM: chunks can be
decrypted one after the other, and can be neither reordered, left out, repeated nor cut off without notice. The magic,
the header and the object's path are the associated data of every chunk, so none counts in another object or place.

What encryption hides is content. Paths, sizes and times stay visible, and so do documents, which hold no weights.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

import msgspec

from cache.errors import Damaged, Foreign, StoreUnavailable
from cache.records import decoded

MAGIC = b"WPENC\x00\x00\x01"
CHUNK_BYTES = 1 << 20
HEADER_BYTES_MAX = 4096
SECRET_BYTES = 32
CHUNKS_MAX = 1 << 32

_START = struct.Struct("<8sI")
_TAG_BYTES = 16
_SEALED_BYTES = CHUNK_BYTES + _TAG_BYTES
_PREFIX_BYTES = 7
_PURPOSE = b"warmpool object"


@dataclass(frozen=True, slots=True)
class DataKey:
    """A key that objects are encrypted with, and how it is kept beside them: wrapped by another key, which has a name.

    `secret` has 32 bytes, and is not shown.
    """

    name: str
    wrapped: bytes
    secret: bytes = field(repr=False)


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an envelope says of its keys: the name of the wrapping one, the wrapped one and the salt in hex."""

    key: str
    wrapped: str
    salt: str


def is_envelope(start: bytes) -> bool:
    """Whether an object that starts so is encrypted; 8 bytes suffice."""
    return start[: len(MAGIC) - 1] == MAGIC[:-1]


def encrypt(path: str, content: BinaryIO, key: DataKey) -> Iterator[bytes]:
    """The envelope of the object to store under a path, piece by piece, no more than two chunks of it in memory."""
    salt = os.urandom(SECRET_BYTES)
    header = Header(key=key.name, wrapped=key.wrapped.hex(), salt=salt.hex())
    encoded = msgspec.json.encode(header, order="deterministic")
    assert len(encoded) <= HEADER_BYTES_MAX, len(encoded)
    start = _START.pack(MAGIC, len(encoded)) + encoded
    chunks = _Chunks(key.secret, salt, start + path.encode())
    yield start
    chunk = content.read(CHUNK_BYTES)
    for number in range(CHUNKS_MAX):
        following = content.read(CHUNK_BYTES)
        yield chunks.sealed(number, chunk, last=not following)
        if not following:
            return
        chunk = following
    raise ValueError(f"{path!r} is larger than {CHUNKS_MAX} chunks of {CHUNK_BYTES} bytes")


def decrypt(
    path: str, envelope: BinaryIO, secret_of: Callable[[str, bytes], bytes], *, chunks_max: int = CHUNKS_MAX
) -> Iterator[bytes]:
    """The content of what is stored under a path, chunk by chunk, each one verified before it is given.

    Whoever reads on until the end has the whole object; `envelope` is read one chunk ahead.

    Args:
        path: Where it lies.
        envelope: Its bytes.
        secret_of: The data key that a named key wrapped.
        chunks_max: How many to decrypt at most.

    Raises:
        Damaged: A chunk is not what was encrypted for this place in this object under this path.
        Foreign: The envelope is of a format that this release does not know.
        Unreadable: The key that wrapped its data key is not given.
        StoreUnavailable: The data key cannot be had now.
    """
    from cryptography.exceptions import InvalidTag

    start, name, wrapped, salt = _read_header(path, envelope)
    try:
        secret = secret_of(name, wrapped)
    except Damaged as error:
        raise Damaged(repr(path), error.reason) from error
    except StoreUnavailable as error:
        raise type(error)(f"{path!r} cannot be decrypted: {error}", error.told) from error
    chunks = _Chunks(secret, salt, start + path.encode())
    sealed = envelope.read(_SEALED_BYTES)
    for number in range(chunks_max):
        following = envelope.read(_SEALED_BYTES)
        try:
            chunk = chunks.opened(number, sealed, last=not following)
        except InvalidTag:
            raise Damaged(repr(path), f"its encrypted chunk {number} is not what was stored there") from None
        yield chunk
        if not following:
            return
        sealed = following


def encrypted_bytes(path: str, content: bytes, key: DataKey) -> bytes:
    """The whole envelope."""
    return b"".join(encrypt(path, io.BytesIO(content), key))


def wrapped_by(path: str, stored: bytes) -> str:
    """The name of the key that the start of what is stored under a path names; "" if it is not encrypted.

    Raises:
        Damaged, Foreign: As `decrypt`.
    """
    return _read_header(path, io.BytesIO(stored))[1] if is_envelope(stored) else ""


def prefix_bytes_max(content_bytes: int) -> int:
    """How much of an envelope is needed to decrypt so many bytes of its content."""
    chunks = max(1, -(-content_bytes // CHUNK_BYTES))
    return _START.size + HEADER_BYTES_MAX + chunks * _SEALED_BYTES + 1  # one more shows that it goes on


class _Chunks:
    """Seals and opens the chunks of one object."""

    def __init__(self, secret: bytes, salt: bytes, associated: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        derived = HKDF(SHA256(), SECRET_BYTES + _PREFIX_BYTES, salt=salt, info=_PURPOSE).derive(secret)
        self._cipher = AESGCM(derived[:SECRET_BYTES])
        self._prefix = derived[SECRET_BYTES:]
        self._associated = associated

    def sealed(self, number: int, chunk: bytes, *, last: bool) -> bytes:
        return self._cipher.encrypt(self._nonce(number, last=last), chunk, self._associated)

    def opened(self, number: int, sealed: bytes, *, last: bool) -> bytes:
        return self._cipher.decrypt(self._nonce(number, last=last), sealed, self._associated)

    def _nonce(self, number: int, *, last: bool) -> bytes:
        return self._prefix + number.to_bytes(4, "big") + bytes([last])


def _read_header(path: str, envelope: BinaryIO) -> tuple[bytes, str, bytes, bytes]:
    """The envelope up to its first chunk; and out of it the wrapping key's name, the wrapped data key and the salt."""
    start = envelope.read(_START.size)
    if len(start) < _START.size or not is_envelope(start):
        raise Damaged(repr(path), "it does not begin as an encrypted object does")
    magic, header_bytes = _START.unpack(start)
    if magic != MAGIC:
        raise Foreign(repr(path), {"encryption format": (str(MAGIC[-1]), str(magic[-1]))})
    if header_bytes > HEADER_BYTES_MAX:
        raise Damaged(repr(path), f"its encryption header has {header_bytes} bytes, at most {HEADER_BYTES_MAX} may be")
    encoded = envelope.read(header_bytes)
    try:
        header = decoded(encoded, Header)
        return start + encoded, header.key, bytes.fromhex(header.wrapped), bytes.fromhex(header.salt)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Damaged(repr(path), f"its encryption header cannot be read: {error}") from error
