"""`warmpool cache restore`: what was set aside by mistake comes back, and nothing that is faulty does."""

from __future__ import annotations

import json

import pytest

from cache.quarantine import quarantine, quarantined
from cache.wanted import want, wanted
from tests.warmpool.cared_store import CPU, CaredStore


@pytest.fixture
def cared(tmp_path):
    cared = CaredStore(tmp_path)
    cared.publish()
    return cared


def aside(cared, path, reason="lanes died of it"):
    kept = quarantine(cared.bottom, path, reason)
    assert kept
    return kept


@pytest.mark.parametrize("by", ["path", "kept_at"])
def test_what_is_sound_is_back_where_it_was_and_nobody_is_asked_for_it(cared, capsys, tmp_path, by):
    path = cared.executables(CPU)[0]
    before = cared.content()
    kept = aside(cared, path)
    want(cared.store, kept.key, "it is missing")
    outcome = cared.run(capsys, "restore", getattr(kept, by), "--audit-log", str(tmp_path / "audit"))
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.startswith(f"restored {path}, which was set aside at ")
    assert outcome.out.endswith(": lanes died of it\n")
    assert (cared.content(), wanted(cared.store)) == (before, [])
    said = json.loads((tmp_path / "audit").read_text())
    assert (said["event"], said["path"], said["reason"]) == ("restore", path, "lanes died of it")


def test_what_is_faulty_is_set_aside_again_with_what_is_wrong(cared, capsys):
    path = cared.executables(CPU)[0]
    cared.bottom.put(path, b"damaged")
    aside(cared, path, "who knows")
    outcome = cared.run(capsys, "restore", "--json", path)
    assert outcome.status == 1
    (kept,) = quarantined(cared.bottom)
    fault = "it is damaged: 7 bytes are fewer than an artifact has"
    assert outcome.json() == {"path": path, "restored": False, "fault": fault, "kept_at": kept.kept_at}
    assert (kept.path, kept.reason) == (path, fault)
    assert path not in cared.paths()


def test_what_another_one_took_the_place_of_stays_where_it_is(cared, capsys):
    path = cared.executables(CPU)[0]
    sound = cared.bottom.get(path)
    kept = aside(cared, path)
    cared.bottom.put(path, sound)
    before = cared.content()
    outcome = cared.run(capsys, "restore", path)
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.err == (
        f"warmpool cache: restore: {path} is there by now: what was set aside stays at {kept.kept_at}\n"
    )
    assert cared.content() == before


def test_which_one_is_meant_has_to_be_said_where_there_are_more(cared, capsys):
    path = cared.executables(CPU)[0]
    sound = cared.bottom.get(path)
    first = aside(cared, path)
    cared.bottom.put(path, sound)
    second = aside(cared, path)
    outcome = cared.run(capsys, "restore", path)
    assert outcome.status == 1
    assert all(kept.kept_at in outcome.err for kept in (first, second))
    assert cared.run(capsys, "restore", second.kept_at).status == 0
    assert cared.bottom.get(path) == sound


@pytest.mark.parametrize("path", ["distrusted/k", "leases/k", "readme.txt", "../keys/signer"])
def test_a_reason_that_somebody_wrote_has_nothing_written_that_is_not_checked(cared, capsys, path):
    """Nobody signs a reason."""
    reason = {"path": path, "reason": "r", "when": "2026-01-02T03:04:05+00:00"}
    cared.bottom.put("quarantine/q/reason.json", json.dumps(reason).encode())
    if ".." not in path:
        cared.bottom.put(f"quarantine/q/{path}", b"x")
    before = cared.content()
    for named in (path, f"quarantine/q/{path}", "executables/k"):
        outcome = cared.run(capsys, "restore", named)
        assert (outcome.status, outcome.out) == (1, "")
        assert "is not set aside; `warmpool cache ls` lists what is" in outcome.err
    assert cared.content() == before
