"""When a new revision is called worse than the old one, by what instances count."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.deploy.canary import Counted, NoMetrics, chance_of_more, read_metrics, worse
from tests.infra.cloud import exposition

counts = st.integers(0, 60).flatmap(lambda answered: st.tuples(st.integers(0, answered), st.just(answered)))


@given(counts, counts)
def test_the_chance_is_that_of_drawing_so_many_failures_without_putting_back(stable, canary):
    (failed, answered), (canary_failed, canary_answered) = stable, canary
    bad, every = failed + canary_failed, answered + canary_answered
    ways = sum(
        comb(bad, k) * comb(every - bad, canary_answered - k)
        for k in range(canary_failed, min(bad, canary_answered) + 1)
    )
    exact = float(Fraction(ways, comb(every, canary_answered)))
    assert chance_of_more(failed, answered, canary_failed, canary_answered) == pytest.approx(exact, rel=1e-9)


@given(st.integers(0, 10**7), st.integers(0, 10**5))
def test_a_revision_without_failures_is_never_worse_for_them(answered, canary_answered):
    assert not worse(Counted(answered, 0), Counted(canary_answered, 0), 0)


@pytest.mark.parametrize(
    ("stable", "canary", "judged"),
    [
        ((10_000, 0), (100, 1), False),  # a single one may be chance
        ((10_000, 0), (100, 2), True),
        ((100, 0), (100, 5), False),  # little is known of the old one either
        ((100, 0), (100, 12), True),
        ((10_000, 100), (1_000, 13), False),  # as often as the old one
        ((10_000, 100), (1_000, 30), True),
        ((0, 0), (100, 100), False),  # nothing to compare with: readiness has judged it
    ],
)
def test_how_many_failures_are_too_many(stable, canary, judged):
    assert bool(worse(Counted(*stable), Counted(*canary), 100)) == judged


@pytest.mark.parametrize(
    ("before", "after", "requests", "judged"),
    [
        (0.01, 0.01, 200, False),
        (0.01, 0.02, 200, False),  # one step of the histogram may be noise
        (0.01, 0.05, 200, True),
        (0.05, 0.01, 200, False),  # faster
        (0.01, 0.05, 99, False),  # too few to say
        (30.0, float("inf"), 200, False),
        (10.0, float("inf"), 200, True),
    ],
)
def test_how_much_slower_is_too_slow(before, after, requests, judged):
    old, new = (read_metrics(exposition(requests, 0, seconds)) for seconds in (before, after))
    assert bool(worse(old, new, 100)) == judged


def test_a_tenth_of_the_requests_may_be_slow():
    old = read_metrics(exposition(200, 0, seconds=0.01))
    assert not worse(old, read_metrics(exposition(200, 0, seconds=1.0, fast=180)), 100)
    assert worse(old, read_metrics(exposition(200, 0, seconds=1.0, fast=179)), 100)


def test_a_method_that_only_one_of_them_has_is_not_compared():
    new = read_metrics(exposition(200, 0, seconds=5.0).replace('method="predict"', 'method="other"'))
    assert not worse(read_metrics(exposition(200, 0)), new, 100)


def test_what_the_caller_did_wrong_is_no_failure_and_what_was_refused_for_time_is():
    statuses = ("200", "400", "404", "413", "429", "499", "503", "INVALID_ARGUMENT", "UNAVAILABLE")
    lines = [f'warmpool_requests_total{{model="a \\"b\\"",method="",status="{status}"}} 10.0' for status in statuses]
    counted = read_metrics("\n".join(["warmpool_ready 1.0", *lines]))
    assert (counted.answered, counted.failed) == (90, 30)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        'warmpool_ready 1.0\nwarmpool_requests_total{status="200"} 1e999',
        'warmpool_requests_total{status="200"} 1.0',
        "warmpool_ready 1.0\nwarmpool_requests_total{} x",
    ],
)
def test_what_is_not_an_instances_metrics_is_refused(text):
    with pytest.raises(NoMetrics):
        read_metrics(text)
