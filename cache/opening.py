"""From settings to an open store: where it lies, how it is encrypted, whom it trusts, who signs."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from cache.audit import Audit, acting
from cache.data_keys import read_keys
from cache.encrypted_store import EncryptedStore
from cache.local_store import LocalStore
from cache.settings import URIS, StoreSettings
from cache.signed_store import SignedStore
from cache.signing import KEY_ID_BYTES, Signer, Trust, read_public_keys
from cache.store import Store

log = logging.getLogger(__name__)

_KEY_ID = re.compile(rf"[0-9a-f]{{{2 * KEY_ID_BYTES}}}")


def open_store(settings: StoreSettings) -> SignedStore:
    """The store of some settings.

    Raises:
        ValueError: A setting has a value that is not allowed; the message names it.
    """
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
    stored = raw_store(settings.store)
    encrypted = EncryptedStore(stored, read_keys(settings.encryption_key))
    return SignedStore(encrypted, trust, signer, stored, audit=audit)


def raw_store(uri: str) -> Store:
    """The store of a URI, bare: nothing is signed or checked."""
    parts = urlsplit(uri)
    if parts.scheme == "file":
        if parts.netloc or not parts.path.startswith("/"):
            raise ValueError(f"store {uri!r}: a file URI has three slashes and an absolute path, as file:///folder")
        return LocalStore(Path(unquote(parts.path)))
    if parts.scheme and "://" in uri:
        raise ValueError(f"store {uri!r}: the scheme {parts.scheme!r} is not known; use {URIS}")
    if not uri:
        raise ValueError(f"store: it is empty; give {URIS}")
    return LocalStore(Path(uri))


def _ids(listed: str) -> list[str]:
    ids = [one.strip() for one in listed.split(",") if one.strip()]
    for one in ids:
        if not _KEY_ID.fullmatch(one):
            raise ValueError(f"distrusted_keys has {one!r}: the id of a key is {2 * KEY_ID_BYTES} hex digits")
    return ids
