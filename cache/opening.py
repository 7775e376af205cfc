"""From settings to an open store: where it lies, how it is encrypted, whom it trusts, who signs."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from cache.audit import Audit, acting
from cache.data_keys import read_keys
from cache.encrypted_store import EncryptedStore
from cache.local_store import LocalStore
from cache.settings import URIS, StoreSettings
from cache.signed_store import SignedStore
from cache.signing import KEY_ID_FORM, Signer, Trust, is_key_id, read_public_keys
from cache.store import Store, is_path

log = logging.getLogger(__name__)

_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")


def open_store(settings: StoreSettings, *, read_through: bool = False) -> SignedStore:
    """The store of some settings.

    Args:
        settings: See there.
        read_through: Whether what does not change is read from local copies where the store is a bucket. For who
            serves; who decides by what is there, or looks whether it is sound, has to see the store itself.

    Returns:
        The store, which trusts no key that it says itself is distrusted.

    Raises:
        ValueError: A setting has a value that is not allowed; the message names it.
        StoreUnavailable: Which keys are distrusted cannot be read.
    """
    stored = raw_store(settings.store)
    signer = Signer.read(Path(settings.signing_key)) if settings.signing_key else None
    keys = read_public_keys(Path(place.strip()) for place in settings.trusted_keys.split(",") if place.strip())
    if signer:
        keys.append(signer.public)
    if settings.allow_unsigned:
        log.warning("UNSIGNED content of the store is accepted: whoever can write to it can run code in this process")
    elif not keys:
        raise ValueError(
            "trusted_keys is not set: give the public keys of those who publish (--trusted-keys), or a signing key, "
            "or --allow-unsigned to take what nobody signed"
        )
    trust = Trust.of(keys, unsigned=settings.allow_unsigned, distrusted=_ids(settings.distrusted_keys))
    audit = Audit(settings.audit_log, acting(os.environ))
    nearer = _read_through(stored, settings) if read_through and settings.cache_bytes_max else stored
    encrypted = EncryptedStore(nearer, read_keys(settings.encryption_key))
    store = SignedStore(encrypted, trust, signer, stored, audit=audit)
    store.refresh_trust()
    return store


def raw_store(uri: str) -> Store:
    """The store of a URI, bare: nothing is signed or checked."""
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        raise ValueError(f"store {uri!r}: it cannot be read as a URI ({error}); use {URIS}") from None
    if parts.scheme == "file":
        if "?" in uri or "#" in uri:
            raise ValueError(f"store {uri!r}: a file URI has no query or fragment; write ? as %3F and # as %23")
        if parts.netloc or not parts.path.startswith("/"):
            raise ValueError(f"store {uri!r}: a file URI has three slashes and an absolute path, as file:///folder")
        return LocalStore(Path(unquote(parts.path)))
    if parts.scheme == "gs":
        return _bucket(uri, parts)
    if parts.scheme and "://" in uri:
        raise ValueError(f"store {uri!r}: the scheme {parts.scheme!r} is not known; use {URIS}")
    if not uri:
        raise ValueError(f"store: it is empty; give {URIS}")
    return LocalStore(Path(uri))


def _bucket(uri: str, parts: SplitResult) -> Store:
    """Only here the client is imported, which takes longer than all the rest."""
    folder = parts.path.strip("/")
    if not _BUCKET.fullmatch(parts.netloc) or (folder and not is_path(folder)) or parts.query or parts.fragment:
        raise ValueError(f"store {uri!r}: a bucket is gs://bucket or gs://bucket/folder, with names of letters, digits")
    try:
        from google.auth.exceptions import DefaultCredentialsError

        from cache.gcs_store import GcsStore
    except ImportError as error:
        raise ValueError(f"store {uri!r}: a bucket needs google-cloud-storage (the extra gcs): {error}") from None
    try:
        return GcsStore(parts.netloc, folder)
    except DefaultCredentialsError:
        raise ValueError(
            f"store {uri!r}: there are no credentials for Google Cloud here: set GOOGLE_APPLICATION_CREDENTIALS, or "
            "run `gcloud auth application-default login`"
        ) from None


def _read_through(stored: Store, settings: StoreSettings) -> Store:
    """A bucket with a folder of its own before it; any other store is near enough."""
    if isinstance(stored, LocalStore):
        return stored
    from cache.gcs_store import HASTY, GcsStore
    from cache.read_through import ReadThroughStore

    assert isinstance(stored, GcsStore), stored
    folder = Path(settings.cache_folder) if settings.cache_folder else _cache_folder()
    of_this_store = hashlib.sha256(settings.store.rstrip("/").encode()).hexdigest()[:16]
    hasty = stored.with_patience(HASTY)
    return ReadThroughStore(stored, folder.absolute() / of_this_store, settings.cache_bytes_max, hasty=hasty)


def _cache_folder() -> Path:
    """Where the XDG base directory specification says."""
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    try:
        parent = Path(chosen) if chosen.startswith("/") else Path.home() / ".cache"
    except RuntimeError:
        raise ValueError("cache_folder is not set, and this user has no home: give --cache-folder") from None
    return parent / "warmpool"


def _ids(listed: str) -> list[str]:
    ids = [one.strip() for one in listed.split(",") if one.strip()]
    for one in ids:
        if not is_key_id(one):
            raise ValueError(f"distrusted_keys has {one!r}: the id of a key is {KEY_ID_FORM}")
    return ids
