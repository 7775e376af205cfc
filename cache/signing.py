"""Who made what is stored: Ed25519 signatures, and which keys are trusted.

A signature is over the domain of what is signed and the SHA-256 of its exact bytes. A key is known by the SHA-256 of
its raw public half. Trust is configuration: public keys, given by whoever runs an instance; nothing in a store can add
one. Keys of people who publish and keys of a fleet's own workers are ordinary keys: each can be distrusted alone.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from cache.errors import Discredited, Strange, Untrusted

if TYPE_CHECKING:  # 11 ms of import, which only a process that meets a signature pays
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

log = logging.getLogger(__name__)

KEY_ID_BYTES = 32
KEY_ID_FORM = f"{2 * KEY_ID_BYTES} hex digits"
SIGNATURE_BYTES = 64
_PEM = re.compile(rb"-----BEGIN [^\n]*-----.*?-----END [^\n]*-----", re.DOTALL)
# A key as tools write it: what RFC 8410 has before its 32 bytes is 16 characters. Other forms take 5 ms of import.
_ED25519_PEM = re.compile(
    rb"-----BEGIN PUBLIC KEY-----\r?\nMCowBQYDK2VwAyEA([A-Za-z0-9+/]{43}=)\r?\n-----END PUBLIC KEY-----"
)
SHOWN_DIGITS = 16  # of a key's id, where a person reads it


class KeyFileError(ValueError):
    """A key file cannot be used; the message names it and says what it should hold."""


class Signature(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who signed (64 hex digits) and the signature (128 hex digits)."""

    signed_by: str
    signature: str


class Signer:
    """A private key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = key.public_key().public_bytes_raw()
        self.key_id = key_id_of(self.public)

    @classmethod
    def generate(cls) -> Signer:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def read(cls, path: Path) -> Signer:
        """The key of a PEM file (PKCS 8); warns if every user of the machine may read it. Raises KeyFileError."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        key = _parsed(path, lambda pem: load_pem_private_key(pem, password=None), "private")
        if not isinstance(key, Ed25519PrivateKey):
            raise KeyFileError(f"private key {path}: it is no Ed25519 key; make one with `warmpool cache keygen`")
        with suppress(OSError):
            if (mode := path.stat().st_mode) & 0o007:
                log.warning("private key %s: every user may use it (its mode is %o); chmod 600 it", path, mode & 0o777)
        return cls(key)

    def write(self, path: Path) -> Path:
        """Write the private key to a new file that only its owner reads, and the public one beside it, as path.pub.

        Raises:
            KeyFileError: One of the two exists, or cannot be written; neither is left behind then.
        """
        from cryptography.hazmat.primitives import serialization as forms

        pem = self._key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption())
        public = self._key.public_key().public_bytes(forms.Encoding.PEM, forms.PublicFormat.SubjectPublicKeyInfo)
        beside = path.with_name(f"{path.name}.pub")
        with ExitStack() as undo:
            for file, content, mode in ((path, pem, 0o600), (beside, public, 0o644)):
                try:
                    file.parent.mkdir(parents=True, exist_ok=True)
                    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
                    undo.callback(file.unlink)
                    with os.fdopen(descriptor, "wb") as stream:
                        stream.write(content)
                except OSError as error:
                    raise KeyFileError(f"key file {file}: it cannot be written ({error.strerror})") from error
            undo.pop_all()
        return beside

    def sign(self, domain: str, digest: bytes) -> Signature:
        """Sign what has this SHA-256."""
        return Signature(signed_by=self.key_id, signature=self._key.sign(_message(domain, digest)).hex())


