"""What several publishes of one version prove adds up in its target, and nothing counts twice."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import msgspec
import pytest

from cache.fingerprint import Fingerprint
from cache.local_store import LocalStore
from cache.signed_store import SignedStore
from cache.signing import ANYONE
from tests.cache.meddling import MeddledStore
from warmpool.manifest import ExecutableSpec, ProofSpec, Target, encode
from warmpool.publishing.buckets import Bucket
from warmpool.publishing.entries import Entry
from warmpool.publishing.known import Known

PATH = "models/toy/1/targets/f00.json"
ENTRIES = [Entry("predict", Bucket({"batch": size}, minimum=False, ladder=False), f"key-{size}", {}) for size in (1, 2)]
FIRST, SECOND = ENTRIES


class Publish:
    """One that knows what is proved."""

    def __init__(
        self,
        folder: Path,
        *,
        trusted: bool = True,
        recording: bool = True,
        entries: Sequence[Entry] = ENTRIES,
        gone: Collection[str] = (),
        bottom: LocalStore | None = None,
        needed: Collection[Entry] = (),
    ) -> None:
        self.store = SignedStore(bottom or LocalStore(folder), ANYONE)
        self.said: list[str] = []
        fingerprint = Fingerprint(MappingProxyType({"platform": "cpu"}))
        self.known = Known(
            self.store,
            PATH,
            fingerprint,
            entries,
            [entry.place for entry in ENTRIES],
            self.said.append,
            sound=lambda key: key not in gone,
            trusted=trusted,
            recording=recording,
            needed=frozenset(entry.place for entry in needed),
        )
        self.known.read()

    def prove(self, entry: Entry, cases: int = 3, cost_us: float = 1.0) -> None:
        spec = ExecutableSpec(
            key=entry.key,
            method=entry.method,
            bucket=entry.bucket.sizes,
            minimum=False,
            ladder=entry.ladder,
            cpu_lane_only=entry.ladder,
            cost_us=cost_us,
            size_bytes=1,
        )
        self.known.add(entry, spec, [ProofSpec(method="predict", kind="padding", cases=cases, error_max=0.5)])

    def stored(self) -> Target:
        return msgspec.json.decode(self.store.get(PATH), type=Target)


def seen(target: Target) -> tuple[list[str], int]:
    """Keys in order, and how many cases were compared in all."""
    return [one.key for one in target.executables], sum(proof.cases for proof in target.proofs)


def test_what_is_added_is_stored_at_once_and_known_to_the_next(tmp_path: Path) -> None:
    one = Publish(tmp_path)
    assert FIRST not in one.known
    one.prove(FIRST)
    assert seen(one.stored()) == (["key-1"], 3)
    assert FIRST in Publish(tmp_path).known


def test_what_others_added_meanwhile_stays(tmp_path: Path) -> None:
    one, two = Publish(tmp_path), Publish(tmp_path)
    two.prove(SECOND, cases=4)
    one.prove(FIRST)
    assert seen(one.stored()) == (["key-1", "key-2"], 7)
    assert SECOND in one.known
    assert seen(one.known.target()) == (["key-1", "key-2"], 7)


def test_what_was_proved_twice_counts_once(tmp_path: Path) -> None:
    one, two = Publish(tmp_path), Publish(tmp_path)
    one.prove(FIRST, cost_us=1.0)
    two.prove(FIRST, cost_us=2.0)
    assert seen(two.stored()) == (["key-1"], 3)
    assert two.stored().executables[0].cost_us == 2.0


def test_what_others_took_away_is_added_again_with_the_next(tmp_path: Path) -> None:
    one = Publish(tmp_path)
    one.prove(FIRST)
    one.store.delete(PATH)
    one.prove(SECOND, cases=4)
    assert seen(one.stored()) == (["key-1", "key-2"], 7)


def test_what_others_took_away_of_theirs_is_not_known_any_more(tmp_path: Path) -> None:
    one, two = Publish(tmp_path), Publish(tmp_path)
    two.prove(SECOND)
    one.known.read()
    assert SECOND in one.known
    one.store.delete(PATH)
    one.known.read()
    assert SECOND not in one.known
    assert seen(one.known.target()) == ([], 0)


def test_what_is_not_trusted_is_not_read_and_what_is_not_recorded_not_stored(tmp_path: Path) -> None:
    Publish(tmp_path).prove(FIRST)
    named = Publish(tmp_path, trusted=False, recording=False)
    assert FIRST not in named.known
    named.prove(SECOND, cases=4)
    assert seen(named.known.target()) == (["key-2"], 4)
    assert seen(named.stored()) == (["key-1"], 3)


@pytest.mark.parametrize("data", [b"", b"{}", b"\x00"])
def test_a_target_that_cannot_be_read_is_told_once_and_made_anew(tmp_path: Path, data: bytes) -> None:
    LocalStore(tmp_path).put(PATH, data)
    one = Publish(tmp_path)
    one.known.read()
    (said,) = one.said
    assert said.startswith(f"{PATH}: it cannot be read (")
    one.prove(FIRST)
    assert seen(one.stored()) == (["key-1"], 3)


def test_what_others_store_between_our_look_and_our_write_stays(tmp_path: Path) -> None:
    bottom = MeddledStore(tmp_path)
    one, two = Publish(tmp_path, bottom=bottom, recording=False), Publish(tmp_path)
    one.prove(FIRST)

    def store_first(operation: str, _: str) -> None:
        if operation == "put_if":
            bottom.before = lambda operation, path: None
            two.prove(SECOND, cases=4)

    bottom.before = store_first
    assert one.known.write() is True
    assert seen(one.stored()) == (["key-1", "key-2"], 7)
    assert one.known.write() is False


def test_who_proves_a_smaller_part_takes_nothing_of_the_rest_away(tmp_path: Path) -> None:
    """As a machine with an accelerator does, which needs a few executables of the CPU's only."""
    whole = Publish(tmp_path)
    whole.known.refer("edge")
    whole.prove(FIRST)
    whole.prove(SECOND, cases=4)
    part = Publish(tmp_path, entries=[SECOND], recording=False)
    assert part.known.write() is False
    part.prove(SECOND, cost_us=9.0)
    assert part.known.write() is True
    assert seen(part.stored()) == (["key-1", "key-2"], 7)
    assert [one.cost_us for one in part.stored().executables] == [1.0, 9.0]
    assert part.stored().references == ("edge",)


