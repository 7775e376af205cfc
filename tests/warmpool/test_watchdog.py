"""Who owes an answer for too long: a lane that hangs is found, and one that had no chance to answer is left alone."""

from __future__ import annotations

import typing

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool import messages
from warmpool.watchdog import (
    ANSWER,
    LOOK_COUNTS_S_MAX,
    LOOK_S,
    RUN_S_MIN,
    START,
    Cause,
    Debt,
    Limits,
    Watchdog,
    paid_by,
)

LIMITS = Limits(run_s_max=60.0, load_s_max=120.0, answer_s_max=10.0, ask_every_s=5.0)
LOAD = messages.Load(
    executable=3, version="m/1", artifact_path="", key="k", inputs=(), outputs=(), bytes_max=1, made_of={}
)
WEIGHTS = messages.Weights(version="m/1", manifest_path="", weights_path="", verified="")


class Watched:
    """A watchdog that is looked at as often as it is to be, and the clock that it is told."""

    def __init__(self):
        self.dog = Watchdog(LIMITS.ask_every_s)
        self.now_s = 1000.0
        self.dog.look(self.now_s)

    def told(self, message, run_s_max=None):
        debt = LIMITS.debt_of(message, run_s_max)
        assert debt
        self.dog.lend(debt, self.now_s)

    def says(self, message):
        self.dog.paid(paid_by(message), self.now_s)

    def pass_s(self, seconds):
        """The first thing that is overdue, if anything is, and after how long."""
        for look in range(round(seconds / LOOK_S)):
            self.now_s += LOOK_S
            if overdue := self.dog.look(self.now_s):
                return overdue.cause, (look + 1) * LOOK_S
        return None


@pytest.mark.parametrize(
    ("message", "answers", "cause", "limit_s"),
    [
        (messages.Run(executable=3), [messages.Done(start_ns=1, end_ns=2), messages.Failed(reason="")], "run_hung", 60),
        (LOAD, [messages.Warm(executable=3, stages=[]), messages.Cold(executable=3, reason="")], "load_hung", 120),
        (messages.Unload(executable=3), [messages.Unloaded(executable=3)], "load_hung", 120),
        (WEIGHTS, [messages.Mapped(version="m/1", stages=[])], "load_hung", 120),
        (messages.Unmap(version="m/1"), [messages.Unmapped(version="m/1")], "load_hung", 120),
        (messages.Ask(), [messages.Answer(compiles=0, resident_bytes=1)], "silent", 10),
    ],
)
def test_whatever_a_lane_is_told_it_has_to_answer_in_time(message, answers, cause, limit_s):
    for answer in answers:
        watched = Watched()
        watched.told(message)
        assert watched.pass_s(limit_s - LOOK_S) is None
        watched.says(answer)
        assert watched.pass_s(10 * limit_s) is None
    watched = Watched()
    watched.told(message)
    assert watched.pass_s(10 * limit_s) == (cause, limit_s)


def test_every_message_that_a_lane_may_say_can_be_heard():
    for kind in typing.get_args(messages.FromLane):
        fields = {"executable": 1, "version": "m/1"}
        values = {name: fields.get(name, 0) for name in kind.__struct_fields__}
        paid_by(kind(**values))  # raises for one that nobody thought of


def test_an_answer_to_another_load_pays_nothing():
    watched = Watched()
    watched.told(LOAD)
    watched.says(messages.Warm(executable=4, stages=[]))
    watched.says(messages.Unloaded(executable=3))
    assert watched.pass_s(121) == (Cause.LOAD_HUNG, 120)


def test_a_new_process_has_to_start():
    watched = Watched()
    watched.dog.lend(LIMITS.start, watched.now_s)
    assert not watched.dog.to_ask(watched.now_s + 100)
    assert watched.pass_s(200) == (Cause.START_HUNG, 120)
    assert paid_by(messages.Hello(fingerprint={}, stages=[])) == START


