"""How far a lane is with a version, and what stays of one that it has parted with: nothing."""

from __future__ import annotations

from dataclasses import replace

from tests.warmpool.served import doubling
from warmpool import messages
from warmpool.catalog import ServedMethod, ServedModel
from warmpool.holdings import Holdings
from warmpool.load_plan import Loadable, LoadPlan
from warmpool.residency import Footprint
from warmpool.selection import Candidate
from warmpool.version_progress import fully_warm, has_tried, holds_minimum, left_behind, minimum, why_not

DOUBLE, OTHER = doubling(), doubling("other")


class Version:
    """A version of two methods, as far as anybody asks here."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.methods = {"double": DOUBLE, "other": OTHER}


V1: ServedModel = Version("m/1")  # type: ignore[assignment]
V2: ServedModel = Version("m/2")  # type: ignore[assignment]


def plan(version: str, first: int, *executables: tuple[ServedMethod, int, bool]) -> LoadPlan:
    """The weights of a version, and executables of these rows, in the minimum set or not."""
    weights = messages.Weights(version=version, manifest_path="", weights_path="", verified="")
    found = LoadPlan(end=first, work=[weights], weights={version: weights}, weights_bytes={version: 1})
    for method, rows, is_minimum in executables:
        number, found.end = found.end, found.end + 1
        load = messages.Load(
            executable=number, version=version, artifact_path="", key=f"{number}", inputs=(), outputs=(), bytes_max=9
        )
        found.work.append(load)
        found.loadables[number] = Loadable(
            candidate=Candidate(number, {"batch": rows}, 1.0),
            method=method,
            message=load,
            minimum=is_minimum,
            inputs=[],
            outputs=[],
            footprint=Footprint(version, 1, 1, is_minimum),
        )
    return found


WHOLE = ((DOUBLE, 1, True), (OTHER, 1, True), (DOUBLE, 4, False))


def begun(*executables: tuple[ServedMethod, int, bool]) -> Holdings:
    held = Holdings()
    held.begin(plan("m/1", 0, *executables))
    return held


def settle(held: Holdings, *, cold: tuple[int, ...] = (), but: tuple[int, ...] = (), unmapped: bool = False) -> None:
    """Let the lane do all that it is to, but for some."""
    while work := [one for one in held.loads.take() if getattr(one, "executable", None) not in but]:
        for one in work:
            match one:
                case messages.Weights():
                    reason = "damaged" if unmapped else ""
                    identity = "" if unmapped else "file"
                    held.settle(messages.Mapped(one.version, [], reason=reason, identity=identity), 0.0)
                case messages.Load():
                    number = one.executable
                    dead = number in cold or unmapped
                    held.settle(messages.Cold(number, "bad") if dead else messages.Warm(number, []), 0.0)
                case messages.Unload():
                    held.settle(messages.Unloaded(one.executable), 0.0)
                case messages.Unmap():
                    held.settle(messages.Unmapped(one.version), 0.0)


def test_a_version_is_fully_warm_once_all_of_it_was_tried_and_its_minimum_sets_are_warm() -> None:
    held = begun(*WHOLE)
    assert [reason for _, reason in minimum(held, "m/1")] == [None, None]
    assert not has_tried(held, "m/1")
    settle(held, but=(2,))
    assert holds_minimum(held, "m/1")
    assert not fully_warm(V1, [held]), "not all of it was tried"
    held.settle(messages.Warm(2, []), 0.0)
    assert fully_warm(V1, [held])


def test_one_that_cannot_be_warmed_keeps_no_version_back_unless_it_is_of_a_minimum_set() -> None:
    spare, needed = begun(*WHOLE), begun(*WHOLE)
    settle(spare, cold=(2,))
    settle(needed, cold=(1,))
    assert fully_warm(V1, [spare])
    assert not fully_warm(V1, [needed])
    assert (has_tried(needed, "m/1"), why_not(needed, "m/1")) == (True, "tiny:other batch=1: bad")


def test_a_method_without_a_minimum_set_keeps_its_version_back() -> None:
    held = begun((DOUBLE, 1, True), (OTHER, 1, False))
    settle(held)
    assert holds_minimum(held, "m/1")
    assert not fully_warm(V1, [held])


def test_every_lane_that_is_up_has_to_have_tried_it_and_the_primary_one_has_to_be_up() -> None:
    primary, second, down = begun(*WHOLE), begun(*WHOLE), Holdings()
    settle(primary)
    assert fully_warm(V1, [primary, down])
    assert not fully_warm(V1, [primary, second])
    settle(second, cold=(0, 1, 2))
    assert fully_warm(V1, [primary, second]), "what another lane cannot have is no reason"
    assert not fully_warm(V1, [down, primary])


def test_a_version_of_which_a_lane_knows_nothing_yet_was_not_tried_and_one_that_it_cannot_have_was() -> None:
    held = begun(*WHOLE)
    settle(held)
    assert not has_tried(held, "m/2")
    assert not holds_minimum(held, "m/2")
    assert held.load_plan is not None
    held.load_plan.missing["m/2"] = "nobody published it"
    assert (has_tried(held, "m/2"), why_not(held, "m/2")) == (True, "nobody published it")
    assert not fully_warm(V2, [held])


def test_a_version_that_a_lane_parts_with_leaves_nothing_and_the_other_one_stays() -> None:
    held = begun(*WHOLE)
    settle(held)
    others = ((doubling("third"), 1, True),)
    held.extend(plan("m/2", 3, *others))
    settle(held)
    assert held.load_plan is not None
    for version, left in (("m/1", {3}), ("m/2", set())):
        held.part_with(version)
        settle(held)
        assert held.residency.held == set(held.load_plan.loadables) == left
        assert not {version} & {*held.mapped, *held.load_plan.weights, *held.load_plan.weights_bytes}
        assert set(held.warm) == {one.method for one in held.load_plan.loadables.values()}
    assert (held.mapped, held.warm, held.warm_count, held.loads.finished) == ({}, {}, 0, True)
    assert held.residency._weights == {}


def test_a_version_that_a_lane_parts_with_before_it_was_loaded_never_is() -> None:
    held = begun(*WHOLE)
    held.part_with("m/1")
    assert held.loads.take() == []
    assert held.loads.finished


def test_weights_that_could_not_be_mapped_are_tried_again_when_the_version_comes_again() -> None:
    held = begun(*WHOLE)
    settle(held, unmapped=True)
    assert held.mapped == {"m/1": ""}
    held.part_with("m/1")
    settle(held)
    assert held.mapped == {}
    held.extend(plan("m/1", 3, *WHOLE))
    settle(held)
    assert held.mapped == {"m/1": "file"}
    assert fully_warm(V1, [held])


def test_a_version_is_left_behind_where_there_is_none_or_another_object_of_its_key() -> None:
    held = begun(*WHOLE)
    assert held.load_plan is not None
    held.load_plan.missing["m/9"] = "it is not there"
    assert left_behind(held, {"m/1": V1, "m/9": Version("m/9")}) == []  # type: ignore[dict-item]
    assert left_behind(held, {"m/1": V1}) == ["m/9"]
    assert left_behind(held, {}) == ["m/1", "m/9"]
    again = Version("m/1")
    again.methods = {"double": doubling(), "other": OTHER}
    assert left_behind(held, {"m/1": again, "m/9": V1}) == ["m/1"]  # type: ignore[dict-item]
    assert left_behind(Holdings(), {}) == []


def test_what_a_new_process_was_not_planned_yet_may_come_and_what_it_cannot_have_may_not() -> None:
    held = Holdings()
    other = replace(DOUBLE, model="m", version="2")
    own = replace(DOUBLE, model="m")
    assert held.may_cover(other, {"batch": 1})
    held.begin(plan("m/1", 0, (own, 1, True)))
    assert [held.may_cover(own, {"batch": rows}) for rows in (1, 2)] == [True, False]
    assert held.may_cover(other, {"batch": 1})
    assert held.load_plan is not None
    held.load_plan.missing["m/2"] = "it was not published"
    assert not held.may_cover(other, {"batch": 1})
    del held.load_plan.missing["m/2"]
    held.extend(plan("m/2", 1, (other, 1, True)))
    assert [held.may_cover(other, {"batch": rows}) for rows in (1, 2)] == [True, False]
