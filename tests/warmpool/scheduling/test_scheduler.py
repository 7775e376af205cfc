"""Who is taken in, who is next, and that promises are kept. Costs are in ms here, so that times are easy to add up."""

from __future__ import annotations

import pytest

from tests.warmpool.scheduling.world import Kind, Prices, Waiting
from warmpool.scheduling.cost_grid import CostGrid
from warmpool.scheduling.fair_share import FairShare
from warmpool.scheduling.lane_plan import JOINS_MAX, Entry, LanePlan, Planned
from warmpool.scheduling.scheduler import LaneScheduler
from warmpool.scheduling.work import Policy
from warmpool.selection import Candidate

ROWS = Kind()
OTHER = Kind(model="other")


def candidate(number, cost_ms, **bucket):
    return Candidate(number, bucket, cost_ms * 1e3)


def ladder(cost_ms=10.0):
    """One row costs as much as four."""
    return [candidate(number, cost_ms, batch=1 << number) for number in range(3)]


def scheduler(kinds=(ROWS,), *, prices=None, plan=None, weights=None, **policy):
    made: LaneScheduler[Waiting] = LaneScheduler(prices or Prices(), FairShare(weights), Policy(**policy))
    for kind in kinds:
        made.set_warm(kind, plan or ladder())
    return made


def waiting(kind=ROWS, rows=1, *, at_s=0.0, by_s=1e6, **more):
    return Waiting(kind, {"batch": rows}, at_s, by_s, **more)


def ran(made, now_s=0.0):
    group = made.next(now_s)
    return group.items if group else None


def test_what_waits_together_runs_together_where_that_is_cheaper():
    made = scheduler()
    items = [waiting(at_s=number) for number in range(5)]
    for item in items:
        assert made.offer([item], 5.0, 5.0) is None
    first, second = made.next(5.0), made.next(5.0)
    assert (first.items, first.candidate.bucket, first.cost_us, first.bound_us) == (items[:4], {"batch": 4}, 1e4, 1e4)
    assert (second.items, second.candidate.bucket) == (items[4:], {"batch": 1})
    assert (made.next(5.0), len(made), made.rows) == (None, 0, 0)


def test_who_would_be_late_is_refused_and_told_when_to_come_again():
    made = scheduler(plan=[candidate(0, 10.0, batch=1)])
    for _ in range(3):
        assert made.offer([waiting(by_s=0.050)], 0.0, 0.020) is None
    refusal = made.offer([waiting(by_s=0.050)], 0.0, 0.020)
    assert refusal.retry_after_s == pytest.approx(0.010)
    assert refusal.reason == "50 ms are left for it; it is predicted to take up to 10 ms, and up to 50 ms of work wait"
    assert len(made) == 3
    assert made.offer([waiting(by_s=0.060)], 0.0, 0.020) is None


def test_nobody_is_taken_in_at_the_expense_of_a_promise():
    made = scheduler(plan=[candidate(0, 10.0, batch=1), candidate(1, 30.0, batch=4)])
    first = waiting(rows=4, by_s=0.030)
    assert made.offer([first], 0.0, 0.0) is None
    urgent = waiting(by_s=0.015)
    assert made.offer([urgent], 0.0, 0.0) is not None
    assert ran(made) == [first]


def test_who_is_in_a_hurry_runs_before_who_is_not():
    made = scheduler(plan=[candidate(0, 10.0, batch=1)])
    patient = [waiting(at_s=number) for number in range(3)]
    for item in patient:
        made.offer([item], 3.0, 3.0)
    urgent = waiting(at_s=3.0, by_s=3.010)
    assert made.offer([urgent], 3.0, 3.0) is None
    assert [ran(made, 3.0)[0] for _ in range(4)] == [urgent, *patient]


def test_one_who_has_time_lets_others_go_first_only_while_it_has():
    """The first to come is next, unless that would make the urgent one late."""
    made = scheduler(plan=[candidate(0, 10.0, batch=1)])
    patient, urgent = waiting(), waiting(at_s=0.001, by_s=0.035)
    for item in (patient, urgent):
        assert made.offer([item], 0.001, 0.001) is None
    assert ran(made, 0.001) == [patient]
    made.offer([waiting(at_s=0.0)], 0.011, 0.011)
    assert ran(made, 0.022) == [urgent]


