"""A signed store of several versions for several kinds of machine, as small as it can be, and the commands for it.

Its executables are whole, signed and named by what they were made of, and nothing that could be run.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cache.artifact import Header, pack
from cache.fingerprint import Fingerprint
from cache.ingredients import digest_ingredients
from cache.key import executable_ingredients
from cache.local_store import LocalStore
from cache.signed_store import SignedStore
from cache.signing import Signer, Trust
from tests.warmpool.served import BATCH, tensor
from warmpool import cli
from warmpool import manifest as stored
from warmpool.manifest import ExecutableSpec, Manifest, MethodSpec, Serving, Target, ToleranceSpec, WeightsSpec

SIGNER, COLLEAGUE, STRANGER = (Signer(Ed25519PrivateKey.from_private_bytes(bytes([one]) * 32)) for one in (1, 2, 3))
CPU = Fingerprint({"platform": "cpu", "device_kind": "cpu", "jaxlib": "0.12.0", "cpu_cores": "2"})
OLDER = Fingerprint({"platform": "cpu", "device_kind": "cpu", "jaxlib": "0.11.2", "cpu_cores": "2"})
TPU = Fingerprint({"platform": "tpu", "device_kind": "TPU v5 [lite]", "jaxlib": "0.12.0"})
DAY_S = 24 * 3600.0


class Outcome(NamedTuple):
    """What a command exited with and printed."""

    status: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


class CaredStore:
    """A store, and what somebody who cares for it does.

    Args:
        folder: An empty folder for the store and the keys.
        signer: Signs what is published.
    """

    def __init__(self, folder: Path, signer: Signer = SIGNER) -> None:
        self.keys = folder / "keys"
        for name, one in {"signer": SIGNER, "colleague": COLLEAGUE, "stranger": STRANGER}.items():
            one.write(self.keys / name)
        self.bottom = LocalStore(folder / "store")
        self.store = SignedStore(self.bottom, Trust.of([SIGNER.public, COLLEAGUE.public]), signer)

    @property
    def trusting(self) -> tuple[str, ...]:
        """The flags of who trusts both who may publish here."""
        return ("--trusted-keys", f"{self.keys / 'signer.pub'},{self.keys / 'colleague.pub'}")

    def run(self, capsys: Any, command: str, *arguments: str, trusting: tuple[str, ...] | None = None) -> Outcome:
        """`warmpool cache COMMAND`, in this process."""
        trust = self.trusting if trusting is None else trusting
        capsys.readouterr()
        try:
            status = cli.main(["cache", command, "--store", str(self.bottom.root), *trust, *arguments])
        except SystemExit as exit_:
            status = int(exit_.code or 0)
        captured = capsys.readouterr()
        return Outcome(status, captured.out, captured.err)

    def publish(
        self,
        model: str = "toy",
        version: str = "1",
        machines: Iterable[Fingerprint] = (CPU,),
        *,
        sizes: Iterable[int] = (1, 2),
        program: str = "p",
        weights: str = "w",
        stable: bool = True,
        references: Iterable[int] = (),
    ) -> Manifest:
        """A version with an executable for each size of its batch; `references` are those of exact shapes."""
        content = weights.encode() * 100
        digest = hashlib.sha256(content).hexdigest()
        program_digest = hashlib.sha256(program.encode()).hexdigest()
        self.bottom.put(stored.weights_path(digest), content)
        header = Header(key=program_digest, ingredients={"inputs": program}, kind="program")
        self.store.put(stored.program_path(program_digest), pack(header, b"module"))
        for machine in machines:
            specs = [self.executable(program_digest, size, machine) for size in sizes]
            extra = tuple(self.executable(program_digest, size, machine).key for size in references)
            target = Target(
                fingerprint=dict(machine.ingredients), executables=tuple(specs), proofs=(), references=extra
            )
            self.store.put(stored.target_path(model, version, machine.digest), stored.encode(target))
        manifest = Manifest(
            model=model,
            version=version,
            default_method="predict",
            dims=(BATCH,),
            methods={
                "predict": MethodSpec(
                    programs={"*": program_digest},
                    symbolic=True,
                    inputs=(tensor("x", "float32", "batch"),),
                    outputs=(tensor("y", "float32", "batch"),),
                )
            },
            weights=WeightsSpec(digest=digest, size_bytes=len(content), tensors=()),
            tolerance=ToleranceSpec(rtol=0, atol=0),
        )
        self.store.put(stored.manifest_path(model, version), stored.encode(manifest))
        if stable:
            self.store.put(stored.serving_path(model), stored.encode(Serving(stable=version)))
        return manifest

    def executable(self, program: str, size: int, machine: Fingerprint) -> ExecutableSpec:
        """Store one executable, and say what a target says of it."""
        ingredients = executable_ingredients(program=program, bucket={"batch": size}, fingerprint=machine, options={})
        key = digest_ingredients(ingredients)
        data = pack(Header(key=key, ingredients=ingredients), b"machine code" * size)
        self.store.put(stored.executable_path(key), data)
        return ExecutableSpec(
            key=key,
            method="predict",
            bucket={"batch": size},
            minimum=size == 1,
            ladder=size == 1,
            cost_us=1.0,
            size_bytes=len(data),
        )

    def target(self, machine: Fingerprint, model: str = "toy", version: str = "1") -> str:
        """The path of a target."""
        return stored.target_path(model, version, machine.digest)

    def executables(self, machine: Fingerprint, model: str = "toy", version: str = "1") -> list[str]:
        """The paths of what a target names, in its order."""
        target = json.loads(self.store.get(self.target(machine, model, version)))
        return [stored.executable_path(spec["key"]) for spec in target["executables"]]

    def edit_target(self, machine: Fingerprint, **changes: Any) -> None:
        """Seal a target anew that says something else."""
        path = self.target(machine)
        target = json.loads(self.store.get(path)) | changes
        self.store.put(path, json.dumps(target, indent=1).encode() + b"\n")

    def file(self, path: str) -> Path:
        return self.bottom.root / path

    def age(self, days: float, *paths: str) -> None:
        """Let objects be that old; all of them if none is named."""
        written_s = time.time() - days * DAY_S
        for path in paths or self.paths():
            os.utime(self.file(path), (written_s, written_s))

    def paths(self) -> set[str]:
        return {entry.path for entry in self.bottom.entries("")}

    def content(self) -> dict[str, bytes]:
        """Every object, to see later that nothing has changed."""
        return {path: self.bottom.get(path) for path in self.paths()}
