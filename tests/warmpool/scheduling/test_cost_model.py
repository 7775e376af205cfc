"""Predictions come to what batches take, follow a machine that changes, and are not moved by accidents."""

from __future__ import annotations

import itertools
import math
import random
import tracemalloc
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.warmpool.scheduling.world import Kind
from warmpool.scheduling.cost_model import BUCKETS_MAX, CostModel
from warmpool.selection import Candidate

OVERHEAD_US = 256.0
METHOD = Kind()
PUBLISHED_US = (50.0, 90.0, 250.0, 750.0, 2750.0, 9750.0)


def candidates(published_us: Iterable[float] = PUBLISHED_US) -> list[Candidate]:
    return [Candidate(number, {"batch": number + 1, "seq": 8}, us) for number, us in enumerate(published_us)]


CANDIDATES = candidates()
ANY = st.floats() | st.floats(1e-3, 1e9)


class Machine:
    """Batches that take (overhead + published) * how slow the machine is, and a chance that the test sets."""

    def __init__(self, noise: float = 0.1, seed: int = 1, model: CostModel | None = None) -> None:
        self.model = model or CostModel()
        self.slow = 1.0
        self.chance = random.Random(seed)
        self.noise: Callable[[], float] = lambda: math.exp(self.chance.gauss(0.0, noise))

    def true_us(self, one: Candidate) -> float:
        return (OVERHEAD_US + CANDIDATES[one.id].cost_us) * self.slow

    def run(self, batches: int, among: list[Candidate] = CANDIDATES) -> None:
        for _ in range(batches):
            one = self.chance.choice(among)
            self.model.observe(METHOD, one, self.true_us(one) * self.noise())

    def wrong(self, one: Candidate) -> float:
        """By how many times the prediction is off, 1 if it is right."""
        return math.exp(abs(math.log(self.model.predicted_us(METHOD, one) / self.true_us(one))))

    def width(self, one: Candidate) -> float:
        return self.model.bound_us(METHOD, one) / self.model.predicted_us(METHOD, one)


# What is predicted


def test_no_bound_is_far_from_all_that_was_seen_though_a_lane_becomes_slower_after_some_stood_still():
    """What stood still for ten seconds would count as if it had for minutes, and everybody be refused for that."""
    machine, longest_us = Machine(), 10e6
    machine.run(150)
    for slow in (1.0, 50.0):
        machine.slow = slow
        for turn in range(200):
            one = CANDIDATES[turn % len(CANDIDATES)]
            stood_still = slow == 1.0 and turn % 7 == 3
            machine.model.observe(METHOD, one, longest_us if stood_still else machine.true_us(one) * machine.noise())
            assert max(machine.model.bound_us(METHOD, each) for each in CANDIDATES) <= 4.001 * longest_us


def test_before_anything_ran_it_is_what_was_published_with_the_way_there_and_back_and_much_doubted():
    model = CostModel(overhead_us=100.0)
    for one in CANDIDATES:
        assert model.predicted_us(METHOD, one) == pytest.approx(one.cost_us + 100.0)
        assert model.bound_us(METHOD, one) == pytest.approx(3.0 * (one.cost_us + 100.0))


@pytest.mark.parametrize("wrong", [0.2, 5.0])
def test_a_bucket_that_was_measured_wrongly_is_right_after_five_batches(wrong):
    machine = Machine(noise=0.05)
    one = candidates(us * wrong for us in PUBLISHED_US)[4]
    assert machine.wrong(one) > 3.0
    machine.run(5, [one])
    assert machine.wrong(one) < 1.15


@pytest.mark.parametrize("wrong", [0.2, 5.0])
def test_where_all_were_measured_wrongly_the_others_are_known_from_those_that_ran(wrong):
    machine = Machine(noise=0.05)
    plan = candidates(us * wrong for us in PUBLISHED_US)
    ran, rest = [plan[0], plan[2], plan[4]], [plan[1], plan[3], plan[5]]
    machine.run(24, ran)
    assert all(machine.wrong(one) < 1.5 for one in rest)
    assert all(
        one["runs"] == 0 for one in machine.model.describe() if one["bucket"] in [other.bucket for other in rest]
    )


