"""What the grants of a plan let an account do with an object, and a store that lets it do no more.

As Cloud Storage has it: to replace an object needs the right to create one and to remove one; a rewrite onto itself is
that as well; a condition on the name of an object says nothing of listing, which is of the bucket.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cache.errors import NotStored, StoreUnavailable
from cache.local_store import LocalStore
from cache.store import Entry

ROLES = {
    "roles/storage.objectViewer": {"get", "list"},
    "roles/storage.objectCreator": {"create"},
    "roles/storage.objectUser": {"get", "list", "create", "delete"},
}
_TERM = re.compile(r'(!?)resource\.name\.(?:(startsWith|endsWith)\("([^"]*)"\)|extract\("([^"{]*)\{name\}"\) != "")')


@dataclass(frozen=True, slots=True)
class Grants:
    """Of one account, on one bucket: permissions, and on which objects."""

    bucket: str
    grants: tuple[tuple[frozenset[str], str], ...]

    @classmethod
    def of(cls, plan: list[dict[str, Any]], account: str) -> Grants:
        """What a plan grants to the account that is called so."""
        roles = ROLES | {
            f"projects/some-project/roles/{one['after']['role_id']}": {
                permission.removeprefix("storage.objects.") for permission in one["after"]["permissions"]
            }
            for one in plan
            if one["type"] == "google_project_iam_custom_role"
        }
        found = [
            one["after"]
            for one in plan
            if one["type"] == "google_storage_bucket_iam_member" and f"-{account}@" in one["after"]["member"]
        ]
        (bucket,) = {one["bucket"] for one in found} or {""}
        said = [(frozenset(roles[one["role"]]), "".join(c["expression"] for c in one["condition"])) for one in found]
        return cls(bucket, tuple(said))

    def may(self, permission: str, path: str) -> bool:
        if permission == "list":  # is asked of the bucket, for which no condition on objects holds
            return any(permission in permissions and not condition for permissions, condition in self.grants)
        name = f"projects/_/buckets/{self.bucket}/objects/{path}"
        return any(permission in permissions and _holds(condition, name) for permissions, condition in self.grants)


def _holds(condition: str, name: str) -> bool:
    """Whether a condition of IAM holds for a resource's name; only what our conditions are made of is known."""
    return all(_term(term, name) for term in condition.split(" && ")) if condition else True


def _term(term: str, name: str) -> bool:
    found = _TERM.fullmatch(term)
    assert found is not None, f"a condition that this test cannot read: {term}"
    negated, method, text, before = found.groups()
    match method:
        case "startsWith":
            holds = name.startswith(text)
        case "endsWith":
            holds = name.endswith(text)
        case _:
            holds = bool(name.partition(before)[2])
    return holds != bool(negated)


@dataclass(slots=True)
class GrantedStore:
    """A folder, as an account with these grants may use it.

    Attributes:
        done: What was done, by permission and first part of the path.
        refused: What was tried and is not allowed.
    """

    folder: Path
    grants: Grants
    done: set[tuple[str, str]] = field(default_factory=set)
    refused: list[str] = field(default_factory=list)
    inner: LocalStore = field(init=False)

    def __post_init__(self) -> None:
        self.inner = LocalStore(self.folder)

    def get(self, path: str, *, bytes_max: int | None = None) -> bytes:
        self._need("get", path)
        return self.inner.get(path, bytes_max=bytes_max)

    def put(self, path: str, data: bytes) -> None:
        self._need_to_write(path)
        self.inner.put(path, data)

    def put_file(self, path: str, source: Path) -> None:
        self._need_to_write(path)
        self.inner.put_file(path, source)

    def delete(self, path: str) -> None:
        self._need("delete", path)
        self.inner.delete(path)

    def touch(self, path: str) -> None:
        self._need("get", path)
        self._need_to_write(path)
        self.inner.touch(path)

    def names(self, folder: str) -> list[str]:
        self._need("list", folder)
        return self.inner.names(folder)

    def entries(self, folder: str) -> Iterator[Entry]:
        self._need("list", folder)
        return self.inner.entries(folder)

    def local_path(self, path: str) -> Path:
        self._need("get", path)
        return self.inner.local_path(path)

    def discard(self, path: str) -> None:
        self.inner.discard(path)

    def get_versioned(self, path: str) -> tuple[bytes, str]:
        self._need("get", path)
        return self.inner.get_versioned(path)

    def put_if(self, path: str, data: bytes, generation: str | None) -> str | None:
        if generation is None:  # replaces nothing, whatever is there
            self._need("create", path)
        else:
            self._need_to_write(path)
        return self.inner.put_if(path, data, generation)

    def delete_if(self, path: str, generation: str) -> bool:
        self._need("delete", path)
        return self.inner.delete_if(path, generation)

    def _need_to_write(self, path: str) -> None:
        self._need("create", path)
        try:
            self.inner.get_versioned(path)
        except NotStored:
            return
        self._need("delete", path)

    def _need(self, permission: str, path: str) -> None:
        if not self.grants.may(permission, path):
            self.refused.append(f"{permission} {path}")
            raise StoreUnavailable(f"{path!r}: GCS answered 403: no storage.objects.{permission}")
        self.done.add((permission, path.partition("/")[0]))


def as_rows(grants: Mapping[str, Grants], paths: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """What each account may do with a path of each kind: "", "create", "remove" or "change"."""
    words = {(False, False): "", (True, False): "create", (False, True): "remove", (True, True): "change"}
    return {
        what: {who: words[granted.may("create", path), granted.may("delete", path)] for who, granted in grants.items()}
        for what, path in paths.items()
    }