def test_one_that_runs_a_batch_is_not_expected_to_answer_before_that_is_done():
    watched = Watched()
    watched.told(messages.Ask())
    watched.told(messages.Run(executable=3))
    assert watched.pass_s(50) is None
    watched.says(messages.Done(start_ns=1, end_ns=2))
    assert watched.pass_s(LIMITS.answer_s_max + 1) == (Cause.SILENT, LIMITS.answer_s_max)


def test_a_run_that_lies_ready_behind_another_has_its_time_once_that_is_done():
    watched = Watched()
    for half, limit_s in enumerate((10, 20)):
        watched.told(messages.Run(executable=3, half=half), limit_s)
    assert watched.pass_s(9) is None
    watched.says(messages.Done(start_ns=1, end_ns=2))
    assert watched.pass_s(19) is None
    assert watched.pass_s(2) == (Cause.RUN_HUNG, 1)
    watched = Watched()
    for half, limit_s in enumerate((10, 20)):
        watched.told(messages.Run(executable=3, half=half), limit_s)
    assert watched.pass_s(30) == (Cause.RUN_HUNG, 10)
    watched.says(messages.Done(start_ns=1, end_ns=2))
    watched.says(messages.Done(start_ns=1, end_ns=2))
    assert watched.pass_s(100) is None


def test_loads_that_wait_behind_others_have_their_time_once_those_are_done():
    watched = Watched()
    loads = [msgspec.structs.replace(LOAD, executable=number) for number in range(3)]
    for load in loads:
        watched.told(load)
    for load in loads[:2]:
        assert watched.pass_s(100) is None
        watched.says(messages.Warm(executable=load.executable, stages=[]))
    assert watched.pass_s(100) is None
    assert watched.pass_s(21) == (Cause.LOAD_HUNG, 20)


def test_a_run_that_is_done_gives_a_load_that_hangs_no_more_time():
    watched = Watched()
    watched.told(LOAD)
    for _ in range(11):
        watched.told(messages.Run(executable=3))
        assert watched.pass_s(10) is None
        watched.says(messages.Done(start_ns=1, end_ns=2))
    assert watched.pass_s(11) == (Cause.LOAD_HUNG, 10)


def test_one_that_is_left_alone_is_asked_and_one_that_owes_something_is_not():
    watched = Watched()
    watched.told(LOAD)
    watched.pass_s(30)
    assert not watched.dog.to_ask(watched.now_s)
    watched.says(messages.Warm(executable=3, stages=[]))
    assert not watched.dog.to_ask(watched.now_s)
    watched.pass_s(LIMITS.ask_every_s)
    assert watched.dog.to_ask(watched.now_s)
    watched.told(messages.Ask())
    assert watched.dog.owes(ANSWER)
    assert not watched.dog.to_ask(watched.now_s)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_whatever_a_clock_says_a_look_counts_for_a_second_at_most(steps):
    """The front was stopped, or the clock was moved: nobody is ended for that."""
    watched = Watched()
    limit_s = len(steps) * LOOK_COUNTS_S_MAX + 0.001
    watched.dog.lend(Debt("it", Cause.LOAD_HUNG, "a load", limit_s), watched.now_s)
    for step in steps:
        watched.now_s += step
        assert watched.dog.look(watched.now_s) is None


@pytest.mark.parametrize(
    ("bound_us", "limit_s"), [(0.0, RUN_S_MIN), (1e5, RUN_S_MIN), (1e6, 20.0), (2.5e6, 50.0), (1e9, 60.0)]
)
def test_a_run_gets_many_times_its_bound_but_neither_too_little_nor_too_much(bound_us, limit_s):
    assert LIMITS.run_s(bound_us) == limit_s


def test_the_setting_is_the_last_word_on_how_long_a_run_may_take():
    assert Limits(run_s_max=0.5).run_s(1e3) == 0.5