def test_one_batch_of_each_of_many_buckets_is_enough_to_know_the_others():
    plan = candidates(1000.0 + 500.0 * number for number in range(60))
    model = CostModel(overhead_us=200.0)
    for one in plan[:24]:
        model.observe(METHOD, one, 5.0 * (200.0 + one.cost_us))
    for one in plan[24:]:
        assert model.predicted_us(METHOD, one) == pytest.approx(5.0 * (200.0 + one.cost_us), rel=0.1)


def test_one_bucket_that_was_measured_wrongly_does_not_make_the_others_wrong():
    machine = Machine(noise=0.05)
    plan = candidates([*PUBLISHED_US[:3], 5.0 * PUBLISHED_US[3], *PUBLISHED_US[4:]])
    machine.run(60, plan[:5])
    assert machine.wrong(plan[3]) < 1.15
    assert machine.wrong(plan[5]) < 1.3


@pytest.mark.parametrize("overhead_us", [30.0, 1500.0])
def test_the_way_there_and_back_is_learned(overhead_us):
    model = CostModel(overhead_us=OVERHEAD_US)
    for _, one in itertools.product(range(8), (CANDIDATES[0], CANDIDATES[2], CANDIDATES[4])):
        model.observe(METHOD, one, overhead_us + one.cost_us)
    for one in (CANDIDATES[1], CANDIDATES[5]):
        assert model.predicted_us(METHOD, one) == pytest.approx(overhead_us + one.cost_us, rel=0.4)


def test_a_bucket_that_becomes_known_says_at_once_what_the_others_of_its_model_take():
    machine = Machine()
    machine.run(3000)
    other, plan = Kind("other"), candidates((900.0, 8000.0))
    for _ in range(5):
        assert machine.model.predicted_us(other, plan[1]) < 10_000.0
        machine.model.observe(other, plan[0], 20.0 * (OVERHEAD_US + 900.0))
    assert machine.model.predicted_us(other, plan[1]) == pytest.approx(20.0 * (OVERHEAD_US + 8000.0), rel=0.3)
    assert machine.wrong(CANDIDATES[5]) < 1.2


def test_what_ran_last_says_what_the_others_take():
    model = CostModel(overhead_us=1.0)
    plan = candidates(1000.0 + number for number in range(100))
    for number, one in enumerate(plan[:98]):
        for _ in range(6):
            model.observe(METHOD, one, one.cost_us * (1 if number < 30 else 3))
    assert model.predicted_us(METHOD, plan[99]) == pytest.approx(3 * plan[99].cost_us, rel=0.1)


# A machine that changes


@pytest.mark.parametrize("slow", [0.5, 2.0, 6.0])
@pytest.mark.parametrize("buckets", [1, 5])
@pytest.mark.parametrize("before", [20, 400])
def test_a_machine_that_becomes_slower_or_faster_is_followed_within_ten_batches(slow, buckets, before):
    machine = Machine(noise=0.1, seed=buckets)
    machine.run(before * buckets, CANDIDATES[:buckets])
    machine.slow = slow
    machine.run(10, CANDIDATES[:buckets])
    assert all(machine.wrong(one) < 1.3 for one in CANDIDATES[:buckets])
    if buckets > 1:  # one alone says nothing of others
        assert machine.wrong(CANDIDATES[5]) < 1.4  # which never ran
    machine.run(20, CANDIDATES[:buckets])
    assert all(machine.wrong(one) < 1.3 for one in CANDIDATES[:buckets])
    assert all(machine.width(one) < 2.0 for one in CANDIDATES[:buckets])


def test_a_change_in_small_steps_reaches_a_bucket_that_does_not_run():
    machine = Machine(noise=0.1)
    machine.run(300)
    for _ in range(2000):
        machine.slow *= 4 ** (1 / 2000)
        machine.run(1, CANDIDATES[:5])
        assert machine.wrong(CANDIDATES[0]) < 1.4
    assert machine.slow == pytest.approx(4.0)
    assert all(machine.wrong(one) < 1.35 for one in CANDIDATES)


