from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec

from tests.warmpool.served import BATCH, SEQ, doubling, method, tensor
from warmpool.catalog import ServedMethod, ServedModel
from warmpool.load_plan import Loadable
from warmpool.manifest import ExecutableSpec, Manifest, PlanSpec, Target
from warmpool.plan_changes import change_of, given_up, planned_buckets
from warmpool.selection import Candidate

EMBED = method([tensor("x", "int32", "batch", "seq")], [tensor("y", "int32", "batch")], name="embed")
DOUBLE = doubling()
MODEL = ServedModel(
    manifest=cast("Manifest", None),
    manifest_file=Path(),
    weights_file=Path(),
    methods={"embed": EMBED, "double": DOUBLE},
)
OTHER = doubling(model="other")


def loadable(number: int, of: ServedMethod, **bucket: int) -> Loadable:
    return cast("Loadable", SimpleNamespace(method=of, candidate=Candidate(number, bucket, 1.0)))


def spec(name: str, *, ladder: bool = False, **bucket: int) -> ExecutableSpec:
    return ExecutableSpec(
        key=f"{name}{bucket}", method=name, bucket=bucket, minimum=False, ladder=ladder, cost_us=1.0, size_bytes=1
    )


def target(*specs: ExecutableSpec, **plans: tuple[dict[str, int], ...]) -> Target:
    fitted = {name: PlanSpec(buckets=buckets, fitted_s=1.0, observations=1.0) for name, buckets in plans.items()}
    return Target(fingerprint={}, executables=specs, proofs=(), plans=fitted or msgspec.UNSET)


HELD = {
    0: loadable(0, EMBED, batch=1, seq=16),
    1: loadable(1, EMBED, batch=8, seq=16),
    2: loadable(2, DOUBLE, batch=8),
    3: loadable(3, OTHER, batch=3),
}
PLANNED = ({"batch": 1, "seq": 16}, {"batch": 8, "seq": 16}, {"batch": 3, "seq": 9})


def test_nothing_changes_while_the_target_has_what_the_lane_has() -> None:
    change = change_of(
        MODEL,
        target(spec("embed", batch=1, seq=16), spec("embed", batch=8, seq=16), spec("double", batch=8)),
        HELD,
        ladder_only=False,
    )
    assert (change.new, change.gone) == ((), {})


def test_what_the_plan_has_and_the_lane_has_not_is_new() -> None:
    added = spec("embed", batch=3, seq=9)
    change = change_of(MODEL, target(added, spec("embed", batch=1, seq=16), embed=PLANNED), HELD, ladder_only=False)
    assert (change.new, change.gone) == ((added,), {})


def test_a_lane_that_holds_the_ladder_alone_takes_up_nothing_else() -> None:
    added = spec("embed", batch=3, seq=9), spec("embed", ladder=True, batch=4, seq=16)
    change = change_of(MODEL, target(*added, embed=PLANNED), HELD, ladder_only=True)
    assert change.new == (added[1],)


def test_the_primary_lane_does_not_take_up_what_is_for_the_cpu_lane_alone() -> None:
    fast = msgspec.structs.replace(spec("embed", ladder=True, batch=3, seq=9), cpu_lane_only=True)
    assert change_of(MODEL, target(fast, embed=PLANNED), HELD, ladder_only=False).new == ()
    assert change_of(MODEL, target(fast, embed=PLANNED), HELD, ladder_only=True).new == (fast,)


def test_what_is_planned_no_more_is_given_up_and_nothing_of_other_methods_and_models() -> None:
    change = change_of(MODEL, target(embed=PLANNED[:1]), HELD, ladder_only=False)
    assert change.gone == {EMBED: (1,)}


def test_what_is_planned_and_lost_from_the_target_stays() -> None:
    assert change_of(MODEL, target(embed=PLANNED), HELD, ladder_only=False).gone == {}
    assert change_of(MODEL, target(), HELD, ladder_only=False).gone == {}


def test_without_a_fitted_plan_the_buckets_are_those_of_the_manifest() -> None:
    """As after a plan was taken back: 3 rows of 9 were fitted."""
    held = HELD | {4: loadable(4, EMBED, batch=3, seq=9)}
    assert change_of(MODEL, target(), held, ladder_only=False).gone == {EMBED: (4,)}
    assert len(list(planned_buckets(EMBED, target()))) == len(BATCH.sizes) * len(SEQ.sizes)


def test_what_is_given_up_goes_once_all_others_of_its_method_are_ready() -> None:
    held = HELD | {4: loadable(4, EMBED, batch=3, seq=9)}
    gone = {EMBED: (0, 1)}
    assert given_up(gone, held, lambda number: number == 4) == [0, 1]
    assert given_up(gone, held, lambda number: number in {0, 1, 2, 3}) == []
    both = {EMBED: (0,), DOUBLE: (2,)}
    assert given_up(both, held, lambda number: number == 4) == [2], "each method by itself"