def test_who_joins_a_group_that_is_planned_costs_nothing_and_is_taken_in_though_time_is_short():
    made = scheduler()
    items = [waiting(by_s=0.010) for _ in range(5)]
    assert [made.offer([item], 0.0, 0.0) is None for item in items] == [True] * 4 + [False]
    assert ran(made) == items[:4]


def test_all_parts_of_a_request_are_taken_in_or_none():
    made = scheduler()
    parts = [waiting(rows=4, by_s=0.025) for _ in range(3)]
    assert made.offer(parts, 0.0, 0.0) is not None
    assert len(made) == 0
    assert made.offer(parts[:2], 0.0, 0.0) is None


def test_an_idle_lane_tries_what_is_likely_to_be_in_time_though_its_bound_is_not():
    made = scheduler(prices=Prices(spread=3.0))
    assert made.offer([waiting(by_s=0.015)], 0.0, 0.0) is None
    assert made.offer([waiting(by_s=0.015)], 0.0, 0.0) is not None


def test_now_and_then_an_idle_lane_tries_what_is_predicted_to_be_late():
    """Else predictions that are wrong would refuse everybody for ever, and nothing would put them right."""
    made = scheduler()
    taken = []
    for number in range(100):
        now_s = number / 128
        item = waiting(at_s=now_s, by_s=now_s + 0.005)
        if made.offer([item], now_s, now_s) is None:
            assert made.overdue(now_s) == []
            assert ran(made, now_s) == [item]
            taken.append(now_s)
    assert taken == [number * 13 / 128 for number in range(8)]


def test_what_cannot_be_in_time_any_more_leaves_before_it_runs():
    made = scheduler()
    late, other = waiting(by_s=0.030), waiting(by_s=0.050)
    for item in (late, other):
        made.offer([item], 0.0, 0.0)
    assert made.overdue(0.015) == []
    assert made.overdue(0.025) == [late]
    assert ran(made, 0.025) == [other]


@pytest.mark.parametrize(("later_s", "first"), [(1.9, "urgent"), (2.1, "normal")])
def test_a_level_of_priority_is_worth_some_seconds_of_waiting_and_no_more(later_s, first):
    made = scheduler(plan=[candidate(0, 10.0, batch=1)], aging_s=2.0)
    items = {"normal": waiting(), "urgent": waiting(at_s=later_s, priority=1)}
    for item in items.values():
        made.offer([item], later_s, later_s)
    assert ran(made, later_s) == [items[first]]


def test_a_slow_model_does_not_starve_a_fast_one_nor_the_other_way_round():
    made = scheduler((), weights={"other": 3.0})
    made.set_warm(ROWS, [candidate(0, 100.0, batch=1)])
    made.set_warm(OTHER, [candidate(0, 10.0, batch=1)])
    for number in range(100):
        for kind in (ROWS, OTHER):
            made.offer([waiting(kind, at_s=number * 1e-6)], 0.0, 0.0)
    runs = [ran(made, 1.0)[0].method for _ in range(62)]
    used = {kind: runs.count(kind) * cost for kind, cost in ((ROWS, 100.0), (OTHER, 10.0))}
    assert abs(used[OTHER] / 3.0 - used[ROWS]) <= 100.0 + 10.0 / 3.0


def test_a_flood_with_short_deadlines_leaves_a_model_without_any_its_share():
    made = scheduler((), weights={})
    for kind in (ROWS, OTHER):
        made.set_warm(kind, [candidate(0, 10.0, batch=1)])
    now_s, used = 0.0, {ROWS: 0, OTHER: 0}
    for _ in range(400):
        while made.offer([waiting(ROWS, at_s=now_s, by_s=now_s + 0.1)], now_s, now_s) is None:
            pass
        if len([item for item in made.items() if item.method is OTHER]) < 5:
            made.offer([waiting(OTHER, at_s=now_s, by_s=now_s + 30)], now_s, now_s)
        used[ran(made, now_s)[0].method] += 1
        now_s += 0.010
    assert used[OTHER] >= 0.4 * 400


def test_it_waits_for_company_that_makes_rows_cheaper_but_not_for_long():
    made = scheduler(gather_s=0.005)
    made.offer([waiting(at_s=1.0)], 1.0, 1.0)
    assert made.next(1.0) is None
    assert made.ready_s == 1.005
    made.offer([waiting(at_s=1.002)], 1.002, 1.002)
    assert made.next(1.004) is None
    assert len(ran(made, 1.005)) == 2


def test_a_full_batch_waits_for_nobody():
    made = scheduler(gather_s=0.005)
    for _ in range(4):
        made.offer([waiting()], 0.0, 0.0)
    assert len(ran(made)) == 4


