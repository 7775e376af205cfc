"""`warmpool publish MODEL.py --store URI`: the only command that runs an author's code.

1. Read the declaration, materialise its params, export every method (`warmpool.publishing.draft`).
2. For each kind of machine here: compile what is missing, prove it, store it (`warmpool.publishing.target`).
3. Store weights, targets, then the manifest, which makes the version visible (`warmpool.publishing.versions`).

Whatever fails or is killed before the manifest leaves nothing visible, and running it again goes on where it stopped.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NoReturn

import jax
import msgspec

from cache.errors import CacheError
from cache.opening import open_store
from cache.settings import StoreSettings
from cache.signed_store import SignedStore
from cache.sweep import Reused
from warmpool.errors import PublishError
from warmpool.manifest import ProofSpec
from warmpool.publishing.draft import Draft, make_draft
from warmpool.publishing.machines import CHOICES, GIB, Children, Limits, Machine
from warmpool.publishing.made import How, Made
from warmpool.publishing.modelfile import load_model
from warmpool.publishing.progress import Progress, shown_on
from warmpool.publishing.target import TargetMaker
from warmpool.publishing.versions import is_published, missing, put_programs, put_version
from warmpool.settings import add_store_flags, read_settings

ROUNDS_MAX = 3  # as often what a publish needs may be removed under its hands


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is published, and where to."""

    model_file: Path
    store: StoreSettings
    version: str | None = None
    platform: str = "auto"
    limits: Limits = field(default_factory=Limits)
    retry_failed: bool = False
    serve: bool = True


class MachineSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What was done for one kind of machine; `taken` of its executables others compiled meanwhile.

    `references` were compiled to prove the executables with.
    """

    platform: str
    fingerprint: str
    executables: int
    compiled: int
    taken: int
    proved: int
    references: int
    proofs: tuple[ProofSpec, ...]


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What a publish did; `--json` prints it."""

    model: str
    version: str
    store: str
    compiled: int
    reused: int
    references: int
    seconds: float
    machines: tuple[MachineSummary, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        """The last line for a person."""
        if self.compiled:
            work = f"{self.compiled} executables compiled, {self.reused} taken from the store"
        else:
            but = f" but references ({self.references})" if self.references else ""
            work = f"nothing compiled{but}, all {self.reused} executables are in the store"
        return f"published {self.model} {self.version} in {self.seconds:.1f} s: {work}"


def publish(options: Options, progress: Progress) -> Summary:
    """Publish a model.

    Raises:
        DeclarationError: The declaration has to be changed.
        PublishError: Something failed; ProofFailed if the model breaks a promise that serving relies on.
        CacheError: The store cannot be used.
    """
    start_s = time.monotonic()
    store = _opened(options.store)
    store.require_signer()
    notes: list[str] = []

    def note(text: str) -> None:
        notes.append(text)
        progress.say(text)

    with (
        tempfile.TemporaryDirectory(prefix="warmpool-publish-") as scratch,
        Children(options.limits) as children,
    ):
        model = load_model(options.model_file)
        machines = children.machines(options.platform)
        required = [machine.platform for machine in machines]
        draft = make_draft(model, Path(scratch), version=options.version, required=required, say=note)
        rounds = _publish(options, draft, machines, children, store, progress, note)
    parts = tuple(
        MachineSummary(
            platform=machine.platform,
            fingerprint=machine.fingerprint.digest,
            executables=len(all_made[-1].target.executables),
            compiled=sum(one.compiled for one in all_made),
            taken=sum(one.taken for one in all_made),
            proved=sum(one.proved for one in all_made),
            references=sum(one.references for one in all_made),
            proofs=all_made[-1].target.proofs,
        )
        for machine, all_made in zip(machines, zip(*rounds, strict=True), strict=True)
    )
    return Summary(
        model=draft.manifest.model,
        version=draft.manifest.version,
        store=options.store.store,
        compiled=sum(part.compiled for part in parts),
        reused=sum(part.executables - part.compiled for part in parts),
        references=sum(part.references for part in parts),
        seconds=round(time.monotonic() - start_s, 3),
        machines=parts,
        notes=tuple(notes),
    )


def _publish(
    options: Options,
    draft: Draft,
    machines: Sequence[Machine],
    children: Children,
    store: SignedStore,
    progress: Progress,
    note: Callable[[str], None],
) -> list[list[Made]]:
    """What was made for each machine; again and again, if what a version needs goes while it becomes visible."""
    rounds: list[list[Made]] = []
    gone: set[str] = set()
    while len(rounds) < ROUNDS_MAX:
        reused = Reused(store.bottom)
        visible = is_published(store, draft, note)
        put_programs(store, draft, reused)

        how = How(retry_failed=options.retry_failed, primary=machines[0])
        makers = [
            TargetMaker(draft, machine, children, store, progress, visible=visible, reused=reused, how=how)
            for machine in machines
        ]
        rounds.append([maker.make() for maker in makers])
        targets = [one.known for one in rounds[-1]]
        put_version(store, draft, targets, reused, note, serve=options.serve)
        gone = missing(store, draft, targets)
        if not gone:
            return rounds
        note(f"removed from the store while it was published, and stored again: {', '.join(sorted(gone))}")
    raise PublishError(f"the store loses what is stored in it, {ROUNDS_MAX} times so far: {min(gone)}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    limits = Limits()
    parser.add_argument("model_file", metavar="MODEL.py", type=Path, help="file with one module-level Model")
    add_store_flags(parser)
    parser.add_argument("--version", help="name of the version; by default a digest of its content")
    parser.add_argument(
        "--platform",
        choices=CHOICES,
        default="auto",
        help="what to compile for beside the CPU; by default what jax finds",
    )
    parser.add_argument(
        "--child-seconds-max",
        type=float,
        default=limits.wall_s_max,
        metavar="S",
        help="time that one compile or trial may take (%(default)g)",
    )
    parser.add_argument(
        "--child-cpu-seconds-max",
        type=float,
        default=limits.cpu_s_max,
        metavar="S",
        help="CPU time that all threads of one compile or trial may take, 0 for no limit (%(default)g)",
    )
    parser.add_argument(
        "--child-gib-max",
        type=float,
        default=limits.memory_bytes_max / GIB,
        metavar="GIB",
        help="memory that one compile or trial may take, 0 for no limit (%(default)g)",
    )
    parser.add_argument(
        "--retry-failed", action="store_true", help="compile again what failed to compile before, here or elsewhere"
    )
    parser.add_argument(
        "--no-serve",
        action="store_true",
        help="only publish it: instances go on with what they serve, until a rollout, or a publish without this",
    )
    parser.add_argument("--json", action="store_true", help="print a summary as JSON")


def main(args: argparse.Namespace) -> int:
    """Run the command: progress on standard error, one line or JSON on standard output."""
    signal.signal(signal.SIGTERM, _end)  # others need not wait for what we claimed
    limits = Limits(
        wall_s_max=args.child_seconds_max,
        cpu_s_max=args.child_cpu_seconds_max,
        memory_bytes_max=int(args.child_gib_max * GIB),
    )
    # This process traces, and asks the author's functions on the CPU; an accelerator is for the children, and a TPU
    # can have but one process. The children do not inherit it.
    jax.config.update("jax_platforms", "cpu")
    options = Options(
        model_file=args.model_file,
        store=read_settings(StoreSettings, vars(args), os.environ),
        version=args.version,
        platform=args.platform,
        limits=limits,
        retry_failed=args.retry_failed,
        serve=not args.no_serve,
    )
    with shown_on(sys.stderr) as progress:
        try:
            summary = publish(options, progress)
        except CacheError as error:
            raise PublishError(str(error)) from error
    sys.stdout.write((msgspec.json.encode(summary).decode() if args.json else str(summary)) + "\n")
    return 0


def _end(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _opened(settings: StoreSettings) -> SignedStore:
    try:
        return open_store(settings)
    except ValueError as error:
        raise PublishError(str(error)) from error
