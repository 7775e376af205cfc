"""Which loads a lane is given when, and what is not tried again."""

import dataclasses
import signal

import msgspec
import pytest

from tests.warmpool.served import doubling
from warmpool import messages
from warmpool.load_plan import Loadable, LoadPlan
from warmpool.load_queue import CRASHES, DEATHS_MAX, LoadQueue
from warmpool.residency import Footprint
from warmpool.selection import Candidate

METHOD = doubling()
CRASHED = -signal.SIGSEGV


def planned(minimum, rest, *, quietly=False):
    """A plan of weights, then executables numbered from 0, the minimum set first."""
    plan = LoadPlan(quietly=quietly)
    plan.work.append(messages.Weights(version="m/1", manifest_path="", weights_path="", verified=""))
    for number in range(minimum + rest):
        load = messages.Load(
            executable=number, version="m/1", artifact_path="", key=f"key{number}", inputs=(), outputs=(), bytes_max=9
        )
        plan.work.append(load)
        plan.loadables[number] = Loadable(
            candidate=Candidate(number, {"batch": number + 1}, 1.0),
            method=METHOD,
            message=load,
            minimum=number < minimum,
            inputs=[],
            outputs=[],
            footprint=Footprint("m/1", 1, 1),
        )
    return plan


def begin(queue, plan):
    """All of a plan that is not refused is to be loaded; why the others are."""
    refused = queue.refused(plan)
    queue.plan(plan, plan.loadables.keys() - refused.keys())
    return refused


def taken(queue):
    return [getattr(work, "key", "weights") for work in queue.take()]


def mapped():
    return messages.Mapped(version="m/1", stages=[])


def warm(number):
    return messages.Warm(executable=number, stages=[])


def begun(plan):
    """A queue whose weights are mapped."""
    queue = LoadQueue()
    begin(queue, plan)
    assert taken(queue) == ["weights"]
    queue.settle(mapped())
    return queue


def test_the_minimum_set_is_loaded_one_by_one_and_the_rest_side_by_side():
    queue = LoadQueue()
    assert begin(queue, planned(minimum=2, rest=4)) == {}
    assert taken(queue) == ["weights"]
    queue.settle(mapped())
    assert taken(queue) == ["key0"]
    assert taken(queue) == []
    queue.settle(warm(0))
    assert taken(queue) == ["key1"]
    queue.settle(messages.Cold(executable=1, reason="damaged"))
    assert taken(queue) == ["key2", "key3", "key4"]
    queue.settle(warm(3))
    assert taken(queue) == ["key5"]
    for number in (2, 4):
        queue.settle(warm(number))
    before = queue.finished
    queue.settle(warm(5))
    assert (before, queue.finished) == (False, True)
    assert messages.LOADS_IN_FLIGHT_MAX == 3


def test_what_comes_quietly_comes_one_by_one_and_last():
    queue = begun(planned(minimum=1, rest=2, quietly=True))
    assert taken(queue) == ["key0"]
    queue.settle(warm(0))
    assert taken(queue) == ["key1"]
    queue.add(load(3), minimum=False)
    queue.add(load(4), minimum=True)
    assert taken(queue) == []
    queue.settle(warm(1))
    assert taken(queue) == ["key4"]
    queue.settle(warm(4))
    assert taken(queue) == ["key2"]
    queue.settle(warm(2))
    assert (taken(queue), queue.finished) == (["key3"], False)
    queue.settle(warm(3))
    assert queue.finished


@pytest.mark.parametrize("quietly", [False, True])
def test_what_is_asked_for_comes_once_though_it_was_planned(quietly):
    queue, plan = LoadQueue(), planned(minimum=0, rest=2, quietly=quietly)
    begin(queue, plan)
    queue.ask(plan.work[0])
    queue.ask(plan.loadables[1].message)
    found = taken(queue)
    queue.settle(mapped())
    queue.settle(warm(1))
    assert found[:2] + taken(queue) + found[2:] == ["weights", "key1", "key0"]


def test_a_minimum_set_comes_before_what_comes_quietly_though_it_is_of_the_same_plan():
    queue, plan = LoadQueue(), planned(minimum=1, rest=1, quietly=True)
    begin(queue, plan)
    queue.add(load(2), minimum=True)
    found = []
    for settled in (mapped(), warm(0), warm(2), warm(1)):
        found += taken(queue)
        queue.settle(settled)
    assert found == ["weights", "key0", "key2", "key1"]


def test_when_a_lane_dies_what_was_to_come_quietly_is_forgotten_and_what_came_is_loaded_alone():
    plan = planned(minimum=0, rest=2, quietly=True)
    queue = begun(plan)
    assert taken(queue) == ["key0"]
    queue.died(CRASHED)
    assert (taken(queue), queue.finished, queue.holds("key1")) == ([], True, False)
    begin(queue, plan)
    assert queue.holds("key1")
    assert taken(queue) == ["weights"]
    queue.settle(mapped())
    assert queue.alone, "a suspect is next, though it comes quietly"


