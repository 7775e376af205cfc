"""Requests to an instance whose store has nothing for it yet: held for a compile in time, or told when it will be."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tests.instance_process import inferred, wait_until
from tests.warmpool.compiling.place import MADE_S_MAX, NAMES, OTHER_MACHINE, wait_whole
from warmpool import wire

X = {"x": wire.Tensor("FP32", (1, 4), np.ones(4, np.float32).tobytes())}
PATIENT = {"x-warmpool-timeout-ms": "600000"}


def test_requests_are_held_for_the_compile_of_what_covers_them_and_the_others_told_when_that_is_over(place):
    """What is compiled first waits until somebody has been told when to come again."""
    place.fates.write({f"compile_bucket {name}": "wait" for name in NAMES})
    instance = place.start(**OTHER_MACHINE)
    with ThreadPoolExecutor(8) as pool:
        held = [pool.submit(instance.infer_reply, "toy:predict", X, headers=PATIENT) for _ in range(4)]
        wait_until(lambda: place.fates.met()[NAMES[0]], MADE_S_MAX)
        wait_until(lambda: instance.gauge("warmpool_rows_waiting") == len(held))
        hurried = instance.infer_reply("toy:predict", X, headers={"x-warmpool-timeout-ms": "300"})
        assert hurried.status == 503
        assert 1 <= int(hurried.headers["retry-after"]) <= 300
        assert "is predicted to be ready in" in hurried.json()["error"]
        churn = instance.status()["churn"]
        assert churn["missing"] > 0
        assert churn["state"] in {"filling", "churning"}
        assert not any(future.done() for future in held)
        place.fates.write({})
        for future in held:
            reply = future.result()
            assert reply.status == 200, reply.body
            outputs, parameters = inferred(reply)
            assert outputs["output"].tolist() == [8.0]
            assert parameters["step"] == "held"
    wait_whole(instance)
    after = inferred(instance.infer_reply("toy:predict", X))
    assert after.parameters["step"] == "exact"
    assert [lane["compiles"] for lane in instance.status()["lanes"]] == [0, 0]
    wait_until(lambda: instance.status()["churn"]["state"] == "steady", MADE_S_MAX)
    assert instance.gauge("warmpool_requests_by_step_total", model="toy", step="held") == len(held)
    assert instance.gauge("warmpool_requests_by_step_total", model="toy", step="refused") >= 1


def test_who_comes_before_it_is_known_what_will_be_made_waits_and_then_for_nothing_is_told_so(place):
    """Without a key that signs nothing is made: that is found out once the start is over."""
    instance = place.start(sign=False, **OTHER_MACHINE)
    reply = instance.infer_reply("toy:predict", X, headers=PATIENT)
    assert (reply.status, reply.headers["retry-after"]) == (503, "10")