@pytest.mark.parametrize("buckets", [1, 5])
@pytest.mark.parametrize("seed", range(4))
def test_chance_does_not_carry_the_pace_away_from_a_bucket_that_does_not_run(buckets, seed):
    machine = Machine(noise=0.3, seed=seed)
    machine.run(300)
    before_us = machine.model.predicted_us(METHOD, CANDIDATES[5])
    for _ in range(10):
        machine.run(1000, CANDIDATES[:buckets])
        assert machine.model.predicted_us(METHOD, CANDIDATES[5]) == pytest.approx(before_us, rel=0.35)


def test_buckets_that_became_slower_themselves_do_not_hide_that_the_machine_becomes_faster():
    machine = Machine(noise=0.05)
    machine.run(300)
    noise, slower = machine.noise, CANDIDATES[:2]
    for _ in range(100):
        for one in slower:
            machine.model.observe(METHOD, one, 3 * machine.true_us(one) * noise())
        machine.run(4, CANDIDATES[2:])
    machine.slow = 0.5
    for number in range(9):
        one = CANDIDATES[number % 6]
        machine.model.observe(METHOD, one, (3 if one in slower else 1) * machine.true_us(one) * noise())
    assert all(machine.wrong(one) < 1.15 for one in CANDIDATES[2:])


def test_a_bucket_that_itself_becomes_slower_is_followed_and_takes_no_other_along():
    machine = Machine(noise=0.05)
    machine.run(300)
    changed, before = CANDIDATES[2], [machine.model.predicted_us(METHOD, one) for one in CANDIDATES]
    for _ in range(31):
        machine.model.observe(METHOD, changed, 3 * machine.true_us(changed))
        machine.run(4, [one for one in CANDIDATES if one is not changed])
    after = [machine.model.predicted_us(METHOD, one) for one in CANDIDATES]
    assert after[2] / before[2] == pytest.approx(3.0, rel=0.15)
    assert [new / old for new, old in zip(after, before, strict=True) if old != before[2]] == pytest.approx(
        [1.0] * 5, rel=0.15
    )


@pytest.mark.parametrize("share", [0.7, 0.95, 1.0])
@pytest.mark.parametrize("times", [0.05, 3.0, 400.0])
def test_a_bucket_that_runs_most_and_changes_alone_takes_no_other_along(share, times):
    machine = Machine(noise=0.05)
    machine.run(300)
    changed, others = CANDIDATES[2], CANDIDATES[:2] + CANDIDATES[3:]
    for _ in range(40):
        if machine.chance.random() < share:
            machine.model.observe(METHOD, changed, times * machine.true_us(changed) * machine.noise())
        else:
            machine.run(1, others)
        assert all(machine.wrong(one) < 1.15 for one in others)
    assert machine.model.predicted_us(METHOD, changed) == pytest.approx(times * machine.true_us(changed), rel=0.15)


@pytest.mark.parametrize("runs", range(8))
def test_what_ran_a_few_times_follows_the_lane_there_and_back(runs):
    machine = Machine(noise=0.05)
    rare, often = CANDIDATES[5], CANDIDATES[:5]
    machine.run(100, often)
    machine.run(runs, [rare])
    for slow in (300.0, 1.0, 0.1, 1.0):
        machine.slow = slow
        machine.run(10, often)
        assert machine.wrong(rare) < 1.5


def test_a_change_that_a_bucket_has_followed_itself_is_not_added_to_it_again():
    machine = Machine(noise=0.05)
    machine.run(300)
    often, others = CANDIDATES[0], CANDIDATES[1:]
    machine.slow = 3.0
    for _ in range(6):
        machine.run(3, [often])
        machine.run(1, others)
        assert machine.model.predicted_us(METHOD, often) < 1.2 * machine.true_us(often)
    machine.run(12, others)
    assert all(machine.wrong(one) < 1.2 for one in CANDIDATES)


