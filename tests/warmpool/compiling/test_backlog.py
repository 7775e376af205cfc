"""What is missing, what of it is under way, and what became of the rest."""

from __future__ import annotations

from tests.warmpool.compiling.made_up import METHOD, as_found, at, gap
from warmpool.compiling.backlog import ARRIVING_S_MAX, NOTHING_DONE, UNSEEN, Backlog
from warmpool.compiling.forecast import LOAD_S
from warmpool.compiling.history import PASSING_FIRST_S, RETRY_FIRST_S
from warmpool.compiling.protocol import Done, Placed

NEED = {"batch": 1, "seq": 16}


def backlog(*gaps, begun=True):
    """A backlog of gaps, the first job of which runs."""
    found = Backlog(1)
    found.take_in(as_found(*gaps), at(0))
    if begun:
        found.begin(at(0))
    return found


def made(one, job=1, *, visible=True):
    return Placed(job=job, place=one.place, seconds=1.0, failure="", visible=visible)


def failed(one, reason, job=1):
    return Placed(job=job, place=one.place, seconds=2.0, failure=reason, visible=False)


def test_the_next_job_is_what_comes_first_and_is_not_waiting_any_more():
    one, two = gap(1, 8), gap(1, 16)
    found = backlog(one, two, begun=False)
    assert found.begin(at(0)) == [one]
    assert found.waiting == [two]
    assert found.describe(0.0)["running"] == [{"title": one.title, "version": "1", "for_s": 0.0}]


def test_nothing_begins_without_anything_to_do():
    assert Backlog(1).begin(at(0)) == []
    assert Backlog(1).running is None


def test_what_is_under_way_is_not_begun_again_though_it_is_still_missing():
    one, two = gap(1, 8), gap(1, 16)
    found = backlog(one, two)
    found.take_in(as_found(one, two), at(1))
    assert found.waiting == [two]


def test_what_was_made_is_history():
    one = gap()
    found = backlog(one)
    assert found.placed(made(one), at(3)) is one
    assert found.over(Done(job=1, failure=""), at(4)) == []
    assert found.running is None
    assert found.history.made == 1


def test_what_was_made_is_expected_to_arrive_for_a_while():
    one = gap()
    found = backlog(one)
    found.placed(made(one), at(3))
    found.over(Done(job=1, failure=""), at(3))
    assert found.ready_in_s(METHOD, NEED, 3.0 + ARRIVING_S_MAX - 1) == LOAD_S
    assert found.ready_in_s(METHOD, NEED, 3.0 + ARRIVING_S_MAX + 1) is None


def test_what_the_primary_lane_was_told_of_is_not_lacking_any_more():
    one, two, ladder = gap(1, 8), gap(1, 16), gap(1, 8, ladder=True)
    found = backlog(one, two, ladder)
    assert not found.told({one.closed})
    found.placed(made(one), at(3))
    assert not found.told({ladder.closed, gap(version="2").closed})
    assert found.lacking(METHOD) == [one.bucket, two.bucket]
    assert found.told({one.closed})
    assert found.lacking(METHOD) == [two.bucket]
    found.take_in(as_found(one, two, ladder), at(3))
    assert found.lacking(METHOD) == [two.bucket], "that look began before"
    found.take_in(as_found(one, two, ladder), at(4 + ARRIVING_S_MAX))
    assert found.lacking(METHOD) == [one.bucket, two.bucket], "it went again"


def test_what_goes_without_anybody_having_made_it_here_was_closed_by_others():
    one, two, three = gap(1, 8), gap(1, 16), gap(2, 8)
    found = backlog(one, two, three)
    assert found.closed_by_others(as_found(one, two, three), at(1)) == []
    found.placed(made(one), at(3))
    assert found.closed_by_others(as_found(three), at(4)) == [two]
    assert found.closed_by_others(as_found(three), at(5)) == []


def test_of_a_minimum_set_nothing_arrives_before_all_of_it_is_made():
    one, two, last = (gap(1, seq, minimum=True) for seq in (16, 8, 4))
    found = backlog(one, two, last)
    found.placed(made(one, visible=False), at(3))
    found.placed(made(two, visible=False), at(4))
    whole_s = found.over_in_s(4.0)
    assert found.ready_in_s(METHOD, NEED, 4.0) == whole_s > LOAD_S
    found.take_in(as_found(one, two, last), at(4 + ARRIVING_S_MAX))
    assert found.waiting == []
    assert found.ready_in_s(METHOD, NEED, 4 + ARRIVING_S_MAX) > LOAD_S
    now_s = 5 + ARRIVING_S_MAX
    found.placed(made(last), at(now_s))
    found.over(Done(job=1, failure=""), at(now_s))
    assert found.ready_in_s(METHOD, NEED, now_s) == LOAD_S
    found.take_in(as_found(one, two, last), at(now_s))
    assert found.waiting == []