@dataclass(frozen=True, slots=True)
class Trust:
    """Whose signatures count.

    Attributes:
        keys: Raw public keys by their ids.
        unsigned: Whether what nobody here trusts has signed is taken all the same.
        distrusted: Ids of keys whose signatures never count, not even where unsigned things do.
    """

    keys: Mapping[str, bytes] = field(default_factory=dict)
    unsigned: bool = False
    distrusted: frozenset[str] = frozenset()

    @classmethod
    def of(cls, public_keys: Iterable[bytes], *, unsigned: bool = False, distrusted: Iterable[str] = ()) -> Trust:
        return cls({key_id_of(key): key for key in public_keys}, unsigned, frozenset(distrusted))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Trust:
        """What `to_json` gave; how a lane is told."""
        keys = (bytes.fromhex(key) for key in value["keys"])
        return cls.of(keys, unsigned=value["unsigned"], distrusted=value["distrusted"])

    def to_json(self) -> dict[str, Any]:
        return {
            "keys": [key.hex() for key in self.keys.values()],
            "unsigned": self.unsigned,
            "distrusted": sorted(self.distrusted),
        }

    def check(self, what: str, domain: str, digest: bytes, signature: Signature | None) -> None:
        """Raise Untrusted unless a trusted key signed what has this SHA-256, or unsigned things are taken.

        Raises:
            Discredited: The key is distrusted, or the signature is not its: that is so for every reader.
        """
        if signature is None:
            if not self.unsigned:
                raise Untrusted(what, "it is not signed")
            return
        shown = signature.signed_by[:SHOWN_DIGITS]
        if signature.signed_by in self.distrusted:
            raise Discredited(what, f"it is signed by the key {shown}, which is distrusted")
        public = self.keys.get(signature.signed_by)
        if public is None:
            if not self.unsigned:
                raise Strange(what, f"it is signed by the key {shown}, which is not trusted here")
            return
        if not _verifies(public, signature.signature, _message(domain, digest)):
            raise Discredited(what, f"its signature is not that of the key {shown}")


ANYONE = Trust(unsigned=True)
"""For bytes of our own making that are not signed yet, and where unsigned stores were asked for by name."""


def is_key_id(text: str) -> bool:
    """Whether a text has the form of a key's id."""
    return re.fullmatch(rf"[0-9a-f]{{{2 * KEY_ID_BYTES}}}", text) is not None


def key_id_of(public: bytes) -> str:
    """64 hex digits that stand for a raw public key."""
    return hashlib.sha256(public).hexdigest()


def read_public_keys(places: Iterable[Path]) -> list[bytes]:
    """All raw public keys that are in PEM files, and in every `*.pub` of a folder. Raises KeyFileError."""
    keys = []
    for place in places:
        for file in _key_files(place):
            for key in _parsed(file, lambda pem: [*map(_public_key, _PEM.findall(pem) or [pem])], "public"):
                if key is None:
                    raise KeyFileError(
                        f"public key {file}: it is no Ed25519 key; make one with `warmpool cache keygen`"
                    )
                keys.append(key)
    return keys


def _public_key(pem: bytes) -> bytes | None:
    """The raw Ed25519 key of a PEM block, None if it is a key of another kind. Raises ValueError where it is none."""
    if plain := _ED25519_PEM.fullmatch(pem):
        return base64.b64decode(plain[1])
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    key = load_pem_public_key(pem)
    return key.public_bytes_raw() if isinstance(key, Ed25519PublicKey) else None


def _key_files(place: Path) -> list[Path]:
    if not os.path.isdir(place):  # noqa: PTH112  # before Python 3.14 pathlib raises where this says no
        return [place]
    if not (files := sorted(place.glob("*.pub"))):
        raise KeyFileError(f"public keys: the folder {place} holds no *.pub file")
    return files


def _parsed[R](path: Path, parse: Callable[[bytes], R], half: str) -> R:
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        if path.is_fifo() and half == "public":  # whose other end nobody may ever open
            raise OSError(errno.EINVAL, "it is a pipe")  # noqa: TRY301
        return parse(path.read_bytes())
    except OSError as error:
        raise KeyFileError(f"{half} key {path}: it cannot be read ({error.strerror})") from error
    except UnsupportedAlgorithm as error:
        raise KeyFileError(f"{half} key {path}: it is no Ed25519 key; make one with `warmpool cache keygen`") from error
    except TypeError as error:
        raise KeyFileError(f"{half} key {path}: it is encrypted; give it as a PEM file without a password") from error
    except ValueError as error:
        raise KeyFileError(f"{half} key {path}: it is no PEM file of a {half} key") from error


def _message(domain: str, digest: bytes) -> bytes:
    return b"warmpool %b\x00%b" % (domain.encode(), digest)


def _verifies(public: bytes, signature: str, message: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(bytes.fromhex(signature), message)
    except (InvalidSignature, ValueError):
        return False
    return True
