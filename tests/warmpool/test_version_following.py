"""An instance follows serving.json: versions come, take over fully warm, go back at once, and go, under load."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest

from cache.local_store import LocalStore
from tests.instance_process import records_of, wait_until
from tests.warmpool.line_versions import MODEL, VERSIONS, Line, publish, serve
from tests.warmpool.lines_instance import Lines, Load, Seen, checked, planned
from tests.warmpool.stopped_lane import StoppedLane
from warmpool import wire
from warmpool.manifest import (
    Manifest,
    Target,
    encode,
    executable_path,
    manifest_path,
    program_path,
    target_path,
    weights_path,
)
from warmpool.version_routing import position


@pytest.mark.parametrize("new", ["2", "3", "4"])
def test_a_new_stable_version_takes_over_fully_warm_and_going_back_takes_no_load(
    store: LocalStore, running: Lines, new: str
) -> None:
    """2 has other weights, 3 another program, 4 shapes for which the shared memory was too small."""
    with Load(running) as load:
        load.wait_more()
        serve(store, new, previous="1")
        load.wait_more(version=new)
        assert load.first[new] == Seen(Counter(planned(VERSIONS[new])), cold=False)
        wait_until(lambda: running.version("1") == ("warm", ""))
        before = running.loads("1")
        serve(store, "1", previous=new)
        wait_until(lambda: running.serves("1"))
        counted = load.counts[new]
        load.wait_more(version="1")
        assert load.counts[new] <= counted + 3, "no more than were under way"
        assert running.loads("1") == before
    assert load.wrong == []
    assert running.compiles() == [0, 0]
    if new == "4":
        x = np.ones((64, 4096), np.float32)
        assert checked(running.ask_line(x, "/versions/4"), x) == "4"


# What is not whole


def fingerprint_of(store: LocalStore) -> str:
    (name,) = store.names(f"models/{MODEL}/1/targets")
    return name.removesuffix(".json")


def part_of(store: LocalStore, what: str) -> Path:
    """A file that version 3 needs, and no other version does."""
    manifest = msgspec.json.decode(store.get(manifest_path(MODEL, "3")), type=Manifest)
    target = msgspec.json.decode(store.get(target_path(MODEL, "3", fingerprint_of(store))), type=Target)
    return (
        store.root
        / {
            "manifest": manifest_path(MODEL, "3"),
            "weights": weights_path(manifest.weights.digest),
            "program": program_path(manifest.methods["predict"].programs["*"]),
            "target": target_path(MODEL, "3", fingerprint_of(store)),
            "executable": executable_path(target.executables[0].key),
        }[what]
    )


class Often(Lines):
    """Its upkeep looks often."""

    command = (sys.executable, "-m", "tests.warmpool.odd_instance")


@pytest.mark.parametrize("what", ["manifest", "weights", "program", "target", "executable"])
def test_a_half_copied_version_is_refused_in_the_same_words_each_time_until_all_of_it_is_there(
    store: LocalStore, tmp_path: Path, what: str
) -> None:
    missing = part_of(store, what)
    aside = missing.rename(tmp_path / "aside")
    with Often(store, tmp_path) as instance:
        instance.wait_warm()
        with Load(instance) as load:
            load.wait_more()
            serve(store, "3", previous="1")
            wait_until(lambda: instance.version("3")[0] == "refused")
            reasons = {instance.version("3")[1]}
            for _ in range(3):
                instance.post("/v1/store/changed", {"message": {"data": "anything"}})
                load.wait_more()
                reasons.add(instance.version("3")[1])
            assert len(reasons) == 1
            assert all(reasons), "it is told"
            assert str(tmp_path) not in min(reasons)
            assert set(load.counts) == {"1"}
            assert instance.get("/v2/health/ready").status == 200
            shutil.copyfile(aside, missing)
            instance.post("/v1/store/changed", b"")
            load.wait_more(version="3")
            assert load.first["3"] == Seen(Counter(planned(VERSIONS["3"])), cold=False)
        assert load.wrong == []


@pytest.mark.parametrize("what", ["manifest", "weights", "target", "executable"])  # a program is for new versions
def test_another_instance_refuses_it_in_the_same_words(store: LocalStore, tmp_path: Path, what: str) -> None:
    """The second one has it as its stable version from the start, and serves nothing of it either."""
    part_of(store, what).unlink()
    found = []
    for stable in ({"stable": "1", "canary": "3"}, {"stable": "3"}):
        serve(store, **stable)
        with Lines(store, tmp_path) as instance:
            wait_until(lambda: instance.answers("/v1/started") == 200)
            wait_until(lambda: instance.version("3")[1])
            found.append(instance.version("3")[1])
            if stable["stable"] == "3" and what != "executable":  # of which others may take the place
                assert instance.ask_line(np.ones((1, 3)), headers={wire.TIMEOUT_HEADER: "300"}).status in {503, 504}
    assert found[0] == found[1]


# Who gets what


@pytest.fixture(scope="module")
def two(lines: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalStore, Lines]]:
    folder = tmp_path_factory.mktemp("two")
    store = LocalStore(shutil.copytree(lines, folder / "store"))
    serve(store, "1", canary="2", previous="3", share=0.25)
    with Lines(store, folder) as instance:
        instance.wait_warm()
        wait_until(lambda: instance.version("2")[0] == "serving" and instance.version("3")[0] == "warm")
        yield store, instance


def test_the_canary_gets_its_share_closely(two: tuple[LocalStore, Lines]) -> None:
    _, instance = two
    counts = Counter(instance.version_of() for _ in range(40))
    assert counts.keys() == {"1", "2"}
    assert abs(counts["2"] - 10) < 4


def test_a_caller_gets_the_version_that_it_names_by_path_or_header(two: tuple[LocalStore, Lines]) -> None:
    _, instance = two
    for version in ("1", "2", "3"):
        assert {instance.version_of(path=f"/versions/{version}") for _ in range(5)} == {version}
        headers = {"warmpool-version": version}
        assert {instance.version_of(headers=headers) for _ in range(5)} == {version}
        rows = instance.post(f"/v1/models/{MODEL}", {"instances": [[1.0, 2.0, 3.0]]}, headers).json()
        assert rows["model_version"] == version
        assert rows["predictions"] == VERSIONS[version].expected(np.array([[1, 2, 3]], np.float32)).tolist()
        found = instance.get(f"/v2/models/{MODEL}/versions/{version}").json()
        assert found["versions"] == [version]
        assert instance.get(f"/v2/models/{MODEL}/versions/{version}/ready").status == 200


def test_a_version_with_a_method_more_than_the_stable_one_answers_who_names_it(
    store: LocalStore, running: Lines
) -> None:
    fingerprint = fingerprint_of(store)
    manifest = msgspec.json.decode(store.get(manifest_path(MODEL, "3")), type=Manifest)
    target = msgspec.json.decode(store.get(target_path(MODEL, "3", fingerprint)), type=Target)
    methods = dict.fromkeys(("predict", "more"), manifest.methods["predict"])
    further = tuple(msgspec.structs.replace(spec, method="more") for spec in target.executables)
    target = msgspec.structs.replace(target, executables=target.executables + further)
    store.put(target_path(MODEL, "5", fingerprint), encode(target))
    store.put(manifest_path(MODEL, "5"), encode(msgspec.structs.replace(manifest, version="5", methods=methods)))
    serve(store, "1", canary="5")
    wait_until(lambda: running.version("5")[0] == "warm")
    for path in (MODEL, f"{MODEL}:predict", f"{MODEL}:more"):
        reply = running.post(f"/v1/models/{path}", {"instances": [[1.0, 2.0, 3.0]]}, {"warmpool-version": "5"})
        assert (reply.status, reply.json().get("model_version")) == (200, "5"), reply.body
    assert running.post(f"/v1/models/{MODEL}:more", {"instances": [[1.0]]}).status == 404


def test_a_version_that_is_not_there_is_not_found_and_two_are_refused(two: tuple[LocalStore, Lines]) -> None:
    _, instance = two
    x = np.ones((1, 3))
    for asked in ({"path": "/versions/4"}, {"headers": {"warmpool-version": "4"}}):
        reply = instance.ask_line(x, **asked)
        assert (reply.status, reply.json()["error"]) == (404, "version '4' of 'line' is not served; served: 1, 2, 3")
    reply = instance.ask_line(x, "/versions/1", {"warmpool-version": "2"})
    assert (reply.status, "warmpool-version" in reply.json()["error"]) == (400, True)


def test_who_sends_a_key_is_kept_to_one_version_where_the_rollout_asks_for_it(
    store: LocalStore, tmp_path: Path
) -> None:
    serve(store, "1", canary="2", share=0.5, sticky=True)
    with Lines(store, tmp_path) as instance:
        instance.wait_warm()
        wait_until(lambda: instance.version("2")[0] == "serving")
        chosen = {}
        for key in map(str, range(12)):
            own = {instance.version_of(headers={"warmpool-sticky-key": key}) for _ in range(2)}
            own |= {instance.version_of(sticky_key=key)}
            rows = {"instances": [[1.0]], "parameters": {"sticky_key": key}}
            own |= {instance.post(f"/v1/models/{MODEL}", rows).json()["model_version"]}
            (chosen[key],) = own
        assert chosen == {key: "2" if position("2", key) < 0.5 else "1" for key in chosen}
        assert {*chosen.values()} == {"1", "2"}
        assert instance.ask_line(np.ones((1, 1)), sticky_key=7).status == 400


# What goes


def test_what_waits_for_a_version_that_is_retired_is_answered_and_then_it_goes(
    store: LocalStore, running: Lines
) -> None:
    serve(store, "1", canary="2")
    wait_until(lambda: running.version("2")[0] == "warm")
    x = np.ones((2, 3), np.float32)
    with ThreadPoolExecutor(4) as pool, StoppedLane(running) as lane:
        waiting = [pool.submit(running.ask_line, x, "/versions/2") for _ in range(3)]
        lane.wait_busy()
        serve(store, "1")
        wait_until(lambda: running.version("2")[0] == "retiring")
        reply = running.ask_line(x, "/versions/2")
        assert (reply.status, reply.json()["error"]) == (404, "version '2' of 'line' is not served; served: 1")
        lane.go_on()
        assert [checked(each.result(), x) for each in waiting] == ["2"] * 3
    wait_until(lambda: running.version("2") == ("", ""))
    wait_until(lambda: {lane["name"]: lane["warm"] for lane in running.status()["lanes"]} == planned(VERSIONS["1"]))
    assert running.lane("primary")["planned"] == planned(VERSIONS["1"])["primary"]


def test_a_version_that_is_named_again_before_it_has_gone_stays_warm(store: LocalStore, running: Lines) -> None:
    serve(store, "1", canary="2")
    wait_until(lambda: running.version("2")[0] == "warm")
    before = running.loads("2")
    with ThreadPoolExecutor(1) as pool, StoppedLane(running) as lane:
        waiting = pool.submit(running.ask_line, np.ones((1, 3)), "/versions/2")
        lane.wait_busy()
        serve(store, "1")
        wait_until(lambda: running.version("2")[0] == "retiring")
        serve(store, "2", previous="1")
        wait_until(lambda: running.version("2")[0] == "serving")
        lane.go_on()
        assert waiting.result().status == 200
    assert running.version_of() == "2"
    assert running.loads("2") == before


def test_versions_come_back_after_a_lane_died_the_stable_one_first(store: LocalStore, running: Lines) -> None:
    serve(store, "1", canary="3", share=0.5)
    wait_until(lambda: running.version("3")[0] == "serving")
    with Load(running) as load:
        load.wait_more(version="3")
        os.kill(running.lane("primary")["pid"], signal.SIGKILL)
        wait_until(lambda: running.loads("3")["primary"] == 2 * planned(VERSIONS["3"])["primary"])
        wait_until(lambda: running.version("3")[0] == "serving")
        load.wait_more(version="3")
    assert load.wrong == []
    records = records_of(running.audit_file)
    loaded = [record["version"] for record in records if record["event"] == "load" and record["lane"] == "primary"]
    assert loaded[-8:] == ["1"] * 4 + ["3"] * 4
    assert running.compiles() == [0, 0]


def test_a_model_that_is_published_while_an_instance_runs_is_served_and_readiness_stays(
    store: LocalStore, running: Lines
) -> None:
    assert running.get("/v2/models/other/ready").status == 404
    publish(store, "1", Line(7.0), model="other")
    assert running.get("/v2/models/other/ready").status == 404, "nobody has said that it is served"
    serve(store, "1", model="other")
    wait_until(lambda: running.gauge("warmpool_ready") == 1 and running.version("1", "other")[0] == "serving")
    assert running.post("/v1/models/other", {"instances": [[1.0, 2.0]]}).json()["predictions"] == [[7.0, 14.0]]


def test_an_instance_that_is_told_looks_at_once_and_reads_nothing_of_what_it_is_told(
    store: LocalStore, tmp_path: Path
) -> None:
    class Rarely(Lines):
        command = (sys.executable, "-m", "tests.warmpool.rare_instance")

    with Rarely(store, tmp_path) as instance:
        instance.wait_warm()
        wait_until(lambda: instance.version("1")[0] == "serving")
        serve(store, "2")
        for body in (b"", b"{", b"x" * 100):
            assert instance.post("/v1/store/changed", body).status == 200
        wait_until(lambda: instance.serves("2"))
        assert instance.version_of() == "2"