def test_waiting_for_company_never_breaks_a_promise_and_leaves_half_of_the_time_for_late_timers():
    made = scheduler(gather_s=0.020)
    made.offer([waiting(by_s=0.022)], 0.0, 0.0)
    assert made.next(0.0) is None
    assert made.ready_s == pytest.approx(0.006)
    assert made.next(0.006) is None
    assert made.ready_s == pytest.approx(0.009)
    assert ran(made, 0.0105) is not None
    made.offer([waiting(by_s=0.012)], 0.0, 0.0)
    assert ran(made, 0.0) is not None


def test_who_is_taken_in_without_a_promise_waits_for_no_company():
    made = scheduler(prices=Prices(spread=2.0), gather_s=0.020)
    item = waiting(by_s=0.015)
    assert made.offer([item], 0.0, 0.0) is None
    assert ran(made) == [item]


def test_of_two_that_are_due_at_once_the_one_is_first_that_is_promised_it():
    made = scheduler(plan=[candidate(0, 10.0, batch=1), candidate(1, 10.0, batch=2)])
    promised = waiting(by_s=0.020)
    neighbour = waiting(by_s=0.020)
    for item in (promised, neighbour):
        assert made.offer([item], 0.0, 0.0) is None
    made.set_warm(OTHER, [candidate(2, 10.0, batch=1)])
    forced = waiting(OTHER, at_s=-1.0, by_s=0.020)
    assert made.force(forced)
    made.remove(neighbour)
    assert [ran(made, 0.005), ran(made, 0.015)] == [[promised], [forced]]


def test_what_was_in_a_batch_that_failed_runs_alone():
    made = scheduler()
    again = [waiting(runs=1), waiting(runs=1)]
    for item in again:
        assert made.force(item)
    fresh = [waiting(at_s=1.0), waiting(at_s=2.0)]
    for item in fresh:
        made.offer([item], 2.0, 2.0)
    assert [ran(made, 2.0) for _ in range(3)] == [[again[0]], [again[1]], fresh]


def test_methods_that_cannot_be_merged_run_one_by_one():
    kind = Kind(mergeable=False)
    made = scheduler((kind,))
    items = [waiting(kind, at_s=number) for number in range(3)]
    for item in items:
        made.offer([item], 3.0, 3.0)
    assert [ran(made, 3.0) for _ in range(3)] == [[item] for item in items]


def test_who_leaves_makes_room():
    made = scheduler()
    items = [waiting(by_s=0.010) for _ in range(5)]
    for item in items[:4]:
        made.offer([item], 0.0, 0.0)
    made.remove(items[1])
    assert made.offer([items[4]], 0.0, 0.0) is None
    assert ran(made) == [items[0], items[2], items[3], items[4]]
    made.remove(items[0])


def test_what_is_no_longer_covered_is_given_back_and_the_rest_keeps_its_promise():
    made = scheduler(plan=ladder())
    small, large = waiting(by_s=0.025), waiting(rows=4, by_s=0.025)
    for item in (small, large):
        assert made.offer([item], 0.0, 0.0) is None
    assert made.set_warm(ROWS, ladder()[:2]) == [large]
    assert made.offer([waiting(by_s=0.025)], 0.0, 0.0) is None
    assert made.offer([waiting(rows=2, by_s=0.025)], 0.0, 0.0) is None
    assert made.offer([waiting(rows=2, by_s=0.025)], 0.0, 0.0) is not None
    assert (made.grids.covers(ROWS, {"batch": 4}, 4), made.grids.rows_max(ROWS, {"batch": 9})) == (False, 2)
    assert made.grids.rows_max(OTHER, {"batch": 1}) == 0


def test_it_plans_with_what_is_predicted_now():
    prices = Prices()
    made = scheduler(prices=prices)
    items = [waiting(), waiting()]
    for item in items:
        made.offer([item], 0.0, 0.0)
    prices.known, prices.version = {1: 25e3, 2: 30e3}, 1
    assert [ran(made), ran(made)] == [[items[0]], [items[1]]]


def test_predictions_that_moved_count_for_who_comes_next():
    prices = Prices()
    made = scheduler(prices=prices)
    prices.known, prices.version = {0: 100e3, 1: 100e3, 2: 100e3}, 1
    made.offer([waiting()], 0.0, 0.0)
    assert made.offer([waiting(by_s=0.050)], 0.0, 0.0) is not None


