"""How far a lane is with one version ("model/version"), by what the lane holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from warmpool.catalog import ServedModel
from warmpool.holdings import Holdings
from warmpool.load_plan import Loadable


def minimum(held: Holdings, version: str) -> list[tuple[Loadable, str | None]]:
    """The version's minimum set in the plan: why for what cannot be had, None for what is being loaded, else ""."""
    return [
        (held.loadable(number), None if held.state(number) == "loading" else held.trouble(number))
        for number in held.of_version(version)
        if held.loadable(number).minimum
    ]


def holds_minimum(held: Holdings, version: str) -> bool:
    """Whether all of the minimum set is warm, or gave its place to what is used more, and can be loaded."""
    if held.load_plan is None or version not in held.load_plan.weights:
        return False
    return all(reason == "" for _, reason in minimum(held, version))


def has_tried(held: Holdings, version: str) -> bool:
    """Whether everything of a version was tried, or it is known why the plan has nothing of it."""
    if held.load_plan is None or version not in {*held.load_plan.weights, *held.load_plan.missing}:
        return False
    return all(held.state(number) != "loading" for number in held.of_version(version))


def why_not(held: Holdings, version: str) -> str:
    """Why it cannot come to hold the version's minimum set, "" if nothing is known to be wrong."""
    if held.load_plan is None:
        return ""
    cold = (f"{loadable.title}: {reason}" for loadable, reason in minimum(held, version) if reason)
    return held.load_plan.missing.get(version) or next(cold, "")


def may_hold(held: Holdings, version: str) -> bool:
    """Whether it holds the version's minimum set, or may come to, by what is known."""
    plan = held.load_plan
    if plan is None or version not in {*plan.weights, *plan.missing}:
        return True
    needed = minimum(held, version) if version in plan.weights else []
    return bool(needed) and not any(reason for _, reason in needed)


def left_behind(held: Holdings, versions: Mapping[str, ServedModel]) -> list[str]:
    """The versions that the plan knows, and that are not among these, or are other objects there: of other methods."""
    plan = held.load_plan
    methods = {key: {*model.methods.values()} for key, model in versions.items()}
    return [
        key
        for key in ({**plan.weights, **plan.missing} if plan else ())
        if key not in methods or not methods[key].issuperset(held.loadable(one).method for one in held.of_version(key))
    ]


def fully_warm(model: ServedModel, lanes: Sequence[Holdings]) -> bool:
    """Whether all that lanes are to have of a version was tried, and the minimum sets of all its methods are warm.

    Args:
        model: The version.
        lanes: What each lane holds, the primary one first. One that is down has nothing to try; the primary must be up.
    """
    having = {loadable.method for loadable, _ in minimum(lanes[0], model.key)}
    tried = all(has_tried(held, model.key) for held in lanes if held.load_plan is not None)
    return tried and having == {*model.methods.values()} and holds_minimum(lanes[0], model.key)
