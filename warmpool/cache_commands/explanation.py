"""What `warmpool cache explain` finds: every executable that a version needs on a machine, and why it is not there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from cache.artifact import HEADER_BYTES_MAX, Header, peek, unpack
from cache.errors import Damaged, Foreign, NotStored, Unreadable, Untrusted
from cache.explain import nearest
from cache.failures import recorded
from cache.fingerprint import Fingerprint
from cache.ingredients import digest_ingredients
from cache.key import executable_ingredients
from cache.quarantine import quarantined
from cache.signed_store import SignedStore
from warmpool.manifest import Manifest, bucket_name, executable_path
from warmpool.publishing.buckets import buckets_over, in_load_order
from warmpool.publishing.places import FAST_OPTIONS
from warmpool.survey import Published

OTHERS_MAX = 512  # executables that are compared where the model has none of the same method and bucket
_HEADER_BYTES = 1 << 14  # what nearly every header is shorter than
_ANY_BUCKET = "*"

Identity = tuple[str, frozenset[tuple[str, int]]]
Needed = tuple[str, dict[str, int], bool]  # method, bucket, whether it is for the CPU lane alone


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """An ingredient with its value here and there, "" where it is lacking, and the words that only one of them has."""

    ingredient: str
    wanted: str
    found: str
    only_wanted: tuple[str, ...]
    only_found: tuple[str, ...]


class Near(msgspec.Struct, frozen=True, kw_only=True):
    """The nearest entry: its key, which targets list it (of which version, for which fingerprint), how it differs."""

    key: str
    listed_by: tuple[tuple[str, str], ...]
    differences: tuple[Change, ...]


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """One executable that is needed.

    Attributes:
        method: Its method.
        bucket: The size of each dimension.
        ladder: Whether it is for the CPU lane alone.
        key: What it is stored under.
        state: "hit", "missing", "failed" (to compile, before), "damaged", "untrusted", "foreign" or "unreadable".
        reason: More about what is no hit, "" if no more is known.
        listed_key: What the target of this kind of machine, which an instance goes by, lists for it.
        listed_fault: Why an instance could not load that, "" if it could.
        nearest: Of what is not there; None if there is nothing to compare it with.
    """

    method: str
    bucket: dict[str, int]
    ladder: bool
    key: str
    state: str
    reason: str = ""
    listed_key: str = ""
    listed_fault: str = ""
    nearest: Near | None = None

    @property
    def name(self) -> str:
        return f"{self.method} {bucket_name(self.bucket)}" + (" for the CPU lane" if self.ladder else "")


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """A version on one kind of machine; `published`: whether there is a target for it, which an instance goes by."""

    model: str
    version: str
    platform: str
    fingerprint: str
    published: bool
    executables: tuple[Explained, ...]

    @property
    def complete(self) -> bool:
        """Whether an instance here loads all of it, and publishing it again would compile nothing."""
        return self.published and all(one.state == "hit" and not one.listed_fault for one in self.executables)


def needed(version: Published, fingerprint_digest: str, *, primary: bool = True, platform: str = "cpu") -> list[Needed]:
    """What the version needs on such a machine: what its target lists; without one what the others do, or its plan.

    The ladder is for a CPU. Beside a primary lane of another kind it is all that a CPU needs.
    """
    own = version.targets.get(fingerprint_digest)
    if own:
        return [(spec.method, spec.bucket, spec.cpu_lane_only) for spec in own.executables]
    listed = [one for target in version.targets.values() for one in target.executables]
    found = [(one.method, one.bucket, one.ladder) for one in listed] or _planned(version.manifest)
    buckets = {_identity(method, bucket): (method, bucket) for method, bucket, _ in found}
    ladder = {_identity(method, bucket): (method, bucket) for method, bucket, ladder in found if ladder}
    return [
        *((*one, False) for one in buckets.values() if primary),
        *((*one, True) for one in ladder.values() if platform == "cpu"),
    ]


class Explainer:
    """Explains executables of one version.

    Args:
        store: Where to look.
        version: The version.
        of_model: Every version of the model, whose targets say what to compare with.
    """

    def __init__(self, store: SignedStore, version: Published, of_model: Iterable[Published]) -> None:
        self.store = store
        self.version = version
        self._listed: dict[Identity, dict[str, list[tuple[str, str]]]] = {}
        for published in of_model:
            for digest, target in published.targets.items():
                for spec in target.executables:
                    keys = self._listed.setdefault(_identity(spec.method, spec.bucket), {})
                    keys.setdefault(spec.key, []).append((published.name, digest))
        self._made_of: dict[str, dict[str, str] | None] = {}
        self._set_aside = {kept.key: kept for kept in quarantined(store.bottom)}

    def explain(
        self, platform: str, fingerprint: Fingerprint, options: Mapping[str, str], which: Sequence[Needed]
    ) -> Explanation:
        """Explain these executables on one kind of machine. Raises StoreUnavailable."""
        target = self.version.targets.get(fingerprint.digest)
        listed = {
            (_identity(one.method, one.bucket), one.cpu_lane_only): one.key
            for one in (target.executables if target else ())
        }
        return Explanation(
            model=self.version.manifest.model,
            version=self.version.manifest.version,
            platform=platform,
            fingerprint=fingerprint.digest,
            published=target is not None,
            executables=tuple(
                self._one(
                    (method, bucket, ladder),
                    fingerprint,
                    {**options, **FAST_OPTIONS} if ladder else options,
                    listed.get((_identity(method, bucket), ladder), ""),
                )
                for method, bucket, ladder in which
            ),
        )

    def _one(self, which: Needed, fingerprint: Fingerprint, options: Mapping[str, str], listed: str) -> Explained:
        method, bucket, ladder = which
        programs = self.version.manifest.methods[method].programs
        program = programs.get(bucket_name(bucket)) or programs.get(_ANY_BUCKET, "")
        ingredients = executable_ingredients(program=program, bucket=bucket, fingerprint=fingerprint, options=options)
        key = digest_ingredients(ingredients)
        state, reason = self._state(key, ingredients)
        listed_fault = ""
        if listed and listed != key:
            found, more = self._state(listed, None)
            listed_fault = "" if found == "hit" else f"{found}: {more}".removesuffix(": ")
        return Explained(
            method=method,
            bucket=bucket,
            ladder=ladder,
            key=key,
            state=state,
            reason=reason,
            listed_key=listed,
            listed_fault=listed_fault,
            nearest=self._nearest(method, bucket, ingredients) if state in {"missing", "failed"} else None,
        )

    def _state(self, key: str, ingredients: Mapping[str, str] | None) -> tuple[str, str]:
        """The state of a key, and more about it."""
        try:
            unpack(self.store.get(executable_path(key)), key=key, trust=self.store.trust, ingredients=ingredients)
        except NotStored:
            return self._absent(key)
        except Damaged as error:
            return "damaged", error.reason
        except Untrusted as error:
            return "untrusted", error.reason
        except Foreign as error:
            return "foreign", error.shown
        except Unreadable as error:
            return "unreadable", str(error)
        return "hit", ""

    def _absent(self, key: str) -> tuple[str, str]:
        if failure := recorded(self.store, key):
            return "failed", f"{failure.what} failed at {failure.when} ({failure.by}): {failure.reason}"
        kept = self._set_aside.get(key)
        return "missing", f"it was set aside at {kept.when.isoformat()}: {kept.reason}" if kept else ""

    def _nearest(self, method: str, bucket: dict[str, int], wanted: Mapping[str, str]) -> Near | None:
        of_bucket = self._listed.get(_identity(method, bucket), {})
        found = nearest(wanted, self._candidates(of_bucket)) or nearest(wanted, self._candidates(self._others()))
        if found is None:
            return None
        changes = tuple(
            Change(
                ingredient=one.ingredient,
                wanted=one.wanted,
                found=one.found,
                only_wanted=one.only_wanted,
                only_found=one.only_found,
            )
            for one in found.differences
        )
        listed_by = next((listed[found.key] for listed in self._listed.values() if found.key in listed), ())
        return Near(key=found.key, listed_by=tuple(listed_by), differences=changes)

    def _others(self) -> list[str]:
        return self.store.names("executables")[:OTHERS_MAX]

    def _candidates(self, keys: Iterable[str]) -> dict[str, dict[str, str]]:
        """What these were made of, as far as they can be read; only their headers are."""
        for key in keys:
            if key not in self._made_of:
                header = _read_header(self.store, executable_path(key))
                self._made_of[key] = header.ingredients if header and header.kind == "executable" else None
        return {key: made_of for key in keys if (made_of := self._made_of[key])}


def _read_header(store: SignedStore, path: str) -> Header | None:
    """The header, unverified: it is compared with, nothing is loaded by it. None if it cannot be read."""
    try:
        for bytes_max in (_HEADER_BYTES, HEADER_BYTES_MAX + _HEADER_BYTES):
            start = store.get(path, bytes_max=bytes_max)
            try:
                return peek(path, start)
            except Damaged:
                if len(start) < bytes_max:
                    return None
    except (NotStored, Foreign, Damaged, Unreadable, Untrusted):
        return None
    return None


def _planned(manifest: Manifest) -> list[tuple[str, dict[str, int], bool]]:
    """Method, bucket, and whether the ladder has it, of every combination of sizes."""
    used = {
        method: {axis for tensor in spec.inputs for axis in tensor.shape} for method, spec in manifest.methods.items()
    }
    plans = {
        method: buckets_over([dim for dim in manifest.dims if dim.name in names]) for method, names in used.items()
    }
    return [(method, bucket.sizes, bucket.ladder) for method, bucket in in_load_order(plans)]


def _identity(method: str, bucket: Mapping[str, int]) -> Identity:
    return method, frozenset(bucket.items())
