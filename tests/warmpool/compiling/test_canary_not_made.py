"""A canary that a real instance cannot compile is taken back, and the reason is what its compile died of."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.instance_process import InstanceProcess, wait_until
from tests.warmpool.compiling.made_up import gap
from tests.warmpool.compiling.place import MADE_S_MAX, NAMES, Place, ask, assert_compiled_nowhere_else
from tests.warmpool.publishing.toy import Heard
from warmpool.compiling.history import History
from warmpool.manifest import RolloutSpec
from warmpool.publishing.publish import Options, publish
from warmpool.rollout.changes import Start, started
from warmpool.rollout.record import read_record, record_path
from warmpool.rollout.serving_change import change_serving, read_serving

FAILED = "compiling failed: crash: signal SIGABRT"


class Refusing(InstanceProcess):
    """It takes a canary back that is refused, when it is told to."""

    command = (sys.executable, "-m", "tests.warmpool.compiling.refusing_instance")


def test_a_canary_whose_minimum_set_cannot_be_compiled_is_taken_back_for_what_its_compile_died_of(
    place: Place, tmp_path: Path
) -> None:
    known = set(place.bottom.names("executables"))
    file = place.toy.model_file(3.0, sizes=(1,), operation="+")
    publish(Options(model_file=file, store=place.toy.settings, version="2", serve=False), Heard())
    for key in set(place.bottom.names("executables")) - known:
        place.bottom.delete(f"executables/{key}")
    place.fates.write({f"compile_bucket {NAMES[0]}": "crash"})
    for_long = tmp_path / "for_long"
    instance = place.start(kind=Refusing, REFUSED_FOR_LONG=str(for_long))
    wait_until(lambda: instance.answers("/v2/health/ready") == 200)

    spec = RolloutSpec(started_s=time.time())
    start = Start(share=0.5, mirror=0.0, spec=spec)
    change_serving(place.store, "toy", lambda now: started(now, "2", start, time.time()))

    def told_why() -> bool:
        found = instance.status()["models"]["toy"]["versions"].get("2", {"state": "", "reason": ""})
        return found["state"] == "refused" and FAILED in found["reason"]

    wait_until(told_why, MADE_S_MAX)
    assert place.fates.met()[NAMES[0]] > 0
    assert read_serving(place.store, "toy")[0].canary == "2"
    ask(instance, 1)  # stable answers

    for_long.touch()
    wait_until(lambda: not read_serving(place.store, "toy")[0].canary)
    served = read_serving(place.store, "toy")[0]
    assert served.stable == "1"
    assert served.reason.startswith(f"it cannot be taken up: toy:predict {NAMES[0]}: ")
    assert FAILED in served.reason
    record = read_record(place.store, record_path("toy", spec))
    assert record is not None
    assert record.decision is not None
    assert (record.state, record.decision.reason) == ("rolled back", served.reason)
    ask(instance, 1)
    assert_compiled_nowhere_else(instance)


def test_why_a_version_cannot_be_had_is_what_failed_for_good_of_its_minimum_set_and_nothing_else() -> None:
    history = History()
    history.fail(gap(1), "not of the minimum set", 1.0, 5.0, 0.0)
    history.fail(gap(1, minimum=True, ladder=True), "of the CPU lane", 1.0, 5.0, 0.0)
    history.fail(gap(2, minimum=True), "for the moment", 1.0, 5.0, 0.0, passing=True)
    history.fail(gap(3, minimum=True, version="2"), "of another version", 1.0, 5.0, 0.0)
    history.rest(gap(4, minimum=True), "it only rests", 0.0)
    assert history.why_not("tiny", "1") == ""
    history.fail(gap(5, minimum=True), "no such thing", 1.0, 5.0, 0.0)
    assert history.why_not("tiny", "1") == "tiny:predict batch=5,seq=16: no such thing"
    history.close(gap(5, minimum=True), 1.0, 5.0)
    assert history.why_not("tiny", "1") == ""