def test_what_is_asked_for_does_not_wait_for_what_comes_quietly():
    plan = planned(minimum=0, rest=4, quietly=True)
    queue = begun(plan)
    assert taken(queue) == ["key0"]
    queue.ask(plan.loadables[2].message)
    queue.ask(plan.loadables[3].message)
    assert taken(queue) == ["key2", "key3"]
    assert queue.cancel(plan.loadables[1].message)
    for number in (0, 2, 3):
        queue.settle(warm(number))
    assert queue.finished


def test_it_holds_what_waits_and_what_is_loaded_now():
    queue = LoadQueue()
    begin(queue, planned(minimum=1, rest=1))
    queue.take()
    queue.settle(mapped())
    assert taken(queue) == ["key0"]
    assert [queue.holds(key) for key in ("key0", "key1", "key2")] == [True, True, False]
    queue.settle(warm(0))
    assert [queue.holds(key) for key in ("key0", "key1")] == [False, True]


def test_an_empty_plan_is_finished_at_once():
    queue = LoadQueue()
    begin(queue, LoadPlan())
    assert (queue.take(), queue.finished) == ([], True)


def test_deaths_count_only_while_an_executable_never_was_loaded_since():
    plan = planned(minimum=0, rest=1)
    queue = LoadQueue()
    for turn in range(2 * DEATHS_MAX + 1):
        assert begin(queue, plan) == {}
        taken(queue)
        queue.settle(mapped())
        taken(queue)
        if turn % 2:
            queue.settle(warm(0))
        else:
            queue.died(CRASHED)


def test_what_is_absent_is_refused_with_its_reason_and_not_tried():
    plan = planned(minimum=1, rest=1)
    plan.absent[0] = "nothing is stored"
    queue = LoadQueue()
    assert begin(queue, plan) == {0: "nothing is stored"}
    assert taken(queue) == ["weights", "key1"]


def test_what_was_being_loaded_at_a_death_is_loaded_alone_and_after_the_next_death_no_more():
    plan = planned(minimum=0, rest=4)
    queue = LoadQueue()
    begin(queue, plan)
    assert taken(queue) == ["weights", "key0", "key1"]
    queue.settle(mapped())
    assert taken(queue) == ["key2"]
    queue.died(CRASHED)
    begin(queue, plan)
    assert taken(queue) == ["weights"], "the next one is a suspect"
    queue.settle(mapped())
    assert taken(queue) == ["key0"]
    queue.settle(warm(0))
    assert taken(queue) == ["key1"]
    queue.died(CRASHED)
    assert DEATHS_MAX == 2
    assert begin(queue, plan) == {1: "lanes died 2 times while they loaded it"}
    assert taken(queue) == ["weights", "key0"], "it was loaded since: no suspect any more"
    queue.settle(mapped())
    assert taken(queue) == []
    for number, following in ((0, "key2"), (2, "key3")):
        queue.settle(warm(number))
        assert taken(queue) == [following]
    queue.settle(warm(3))
    assert queue.finished


def test_a_death_counts_once_for_an_executable_that_was_being_loaded_twice():
    plan = planned(minimum=0, rest=2)
    twin = msgspec.structs.replace(plan.loadables[1].message, key="key0")  # two models may share a program
    plan.work[2] = twin
    plan.loadables[1] = dataclasses.replace(plan.loadables[1], message=twin)
    queue = LoadQueue()
    begin(queue, plan)
    assert taken(queue) == ["weights", "key0", "key0"]
    queue.died(CRASHED)
    assert begin(queue, plan) == {}


def test_weights_at_which_lanes_die_are_not_mapped_again_and_nothing_of_their_version_is_loaded():
    plan = planned(minimum=0, rest=1)
    queue = LoadQueue()
    for given in (["weights", "key0"], ["weights"]):
        assert begin(queue, plan) == {}
        assert taken(queue) == given
        queue.died(CRASHED)
    assert begin(queue, plan) == {0: "lanes died 2 times while they mapped its weights"}
    assert taken(queue) == []
    assert queue.finished


def load(number):
    return messages.Load(
        executable=number, version="m/1", artifact_path="", key=f"key{number}", inputs=(), outputs=(), bytes_max=9
    )


def test_what_is_added_is_loaded_after_what_waits_already():
    queue = begun(planned(minimum=1, rest=1))
    assert taken(queue) == ["key0"]
    queue.settle(messages.Cold(executable=0, reason="damaged"))
    queue.add(load(0), minimum=False)
    assert taken(queue) == ["key1"]
    queue.settle(warm(1))
    assert taken(queue) == ["key0"]
    assert not queue.finished
    queue.settle(warm(0))
    assert queue.finished