def test_what_is_stored_no_more_is_not_listed_any_more(tmp_path: Path) -> None:
    whole = Publish(tmp_path)
    whole.known.refer("edge")
    whole.prove(FIRST)
    whole.prove(SECOND)
    part = Publish(tmp_path, entries=[SECOND], gone={"key-1", "edge"})
    assert part.known.write() is True
    assert seen(part.stored())[0] == ["key-2"]
    assert part.stored().references == ()


def test_of_two_executables_of_one_bucket_the_one_of_the_last_publish_is_listed(tmp_path: Path) -> None:
    """Whose compile options were others."""
    Publish(tmp_path).prove(FIRST)
    other = replace(FIRST, key="key-1-with-other-options")
    last = Publish(tmp_path, entries=[other])
    last.prove(other)
    assert seen(last.stored())[0] == ["key-1-with-other-options"]


def test_a_target_that_becomes_readable_between_two_looks_is_not_replaced(tmp_path: Path) -> None:
    bottom = MeddledStore(tmp_path)
    bottom.put(PATH, b"{")
    one, two = Publish(tmp_path, bottom=bottom, recording=False), Publish(tmp_path)
    one.prove(FIRST)
    looks = 0

    def repair(operation: str, _: str) -> None:
        nonlocal looks
        looks += operation == "get_versioned"
        if looks == 2:
            bottom.after = lambda operation, path: None
            two.prove(SECOND, cases=4)

    bottom.after = repair
    one.known.write()
    assert seen(one.stored()) == (["key-1", "key-2"], 7)


def test_a_target_is_stored_once_what_is_needed_is_proved(tmp_path: Path) -> None:
    one = Publish(tmp_path, needed=[SECOND])
    one.prove(FIRST)
    assert one.known.lacks() == {SECOND.place}
    assert one.store.names("models/toy/1/targets") == []
    one.prove(SECOND, cases=4)
    assert seen(one.stored()) == (["key-1", "key-2"], 7)


FAST = replace(FIRST, key="fast-1", ladder=True)


def test_each_lane_sees_its_part_once_that_is_whole(tmp_path: Path) -> None:
    one = Publish(tmp_path, entries=[*ENTRIES, FAST], needed=[FIRST, SECOND, FAST])
    one.prove(FIRST)
    one.prove(FAST, cases=4)
    assert one.known.lacks() == {SECOND.place}
    assert seen(one.stored())[0] == ["fast-1"]
    one.prove(SECOND, cases=5)
    assert sorted(seen(one.stored())[0]) == ["fast-1", "key-1", "key-2"]


def test_what_lanes_saw_of_a_lanes_part_they_see_on(tmp_path: Path) -> None:
    Publish(tmp_path).prove(FIRST)
    one = Publish(tmp_path, entries=[*ENTRIES, FAST], needed=[SECOND, FAST])
    one.prove(FAST)
    assert sorted(seen(one.stored())[0]) == ["fast-1", "key-1"]


def test_what_both_lanes_held_is_the_primary_ones_once_the_cpu_lane_has_its_own(tmp_path: Path) -> None:
    before = Publish(tmp_path)
    for entry in ENTRIES:
        before.prove(entry)
    shared = [msgspec.structs.replace(spec, ladder=True) for spec in before.stored().executables]
    before.store.put(PATH, encode(msgspec.structs.replace(before.stored(), executables=tuple(shared))))
    Publish(tmp_path, entries=[*ENTRIES, FAST]).prove(FAST)
    found = {spec.key: (spec.ladder, spec.cpu_lane_only) for spec in before.stored().executables}
    assert found == {"key-1": (False, False), "key-2": (True, False), "fast-1": (True, True)}


def test_what_is_needed_may_be_what_others_proved(tmp_path: Path) -> None:
    Publish(tmp_path).prove(SECOND)
    one = Publish(tmp_path, needed=[SECOND])
    assert one.known.lacks() == set()
    one.prove(FIRST)
    assert seen(one.stored())[0] == ["key-1", "key-2"]
