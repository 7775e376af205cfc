"""A store whose content is signed on the way in, and checked on the way out.

Documents are sealed, artifacts carry their signature; weights are addressed by a digest that a signed manifest names.
What coordinates a fleet (leases and the like) is not signed: it makes no answer. Which is which, the table of
`cache.layout` says, and a path in none of its folders is refused with a ValueError.
A lane reads artifacts by itself, from `local_path`, and checks them with the same trust.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from cache import artifact
from cache.audit import Audit
from cache.document import seal, unseal
from cache.errors import Damaged, Foreign, NotStored, Strange, Untrusted
from cache.ingredients import differences
from cache.layout import FOLDERS, Folder, folder_of
from cache.signing import SHOWN_DIGITS, Signer, Trust, is_key_id
from cache.store import Entry, Store

_UNSIGNED = ("blob", "coordination")
DISTRUSTED = "distrusted"  # folder of the ids of keys that no instance of the fleet trusts any more


class SignedStore:
    """Around another store.

    Args:
        inner: Where it all lies.
        trust: Whose signatures count.
        signer: Signs what is put; None where nothing signed is put, or unsigned things are allowed.
        bottom: The store as it lies there, below encryption, for who moves objects without reading them.
        audit: Is told here what was refused, and by whoever holds this store what else is done to it.
    """

    def __init__(
        self,
        inner: Store,
        trust: Trust,
        signer: Signer | None = None,
        bottom: Store | None = None,
        *,
        audit: Audit | None = None,
    ) -> None:
        self.inner = inner
        self.bottom = bottom or inner
        self.trust = trust
        self.signer = signer
        self.audit = audit or Audit()

    def __repr__(self) -> str:
        return f"SignedStore({self.inner!r})"

    def refresh_trust(self) -> frozenset[str]:
        """Take over which keys the store says are distrusted: it can only take trust away. The ids that are new."""
        listed = set(filter(is_key_id, self.inner.names(DISTRUSTED)))
        new = frozenset(listed - self.trust.distrusted)
        self.trust = replace(self.trust, distrusted=self.trust.distrusted | new)
        return new

    def require_signer(self, what: str = "what is to be made") -> None:
        """Raise Untrusted where nothing could be stored that has to be signed; to be asked before work is done."""
        if self.signer is None:
            if not self.trust.unsigned:
                raise Untrusted(what, "it cannot be stored unsigned: give a signing key")
        elif self.signer.key_id in self.trust.distrusted:
            shown = self.signer.key_id[:SHOWN_DIGITS]
            raise Untrusted(what, f"it cannot be stored: the key {shown}, which would sign it, is distrusted")

    def get(self, path: str, *, bytes_max: int | None = None) -> bytes:
        """The object; a document without its signature.

        Raises:
            Damaged: It is not whole.
            Untrusted: Nobody who is trusted has signed it.
        """
        _folder(path)
        data = self.inner.get(path, bytes_max=bytes_max)
        if bytes_max is not None:  # a look at the start of it, which nothing is decided by
            return data
        return self._checked(path, data)

    def put(self, path: str, data: bytes) -> None:
        """Sign and store.

        Raises:
            Damaged: An artifact is not whole.
            Foreign: An artifact is of another kind or key than its path says.
            Untrusted: There is no key to sign with, or it is distrusted; Strange: what is there is not ours to replace.
        """
        self.require_ours(path)
        self.inner.put(path, self._signed(path, data))

    def put_file(self, path: str, source: Path) -> None:
        if _folder(path).content in _UNSIGNED:
            self.inner.put_file(path, source)
        else:
            self.put(path, source.read_bytes())

    def delete(self, path: str) -> None:
        self.inner.delete(path)

    def touch(self, path: str) -> None:
        self.inner.touch(path)

    def names(self, folder: str) -> list[str]:
        return self.inner.names(folder)

    def entries(self, folder: str) -> Iterator[Entry]:
        return self.inner.entries(folder)

    def local_path(self, path: str) -> Path:
        _folder(path)
        return self.inner.local_path(path)

    def discard(self, path: str) -> None:
        self.inner.discard(path)

    def get_versioned(self, path: str) -> tuple[bytes, str]:
        """As `get`, with the generation of what is stored."""
        _folder(path)
        data, generation = self.inner.get_versioned(path)
        return self._checked(path, data), generation

    def require_ours(self, path: str) -> None:
        """Raise Strange if an object is there that somebody signed whose key is not known here."""
        if _folder(path).content in _UNSIGNED:
            return
        try:
            self._checked(path, self.inner.get(path))
        except Strange as error:
            way_out = "trust that key (--trusted-keys), or use a store of your own"
            raise Strange(repr(path), f"{error.reason}, and is not replaced: {way_out}") from None
        except (NotStored, Damaged, Foreign, Untrusted):
            pass

    def put_if(self, path: str, data: bytes, generation: str | None) -> str | None:
        self.require_ours(path)
        return self.inner.put_if(path, self._signed(path, data), generation)

    def delete_if(self, path: str, generation: str) -> bool:
        return self.inner.delete_if(path, generation)

    def _checked(self, path: str, data: bytes) -> bytes:
        """The content of what is stored, once its signature is found to count."""
        content = _folder(path).content
        try:
            if content == "document":
                return unseal(path, data, self.trust)
            if content == "artifact":
                artifact.verify(repr(path), data, self.trust)
        except Untrusted as error:
            self.audit.record("refuse", path=path, reason=error.reason)
            raise
        return data

    def _signed(self, path: str, data: bytes) -> bytes:
        folder = _folder(path)
        if folder.content in _UNSIGNED:
            return data
        if folder.content == "document" and self.signer:
            self.refresh_trust()  # documents make things visible, at the end of work that took its time
        self.require_signer(repr(path))
        if folder.content == "document":
            return seal(path, data, self.signer)
        header = artifact.peek(repr(path), data)
        named = {"kind": str(folder.kind), "key": path.rpartition("/")[2]}
        if differ := differences(named, {"kind": header.kind, "key": header.key}):
            raise Foreign(repr(path), differ)  # a signature says that it is what its place says
        return artifact.sign(repr(path), data, self.signer) if self.signer else data


def _folder(path: str) -> Folder:
    """What holds for a path; what no folder of a store holds would be stored unsigned. Raises ValueError."""
    if (folder := folder_of(path)) is None:
        raise ValueError(f"{path!r} is in no folder of a store; there are {', '.join(FOLDERS)}")
    return folder
