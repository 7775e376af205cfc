"""What the servers start from: stores that `warmpool publish` filled, and the peer's compilation cache."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.server import console_script
from cache.fingerprint import Fingerprint
from cache.opening import open_store
from cache.settings import StoreSettings
from cache.signed_store import SignedStore
from cache.signing import Signer
from warmpool.catalog import ServedModel, read_catalog, read_target
from warmpool.manifest import ExecutableSpec, executable_path

_ROOT = Path(__file__).resolve().parents[1]
PUBLISH_S_MAX = 1800.0


@dataclass(frozen=True, slots=True)
class Folders:
    """Where a run keeps what the next run can use again, and its logs; where recorded traffic lies, if there is any."""

    root: Path
    traces: Path | None = None

    def store(self, model: str, file: str = "") -> Path:
        """A store with one example or file as stable version, published now; a second time compiles nothing."""
        store = self.root / (file.replace("/", "-").removesuffix(".py") or model)
        command = [
            *(console_script("warmpool"), "publish", file or f"examples/{model}/model.py"),
            *("--store", str(store), "--signing-key", str(signing_key(store))),
        ]
        if not signing_key(store).exists():
            Signer.generate().write(signing_key(store))
        # Its words go to standard error: standard output may be read by a program.
        subprocess.run(command, cwd=_ROOT, check=True, timeout=PUBLISH_S_MAX, stdout=sys.stderr)
        return store

    @property
    def peer_cache(self) -> Path:
        path = self.root / "peer-cache"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def log(self, name: str) -> Path:
        path = self.root / "logs" / f"{name}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


def signing_key(store: Path) -> Path:
    """The key that signed what a store holds; its public half lies beside it."""
    return store.parent / "keys" / "publisher.pem"


def opened(store: Path) -> SignedStore:
    """The store, with what it says trusted as far as it is signed."""
    return open_store(StoreSettings(store=str(store), trusted_keys=f"{signing_key(store)}.pub"))


def model_in(store: Path, name: str) -> ServedModel:
    """The stable version of a model."""
    return read_catalog(opened(store)).models[name]


def buckets_of(model: ServedModel) -> list[tuple[int, ...]]:
    """Every bucket of a model, in the order of its dimensions."""
    return list(itertools.product(*(dim.sizes for dim in model.manifest.dims)))


def executable_of(
    store: Path, model: ServedModel, fingerprint: Fingerprint, method: str, bucket: dict[str, int]
) -> tuple[ExecutableSpec, bytes]:
    """An executable for one bucket on a machine of this kind, and its artifact. Raises LookupError."""
    source = opened(store)
    target = read_target(source, model, fingerprint.digest)
    for spec in target.executables if target else ():
        if spec.method == method and spec.bucket == bucket and not spec.cpu_lane_only:
            return spec, source.get(executable_path(spec.key))
    raise LookupError(f"{model.key}:{method} has no executable for {bucket} on this kind of machine")
