"""What the manifests of a store say is needed: by `warmpool cache`, which cares for stores of many models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from cache.errors import Damaged, NotStored, Unreadable, Untrusted
from cache.fingerprint import Fingerprint
from cache.records import decoded
from cache.signed_store import SignedStore
from warmpool import manifest as stored
from warmpool.manifest import ExecutableSpec, Manifest, Serving, Target


@dataclass(frozen=True, slots=True)
class Published:
    """A version as it is stored: its manifest, and its targets by fingerprint digest."""

    manifest: Manifest
    targets: dict[str, Target]
    stable: bool

    @property
    def name(self) -> str:
        return f"{self.manifest.model}/{self.manifest.version}"

    def content_paths(self) -> Iterator[str]:
        """Weights and programs, which the version needs on any machine."""
        yield stored.weights_path(self.manifest.weights.digest)
        for method in self.manifest.methods.values():
            yield from map(stored.program_path, method.programs.values())

    def paths(self) -> Iterator[str]:
        """All that the version needs on any machine."""
        yield stored.serving_path(self.manifest.model)
        yield stored.manifest_path(self.manifest.model, self.manifest.version)
        yield from self.content_paths()

    def keys(self) -> set[str]:
        """The executables of all its targets."""
        return {spec.key for target in self.targets.values() for spec in target.executables}

    def target_paths(self, fingerprint_digest: str) -> Iterator[str]:
        """What it needs on one kind of machine."""
        target = self.targets[fingerprint_digest]
        yield stored.target_path(self.manifest.model, self.manifest.version, fingerprint_digest)
        yield from (stored.executable_path(spec.key) for spec in target.executables)
        yield from map(stored.executable_path, target.references)


class NoSuchVersion(ValueError):
    """What was asked for is not published."""


@dataclass(slots=True)
class Survey:
    """What was found.

    Attributes:
        versions: Every version whose manifest can be read.
        served: By model, the version that is served.
        problems: Documents that cannot be read, or that lie where they do not belong; path to reason.
    """

    versions: list[Published] = field(default_factory=list)
    served: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    def executables(self) -> Iterator[tuple[Published, str, ExecutableSpec]]:
        """Every executable of every target: version, fingerprint digest, what is said of it."""
        for version in self.versions:
            for digest, target in version.targets.items():
                for spec in target.executables:
                    yield version, digest, spec

    def named(self, name: str) -> Published:
        """The version that MODEL@VERSION means; MODEL alone means the one that is served.

        Raises:
            NoSuchVersion: There is none.
        """
        model, _, version = name.partition("@")
        of_model = [one for one in self.versions if one.manifest.model == model]
        for one in of_model:
            if one.manifest.version == version if version else one.stable:
                return one
        there = (f"{one.manifest.model}@{one.manifest.version}" for one in of_model or self.versions)
        raise NoSuchVersion(f"{name!r} is not published; there is {', '.join(there) or 'nothing'}")


def survey(store: SignedStore) -> Survey:
    """Read every manifest and target. Raises StoreUnavailable."""
    found = Survey()
    for model in store.names("models"):
        if serving := _read(store, stored.serving_path(model), Serving, found.problems):
            found.served[model] = serving.stable
        for version in store.names(f"models/{model}"):
            if version != "serving.json":
                _add(found, store, model, version)
    return found


def _add(found: Survey, store: SignedStore, model: str, version: str) -> None:
    path = stored.manifest_path(model, version)
    manifest = _read(store, path, Manifest, found.problems)
    if manifest is None:
        return
    if (manifest.model, manifest.version) != (model, version):
        found.problems[path] = f"it is that of {manifest.model}/{manifest.version}"
        return
    targets = {}
    for name in store.names(f"models/{model}/{version}/targets"):
        digest = name.removesuffix(".json")
        path = stored.target_path(model, version, digest)
        if target := _read(store, path, Target, found.problems):
            targets[digest] = target
            if (other := Fingerprint(target.fingerprint).digest) != digest:
                found.problems[path] = f"it is for machines {other}"
                del targets[digest]
    found.versions.append(Published(manifest, targets, stable=found.served.get(model) == version))


def _read[R: (Manifest, Serving, Target)](
    store: SignedStore, path: str, kind: type[R], problems: dict[str, str]
) -> R | None:
    """The record, None if there is none or it cannot be read, which is then a problem."""
    try:
        record = decoded(store.get(path), kind)
    except NotStored:
        return None
    except (Damaged, Unreadable, Untrusted, msgspec.MsgspecError) as error:
        problems[path] = str(error)
        return None
    if record.format != stored.FORMAT:
        problems[path] = f"its format is {record.format}, this release reads {stored.FORMAT}"
        return None
    return record
