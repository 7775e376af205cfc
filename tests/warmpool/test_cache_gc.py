"""`warmpool cache gc`: what any version needs stays, what nobody needs goes, and what is not known is not touched."""

from __future__ import annotations

import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.quarantine import quarantine
from cache.sightings import Sighting, mark
from cache.wanted import want
from tests.warmpool.cared_store import CPU, OLDER, TPU, CaredStore
from warmpool.cache_commands.gc import collect
from warmpool.cache_commands.verify import verify
from warmpool.manifest import RolloutSpec, Serving, encode, serving_path
from warmpool.rollout.record import Event, Rollout, add_event, record_path, spec_of
from warmpool.survey import survey

MACHINES = (CPU, OLDER, TPU)
DAY_S = 24 * 3600.0


@pytest.fixture
def cared(tmp_path):
    return CaredStore(tmp_path)


@pytest.fixture
def gc(cared, capsys):
    """Runs the command with --json; the paths that it removed, and what it printed."""

    def run(*flags):
        outcome = cared.run(capsys, "gc", "--json", *flags)
        assert (outcome.status, outcome.err) == (0, "")
        result = outcome.json()
        return {one["path"] for one in result["removed"]}, result

    return run


def seen(cared, machine, days_ago):
    sighting = Sighting(ingredients=dict(machine.ingredients), seen_s=time.time() - days_ago * DAY_S)
    cared.bottom.put(f"fingerprints/{machine.digest}", msgspec.json.encode(sighting))


def test_everything_that_any_version_needs_stays_however_old(cared, gc):
    """Versions that nobody serves too: what is published stays until somebody takes its manifest away."""
    cared.publish(version="1", machines=(CPU, TPU), weights="old", references=(7,))
    cared.publish(version="2", machines=(CPU,))
    cared.publish("other", machines=(), program="q")
    cared.age(80)
    before = cared.content()
    removed, result = gc()
    assert (removed, result["removed_bytes"]) == (set(), 0)
    assert (result["kept"], result["kept_bytes"]) == (len(before), sum(map(len, before.values())))
    assert cared.content() == before


def test_what_nothing_names_goes(cared, gc):
    cared.publish(version="1", weights="old", sizes=(1, 2, 4), references=(7,))
    cared.publish(version="2", machines=(CPU, TPU), program="q")
    kept = cared.paths() - {"models/toy/1/manifest.json"}
    cared.publish("third", version="2", machines=(CPU,), program="r", weights="x")
    cared.age(2)
    third = cared.paths() - kept - {"models/toy/1/manifest.json"}
    gone = {*cared.executables(CPU), *(path for path in cared.paths() if "/1/" in path)}
    gone |= survey_paths(cared, "toy/1") - survey_paths(cared, "toy/2") - {"models/toy/serving.json"}
    cared.bottom.delete("models/toy/1/manifest.json")
    cared.bottom.put("executables/stray", b"stray")
    cared.age(2, "executables/stray")
    removed, _ = gc()
    assert removed == gone - {"models/toy/1/manifest.json"} | {"executables/stray"}
    assert third <= cared.paths()
    assert survey_paths(cared, "toy/2") <= cared.paths()


def survey_paths(cared, name):
    """All that a version needs on all its machines."""
    (version,) = (version for version in survey(cared.store).versions if version.name == name)
    return set(version.paths()).union(*map(version.target_paths, version.targets))


def test_a_dry_run_lists_bytes_and_removes_nothing(cared, gc, capsys):
    cared.publish()
    for name, size in (("a", 3), ("b", 40)):
        cared.bottom.put(f"executables/{name}", bytes(size))
    cared.bottom.put("weights/c", bytes(2000))
    cared.age(2)
    before = cared.content()
    removed, dry = gc("--dry-run")
    assert removed == {"executables/a", "executables/b", "weights/c"}
    assert (dry["dry_run"], dry["removed_bytes"], dry["kept"]) == (True, 2043, len(before) - 3)
    assert {one["path"]: one["bytes"] for one in dry["removed"]} == {path: len(before[path]) for path in removed}
    told = cared.run(capsys, "gc", "--dry-run").out.splitlines()
    assert sorted(told[:-1]) == [
        "would remove executables/a, 3 B",
        "would remove executables/b, 40 B",
        "would remove weights/c, 2.0 KiB",
    ]
    assert told[-1].startswith(f"2 of executables, 1 of weights would be removed, 2.0 KiB; {len(before) - 3} stay, ")
    assert cared.content() == before
    wet, result = gc()
    assert (wet, result["removed_bytes"], result["dry_run"]) == (removed, 2043, False)
    assert cared.paths() == set(before) - removed
    assert cared.run(capsys, "gc").out.startswith("nothing removed, 0 B; ")


