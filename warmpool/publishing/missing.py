"""What a version lacks on one kind of machine: which executables, by their places. Reads small files; without jax."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from cache.errors import Damaged, NotStored, Untrusted
from cache.fingerprint import Fingerprint
from cache.ingredients import digest_ingredients
from cache.records import decoded
from cache.signed_store import SignedStore
from warmpool.manifest import Manifest, Target, bucket_name, target_path
from warmpool.publishing.buckets import buckets_of, buckets_over, in_load_order
from warmpool.publishing.machines import compile_options
from warmpool.publishing.places import Place, ingredients_of, placed
from warmpool.publishing.plans import dims_of, plans_for

_KEYS_MAX = 16384  # some hundred bytes each; where more are looked at in turn, all are derived each time


@dataclass(frozen=True, slots=True)
class Missing:
    """An executable that is planned, and that no lane of this kind of machine can have yet.

    Attributes:
        place: Where it goes.
        bucket: The size of each dimension.
        key: Of its artifact.
        minimum: It is of the minimum set.
        stored: Its artifact is there, and only has to be proved with the version's weights.
    """

    place: Place
    bucket: dict[str, int]
    key: str
    minimum: bool
    stored: bool

    @property
    def ladder(self) -> bool:
        """Whether it is for the CPU lane alone."""
        return self.place.ladder


def missing_places(
    store: SignedStore, manifest: Manifest, fingerprint: Fingerprint, *, primary: bool = True
) -> list[Missing]:
    """What a target lacks of what is planned, the minimum sets first, then by size.

    That is what it does not list under the key that it has here, and what it lists while there is no such artifact (it
    was set aside, say). A target that cannot be read lists nothing.

    Args:
        store: Where the version is.
        manifest: The version's.
        fingerprint: Of the kind of machine.
        primary: Whether the primary lane is of this kind, which holds all that is planned; else only the CPU lane is.

    Raises:
        StoreUnavailable: The store cannot be read.
    """
    plans = plans_for(store, manifest, fingerprint, own=True, say=lambda _: None)
    listed = _listed(store, target_path(manifest.model, manifest.version, fingerprint.digest))
    there = set(store.names("executables"))
    planned = {}
    for method in manifest.methods:
        dims = dims_of(manifest, method)
        planned[method] = buckets_of(dims, plans[method].buckets) if method in plans else buckets_over(dims)
    machine = tuple(fingerprint.ingredients.items())
    options = tuple(compile_options(os.environ).items())
    found = []
    for method, bucket, ladder in placed(in_load_order(planned), fingerprint, primary=primary):
        place = Place(method, bucket_name(bucket.sizes), ladder)
        program = manifest.methods[method].program(bucket.sizes)
        key = _key(program, tuple(bucket.sizes.items()), machine, options, ladder)
        if key not in there or (place, key) not in listed:
            found.append(Missing(place, bucket.sizes, key, bucket.minimum, stored=key in there))
    return found


@lru_cache(maxsize=_KEYS_MAX)
def _key(
    program: str,
    bucket: tuple[tuple[str, int], ...],
    machine: tuple[tuple[str, str], ...],
    options: tuple[tuple[str, str], ...],
    ladder: bool,  # noqa: FBT001  a part of the cache's key
) -> str:
    """The key of an executable, which depends on nothing else. Deriving it is half of a look, again and again."""
    made_of = ingredients_of(program, dict(bucket), Fingerprint(dict(machine)), dict(options), ladder=ladder)
    return digest_ingredients(made_of)


def _listed(store: SignedStore, path: str) -> set[tuple[Place, str]]:
    try:
        target = decoded(store.get(path), Target)
    except (NotStored, Damaged, Untrusted, msgspec.MsgspecError):
        return set()
    return {(Place.of(spec), spec.key) for spec in target.executables}
