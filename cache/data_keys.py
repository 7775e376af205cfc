"""The keys behind encryption: who wraps data keys, and which data key to use.

A data key is made once a process and used for everything that it stores (`cache.encryption` says why that is safe). It
lies beside the content, wrapped by a key that never lies in the store: 32 bytes in a file, or a key of Cloud KMS, which
never leaves it. Data keys that were unwrapped once are remembered, so that a start asks KMS once for every publish
whose objects it reads, not once for every object.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cache.encryption import SECRET_BYTES, DataKey
from cache.errors import Damaged, StoreUnavailable, Unreadable
from cache.signing import KeyFileError

if TYPE_CHECKING:
    from google.cloud.kms_v1 import KeyManagementServiceClient

KMS_SCHEME = "gcp-kms://"
ALLOWED = f"a file with 32 bytes, or {KMS_SCHEME}projects/P/locations/L/keyRings/R/cryptoKeys/K"

_KMS_KEY = re.compile(r"projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+")
_KMS_PURPOSE = b"warmpool data key"  # what it wraps for others does not count here
_KMS_S_MAX = 10.0
_REMEMBERED_MAX = 1024


class WrappingKey(Protocol):
    """A key that wraps data keys; `name` says which, and is stored with what it wrapped."""

    name: str

    def wrap(self, secret: bytes) -> bytes:
        """The wrapped data key. Raises StoreUnavailable."""

    def unwrap(self, wrapped: bytes) -> bytes:
        """The data key. Raises Damaged: this key did not wrap it; StoreUnavailable: whether it did cannot be asked."""


class FileKey:
    """A key of 32 bytes. It wraps with AES-KW (RFC 3394), which needs no nonce."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.name = "file:" + hashlib.sha256(b"warmpool encryption key\x00" + secret).hexdigest()[:16]

    def __repr__(self) -> str:
        return f"FileKey({self.name!r})"

    @classmethod
    def read(cls, path: Path) -> FileKey:
        """The key of a file that holds 32 bytes, as they are or in base64. Raises KeyFileError."""
        try:
            content = path.read_bytes()
        except OSError as error:
            raise KeyFileError(f"encryption_key {path}: it cannot be read ({error.strerror})") from error
        if len(content) != SECRET_BYTES:
            try:
                content = base64.b64decode(content.strip(), validate=True)
            except binascii.Error:
                content = b""
        if len(content) != SECRET_BYTES:
            how = "make one with `warmpool cache keygen --encryption`"
            raise KeyFileError(f"encryption_key {path}: it does not hold {SECRET_BYTES} bytes, raw or in base64; {how}")
        return cls(content)

    @classmethod
    def write(cls, path: Path) -> FileKey:
        """A new key, written in base64 to a new file that only its owner reads. Raises KeyFileError."""
        secret = os.urandom(SECRET_BYTES)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(base64.b64encode(secret) + b"\n")
        except OSError as error:
            raise KeyFileError(f"encryption key {path}: it cannot be written ({error.strerror})") from error
        return cls(secret)

    def wrap(self, secret: bytes) -> bytes:
        from cryptography.hazmat.primitives.keywrap import aes_key_wrap

        return aes_key_wrap(self._secret, secret)

    def unwrap(self, wrapped: bytes) -> bytes:
        from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap

        try:
            return aes_key_unwrap(self._secret, wrapped)
        except InvalidUnwrap:
            raise Damaged("a data key", f"its data key was not wrapped by the key {self.name}") from None