def test_what_is_young_stays_for_it_may_belong_to_a_publish_under_way(cared, gc):
    cared.publish(machines=())
    for name, hours in (("a", 23), ("b", 25), ("c", 1)):
        cared.bottom.put(f"executables/{name}", b"x")
        cared.age(hours / 24, f"executables/{name}")
    assert gc()[0] == {"executables/b"}
    assert gc("--grace-hours", "2")[0] == {"executables/a"}
    assert gc("--grace-hours", "0")[0] == {"executables/c"}


# Kinds of machine


def test_a_target_of_machines_that_are_seen_no_more_goes_with_what_it_alone_names(cared, gc):
    """One of machines that were never seen too, if somebody says so: they may be in use, and not allowed to say it."""
    cared.publish(machines=MACHINES)
    of_older, of_tpu = ({cared.target(one), *cared.executables(one)} for one in (OLDER, TPU))
    seen(cared, CPU, 0)
    seen(cared, TPU, 100)
    cared.age(100)
    assert gc()[0] == of_tpu
    assert gc("--forget-unseen")[0] == of_older
    assert survey_paths(cared, "toy/1") | {f"fingerprints/{one.digest}" for one in (CPU, TPU)} == cared.paths()


@pytest.mark.parametrize("days", [0.5, 89])
def test_machines_that_were_seen_in_time_keep_a_target_of_any_age(cared, gc, days):
    cared.publish(machines=(CPU, OLDER))
    cared.age(500)
    seen(cared, OLDER, days)
    seen(cared, CPU, 91)
    lost = {cared.target(CPU), *cared.executables(CPU)}
    assert gc()[0] == lost


def test_an_instance_that_marks_its_kind_keeps_its_target(cared, gc):
    cared.publish(machines=(CPU, OLDER))
    cared.age(500)
    mark(cared.store, CPU)
    lost = {cared.target(OLDER), *cared.executables(OLDER)}
    assert gc()[0] == set()
    assert gc("--forget-unseen")[0] == lost


def test_a_target_that_was_published_in_time_stays_before_any_machine_is_seen(cared, gc):
    cared.publish(machines=(CPU, OLDER))
    cared.age(500)
    cared.age(89, cared.target(CPU))
    lost = {cared.target(OLDER), *cared.executables(OLDER)}
    assert gc()[0] == set()
    assert gc("--forget-unseen")[0] == lost


def test_how_long_is_for_the_operator_to_say(cared, gc):
    cared.publish(machines=(CPU,))
    cared.age(20)
    seen(cared, CPU, 20)
    assert gc("--keep-days", "21")[0] == set()
    lost = {cared.target(CPU), *cared.executables(CPU)}
    assert gc("--keep-days", "19")[0] == lost


@pytest.mark.parametrize("days", ["0", "0.5", "1.9"])
def test_a_machine_that_runs_keeps_what_it_uses_however_little_is_kept_for_it_says_so_but_once_a_day(cared, gc, days):
    cared.publish(machines=(CPU, OLDER))
    cared.age(20)
    seen(cared, CPU, 1.99)
    seen(cared, OLDER, 2.01)
    lost = {cared.target(OLDER), *cared.executables(OLDER)}
    assert gc("--keep-days", days)[0] == lost


def test_an_executable_that_several_versions_name_stays_for_the_last_of_them(cared, gc):
    cared.publish(version="1", machines=(CPU,))
    cared.publish(version="2", machines=(CPU,))
    cared.age(100)
    cared.age(1, cared.target(CPU, version="2"))
    seen(cared, CPU, 100)
    assert gc()[0] == {cared.target(CPU, version="1")}
    assert verify(cared.store, survey(cared.store)).missing == {}


# What goes by its age alone


def test_what_coordinates_goes_by_its_age(cared, gc):
    cared.publish()
    aged = ("failures/a", "jax-cache/0123/a", "leases/a", "wanted/a")
    for path in aged:
        cared.bottom.put(path, b"x")
        cared.bottom.put(f"{path}-old", b"x")
    kept = quarantine(cared.bottom, "leases/a", "a mistake")
    cared.age(80)
    cared.age(91, *(f"{path}-old" for path in aged))
    assert kept is not None
    assert gc()[0] == {f"{path}-old" for path in aged}
    assert kept.kept_at in cared.paths()
    assert gc("--keep-days", "79")[0] >= {kept.kept_at, "failures/a", "jax-cache/0123/a", "wanted/a"}