def test_the_cpu_lanes_minimum_set_does_not_complete_the_primarys():
    one, left, ladder = gap(1, 16, minimum=True), gap(1, 8, minimum=True), gap(1, 16, ladder=True, minimum=True)
    found = backlog(one, left, ladder)
    found.placed(made(one, visible=False), at(3))
    found.placed(made(ladder), at(3))
    found.take_in(as_found(one, left), at(3 + ARRIVING_S_MAX))
    assert found.waiting == []
    assert found.ready_in_s(METHOD, NEED, 3 + ARRIVING_S_MAX) > LOAD_S


def test_what_no_lane_can_see_as_its_minimum_set_failed_is_no_more_expected_and_rests_with_what_failed():
    one, bad = gap(1, 16, minimum=True), gap(1, 8, minimum=True)
    found = backlog(one, bad)
    found.placed(made(one, visible=False), at(3))
    found.placed(failed(bad, "it crashed"), at(3))
    assert found.over(Done(job=1, failure=""), at(3)) == []
    found.take_in(as_found(one, bad), at(3))
    assert found.waiting == []
    assert found.ready_in_s(METHOD, NEED, 3.0) is None
    assert found.describe(3.0)["failures"][f"{one.title} of 1"] == UNSEEN
    found.take_in(as_found(one, bad), at(3 + RETRY_FIRST_S))
    assert found.waiting == [one, bad]


def test_only_one_of_a_job_is_charged_as_its_first():
    """The first one takes long, as it compiles what the others are proved with; those are expected to take less."""
    first, *others = (gap(batch, 16) for batch in (1, 2, 4))
    found = backlog(first, *others)
    for number in range(1, 30):
        now_s = 100.0 * number
        for one, took_s in ((first, 40.0), (others[0], 41.0), (others[1], 42.0)):
            found.placed(made(one, number), at(now_s + took_s))
            if one is first and number > 20:
                assert found.over_in_s(now_s + 40.0) < 10.0
        found.over(Done(job=number, failure=""), at(now_s + 42.0))
        found.take_in(as_found(first, *others), at(now_s + 100.0))
        found.begin(at(now_s + 100.0))


def test_what_was_made_is_not_made_again_though_its_target_does_not_list_it_yet():
    one, two = gap(1, 16), gap(2, 16)
    found = backlog(one, two)
    found.placed(made(one), at(3))
    found.take_in(as_found(one, two), at(4))
    assert found.waiting == []
    found.take_in(as_found(one, two), at(3 + ARRIVING_S_MAX))
    assert found.waiting == [one]


def test_rows_do_not_matter_to_what_will_be_ready_but_all_other_sizes_do():
    found = backlog(gap(1, 8))
    assert found.ready_in_s(METHOD, {"batch": 20, "seq": 8}, 0.0) is not None
    assert found.ready_in_s(METHOD, {"batch": 1, "seq": 9}, 0.0) is None


def test_other_versions_are_not_what_is_waited_for():
    found = backlog(gap(version="2"))
    assert found.ready_in_s(METHOD, NEED, 0.0) is None


def test_a_place_that_failed_rests_and_the_others_go_on():
    bad, good = gap(1, 16), gap(2, 16)
    found = backlog(bad, good)
    assert found.placed(failed(bad, "it crashed"), at(2)) is bad
    assert found.running is not None
    assert list(found.running.left.values()) == [good]
    assert found.history.failures[bad.key].reason == "it crashed"
    found.placed(made(good), at(3))
    found.over(Done(job=1, failure=""), at(3))
    found.take_in(as_found(bad), at(4))
    assert found.waiting == []
    assert found.ready_in_s(METHOD, NEED, 4.0 + ARRIVING_S_MAX) is None
    found.take_in(as_found(bad), at(2 + RETRY_FIRST_S))
    assert found.waiting == [bad]


def test_a_job_that_fails_fails_with_all_that_is_left_of_it():
    one, two = gap(1, 16), gap(2, 16)
    found = backlog(one, two)
    found.placed(made(one), at(1))
    assert found.over(Done(job=1, failure="the store is away"), at(2)) == [two]
    assert {one.reason for one in found.history.failures.values()} == {"the store is away"}


def test_what_fails_for_the_sake_of_the_moment_is_tried_again_soon():
    one, two = gap(1, 16), gap(2, 16)
    found = backlog(one, two)
    found.placed(Placed(job=1, place=one.place, seconds=1.0, failure="full", visible=False, passing=True), at(1))
    found.over(Done(job=1, failure="the store is away", passing=True), at(1))
    found.take_in(as_found(one, two), at(1 + PASSING_FIRST_S))
    assert found.waiting == [one, two]


def test_what_the_worker_did_nothing_for_rests_and_is_forgotten_once_it_is_there():
    """Somebody else made it; or else it would be asked for again and again."""
    one = gap()
    found = backlog(one)
    assert found.over(Done(job=1, failure=""), at(1)) == []
    found.take_in(as_found(one), at(2))
    assert found.waiting == []
    assert found.describe(2.0)["failures"] == {f"{one.title} of 1": NOTHING_DONE}
    found.take_in([], at(3))
    assert found.describe(3.0)["failures"] == {}
    assert found.describe(3.0)["failed"] == 0


