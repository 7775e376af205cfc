"""What is held against an instance's word that it is ready, or is not."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.gameday.readiness import Readiness, minimum_sets
from cache.local_store import LocalStore
from cache.signed_store import SignedStore
from cache.signing import ANYONE
from tests.warmpool.line_versions import VERSIONS, publish
from warmpool.survey import survey

SMALL, WIDE, OTHER = "a:predict batch=1", "a:predict batch=8", "b:score batch=1"
MINIMUM = {"a/1": [frozenset({SMALL, "a:embed batch=1"})], "b/7": [frozenset({OTHER})]}
SERVED = {"a": "1", "b": "7"}
WARM = {SMALL: "warm", "a:embed batch=1": "warm", WIDE: "warm", OTHER: "warm"}


class Unasked:
    """Nobody looks at it."""

    def status(self) -> dict[str, Any]:
        raise AssertionError

    def answers(self, path: str) -> int:
        raise AssertionError(path)


def status(
    executables: dict[str, str] = WARM, *, ready: bool = True, unready: tuple[str, ...] = (), **changes: Any
) -> dict[str, Any]:
    lane = {
        "pid": 1,
        "state": "warm",
        "executables": dict(executables),
        "ended": {},
        "circuit": {"state": changes.pop("circuit", "closed")},
    }
    document = {
        "ready": ready,
        "state": "serving",
        "reasons": {} if ready else {"a": "its minimum set is not warm"},
        "models": {name: {"version": version, "ready": name not in unready} for name, version in SERVED.items()},
        "lanes": [lane | changes.pop("lane", {})],
    }
    return document | changes


def found(before: dict[str, Any], *, said: bool, after: dict[str, Any] | None = None) -> list[str]:
    readiness = Readiness(Unasked(), MINIMUM)
    readiness.compare(before, said, after or before)
    return [contradiction[0] for contradiction in readiness.contradictions]


LOADING = WARM | {SMALL: "loading"}
NO_PLAN: dict[str, str] = {}
FALSE_READY, FALSE_UNREADY = ["ready without its minimum set"], ["not ready with its minimum set"]


@pytest.mark.parametrize(
    ("document", "wrong"),
    [
        (status(), []),
        (status(WARM | {WIDE: "loading"}), []),  # not of a minimum set
        (status(LOADING, ready=False, unready=("a",)), []),
        (status(LOADING, unready=("a",)), FALSE_READY),  # though others are warm
        (status(WARM | {OTHER: "cold"}, unready=("b",)), FALSE_READY),  # of another model
        (
            status({name: state for name, state in WARM.items() if name != SMALL}, unready=("a",)),
            FALSE_READY,
        ),  # never planned
        (status(lane={"state": "down"}, unready=("a", "b")), FALSE_READY),
        (status(models={"a": {"version": "2", "ready": False}}), FALSE_READY),  # of which the store has nothing
        (status(models={}), FALSE_READY),
        (
            status(models={"a": {"version": "1", "ready": True}, "new": {"version": "", "ready": False}}),
            [],
        ),  # it is being loaded
        (status(ready=False), FALSE_UNREADY),
        (status(ready=False, state="starting"), []),
        (status(ready=False, state="draining"), []),
        (status(ready=False, models={}), []),
        (status(LOADING, ready=False), ["the model a"]),
        (status(LOADING, ready=False, unready=("a", "b")), ["the model b"]),
        (status(reasons={"a": "it is cold"}), ["reasons"]),
        (status(NO_PLAN, ready=False, unready=("a", "b"), circuit="open"), ["no reason for a lane that is down"]),
        (
            status(
                NO_PLAN,
                ready=False,
                unready=("a", "b"),
                circuit="open",
                reasons={"a": "the primary lane is down: it failed"},
            ),
            [],
        ),
    ],
)
def test_what_a_status_says_of_readiness_is_held_against_the_minimum_sets_of_the_store(
    document: dict[str, Any], wrong: list[str]
) -> None:
    assert found(document, said=document["ready"]) == wrong


def test_of_two_versions_in_a_lane_the_one_that_is_served_counts() -> None:
    executables = {f"{name} @1": state for name, state in WARM.items() if name != OTHER} | {OTHER: "warm"}
    canary = {f"{SMALL} @2": "loading", "a:embed batch=1 @2": "loading"}
    assert found(status(executables | canary), said=True) == []
    assert found(status(executables | canary | {f"{SMALL} @1": "loading"}, unready=("a",)), said=True) == FALSE_READY


@pytest.mark.parametrize("said", [True, False])
def test_the_answer_to_the_probe_counts_where_the_status_was_the_same_before_and_after(said: bool) -> None:
    assert found(status(ready=said, state="draining"), said=not said) == ["health"]
    assert found(status(), said=said, after=status(LOADING, ready=False, unready=("a",))) == []
    assert found(status(), said=False, after=status(lane={"pid": 2})) == [], "it may not have been meanwhile"


def test_a_stores_minimum_sets_are_called_as_a_status_calls_them(tmp_path) -> None:
    store = LocalStore(tmp_path)
    publish(store, "1", VERSIONS["1"])
    sets = minimum_sets(survey(SignedStore(store, ANYONE)))
    assert sets == {"line/1": [frozenset({"line:predict batch=1,width=16"})]}
