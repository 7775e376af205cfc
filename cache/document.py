"""Signed JSON documents: manifests and the like, which are read whole and by people too.

The document is followed by one line, `{"signed_by":"<64 hex>","signature":"<128 hex>"}`. The signature is over the path
as well, so that a whole document does not count in another's place. A document without that line is not signed.
"""

from __future__ import annotations

import hashlib

import msgspec

from cache.errors import Damaged
from cache.records import decoded
from cache.signing import Signature, Signer, Trust

_SEAL = b'{"signed_by":'


def seal(path: str, body: bytes, signer: Signer | None) -> bytes:
    """The bytes to store under a path.

    Raises:
        ValueError: The body is not lines of text, or its last line could be taken for a signature.
    """
    if body and not body.endswith(b"\n"):
        raise ValueError(f"document {path!r}: it has to end with a newline")
    if body.startswith(_SEAL, _last_line(body)):
        raise ValueError(f"document {path!r}: its last line begins like a signature, with {_SEAL.decode()}")
    if signer is None:
        return body
    return body + msgspec.json.encode(signer.sign("document", _digest(path, body))) + b"\n"


def unseal(path: str, data: bytes, trust: Trust) -> bytes:
    """The body of what was stored under a path.

    Raises:
        Damaged: The line of its signature cannot be read.
        Untrusted: Nobody who is trusted has signed it, for this path.
    """
    start = _last_line(data)
    if not data.startswith(_SEAL, start):
        trust.check(repr(path), "document", _digest(path, data), None)
        return data
    body = data[:start]
    try:
        signature = decoded(data[start:], Signature)
    except msgspec.MsgspecError as error:
        raise Damaged(repr(path), f"its signature cannot be read: {error}") from error
    trust.check(repr(path), "document", _digest(path, body), signature)
    return body


def signer_of(data: bytes) -> str | None:
    """The id of the key that a stored document names as its signer, unverified; None if it names none."""
    try:
        return decoded(data[_last_line(data) :], Signature).signed_by
    except msgspec.MsgspecError:
        return None


def _last_line(data: bytes) -> int:
    """Where it begins."""
    return data.rfind(b"\n", 0, -1) + 1


def _digest(path: str, body: bytes) -> bytes:
    hasher = hashlib.sha256(len(path.encode()).to_bytes(8, "little"))
    hasher.update(path.encode())
    hasher.update(body)
    return hasher.digest()