def test_a_worker_that_ends_is_no_failure_yet_and_what_it_was_at_is_tried_again_alone_and_last():
    guilty, other, later = gap(1, 16), gap(2, 16), gap(1, 8)
    found = backlog(guilty, other, later)
    assert found.ended("it died", at(1)) == []
    found.take_in(as_found(guilty, other, later), at(2))
    assert [found.begin(at(2))] == [[later]]
    found.over(Done(job=2, failure=""), at(3))
    assert found.begin(at(3)) == [guilty]
    assert found.ended("it died", at(4)) == [guilty]
    assert "2 compile workers ended while they made it: it died" in found.history.failures[guilty.key].reason
    assert other.key not in found.history.failures


def test_what_is_made_alone_is_not_to_blame_any_more():
    one, two = gap(1, 16), gap(2, 16)
    found = backlog(one, two)
    found.ended("it died", at(1))
    found.take_in(as_found(one, two), at(2))
    assert found.begin(at(2)) == [one]
    found.placed(made(one, 2), at(3))
    found.over(Done(job=2, failure=""), at(3))
    later = at(3 + ARRIVING_S_MAX)
    found.take_in(as_found(one, two), later)  # it was set aside again
    assert found.begin(later) == [one]


def test_messages_of_another_job_change_nothing():
    one = gap()
    found = backlog(one)
    assert found.placed(made(one, job=7), at(1)) is None
    assert found.over(Done(job=7, failure="no"), at(1)) == []
    assert found.running is not None


def test_what_was_made_besides_does_not_wait_any_more():
    """Nothing of a target is visible without its minimum sets, so they are made with whatever comes first."""
    asked, besides, other = gap(1, 16), gap(1, 16, ladder=True), gap(1, 16, ladder=True, version="2")
    found = backlog(asked, besides, other)
    assert found.placed(made(besides), at(1)) is besides
    assert found.waiting == [other]
    assert found.running is not None
    assert list(found.running.left.values()) == [asked]
    assert found.history.made == 1


def test_a_place_that_nobody_asked_for_is_no_gap():
    found = backlog(gap(1))
    assert found.placed(made(gap(8)), at(1)) is None


def test_a_version_is_being_made_until_nothing_of_it_is_under_way_or_waits():
    one, two = gap(1, 8), gap(1, 16)
    found = backlog(one, two, gap(8, 16, ladder=True, version="2"))
    made_s = 1 + ARRIVING_S_MAX
    assert [found.makes(*of, made_s) for of in (("tiny", "1"), ("tiny", "2"), ("other", "1"))] == [True, False, False]
    found.placed(made(one), at(1))
    found.over(Done(job=1, failure=""), at(1))
    assert found.makes("tiny", "1", made_s)
    found.begin(at(1))
    assert found.makes("tiny", "1", made_s)
    found.placed(failed(two, "no", 2), at(2))
    assert not found.makes("tiny", "1", made_s)


def test_a_version_is_being_made_while_lanes_are_not_told_yet_of_what_was_made():
    one = gap()
    found = backlog(one)
    found.placed(made(one), at(3))
    found.over(Done(job=1, failure=""), at(3))
    assert found.makes("tiny", "1", 3 + ARRIVING_S_MAX - 1)
    assert not found.makes("tiny", "1", 3 + ARRIVING_S_MAX)


def test_a_version_is_being_made_though_a_worker_ended_at_it_until_that_failed():
    one = gap(1, 16)
    found = backlog(one)
    found.ended("it died", at(1))
    assert found.makes("tiny", "1", 1.0)
    assert found.ready_in_s(METHOD, NEED, 1.0) is not None
    assert found.begin(at(1)) == [one]
    assert found.ended("it died", at(2)) == [one]
    assert not found.makes("tiny", "1", 2.0)


def test_what_lanes_may_come_to_hold_is_told_and_whether_it_changed():
    found = Backlog(1)
    assert found.take_in(as_found(gap(1), gap(2, ladder=True), gap(4, told=True)), at(0))
    assert found.lacking(METHOD) == [{"batch": 1, "seq": 16}]
    assert not found.take_in(as_found(gap(1)), at(1))
    assert found.take_in([], at(2))
    assert found.lacking(METHOD) == ()


def test_the_queue_says_what_each_one_gains_and_when_it_will_be_ready():
    found = backlog(gap(1, 8), gap(1, 16))
    described = found.describe(0.0)
    assert described["waiting"] == 1
    (only,) = described["queue"]
    assert only["title"] == "tiny:predict batch=1,seq=16"
    assert only["gain_us"] == -1.0
    assert only["ready_in_s"] == described["over_in_s"] > LOAD_S