def test_what_instances_counted_goes_once_it_weighs_nothing(cared, gc):
    cared.publish()
    for path in ("traffic/toy/a", "traffic/toy/b"):
        cared.bottom.put(path, b"x")
    cared.age(19, "traffic/toy/a")
    cared.age(21, "traffic/toy/b")
    assert gc()[0] == {"traffic/toy/b"}
    assert gc("--keep-days", "18")[0] == {"traffic/toy/a"}


@pytest.mark.parametrize("spec", [RolloutSpec(started_s=2000.0), None])
def test_the_record_of_a_rollout_stays_as_long_as_what_is_served_names_it(cared, gc, spec):
    """Else a canary that was rolled back by who has no key would get requests again."""
    cared.publish()
    serving = Serving(stable="1", canary="2", changed_s=1000.0, rollout=spec)
    cared.store.put(serving_path("toy"), encode(serving))
    others = record_path("toy", RolloutSpec(started_s=500.0))
    mine = record_path("toy", spec_of(serving))
    for path in (others, mine):
        event = Event(what="rollback", time_s=1.0, who="ada")
        add_event(cared.store, path, Rollout(model="toy", stable="1", canary="2"), event)
    cared.age(500, others, mine)
    assert gc()[0] == {others}
    cared.store.put(serving_path("toy"), encode(Serving(stable="1", changed_s=3000.0)))
    assert gc()[0] == {mine}


def test_what_says_who_is_distrusted_and_who_is_about_stays_for_ever(cared, gc):
    cared.publish()
    seen(cared, TPU, 3000)
    cared.bottom.put(f"distrusted/{'ab' * 32}", b"{}")
    cared.age(3000)
    gc("--keep-days", "0", "--grace-hours", "0")
    assert {f"distrusted/{'ab' * 32}", f"fingerprints/{TPU.digest}"} <= cared.paths()


def test_what_lies_in_no_folder_of_ours_is_not_touched(cared, gc):
    """An operator's own notes, or what a release to come keeps there."""
    cared.publish(machines=())
    for path in ("README.md", "notes/a", "executables-of-old/a", "models.bak/toy/1/manifest.json"):
        cared.bottom.put(path, b"x")
    cared.age(3000)
    before = cared.content()
    assert gc("--keep-days", "0", "--grace-hours", "0")[0] == set()
    assert cared.content() == before


# What is not known


@pytest.mark.parametrize("name", ["models/toy/1/manifest.json", "models/toy/serving.json", "target"])
@pytest.mark.parametrize("damage", [b"", b"{", b'{"format": 1}\n'])
def test_a_document_that_cannot_be_read_stops_it_before_anything_is_removed(cared, capsys, name, damage):
    cared.publish("another", program="r")
    cared.publish()
    path = cared.target(CPU) if name == "target" else name
    cared.bottom.put("executables/stray", b"x")
    cared.bottom.put(path, damage)
    cared.age(500)
    before = cared.content()
    for flags in ((), ("--dry-run",), ("--json",)):
        outcome = cared.run(capsys, "gc", *flags)
        assert (outcome.status, outcome.out) == (1, "")
        (line,) = outcome.err.splitlines()
        assert line.startswith(f"warmpool cache: gc: {path} cannot be read (")
        assert line.endswith("so what it needs is not known; nothing was removed")
    assert cared.content() == before


@pytest.mark.parametrize("name", ["models/toy/1/manifest.json", "target"])
def test_a_document_that_was_set_aside_stops_it_until_another_is_there(cared, capsys, gc, name):
    """Else one bit would cost a whole version: first verify takes the manifest away, then gc all that it named."""
    cared.publish()
    path = cared.target(CPU) if name == "target" else name
    sound = cared.bottom.get(path)
    cared.bottom.put(path, sound[:-12] + b"0" * 9 + sound[-3:])
    assert cared.run(capsys, "verify").status == 1
    assert path not in cared.paths()
    cared.bottom.put("executables/stray", b"x")
    cared.age(2)
    before = cared.content()
    outcome = cared.run(capsys, "gc")
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.err.startswith(f"warmpool cache: gc: {path} is set aside (it is not trusted: ")
    assert cared.content() == before
    cared.bottom.put(path, sound)
    assert gc()[0] == {"executables/stray"}


def test_what_was_set_aside_long_ago_does_not_come_back_and_stops_nothing(cared, gc):
    cared.publish()
    path = "models/toy/1/manifest.json"
    kept = quarantine(cared.bottom, path, "damaged")
    assert kept is not None
    cared.age(20)
    removed, _ = gc("--keep-days", "0")
    assert removed >= {kept.kept_at, *(path for path in cared.paths() if path.startswith("weights/"))}


