"""What starts and ends a rollout, from one value to another."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from cache.local_store import LocalStore
from tests.warmpool.served import tensor
from tests.warmpool.stored_version import PREDICT, put
from warmpool.manifest import DimSpec, RolloutSpec, Serving
from warmpool.rollout.changes import RolloutRefused, Start, misfit, promoted, retired, rolled_back, started

SPEC = RolloutSpec(started_s=5.0)
START = Start(spec=SPEC)
RUNNING = started(Serving(stable="1", previous="0"), "2", START, 5.0, "faster")


def test_a_start_names_the_canary_and_keeps_what_was_served() -> None:
    assert (
        Serving(
            stable="1", canary="2", share=0.1, mirror=0.05, previous="0", changed_s=5.0, reason="faster", rollout=SPEC
        )
        == RUNNING
    )


def test_what_was_stable_before_may_be_the_canary() -> None:
    again = started(Serving(stable="1", previous="2"), "2", START, 5.0)
    assert (again.canary, again.previous) == ("2", "")


def test_another_start_of_the_same_canary_changes_its_share_and_is_the_same_rollout() -> None:
    later = Start(share=0.5, spec=RolloutSpec(started_s=9.0, bake_s=1.0))
    again = started(RUNNING, "2", later, 9.0)
    assert (again.share, again.changed_s, again.rollout) == (0.5, 9.0, RolloutSpec(started_s=5.0, bake_s=1.0))


@pytest.mark.parametrize(("version", "words"), [("1", "stable already"), ("3", "'2' is the canary since before")])
def test_stable_is_no_canary_and_there_is_one_at_a_time(version: str, words: str) -> None:
    with pytest.raises(RolloutRefused, match=words):
        started(RUNNING, version, START, 9.0)


@pytest.mark.parametrize(
    "wrong", [{"share": 0.51}, {"share": -0.1}, {"mirror": 1.1}, {"share": 0.0, "mirror": 0.0}, {"share": float("nan")}]
)
def test_shares_that_leave_nothing_to_compare_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(RolloutRefused, match=r"allowed|nothing to be judged by"):
        dataclasses.replace(START, **wrong)


def test_a_promoted_canary_is_stable_and_the_old_version_stays_warm() -> None:
    assert promoted(RUNNING, 7.0, "good") == Serving(stable="2", previous="1", changed_s=7.0, reason="good")
    with pytest.raises(RolloutRefused, match="no canary"):
        promoted(Serving(stable="1"), 7.0)


def test_a_rollback_takes_the_canary_back_and_without_one_goes_to_what_was_before() -> None:
    back = rolled_back(RUNNING, 7.0, "bad")
    assert back == Serving(stable="1", previous="0", changed_s=7.0, reason="bad")
    assert rolled_back(promoted(RUNNING, 7.0), 8.0) == Serving(stable="1", changed_s=8.0)
    with pytest.raises(RolloutRefused, match="no version before '1'"):
        rolled_back(Serving(stable="1"), 8.0)


def test_only_the_version_before_can_be_retired() -> None:
    assert retired(RUNNING, 7.0).versions == ("1", "2")
    assert retired(RUNNING, 7.0).rollout == SPEC
    with pytest.raises(RolloutRefused, match="besides '1'"):
        retired(Serving(stable="1"), 8.0)


def with_input(**changes: Any) -> dict[str, Any]:
    first = msgspec.structs.replace(PREDICT.inputs[0], **changes)
    return {"methods": {"predict": msgspec.structs.replace(PREDICT, inputs=(first, *PREDICT.inputs[1:]))}}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"methods": {"predict": PREDICT, "more": PREDICT}}, ""),
        (with_input(pad=7), ""),
        ({"methods": {"other": PREDICT}}, "it has no method 'predict'"),
        (with_input(dtype="int64"), "'predict' has other inputs"),
        (with_input(high=3), "'predict' has other inputs"),
        ({"methods": {"predict": msgspec.structs.replace(PREDICT, outputs=())}}, "'predict' has other outputs"),
        ({"dims": (DimSpec(name="batch", max=1, sizes=(1,), batch=True),)}, "it takes 'batch' up to 1, stable up to"),
    ],
)
def test_a_canary_has_to_take_and_give_what_stable_does(tmp_path: Any, changes: dict[str, Any], why: str) -> None:
    store = LocalStore(tmp_path)
    found = misfit(put(store), put(store, version="2", **changes))
    assert found.startswith(why)
    assert bool(found) == bool(why)


def test_outputs_are_told_by_their_tensors() -> None:
    assert tensor("a", "int8", "batch") != PREDICT.outputs[0]
