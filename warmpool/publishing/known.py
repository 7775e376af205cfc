"""What is proved about a version's executables on one kind of machine: the target in the store, and what we add to it.

Several publishes of one version may add to the same target, so each first reads again what is there. Of two that write
at the same moment one takes the other's entries away: who proved them writes them again with the next one, and who
wanted to rely on them proves them for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from cache.errors import Damaged, NotStored, Untrusted
from cache.fingerprint import Fingerprint
from cache.store import Store
from warmpool.manifest import ExecutableSpec, ProofSpec, Target, encode
from warmpool.publishing.entries import Entry
from warmpool.publishing.prove import merged


@dataclass(slots=True)
class Known:
    """One target in the making.

    Args:
        store: Where it is.
        path: Where it is there.
        fingerprint: Of the kind of machine.
        entries: All that it is to list, in load order.
        say: Told if it cannot be read.
        trusted: Whether what the store says of it counts.
        recording: Whether what is added is stored at once.
    """

    store: Store
    path: str
    fingerprint: Fingerprint
    entries: Sequence[Entry]
    say: Callable[[str], None]
    trusted: bool
    recording: bool
    _stored: dict[tuple[str, str], ExecutableSpec] = field(default_factory=dict)
    _stored_proofs: tuple[ProofSpec, ...] = ()
    _references: set[str] = field(default_factory=set)
    _said: bool = False
    _own: dict[tuple[str, str], tuple[ExecutableSpec, list[ProofSpec]]] = field(default_factory=dict)

    def __contains__(self, entry: Entry) -> bool:
        """Whether an entry is proved, by us or by what the store said when it was last read."""
        identity = (entry.method, entry.key)
        return identity in self._own or identity in self._stored

    def read(self) -> None:
        """Take over what the store says by now."""
        if self.trusted:
            target = self._read()
            self._stored = {(spec.method, spec.key): spec for spec in target.executables} if target else {}
            self._stored_proofs = target.proofs if target else ()
            self._references.update(target.references if target else ())

    def add(self, entry: Entry, spec: ExecutableSpec, proofs: list[ProofSpec]) -> None:
        """An entry was proved here."""
        self._own[entry.method, entry.key] = (spec, proofs)
        if self.recording:
            self.read()
            self.store.put(self.path, encode(self.target()))

    def refer(self, key: str) -> None:
        """An executable that serves nothing is in the store, to prove these entries with other weights."""
        self._references.add(key)

    def target(self) -> Target:
        """The target with what is known by now. A proof that the stored one counts already is not counted again."""
        specs = self._stored | {identity: spec for identity, (spec, _) in self._own.items()}
        found = [specs.get((entry.method, entry.key)) for entry in self.entries]
        own = [one for identity, (_, proofs) in self._own.items() if identity not in self._stored for one in proofs]
        return Target(
            fingerprint=dict(self.fingerprint.ingredients),
            executables=tuple(spec for spec in found if spec),
            proofs=merged([*self._stored_proofs, *own]),
            references=tuple(sorted(self._references)),
        )

    def _read(self) -> Target | None:
        try:
            return msgspec.json.decode(self.store.get(self.path), type=Target)
        except NotStored:
            return None
        except (Damaged, Untrusted, msgspec.MsgspecError) as error:
            if not self._said:
                self.say(f"{self.path}: it cannot be read ({error}); it is made anew")
            self._said = True
            return None
