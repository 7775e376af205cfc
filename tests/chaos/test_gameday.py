"""The game day: the faults that no other test has, each under load; its report, and its command."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from benchmarks.gameday import game
from benchmarks.gameday.__main__ import kinds, seconds, show
from benchmarks.gameday.faults import FAULTS, SEEN_S_MAX, worker_killed
from benchmarks.gameday.game import ANSWERS_MIN, Game, Outcome
from benchmarks.gameday.instance import until
from benchmarks.gameday.load import Answer
from benchmarks.gameday.place import place
from benchmarks.stores import Folders
from tests.instance_process import alive
from tests.once import once
from tests.warmpool.dead_leases import owners, shorten

COMMAND_S_MAX = 580.0
FAR = ("disk full", "compile fails", "compile hangs")


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Where the model was published."""

    def publish(folder):
        Folders(folder).store("gameday", "benchmarks/gameday/model.py")

    return Folders(once(tmp_path_factory, "gameday", publish))


@pytest.fixture(scope="module")
def far(folders, tmp_path_factory):
    """An instance whose store is a bucket behind a network."""
    with place(folders, tmp_path_factory.mktemp("far")) as here:
        yield here


@pytest.fixture(scope="module")
def near(folders, tmp_path_factory):
    """An instance whose store is a folder, on the disk on which it keeps all else."""
    with place(folders, tmp_path_factory.mktemp("near"), near=True) as here:
        yield here


@pytest.fixture(autouse=True)
def unhurried(monkeypatch):
    """Callers who leave most of a busy machine to what is waited for, which is nicer than they are."""
    monkeypatch.setattr(game, "EVERY_S", 0.08)


def play(here, fault):
    said: list[str] = []
    until(here.whole, FAULTS[fault].recovery_s_max, "the one before is over")
    played = Game(here, seed=1, say=said.append)
    played.play([fault], 0)
    (outcome,) = played.outcomes.values()
    assert outcome.good, (outcome, said)
    assert outcome.right >= ANSWERS_MIN


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAR)
def test_a_fault_is_noticed_costs_nobody_an_answer_and_is_over_within_its_bound(far, fault):
    play(far, fault)


@pytest.mark.slow
def test_a_compile_worker_that_is_killed_is_too(far, monkeypatch):
    """Its leases run out at once here."""

    def inject(place, draw):
        injected = worker_killed(place, draw)
        until(injected.seen, SEEN_S_MAX, "the instance noticed it")
        for pid in owners(place.shelf.store):
            if not alive(pid):
                shorten(place.shelf.store, pid)
        return injected

    monkeypatch.setitem(FAULTS, "compile worker killed", replace(FAULTS["compile worker killed"], inject=inject))
    play(far, "compile worker killed")


@pytest.mark.slow
def test_a_full_disk_is_too_where_the_store_is_on_it(near):
    play(near, "disk full")


@pytest.mark.slow
def test_the_command_prints_what_it_brought_about_and_what_became_of_it(folders):
    names = ["lane killed", "zygote killed"]
    command = [sys.executable, "-m", "benchmarks.gameday", "--json", "--seconds", "0", "--seed", "7"]
    done = subprocess.run(
        [*command, "--faults", ",".join(names), "--work", str(folders.root)],
        capture_output=True,
        text=True,
        timeout=COMMAND_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done
    report = json.loads(done.stdout)
    assert (report["seed"], report["good"], sorted(report["faults"])) == (7, True, sorted(names))
    for name in names:
        assert f"{name}: seen after " in done.stderr
        found = report["faults"][name]
        assert (found["injected"], found["seen"], len(found["recovered_s"])) == (1, 1, 1)
        assert (found["lost"], found["wrong"], found["contradictions"]) == (0, 0, 0)


RIGHT = Answer(1, "total", 200)


def outcome(*answers, **changes):
    found = Outcome(10.0, injected=1, seen=1, recovered_s=[1.0])
    found.count(answers)
    for name, value in changes.items():
        setattr(found, name, value)
    return found


def test_a_caller_who_is_told_when_to_come_again_is_refused_and_not_lost():
    found = outcome(RIGHT, Answer(2, "total", 503, "later"), Answer(3, "total", 429))
    assert (found.right, found.refused, found.lost, found.wrong, found.good) == (1, 2, 0, 0, True)


@pytest.mark.parametrize(
    ("found", "column"),
    [
        (outcome(RIGHT, Answer(2, "total", 0, "reset")), "lost"),
        (outcome(RIGHT, Answer(2, "total", 500, "it failed")), "lost"),
        (outcome(RIGHT, Answer(2, "total", 504, "too late")), "lost"),
        (outcome(RIGHT, Answer(2, "total", 200, right=False)), "wrong"),
        (outcome(RIGHT, contradictions=1), "contradictions"),
    ],
)
def test_one_answer_that_is_lost_or_wrong_is_bad(found, column):
    assert getattr(found, column) == 1
    assert not found.good


@pytest.mark.parametrize("changes", [{"seen": 0}, {"recovered_s": []}, {"injected": 2}])
def test_what_is_not_seen_or_not_over_in_time_is_bad(changes):
    assert not outcome(RIGHT, **changes).good


def test_the_table_has_a_row_for_each_fault_and_says_what_went_wrong(capsys):
    bad = outcome(RIGHT, Answer(2, "total", 504, "too late"), Answer(3, "total", 429, "busy"), recovered_s=[])
    show(Console(width=140), {"lane killed": outcome(RIGHT), "disk full": bad}, seed=3)
    title, _, good, found, *said = capsys.readouterr().out.splitlines()
    assert "seed 3" in title
    assert good.split() == ["lane", "killed", "1", "1", "1.0", "s", "10", "s", "1", "0", "0", "0", "0", "good"]
    assert found.split() == ["disk", "full", "1", "1", "never", "10", "s", "1", "1", "1", "0", "0", "bad"]
    assert said == ["disk full: refused, such as: 429 busy", "disk full: total: 504 too late"]


@pytest.mark.parametrize(("read", "text"), [(kinds, "lane killed,nothing"), (seconds, "-1"), (seconds, "86401")])
def test_what_may_be_given_is_told(read, text):
    with pytest.raises(Exception, match="allowed: "):
        read(text)


def test_every_fault_has_a_bound():
    assert all(fault.recovery_s_max > 0 for fault in FAULTS.values())