def test_what_is_left_of_a_group_takes_no_longer_than_the_group():
    """The smaller bucket is faster by its mean and slower by its bound."""

    class Unsure(Prices):
        def bound_us(self, method, candidate):
            return {0: 30e3, 1: 11e3}.get(candidate.id, 5e3)

    made = scheduler((), prices=Unsure())
    made.set_warm(ROWS, [candidate(0, 9.9, batch=1), candidate(1, 10.0, batch=2)])
    made.set_warm(OTHER, [candidate(2, 5.0, batch=1)])
    pair = [waiting(by_s=0.040) for _ in range(2)]
    third = waiting(OTHER, by_s=0.041)
    for item in (*pair, third):
        assert made.offer([item], 0.0, 0.001) is None
    made.remove(pair[1])
    first = made.next(0.001)
    assert (first.items, first.candidate.id, first.bound_us) == ([pair[0]], 1, 11e3)


def test_where_reality_broke_one_promise_no_other_is_broken_for_a_cheaper_plan():
    grid = CostGrid(ROWS, [candidate(0, 10.0, batch=1), candidate(1, 15.0, batch=2)], Prices())

    def entry(by_s):
        return Entry(waiting(by_s=by_s), 0, 0.0, 0.010, promised=True, full=False)

    lost, kept, other = entry(0.005), entry(0.022), entry(0.060)
    plan: LanePlan[Waiting] = LanePlan()
    apart = [Planned(ROWS, grid, [one]) for one in (lost, kept, other)]
    for group in apart:
        plan.add(group)
    assert not plan.replaced(apart[1:], [Planned(ROWS, grid, [kept, other])], 0.0)
    assert [*plan] == apart
    assert plan.replaced(apart[:2], [together := Planned(ROWS, grid, [lost, kept])], 0.0)
    assert [*plan] == [together, apart[2]]


def test_models_share_what_their_runs_really_take():
    made = scheduler((), prices=Prices())
    for number, kind in enumerate((ROWS, OTHER)):
        made.set_warm(kind, [candidate(number, 1.0, batch=1)])
    now_s, used = 0.0, {ROWS: 0.0, OTHER: 0.0}
    while now_s < 20:
        for kind in (ROWS, OTHER):
            while sum(item.method is kind for item in made.items()) < 3:
                made.offer([waiting(kind, at_s=now_s)], now_s, now_s)
        group = made.next(now_s)
        method = group.items[0].method
        took_s = 0.1 if method is ROWS else 0.001  # and predicted was 1 ms for both
        made.ran(method, group.cost_us, took_s * 1e6)
        used[method] += took_s
        now_s += took_s
    assert abs(used[ROWS] - used[OTHER]) <= 0.2


def test_who_was_taken_in_is_not_given_up_for_a_prediction_that_grew():
    prices = Prices()
    made = scheduler(prices=prices)
    item = waiting(by_s=0.100)
    made.offer([item], 0.0, 0.0)
    prices.known, prices.version = {0: 500e3, 1: 500e3, 2: 500e3}, 1
    assert made.offer([waiting(by_s=0.100)], 0.0, 0.0) is not None
    assert made.overdue(0.080) == []
    assert made.overdue(0.095) == [item]


def test_offers_to_a_long_queue_stay_cheap():
    """Counted in looks at groups, since a clock would count the machine's other work, too."""
    made = scheduler(())
    made.set_warm(ROWS, [candidate(0, 1.0, batch=1), candidate(1, 4.0, batch=4)])
    made.set_warm(OTHER, [candidate(2, 1.0, batch=1)])
    made.offer([waiting(OTHER, by_s=0.9)], 0.0, 0.0)
    for number in range(2000):
        assert made.offer([waiting(by_s=30 + number * 1e-4)], 0.0, 0.0) is None
    looks = 0
    look = Planned.with_one_more

    def counted(group, entry):
        nonlocal looks
        looks += 1
        return look(group, entry)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Planned, "with_one_more", counted)
        for _ in range(100):
            made.offer([waiting(by_s=0.5)], 0.0, 0.0)
            made.offer([waiting(by_s=31.0)], 0.0, 0.0)
    assert looks <= 200 * 2 * (JOINS_MAX + 1)


def test_it_shows_how_much_waits():
    made = scheduler()
    made.offer([waiting()], 0.0, 0.0)
    assert repr(made) == "<LaneScheduler 1 items in 1 groups, 0.010 s>"