def test_a_bucket_whose_own_batches_contradict_the_change_of_the_lane_has_the_last_word():
    machine = Machine(noise=0.05)
    machine.run(300)
    steady, others = CANDIDATES[2], [CANDIDATES[number] for number in (0, 1, 3, 4)]
    for _ in range(2):
        for one in (*others[:2], steady, *others[2:]):
            machine.model.observe(METHOD, one, (1 if one is steady else 5) * machine.true_us(one))
    assert machine.wrong(steady) < 1.15
    machine.slow = 5.0
    assert all(machine.wrong(one) < 1.15 for one in [*others, CANDIDATES[5]])


# Disturbances, and what is right again after them


FACTORS = (1.0, 1.0, 400.0, 20.0, 3.0, 0.05)


@st.composite
def disturbances(draw: st.DrawFn) -> list[tuple[int, float, bool]]:
    """Batches: the bucket, what it takes, and whether in microseconds or as a multiple of what it should.

    Buckets run singly and mixed; one takes longer, or all of those that run, or all take the same; some are accidents.
    """
    batches = []
    for _ in range(draw(st.integers(1, 5))):
        among = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True))
        factor, only, stalled = draw(st.sampled_from(FACTORS)), draw(st.booleans()), draw(st.booleans())
        chance = random.Random(draw(st.integers(0, 1000)))
        for _ in range(draw(st.integers(1, 30))):
            number = chance.choice(among)
            took = 1.0 if only and number != among[0] else factor
            accident = 50.0 if chance.random() < 0.05 else 1.0
            absolute = stalled and took != 1.0
            batches.append(
                (number, (1000.0 if absolute else 1.0) * took * accident * chance.uniform(0.9, 1.1), absolute)
            )
    return batches


published = st.lists(st.sampled_from((50.0, 500.0, 5000.0, 50000.0)), min_size=4, max_size=4)


@settings(max_examples=150, deadline=None)
@given(published, st.sampled_from((0.2, 1.0, 5.0)), disturbances())
def test_no_prediction_is_further_than_four_times_from_all_that_was_seen_and_assumed(published_us, wrong, batches):
    model, plan, never = CostModel(), candidates(published_us), Kind()
    least = most = OVERHEAD_US + published_us[0]
    for number, took, absolute in batches:
        took_us = took if absolute else took * (OVERHEAD_US + wrong * published_us[number])
        model.observe(METHOD, plan[number], took_us)
        least, most = min(least, took_us), max(most, took_us)
        for one in plan:
            assumed_us = model.predicted_us(never, one)  # of a method that never ran
            predicted_us = model.predicted_us(METHOD, one)
            assert min(least / 4, assumed_us) * 0.99 <= predicted_us <= max(most * 4, assumed_us) * 1.01


@pytest.mark.parametrize("times", [1000.0, 0.001])
def test_a_change_of_the_lane_brings_no_bucket_further_than_that_and_nothing_is_lost_by_it(times):
    model = CostModel()
    *often, rare = candidates((100.0, 110.0, 120.0))
    rare_us = 300.0 * times  # of which the measurement at publish knows nothing
    for _ in range(10):
        model.observe(METHOD, rare, rare_us)
    for slow in (1.0, times, 1.0):
        for _, one in itertools.product(range(10), often):
            model.observe(METHOD, one, 300.0 * slow)
        far = {1000.0: 4.0, 0.001: 0.25}[times] if slow == times else 1.0
        assert model.predicted_us(METHOD, rare) == pytest.approx(far * rare_us, rel=0.1)


@settings(max_examples=150, deadline=None)
@given(published, disturbances(), st.randoms(use_true_random=False), st.lists(st.integers(0, 3), max_size=30))
def test_five_batches_of_a_bucket_make_it_right_whatever_was_before(published_us, batches, chance, order):
    model, plan, normal = CostModel(), candidates(published_us), [0] * 4
    for number, took, absolute in batches:
        model.observe(METHOD, plan[number], took if absolute else took * (OVERHEAD_US + published_us[number]))
    for number in [*order, *range(4)]:
        true_us = OVERHEAD_US + published_us[number]
        model.observe(METHOD, plan[number], true_us * chance.uniform(0.87, 1.15))
        normal[number] += 1
        if normal[number] >= 5:
            assert true_us / 2 < model.predicted_us(METHOD, plan[number]) < true_us * 2


