"""What the manifests of a store say is needed: by `warmpool cache`, which cares for stores of many models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from cache.errors import Damaged, NotStored, Untrusted
from cache.signed_store import SignedStore
from warmpool import manifest as stored
from warmpool.manifest import ExecutableSpec, Manifest, Record, Serving, Target


@dataclass(frozen=True, slots=True)
class Published:
    """A version as it is stored: its manifest, and its targets by fingerprint digest."""

    manifest: Manifest
    targets: dict[str, Target]
    stable: bool

    @property
    def name(self) -> str:
        return f"{self.manifest.model}/{self.manifest.version}"

    def paths(self) -> Iterator[str]:
        """What the version needs on any machine."""
        yield stored.serving_path(self.manifest.model)
        yield stored.manifest_path(self.manifest.model, self.manifest.version)
        yield stored.weights_path(self.manifest.weights.digest)
        for method in self.manifest.methods.values():
            yield from map(stored.program_path, method.programs.values())

    def target_paths(self, fingerprint_digest: str) -> Iterator[str]:
        """What it needs on one kind of machine."""
        target = self.targets[fingerprint_digest]
        yield stored.target_path(self.manifest.model, self.manifest.version, fingerprint_digest)
        yield from (stored.executable_path(spec.key) for spec in target.executables)
        yield from map(stored.executable_path, target.references)


@dataclass(slots=True)
class Survey:
    """Every version, and what is wrong with documents that cannot be read, by their path."""

    versions: list[Published] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)

    def executables(self) -> Iterator[tuple[Published, str, ExecutableSpec]]:
        """Every executable of every target: version, fingerprint digest, what is said of it."""
        for version in self.versions:
            for digest, target in version.targets.items():
                for spec in target.executables:
                    yield version, digest, spec


def survey(store: SignedStore) -> Survey:
    """Read every manifest and target. Raises StoreUnavailable."""
    found = Survey()
    for model in store.names("models"):
        serving = _read(store, stored.serving_path(model), Serving, found.problems)
        for version in store.names(f"models/{model}"):
            if version != "serving.json":
                _add(found, store, model, version, stable=serving is not None and serving.stable == version)
    return found


def _add(found: Survey, store: SignedStore, model: str, version: str, *, stable: bool) -> None:
    manifest = _read(store, stored.manifest_path(model, version), Manifest, found.problems)
    if manifest is None:
        return
    targets = {}
    for name in store.names(f"models/{model}/{version}/targets"):
        digest = name.removesuffix(".json")
        if target := _read(store, stored.target_path(model, version, digest), Target, found.problems):
            targets[digest] = target
    found.versions.append(Published(manifest, targets, stable))


def _read[R: Record](store: SignedStore, path: str, kind: type[R], problems: dict[str, str]) -> R | None:
    """The record, None if there is none or it cannot be read, which is then a problem."""
    try:
        return msgspec.json.decode(store.get(path), type=kind)
    except NotStored:
        return None
    except (Damaged, Untrusted, msgspec.MsgspecError) as error:
        problems[path] = str(error)
        return None