class KmsKey:
    """A key of Cloud KMS: its service wraps and unwraps, and sees data keys only.

    Args:
        key: projects/P/locations/L/keyRings/R/cryptoKeys/K
        client: Made when it is first needed, with the credentials of the environment, if none is given.
        wait_s_max: How long one question may take, tries and all.
    """

    def __init__(
        self, key: str, client: KeyManagementServiceClient | None = None, wait_s_max: float = _KMS_S_MAX
    ) -> None:
        if not _KMS_KEY.fullmatch(key):
            raise ValueError(f"encryption_key {KMS_SCHEME + key!r}: allowed is {ALLOWED}")
        self.name = KMS_SCHEME + key
        self._key = key
        self._client = client
        self._wait_s_max = wait_s_max

    def __repr__(self) -> str:
        return f"KmsKey({self._key!r})"

    def wrap(self, secret: bytes) -> bytes:
        response = self._asked("encrypt", "plaintext", secret)
        verified = response.verified_plaintext_crc32c and response.verified_additional_authenticated_data_crc32c
        if not verified or _crc32c(response.ciphertext) != response.ciphertext_crc32c:
            raise self._unavailable("the data key or its wrapped form was changed on the way")
        return bytes(response.ciphertext)

    def unwrap(self, wrapped: bytes) -> bytes:
        response = self._asked("decrypt", "ciphertext", wrapped)
        if _crc32c(response.plaintext) != response.plaintext_crc32c:
            raise self._unavailable("the data key was changed on the way")
        return bytes(response.plaintext)

    def _asked(self, method: str, field: str, value: bytes) -> Any:
        """The answer to `encrypt` or `decrypt`, asked again for as long as the service is not there."""
        from google.api_core.exceptions import GoogleAPIError, InvalidArgument, ServiceUnavailable
        from google.api_core.retry import Retry, if_exception_type
        from google.auth.exceptions import GoogleAuthError

        request = {
            "name": self._key,
            field: value,
            f"{field}_crc32c": _crc32c(value),
            "additional_authenticated_data": _KMS_PURPOSE,
            "additional_authenticated_data_crc32c": _crc32c(_KMS_PURPOSE),
        }
        retry = Retry(predicate=if_exception_type(ServiceUnavailable), initial=0.1, timeout=self._wait_s_max)
        try:
            if self._client is None:
                self._client = _kms_client()
            return getattr(self._client, method)(request=request, retry=retry, timeout=self._wait_s_max)
        except InvalidArgument as error:
            if method == "encrypt":
                raise self._unavailable(error.message) from error
            raise Damaged("a data key", "its data key was not wrapped by the key of Cloud KMS that is given") from error
        except (GoogleAPIError, GoogleAuthError) as error:
            raise self._unavailable(str(getattr(error, "message", "") or error)) from error

    def _unavailable(self, reason: str) -> StoreUnavailable:
        return StoreUnavailable(f"encryption_key {self.name}: {reason}")


class DataKeys:
    """The data keys of a store.

    Args:
        wrapping: The keys that may have wrapped them; the first wraps new ones, the others only unwrap.
    """

    def __init__(self, wrapping: Sequence[WrappingKey]) -> None:
        self._wrapping = {key.name: key for key in reversed(wrapping)}
        self._first = wrapping[0]
        self._current: DataKey | None = None
        self._secrets: dict[tuple[str, bytes], bytes] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"DataKeys({list(self._wrapping.values())!r})"

    @property
    def first(self) -> str:
        """The name of the key that wraps new ones."""
        return self._first.name

    def current(self) -> DataKey:
        """The key for what is stored by this process. Raises StoreUnavailable."""
        with self._lock:
            if self._current is None:
                secret = os.urandom(SECRET_BYTES)
                self._current = DataKey(self._first.name, self._first.wrap(secret), secret)
                self._secrets[self._current.name, self._current.wrapped] = secret
            return self._current

    def secret(self, name: str, wrapped: bytes) -> bytes:
        """The data key that a named key wrapped.

        Raises:
            Damaged: It did not wrap that.
            Unreadable: No key of that name is given here, which is no fault of what it wrapped.
            StoreUnavailable: It cannot be asked.
        """
        key = self._wrapping.get(name)
        if key is None:
            known = ", ".join(sorted(self._wrapping))
            reason = f"its data key is wrapped by {name!r}, encryption_key gives {known}"
            raise Unreadable(reason, told="it is encrypted with a key that is not given here")
        with self._lock:  # a start reads many objects of one publish at once: one of them asks
            secret = self._secrets.get((name, wrapped))
            if secret is None:
                secret = key.unwrap(wrapped)
                if len(secret) != SECRET_BYTES:
                    raise Damaged("a data key", f"its data key has {len(secret)} bytes instead of {SECRET_BYTES}")
                if len(self._secrets) >= _REMEMBERED_MAX:
                    del self._secrets[next(iter(self._secrets))]
                self._secrets[name, wrapped] = secret
            return secret


def read_keys(setting: str) -> DataKeys | None:
    """The keys that the setting `encryption_key` names, separated by commas; None for none. Raises ValueError."""
    names = [name.strip() for name in setting.split(",") if name.strip()]
    keys = [
        KmsKey(name.removeprefix(KMS_SCHEME)) if name.startswith(KMS_SCHEME) else FileKey.read(Path(name))
        for name in names
    ]
    return DataKeys(keys) if keys else None


def _kms_client() -> KeyManagementServiceClient:
    try:
        from google.cloud.kms_v1 import KeyManagementServiceClient
    except ImportError as error:
        raise StoreUnavailable("encryption_key names a key of Cloud KMS: install xla-warmpool[kms]") from error
    return KeyManagementServiceClient()


def _crc32c(data: bytes) -> int:
    import google_crc32c

    return int(google_crc32c.value(data))