@pytest.mark.parametrize("runs", [0, 3, 40])
@pytest.mark.parametrize("times", [400.0, 0.02])
@pytest.mark.parametrize("among", [1, 2, 5])
@pytest.mark.parametrize("batches", [4, 12, 60])
def test_ten_batches_after_a_stall_what_did_not_run_in_it_or_since_is_right(runs, times, among, batches):
    machine = Machine(noise=0.1)
    machine.run(100, CANDIDATES[:5])
    machine.run(runs, [CANDIDATES[5]])
    for number in range(batches):
        one = CANDIDATES[number % among]
        machine.model.observe(METHOD, one, times * machine.true_us(one) * machine.noise())
    for number in range(10):
        one = CANDIDATES[number % among]
        machine.model.observe(METHOD, one, machine.true_us(one) * machine.noise())
    assert machine.wrong(CANDIDATES[5]) < 2.0


# Accidents


@pytest.mark.parametrize("times", [100.0, 0.01])
@pytest.mark.parametrize("seed", range(10))
def test_one_batch_that_took_a_hundred_times_as_long_moves_no_prediction(times, seed):
    machine = Machine(noise=0.05, seed=seed)
    machine.run(seed * 30 + 30)
    before = [machine.model.predicted_us(METHOD, one) for one in CANDIDATES]
    machine.model.observe(METHOD, CANDIDATES[seed % 6], times * machine.true_us(CANDIDATES[seed % 6]))
    after = [machine.model.predicted_us(METHOD, one) for one in CANDIDATES]
    assert after == pytest.approx(before, rel=0.1 if seed == 0 else 0.03)  # of five, one is far from the next


def test_not_even_the_first_batch_of_all():
    model = CostModel()
    before = [model.predicted_us(METHOD, one) for one in CANDIDATES]
    model.observe(METHOD, CANDIDATES[0], 1e6)
    assert [model.predicted_us(METHOD, one) for one in CANDIDATES] == before


def test_a_tenth_of_batches_that_a_busy_machine_held_up_moves_little():
    machine = Machine()
    quick = machine.noise
    machine.noise = lambda: quick() * (50.0 if machine.chance.random() < 0.1 else 1.0)
    machine.run(600)
    assert all(machine.wrong(one) < 1.25 for one in CANDIDATES)


@pytest.mark.parametrize("took_us", [0.0, -5.0, math.nan])
def test_a_clock_that_was_set_back_says_nothing(took_us):
    model = CostModel()
    for one in CANDIDATES:
        model.observe(METHOD, one, 1000.0)
    before, version = model.describe(), model.version
    model.observe(METHOD, CANDIDATES[0], took_us)
    assert (model.describe(), model.version) == (before, version)


# Bounds