def test_what_is_added_to_the_minimum_set_is_loaded_alone():
    queue = begun(planned(minimum=1, rest=2))
    assert taken(queue) == ["key0"]
    queue.settle(messages.Cold(executable=0, reason="damaged"))
    assert taken(queue) == ["key1", "key2"]
    queue.add(load(0), minimum=True)
    assert taken(queue) == []
    queue.settle(warm(1))
    queue.settle(warm(2))
    assert taken(queue) == ["key0"]
    queue.add(load(7), minimum=False)
    assert taken(queue) == []
    queue.settle(warm(0))
    assert taken(queue) == ["key7"]


def killed(queue, times):
    """The lane died that often while it loaded the only executable of a plan."""
    for _ in range(times):
        begin(queue, planned(minimum=0, rest=1))
        sent = taken(queue)
        queue.settle(mapped())
        assert sent + taken(queue) == ["weights", "key0"]
        queue.died(CRASHED)


def test_what_killed_lanes_is_loaded_again_if_it_is_added_alone_and_is_given_up_again_after_one_death_more():
    queue = LoadQueue()
    killed(queue, DEATHS_MAX)
    assert queue.gave_up("key0")
    assert begin(queue, planned(minimum=0, rest=1)) == {0: "lanes died 2 times while they loaded it"}
    taken(queue)
    queue.settle(mapped())
    queue.add(load(0), minimum=False)
    assert not queue.gave_up("key0")
    assert taken(queue) == ["key0"]
    assert queue.alone
    queue.died(CRASHED)
    assert queue.gave_up("key0")


def test_a_death_that_nothing_is_to_blame_for_makes_no_suspect():
    queue = LoadQueue()
    plan = planned(minimum=0, rest=4)
    for _ in range(2 * DEATHS_MAX):
        assert begin(queue, plan) == {}
        assert taken(queue) == ["weights", "key0", "key1"], "none is loaded alone"
        queue.died(None)
        assert queue.finished
    assert not queue.gave_up("key0")
    assert not queue.gave_up("m/1")


# What is deadly


def crashed(queue, content, status=CRASHED, plan=None):
    """The lane said what it had read of the only executable, and ended."""
    begin(queue, plan or planned(minimum=0, rest=1))
    queue.take()
    queue.settle(mapped())
    if not queue.take():  # it was taken beside the weights
        assert not queue.gave_up("key0")
    queue.begun(messages.Loading(executable=0, content=content))
    queue.died(status)


def test_the_content_that_lanes_crashed_of_as_often_as_it_takes_is_deadly_and_no_other():
    queue = LoadQueue()
    crashed(queue, "one")
    assert queue.deadly("key0") == frozenset()
    crashed(queue, "one")
    assert queue.deadly("key0") == {"one"}
    assert queue.deadly("key1") == frozenset()
    queue.add(load(0), minimum=False)
    assert queue.deadly("key0") == {"one"}, "that another one is tried says nothing of it"


def test_two_contents_that_lanes_crashed_of_once_each_are_given_up_and_not_deadly():
    queue = LoadQueue()
    crashed(queue, "one")
    crashed(queue, "another")
    assert queue.gave_up("key0")
    assert queue.deadly("key0") == frozenset()


@pytest.mark.parametrize("status", [-signal.SIGKILL, -signal.SIGTERM, 0, 1])
def test_what_lanes_were_killed_at_is_given_up_and_not_deadly(status):
    queue = LoadQueue()
    crashed(queue, "one", status)
    crashed(queue, "one", status)
    assert queue.gave_up("key0")
    assert queue.deadly("key0") == frozenset()


@pytest.mark.parametrize("status", sorted(CRASHES))
def test_every_crash_counts(status):
    queue = LoadQueue()
    crashed(queue, "one", status)
    crashed(queue, "one", status)
    assert queue.deadly("key0") == {"one"}


def test_a_lane_that_crashed_before_it_began_to_load_crashed_of_something_else():
    queue = LoadQueue()
    killed(queue, DEATHS_MAX)
    assert queue.gave_up("key0")
    assert queue.deadly("key0") == frozenset()


def test_what_was_loaded_since_a_crash_did_not_cause_it():
    queue = LoadQueue()
    crashed(queue, "one")
    begin(queue, planned(minimum=0, rest=1))
    queue.take()
    queue.settle(mapped())
    queue.take()
    queue.begun(messages.Loading(executable=0, content="one"))
    queue.settle(warm(0))
    crashed(queue, "one")
    assert queue.deadly("key0") == frozenset()


def test_a_suspect_waits_for_the_batch_that_runs_and_is_loaded_while_nothing_runs():
    queue = LoadQueue()
    crashed(queue, "one")
    begin(queue, planned(minimum=0, rest=2))
    assert taken(queue) == ["weights"]
    alone = [queue.alone]
    queue.settle(mapped())
    alone.append(queue.alone)
    assert queue.take(running={99}) == []
    assert taken(queue) == ["key0"]
    alone.append(queue.alone)
    queue.settle(warm(0))
    assert [*alone, queue.alone] == [False, True, True, False]
    assert [getattr(work, "key", "weights") for work in queue.take(running={99})] == ["key1"]
