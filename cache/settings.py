"""What may be set about a store. Nothing else is imported here, so that a start can read its settings first."""

from __future__ import annotations

from dataclasses import dataclass

URIS = "a folder's path, file:///folder or gs://bucket/folder"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """Every setting can be given as a flag or as WARMPOOL_<NAME> in the environment; the flag wins."""

    store: str
    """URI of the store."""
    trusted_keys: str = ""
    """Public keys whose signatures count: PEM files, and folders of *.pub files, separated by commas."""
    distrusted_keys: str = ""
    """Ids of keys whose signatures never count, separated by commas."""
    allow_unsigned: bool = False
    """Take what nobody trusted has signed, too. Whoever can write to the store can then run code here."""
    signing_key: str = ""
    """Private key (PEM file) that signs what is stored; its public half is trusted."""
    encryption_key: str = ""
    """Key that weights, executables and programs are encrypted with: a file with 32 bytes, or
    gcp-kms://projects/P/locations/L/keyRings/R/cryptoKeys/K. More, separated by commas, only decrypt."""
    audit_log: str = ""
    """File that says, a line of JSON each, what was published, promoted, loaded and refused; "-" standard output."""
    cache_folder: str = ""
    """Folder of this machine for copies of what a bucket holds, which who serves reads; empty: ~/.cache/warmpool, or as
    XDG_CACHE_HOME says."""
    cache_bytes_max: int = 32 << 30
    """Size of the copies; what was not used for the longest goes. 0: no copies."""

    def __post_init__(self) -> None:
        """Raise ValueError for a value that is not allowed."""
        if not 0 <= self.cache_bytes_max < 1 << 63:
            raise ValueError(f"cache_bytes_max is {self.cache_bytes_max}, allowed: 0 for no copies, or a size in bytes")