@pytest.mark.parametrize(
    ("noise", "width_max"),
    [
        (lambda chance: math.exp(chance.gauss(0, 0.02)), 1.2),
        (lambda chance: math.exp(chance.gauss(0, 0.1)), 1.6),
        (lambda chance: math.exp(chance.gauss(0, 0.4)), 6.0),
        (lambda chance: 0.5 + 0.5 * chance.expovariate(1.0), 6.0),
        (lambda chance: chance.choice((1.0, 1.0, 1.0, 2.0)), 3.0),
    ],
    ids=["2 %", "10 %", "40 %", "a long tail", "a quarter takes twice as long"],
)
def test_one_batch_in_fifty_exceeds_its_bound_whatever_the_noise_and_bounds_are_no_wider_than_it_takes(
    noise, width_max
):
    machine = Machine()
    machine.noise = lambda: noise(machine.chance)
    machine.run(500)
    exceeded, widths = 0, []
    for _ in range(5000):
        one = machine.chance.choice(CANDIDATES)
        took_us = machine.true_us(one) * machine.noise()
        exceeded += took_us > machine.model.bound_us(METHOD, one)
        widths.append(machine.width(one))
        machine.model.observe(METHOD, one, took_us)
    assert exceeded / 5000 < 0.03
    assert sorted(widths)[len(widths) // 2] < width_max


def test_what_runs_is_doubted_less_and_so_is_what_does_not_run_once_measurements_have_proved_right():
    machine = Machine(noise=0.03)
    assert machine.width(CANDIDATES[0]) == pytest.approx(3.0)
    machine.run(100, CANDIDATES[:5])
    assert machine.width(CANDIDATES[0]) < 1.3
    assert machine.width(CANDIDATES[5]) < 2.0


def test_what_always_took_the_same_may_still_take_5_percent_longer():
    machine = Machine(noise=0.0)
    machine.run(2000)
    assert all(machine.width(one) >= 1.05 for one in CANDIDATES)


def test_a_bound_recovers_from_one_that_took_a_hundred_times_as_long():
    machine = Machine(noise=0.05)
    machine.run(400)
    one = CANDIDATES[3]
    machine.model.observe(METHOD, one, 100 * machine.true_us(one))
    machine.run(1, [one])
    assert machine.width(one) < 1.6


# What holds always


@settings(max_examples=60)
@given(st.lists(ANY, min_size=3, max_size=3), st.lists(st.tuples(st.integers(0, 2), ANY), max_size=80))
def test_whatever_is_published_and_observed_a_bound_is_above_its_prediction_and_that_above_zero(published_us, batches):
    model = CostModel()
    plan = candidates(1.0 if math.isnan(us) else us for us in published_us)  # JSON has no NaN
    for number, took_us in batches:
        model.observe(METHOD, plan[number], took_us)
        for one in plan:
            assert 0.0 < model.predicted_us(METHOD, one) < model.bound_us(METHOD, one) < math.inf


@given(st.floats(1.0, 1e7), st.floats(1.3, 100.0), st.lists(st.floats(0.95, 1.05), min_size=5, max_size=40))
def test_what_takes_longer_is_predicted_to_take_longer(took_us, times, noise):
    model = CostModel()
    quick, slow = candidates((500.0, 500.0))
    for factor in noise:
        model.observe(METHOD, quick, took_us * factor)
        model.observe(METHOD, slow, took_us * times * factor)
    assert model.predicted_us(METHOD, quick) < model.predicted_us(METHOD, slow)
    assert model.bound_us(METHOD, quick) < model.bound_us(METHOD, slow)


@settings(max_examples=40)
@given(st.randoms(use_true_random=False))
def test_the_order_in_which_buckets_take_turns_matters_little(order):
    chance = random.Random(3)
    batches = [[(one, (OVERHEAD_US + one.cost_us) * chance.uniform(0.9, 1.1)) for _ in range(20)] for one in CANDIDATES]
    turns = [number for number in range(len(CANDIDATES)) for _ in range(20)]
    in_turn, mixed = CostModel(), CostModel()
    for batch in itertools.chain(*zip(*batches, strict=True)):
        in_turn.observe(METHOD, *batch)
    order.shuffle(turns)
    waiting = [iter(own) for own in batches]
    for number in turns:
        mixed.observe(METHOD, *next(waiting[number]))
    for one in CANDIDATES:
        assert mixed.predicted_us(METHOD, one) == pytest.approx(in_turn.predicted_us(METHOD, one), rel=0.15)


def test_the_same_batches_give_the_same_predictions():
    one, other = Machine(seed=5), Machine(seed=5)
    one.run(700)
    other.run(700)
    assert one.model.describe() == other.model.describe()
    assert one.model.version == other.model.version


# What is known of what


def test_a_bucket_is_known_by_its_method_and_sizes_whatever_executable_has_it_now():
    model = CostModel()
    for _ in range(10):
        model.observe(METHOD, CANDIDATES[3], 5000.0)
    again = Candidate(77, {"seq": 8, "batch": 4}, 1.0)
    assert model.predicted_us(METHOD, again) == model.predicted_us(METHOD, CANDIDATES[3])
    assert model.predicted_us(Kind(), again) < 0.5 * model.predicted_us(METHOD, again)
    assert len(model.describe()) == 2


def test_what_was_measured_anew_counts_as_long_as_nothing_ran():
    model = CostModel(overhead_us=1.0)
    assert model.predicted_us(METHOD, Candidate(0, {"batch": 1}, 100.0)) == pytest.approx(101.0)
    assert model.predicted_us(METHOD, Candidate(1, {"batch": 1}, 900.0)) == pytest.approx(901.0)


def test_memory_is_bounded_for_each_bucket_and_by_the_number_of_buckets():
    machine = Machine()
    machine.run(2000)
    tracemalloc.start()
    try:
        machine.run(20_000)
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < 20_000
    many = candidates([100.0] * (BUCKETS_MAX + 50))
    for one in many[1:]:
        machine.model.predicted_us(METHOD, one)
    assert len(machine.model.describe()) == BUCKETS_MAX
    assert sum(known["runs"] for known in machine.model.describe()) == 22_000


def test_what_is_forgotten_first_is_what_ran_longest_ago():
    model = CostModel()
    many = candidates([100.0] * (BUCKETS_MAX + 1))
    for one in many[:BUCKETS_MAX]:
        model.observe(METHOD, one, 100.0)
    model.observe(METHOD, many[0], 100.0)
    model.observe(METHOD, many[BUCKETS_MAX], 100.0)
    known = {one["bucket"]["batch"]: one["runs"] for one in model.describe()}
    assert len(known) == BUCKETS_MAX
    assert (known[1], 2 in known, known[BUCKETS_MAX + 1]) == (2, False, 1)


def test_a_status_says_what_was_published_what_is_predicted_and_from_how_many_runs():
    model = CostModel()
    for _ in range(10):
        model.observe(METHOD, CANDIDATES[3], 5000.0)
    model.predicted_us(METHOD, CANDIDATES[4])
    ran, never = model.describe()
    assert ran == {
        "model": "tiny",
        "method": "",  # only what is served has a name
        "bucket": {"batch": 4, "seq": 8},
        "published_us": 750.0,
        "predicted_us": pytest.approx(5000.0, rel=0.01),
        "bound_us": pytest.approx(model.bound_us(METHOD, CANDIDATES[3]), rel=0.01),
        "runs": 10,
    }
    assert (never["published_us"], never["runs"]) == (2750.0, 0)


# When plans are to be made anew


@pytest.mark.parametrize("seed", range(5))
def test_the_version_rises_exactly_when_a_prediction_moved_by_5_percent_or_a_bound_by_a_good_part(seed):
    machine = Machine(noise=(0.03, 0.3)[seed % 2], seed=seed)
    model = machine.model

    def believed():
        return [
            (math.log(model.predicted_us(METHOD, one)), math.log(model.bound_us(METHOD, one))) for one in CANDIDATES
        ]

    def moved():
        return any(
            abs(level - was) >= 0.05 or abs(bound - was_bound) >= max(0.2, 0.4 * (was_bound - was))
            for (level, bound), (was, was_bound) in zip(believed(), told, strict=True)
        )

    told, version = believed(), model.version
    rises = 0
    for number in range(1200):
        if number % 300 == 299:
            machine.slow = machine.chance.choice((0.3, 1.0, 1.3, 4.0))
        if number % 300 > 150:
            machine.slow *= 1.003
        machine.run(1, CANDIDATES[: 1 + number * 7 % 1200 // 200])
        assert model.version - version == moved(), number
        if model.version > version:
            rises += 1
            told, version = believed(), model.version
    assert 4 < rises < 200


def test_while_nothing_changes_the_version_hardly_rises():
    machine = Machine(noise=0.1)
    machine.run(500)
    version = machine.model.version
    machine.run(2000)
    assert machine.model.version - version < 20
