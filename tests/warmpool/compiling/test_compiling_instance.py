"""Instances that make what their store lacks, while they serve: real processes on signed stores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cache.wanted import wanted
from tests.instance_process import inferred, wait_until
from tests.warmpool.compiling.place import (
    MADE_S_MAX,
    NAMES,
    OTHER_MACHINE,
    SIZES,
    Callers,
    ask,
    assert_compiled_nowhere_else,
    compiling,
    wait_whole,
    whole,
)
from tests.warmpool.publishing.toy import Heard
from warmpool import wire
from warmpool.publishing.publish import Options, publish
from warmpool.survey import survey


@pytest.mark.slow
def test_a_store_that_has_nothing_for_this_kind_of_machine_is_filled_by_the_instance_and_so_is_a_version_that_comes(
    place,
):
    """The version has another program, and was published on another kind of machine; once it is whole, it answers."""
    before = set(place.bottom.names("executables"))
    instance = place.start(**OTHER_MACHINE)
    wait_until(lambda: instance.answers("/v2/health/ready") == 200, MADE_S_MAX)
    ask(instance, 1)
    wait_whole(instance)
    for rows in (1, 2, 3, 4):
        ask(instance, rows)
    assert_compiled_nowhere_else(instance)

    def all_made() -> Any:
        """The status once everything was made, of which nothing is left to do."""
        (version,) = survey(place.store).versions
        theirs, ours = (len(target.executables) for target in version.targets.values())
        found = compiling(instance)
        listed = {spec.key for target in version.targets.values() for spec in target.executables} - before
        whole = listed == {one["key"] for one in found["history"]}
        return found if theirs == ours and whole and found["state"] == "idle" and not found["waiting"] else None

    status = wait_until(all_made, MADE_S_MAX)
    assert {one["outcome"] for one in status["history"]} == {"made"}
    assert (status["failures"], status["waiting"], status["running"]) == ({}, 0, [])
    assert instance.gauge("warmpool_compiled_total", outcome="made") == len(status["history"])
    assert instance.gauge("warmpool_compiled_total", outcome="failed") == instance.gauge("warmpool_compiles_waiting")
    assert all(count == 1 for count in place.fates.keys().values())

    place.fates.write({f"compile_bucket {NAMES[1]}": "wait"})
    file = place.toy.model_file(3.0, sizes=SIZES, operation="+")
    publish(Options(model_file=file, store=place.toy.settings, version="2"), Heard())
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    answers = {"1": (x.sum(axis=1) * 2.0).tolist(), "2": (x.sum(axis=1) + 3.0).tolist()}

    def version_that_answers() -> str:
        reply = instance.infer_reply("toy", {"x": wire.Tensor("FP32", x.shape, x.tobytes())})
        assert reply.status == 200, reply.body
        version: str = wire.decode_response(reply.body, reply.headers.get(wire.HEADER_LENGTH)).model_version
        assert inferred(reply).outputs["output"].tolist() == answers[version]
        return version

    wait_until(lambda: place.fates.met()[NAMES[1]] == 2, MADE_S_MAX)
    wait_until(lambda: instance.lane("primary")["warm"] > len(SIZES), MADE_S_MAX)  # its minimum set is
    assert [version_that_answers() for _ in range(10)] == ["1"] * 10
    place.fates.write({})
    wait_until(lambda: version_that_answers() == "2", MADE_S_MAX)
    assert_compiled_nowhere_else(instance)


def test_half_of_the_executables_are_corrupt_and_come_back_without_anybody_as_does_what_goes_later(place):
    """First one, then all and their target. They are warm all the while: it is the store's copy that is missing."""
    keys = place.listed()
    for key in keys[::2]:
        path = f"executables/{key}"
        data = place.bottom.get(path)
        place.bottom.put(path, data[:-200] + bytes(200))
    with Callers() as callers:
        instance = place.start(callers=callers)
        wait_whole(instance)
        wait_until(lambda: instance.status()["store"]["quarantined"] == len(keys[::2]))
        for rows in (1, 2, 3, 4):
            ask(instance, rows)
        wait_until(lambda: wanted(place.bottom) == [])
        place.bottom.delete(f"executables/{keys[0]}")  # which was made here
        wait_until(lambda: keys[0] in place.bottom.names("executables"), MADE_S_MAX)
        assert whole(instance)
        place.empty()  # of what others made, too
        wait_until(lambda: place.listed() == keys, MADE_S_MAX)
        wait_until(lambda: set(keys) <= set(place.bottom.names("executables")), MADE_S_MAX)
        wait_whole(instance)
        callers.wait_answers()
    callers.assert_right()
    assert_compiled_nowhere_else(instance)


@pytest.mark.parametrize("accelerator", ["auto", "jax"])
def test_an_emptied_store_is_filled_without_anybody(place, accelerator):
    """Where the lane has jax, jax's own monitoring counts what is compiled in it."""
    place.empty()
    with Callers() as callers:
        instance = place.start("--accelerator", accelerator, callers=callers)
        wait_whole(instance)
        ask(instance, 4)
        callers.wait_answers()
    callers.assert_right()
    assert ("jax found no accelerator" in instance.log) == (accelerator == "jax")
    assert_compiled_nowhere_else(instance)


def test_two_instances_that_start_at_once_on_one_store_compile_each_executable_once(place):
    with Callers() as one, Callers() as other:
        instances = [place.start(callers=callers, **OTHER_MACHINE) for callers in (one, other)]
        for instance in instances:
            wait_whole(instance)
            ask(instance, 4)
    for callers, instance in zip((one, other), instances, strict=True):
        callers.assert_right()
        assert_compiled_nowhere_else(instance)
    counts = place.fates.keys()
    assert len(counts) >= len(SIZES)
    assert set(counts.values()) == {1}


def test_a_second_instance_on_a_store_that_the_first_filled_takes_over_and_nothing_is_made_again(place):
    """Callers move once it is ready, and none of them is refused by it; then the first is told to end."""
    with Callers() as callers:
        first = place.start(callers=callers, **OTHER_MACHINE)
        wait_whole(first)
        wait_until(lambda: compiling(first)["state"] == "idle" and not compiling(first)["waiting"], MADE_S_MAX)
        made = place.fates.keys()
        assert len(made) >= len(SIZES)
        second = place.start(**OTHER_MACHINE)
        wait_until(lambda: second.answers("/v2/health/ready") == 200)
        callers.move(second, ready=True)
        callers.wait_answers()
        assert first.stop() == 0
        wait_whole(second)
        callers.wait_answers(10)
    callers.assert_right()
    assert place.fates.keys() == made
    assert (compiling(second)["history"], compiling(second)["failures"]) == ([], {})
    assert second.gauge("warmpool_requests_by_step_total", model="toy", step="refused") == 0
    assert_compiled_nowhere_else(second)


def test_without_a_key_that_signs_nothing_is_made_and_the_status_says_why(place):
    (key, *_) = place.listed()
    place.bottom.delete(f"executables/{key}")
    instance = place.start(sign=False)
    wait_until(lambda: instance.status()["lanes"][0]["cold"])
    assert compiling(instance)["state"] == "off"
    assert "give a signing key" in compiling(instance)["reason"]
    assert place.fates.met() == {}


def test_it_is_off_where_it_is_turned_off(place):
    instance = place.start("--compile", "off")
    assert (compiling(instance)["state"], compiling(instance)["reason"]) == ("off", "--compile off")