def test_the_last_word_on_which_version_is_served_can_be_set_aside_without_stopping_it(cared, gc):
    cared.publish()
    assert quarantine(cared.bottom, "models/toy/serving.json", "damaged") is not None
    cared.age(2)
    assert gc()[0] == set()


@pytest.mark.parametrize("when", ["soon", "", "2026-11-30T07:17:11", 7, "2026-11-30T07:17:11Z"])
@pytest.mark.parametrize("path", ["models/toy/1/manifest.json", "models/../../x/manifest.json"])
def test_a_reason_that_anybody_may_have_written_stops_nothing(cared, gc, when, path):
    cared.publish()
    said = {"path": path, "key": "k", "reason": "r", "when": when, "kept_at": "x"}
    cared.bottom.put("quarantine/20261130T000000-0000/reason.json", msgspec.json.encode(said))
    cared.bottom.put("executables/stray", b"x")
    cared.age(2)
    assert gc()[0] == {"executables/stray"}


# The command


@pytest.mark.parametrize("flag", ["--keep-days", "--grace-hours"])
@pytest.mark.parametrize("value", ["-1", "soon", "nan", "inf", ""])
def test_a_time_that_is_none_is_refused(cared, capsys, flag, value):
    cared.bottom.put("executables/stray", b"x")
    cared.age(500)
    outcome = cared.run(capsys, "gc", f"{flag}={value}")
    assert (outcome.status, outcome.out) == (2, "")
    assert f"argument {flag}: got {value!r}; allowed: a number of " in outcome.err
    assert cared.paths() == {"executables/stray"}


def test_a_store_that_is_away_is_told_in_one_line(cared, capsys):
    cared.publish()
    cared.file("models").rename(cared.file("away"))
    cared.file("models").symlink_to(cared.file("models"))
    outcome = cared.run(capsys, "gc")
    assert (outcome.status, outcome.out, len(outcome.err.splitlines())) == (1, "", 1)


# Whatever was published


@st.composite
def histories(draw):
    """Versions in any order, when machines were seen, how old objects are, and how many of a thousand are lost."""
    versions = draw(
        st.lists(
            st.tuples(
                st.sampled_from(("toy", "other")),
                st.sampled_from("123"),
                st.sets(st.integers(0, len(MACHINES) - 1)),
                st.sets(st.sampled_from((1, 2, 4)), min_size=1),
                st.sampled_from("pq"),
                st.sampled_from("wv"),
            ),
            min_size=1,
            max_size=4,
        )
    )
    return (
        versions,
        draw(st.dictionaries(st.integers(0, len(MACHINES) - 1), st.integers(0, 200))),
        draw(st.randoms(use_true_random=False)),
        draw(st.floats(0, 200)),
    )


@settings(max_examples=15)
@given(histories(), st.integers(0, 120), st.integers(0, 50), st.booleans())
def test_after_it_nothing_is_missing_that_was_not_missing_before(
    tmp_path_factory, history, keep_days, grace_hours, forget_unseen
):
    versions, sighted, random, lost = history
    cared = CaredStore(tmp_path_factory.mktemp("store"))
    for model, version, machines, sizes, program, weights in versions:
        kinds = [MACHINES[index] for index in machines]
        cared.publish(model, version, kinds, sizes=sorted(sizes), program=program, weights=weights)
    for index, days in sighted.items():
        seen(cared, MACHINES[index], days)
    for path in sorted(cared.paths()):
        cared.age(random.uniform(0, 200), path)
        if path.startswith(("executables/", "programs/", "models/")) and random.uniform(0, 1000) < lost:
            cared.bottom.delete(path)
    want(cared.store, "ab", "it is missing")
    before = survey(cared.store)
    missed = set(verify(cared.store, before).missing)
    needed = {path for version in before.versions for path in version.paths()} & cared.paths()
    how = {"keep_s": keep_days * DAY_S, "grace_s": grace_hours * 3600.0, "forget_unseen": forget_unseen}
    dry = collect(cared.store, before, **how, dry_run=True)
    swept = collect(cared.store, before, **how, dry_run=False)
    assert {one.path for one in dry.removed} == {one.path for one in swept.removed}
    after = verify(cared.store, survey(cared.store))
    assert set(after.missing) <= missed
    assert (after.faults, after.problems) == ({}, {})
    assert needed <= cared.paths()
    for version in before.versions:
        for digest in version.targets:
            days = min((days for index, days in sighted.items() if MACHINES[index].digest == digest), default=1000)
            if days < keep_days or (days == 1000 and not forget_unseen):
                assert digest in {
                    found for one in survey(cared.store).versions if one.name == version.name for found in one.targets
                }
