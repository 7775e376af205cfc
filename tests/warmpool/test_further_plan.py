"""A lane that is to have more of a version maps its weights again only if it has them no more."""

from __future__ import annotations

from tests.warmpool.served import doubling
from warmpool import messages
from warmpool.holdings import Holdings
from warmpool.load_plan import Loadable, LoadPlan
from warmpool.residency import Footprint
from warmpool.selection import Candidate

METHOD = doubling()
WEIGHTS = messages.Weights(version="m/1", manifest_path="", weights_path="", verified="")


def plan(*numbers: int) -> LoadPlan:
    """The weights of a version, and executables of it."""
    found = LoadPlan(end=max(numbers) + 1, work=[WEIGHTS], weights={"m/1": WEIGHTS}, weights_bytes={"m/1": 1})
    for number in numbers:
        load = messages.Load(
            executable=number, version="m/1", artifact_path="", key=f"{number}", inputs=(), outputs=(), bytes_max=9
        )
        found.work.append(load)
        found.loadables[number] = Loadable(
            candidate=Candidate(number, {"batch": number + 1}, 1.0),
            method=METHOD,
            message=load,
            minimum=False,
            inputs=[],
            outputs=[],
            footprint=Footprint("m/1", 1, 1),
        )
    return found


def sent(held: Holdings) -> list[str]:
    return [getattr(work, "key", "weights") for work in held.loads.take()]


def begun() -> Holdings:
    held = Holdings()
    held.begin(plan(0))
    return held


def mapped(held: Holdings) -> None:
    held.settle(messages.Mapped(version="m/1", stages=[], identity="file"), 0.0)


def warm(held: Holdings, number: int) -> None:
    held.settle(messages.Warm(executable=number, stages=[]), 0.0)


def test_weights_that_are_mapped_are_not_mapped_again() -> None:
    held = begun()
    assert sent(held) == ["weights", "0"]
    mapped(held)
    warm(held, 0)
    held.extend(plan(1))
    assert sent(held) == ["1"]


def test_nor_those_that_are_under_way_or_planned() -> None:
    held = begun()
    held.extend(plan(1))
    assert sent(held) == ["weights", "0", "1"]
    held.extend(plan(2))
    mapped(held)
    warm(held, 0)
    assert sent(held) == ["2"]


def test_weights_that_were_unmapped_with_all_that_needed_them_are_mapped_again() -> None:
    held = begun()
    sent(held)
    mapped(held)
    warm(held, 0)
    held.retire([0])
    for done in (messages.Unloaded(executable=0), messages.Unmapped(version="m/1")):
        held.loads.take()
        held.settle(done, 0.0)
    held.extend(plan(1))
    assert sent(held) == ["weights", "1"]
