"""What is proved about a version's executables on one kind of machine: the target in the store, and what we add to it.

Several publishes of one version may add to the same target, some of them only what a smaller part of it needs. So what
is stored stays, as long as its executables are there, and each writes on condition that nobody else did since it read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from cache.errors import Damaged, NotStored, StoreUnavailable, Untrusted
from cache.fingerprint import Fingerprint
from cache.records import decoded
from cache.signed_store import SignedStore
from warmpool.manifest import ExecutableSpec, PlanSpec, ProofSpec, Target, encode
from warmpool.publishing.entries import Entry
from warmpool.publishing.places import Place
from warmpool.publishing.prove import merged

_WRITES_MAX = 100  # each of them lost to another publish, which wrote


@dataclass(slots=True)
class Known:
    """One target in the making.

    Args:
        store: Where it is.
        path: Where it is there.
        fingerprint: Of the kind of machine.
        entries: What we prove of it.
        order: All places that it may list, in load order.
        say: Told if it cannot be read.
        sound: Whether an executable that others proved is in the store, by its key.
        trusted: Whether what the store says of it counts.
        recording: Whether what is added is stored at once.
        plans: The bucket plans that its entries are of, by method, where they are not the manifest's. What is stored
            already decides instead, if anything is.
        needed: Where the target is visible once it is stored, places without which none of the same lane is listed: the
            minimum sets.
        replanned: Methods whose plan is another from now on, whatever is stored: of their executables only those count
            that are proved anew, for a bucket may have to pad more than it had to.
    """

    store: SignedStore
    path: str
    fingerprint: Fingerprint
    entries: Sequence[Entry]
    order: Sequence[Place]
    say: Callable[[str], None]
    sound: Callable[[str], bool]
    trusted: bool
    recording: bool
    plans: Mapping[str, PlanSpec] = field(default_factory=dict)
    replanned: frozenset[str] = frozenset()
    needed: frozenset[Place] = frozenset()
    _stored: dict[tuple[str, str], ExecutableSpec] = field(default_factory=dict)
    _stored_proofs: tuple[ProofSpec, ...] = ()
    _stored_references: tuple[str, ...] = ()
    _stored_plans: dict[str, PlanSpec] | None = None
    _references: set[str] = field(default_factory=set)
    _said: bool = False
    _own: dict[tuple[str, str], tuple[ExecutableSpec, list[ProofSpec]]] = field(default_factory=dict)
    _found_sound: dict[str, bool] = field(default_factory=dict)

    def __contains__(self, entry: Entry) -> bool:
        """Whether an entry is proved, by us or by what the store said when it was last read."""
        identity = (entry.method, entry.key)
        return identity in self._own or identity in self._stored

    def lacks(self) -> set[Place]:
        """What is needed and not proved."""
        return set(self.needed - self._specs(self._plans()).keys())

    def read(self) -> None:
        """Take over what the store says by now."""
        self._read()

    def add(self, entry: Entry, spec: ExecutableSpec, proofs: list[ProofSpec]) -> None:
        """An entry was proved here."""
        self._own[entry.method, entry.key] = (spec, proofs)
        if self.recording:
            self.write()

    def refer(self, key: str) -> None:
        """An executable that serves nothing is in the store, to prove these entries with other weights."""
        self._references.add(key)

    def write(self) -> bool:
        """Add what is known here to what is stored by now; whether that changed it.

        Of a lane that has not all of its minimum sets nothing is added: it would take the version up.

        Raises:
            StoreUnavailable: Also where others change it all the time.
        """
        for _ in range(_WRITES_MAX):
            found, generation = self._read()
            target = self.target()
            data = encode(target)
            if data == found or not (found or target.executables):
                return False
            if self.store.put_if(self.path, data, generation) is not None:
                return True
        raise StoreUnavailable(f"{self.path!r}: others changed it {_WRITES_MAX} times while it was to be changed here")

    def target(self) -> Target:
        """The target with what is known by now. A proof that the stored one counts already is not counted again."""
        plans = self._plans()
        ranks = {place: rank for rank, place in enumerate(self.order)}
        own = [one for identity, (_, proofs) in self._own.items() if identity not in self._stored for one in proofs]
        references = {key for key in self._stored_references if self._is_sound(key)} | self._references
        return Target(
            fingerprint=dict(self.fingerprint.ingredients),
            executables=tuple(sorted(self._listed(plans), key=lambda spec: ranks.get(Place.of(spec), len(ranks)))),
            proofs=merged([*self._stored_proofs, *own]),
            references=tuple(sorted(references)),
            plans=plans or msgspec.UNSET,
        )

    def _listed(self, plans: Mapping[str, PlanSpec]) -> Iterator[ExecutableSpec]:
        """What the target lists."""
        chosen = self._specs(plans)
        held_back = {place.ladder for place in self.needed if place not in chosen}
        held_back -= {spec.cpu_lane_only for spec in self._stored.values()}  # lanes see those already
        listed = {place: spec for place, spec in chosen.items() if place.ladder not in held_back}
        for place, spec in listed.items():
            # One of before, which both lanes held, is the primary one's alone once the CPU lane has its own.
            own = not place.ladder and place.other in listed
            yield msgspec.structs.replace(spec, ladder=False) if own else spec

    def _specs(self, plans: Mapping[str, PlanSpec]) -> dict[Place, ExecutableSpec]:
        """What is proved: one for each place."""
        ours = {(entry.method, entry.key) for entry in self.entries}
        stored = {
            identity: spec for identity, spec in self._stored.items() if identity in ours or self._is_sound(spec.key)
        }
        specs = stored | {identity: spec for identity, (spec, _) in self._own.items()}
        planned = {identity: spec for identity, spec in specs.items() if _is_planned(spec, plans)}
        # Ours, where others compiled another one for it.
        chosen = {Place.of(spec): spec for spec in planned.values()}
        chosen |= {Place.of(spec): spec for identity, spec in planned.items() if identity in ours}
        return chosen

    def _plans(self) -> dict[str, PlanSpec]:
        if self._stored_plans is None:
            return dict(self.plans)
        kept = {method: plan for method, plan in self._stored_plans.items() if method not in self.replanned}
        return kept | {method: plan for method, plan in self.plans.items() if method in self.replanned}

    def _is_sound(self, key: str) -> bool:
        if key not in self._found_sound:
            self._found_sound[key] = self.sound(key)
        return self._found_sound[key]

    def _read(self, unreadable: str | None = None) -> tuple[bytes, str | None]:
        """Take over what is stored, if that counts; its bytes, and the generation to put on condition of.

        What cannot be read is looked at once more: `unreadable` is the generation that it had before that.
        """
        data, generation, target = b"", None, None
        try:
            data, generation = self.store.get_versioned(self.path)
            target = decoded(data, Target) if self.trusted else None
        except NotStored:
            pass
        except (Damaged, Untrusted, msgspec.MsgspecError) as error:
            if unreadable is None and (lies_there := self._generation()):
                return self._read(lies_there)
            if not self._said and self.trusted:
                self.say(f"{self.path}: it cannot be read ({error}); it is made anew")
            self._said = True
            generation = unreadable
        counted = [spec for spec in target.executables if spec.method not in self.replanned] if target else []
        self._stored = {(spec.method, spec.key): spec for spec in counted}
        self._stored_proofs = tuple(one for one in target.proofs if one.method not in self.replanned) if target else ()
        self._stored_plans = target.plans_by_method if target else None
        self._stored_references = target.references if target else ()
        return data, generation

    def _generation(self) -> str | None:
        """That of what lies there, whoever signed it."""
        try:
            return self.store.bottom.get_versioned(self.path)[1]
        except NotStored:
            return None


def _is_planned(spec: ExecutableSpec, plans: Mapping[str, PlanSpec]) -> bool:
    plan = plans.get(spec.method)
    return plan is None or spec.bucket in plan.buckets
