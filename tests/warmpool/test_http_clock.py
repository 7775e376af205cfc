"""A time that is put off again and again ends once, when the last one is over."""

from __future__ import annotations

import pytest

from tests.warmpool.fake_lane import manual_clock, pass_s
from warmpool.http_clock import Clock


class Rung:
    def __init__(self) -> None:
        self.times = 0
        self.clock = Clock(self.ring)

    def ring(self) -> None:
        self.times += 1


@manual_clock
async def test_a_time_that_is_put_off_is_over_after_the_last_one_and_once():
    rung = Rung()
    for _ in range(5):
        rung.clock.start("idle", 10)
        await pass_s(6)
        assert (rung.times, rung.clock.what) == (0, "idle")
    await pass_s(4)
    assert (rung.times, rung.clock.what) == (1, "")
    await pass_s(100)
    assert rung.times == 1


@manual_clock
async def test_a_shorter_time_ends_sooner_than_the_longer_one_before_it():
    rung = Rung()
    rung.clock.start("idle", 75)
    rung.clock.start("head", 30)
    await pass_s(29)
    assert rung.times == 0
    await pass_s(1)
    assert rung.times == 1


@pytest.mark.parametrize("how", ["stop", "close"])
def test_what_was_stopped_is_never_over(how: str):
    async def story() -> None:
        rung = Rung()
        rung.clock.start("idle", 5)
        getattr(rung.clock, how)()
        await pass_s(100)
        assert (rung.times, rung.clock.what) == (0, "")

    manual_clock(story)()


@manual_clock
async def test_it_can_be_started_again_after_it_stood_still_for_long():
    rung = Rung()
    rung.clock.start("idle", 5)
    rung.clock.stop()
    await pass_s(50)
    rung.clock.start("head", 5)
    await pass_s(5)
    assert rung.times == 1
