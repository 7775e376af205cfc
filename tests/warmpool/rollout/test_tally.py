"""The tally, with a clock that is set by hand."""

from __future__ import annotations

from warmpool.rollout.tally import SECONDS_MAX, STRATA_MAX, Counts, Tally


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_only_seconds_that_are_over_are_taken_each_once_and_in_order() -> None:
    clock = Clock()
    counted = Tally(clock)
    for second in (100.0, 100.9, 102.5):
        clock.now_s = second
        counted.of("2").request("predict", 5.0, failed=False)
    assert [(second, counts["2"].requests) for second, counts in counted.take()] == [(100, 2)]
    clock.now_s = 103.0
    counted.of("1").batches += 1
    assert [(second, list(counts)) for second, counts in counted.take()] == [(102, ["2"])]


def test_where_nobody_takes_them_the_oldest_seconds_go() -> None:
    clock = Clock()
    counted = Tally(clock)
    for second in range(SECONDS_MAX + 50):
        clock.now_s = float(second)
        counted.of("1").requests += 1
    clock.now_s += 1
    taken = [second for second, _ in counted.take()]
    assert (len(taken), taken[0]) == (SECONDS_MAX, 50)


def test_what_failed_is_counted_and_its_time_is_not() -> None:
    counts = Counts()
    counts.request("predict", 100.0, failed=True)
    counts.request("predict", 200.0, failed=False)
    assert (counts.requests, counts.errors, counts.request_times["predict"].total) == (2, 1, 1)


def test_kinds_of_runs_are_bounded_and_batches_all_counted() -> None:
    counts = Counts()
    for size in range(STRATA_MAX + 5):
        counts.ran("predict", f"batch={size}", 10.0)
    counts.ran("predict", "batch=0", 10.0)
    assert (counts.batches, len(counts.run_times)) == (STRATA_MAX + 6, STRATA_MAX)
    assert counts.run_times["predict batch=0"].total == 2


def test_a_merge_adds_every_number_and_every_time() -> None:
    one, other = Counts(), Counts()
    names = [name for name in Counts.__dataclass_fields__ if not name.endswith("_times")]
    for index, name in enumerate(names, 1):
        setattr(one, name, index)
        setattr(other, name, 10 * index)
    one.ran("predict", "batch=1", 10.0)
    other.request("predict", 10.0, failed=False)
    one.merge(other)
    numbers = {name: 11 * index for index, name in enumerate(names, 1)}
    numbers["batches"] += 1
    numbers["requests"] += 1
    assert {name: getattr(one, name) for name in names} == numbers
    assert (one.run_times["predict batch=1"].total, one.request_times["predict"].total) == (1, 1)
