"""Shared turns overlap, an exclusive one overlaps with nothing."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from warmpool.publishing.slots import Slots

WAIT_S_MAX = 60


def test_shared_turns_overlap() -> None:
    slots, meeting = Slots(), threading.Barrier(2)

    def share() -> int:
        with slots.shared():
            return meeting.wait(WAIT_S_MAX)

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(lambda _: share(), range(2))) == [0, 1]


def test_an_exclusive_turn_is_alone() -> None:
    slots, inside, seen = Slots(), set[int](), list[set[int]]()

    def take(number: int) -> None:
        with slots.exclusive() if number % 3 == 0 else slots.shared():
            inside.add(number)
            if number % 3 == 0:
                seen.append(set(inside))
            inside.discard(number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(take, range(300)))
    assert seen == [{number} for number in sorted(range(0, 300, 3), key=[min(one) for one in seen].index)]


def test_who_waits_for_an_exclusive_turn_goes_before_a_new_shared_one() -> None:
    slots, order = Slots(), list[str]()
    first_in, release = threading.Event(), threading.Event()

    def first() -> None:
        with slots.shared():
            first_in.set()
            release.wait(WAIT_S_MAX)

    def alone() -> None:
        with slots.exclusive():
            order.append("exclusive")

    def late() -> None:
        with slots.shared():
            order.append("shared")

    with ThreadPoolExecutor(3) as pool:
        jobs = [pool.submit(first)]
        first_in.wait(WAIT_S_MAX)
        jobs.append(pool.submit(alone))
        while not slots._exclusive_waiting:
            pass
        jobs.append(pool.submit(late))
        release.set()
        for job in jobs:
            job.result(WAIT_S_MAX)
    assert order == ["exclusive", "shared"]


def test_a_turn_ends_when_its_work_fails() -> None:
    slots = Slots()
    for turn in (slots.shared, slots.exclusive):
        with pytest.raises(ZeroDivisionError), turn():
            _ = 1 / 0
    with slots.exclusive():
        pass
