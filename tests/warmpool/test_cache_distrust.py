"""`warmpool cache distrust`: a key that the store names is trusted by nobody who uses the store."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from cache.errors import Untrusted
from cache.opening import open_store
from cache.settings import StoreSettings
from tests.warmpool.cared_store import COLLEAGUE, CPU, SIGNER, STRANGER, CaredStore

NAMED = f"distrusted/{SIGNER.key_id}"


@pytest.fixture
def cared(tmp_path):
    cared = CaredStore(tmp_path)
    cared.publish()
    return cared


def test_the_store_names_the_key_with_the_reason_and_since_when(cared, capsys):
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    outcome = cared.run(capsys, "distrust", SIGNER.key_id, "--reason", "its laptop was stolen")
    assert (outcome.status, outcome.out, outcome.err) == (0, f"{SIGNER.key_id} is distrusted\n", "")
    named = json.loads(cared.bottom.get(NAMED))
    assert named["reason"] == "its laptop was stolen"
    assert before <= datetime.fromisoformat(named["since"]) <= datetime.now(UTC)


def test_who_has_the_store_open_takes_it_over_and_refuses_what_the_key_signed(cared, capsys):
    store = open_store(StoreSettings(store=str(cared.bottom.root), trusted_keys=str(cared.keys / "signer.pub")))
    path = cared.executables(CPU)[0]
    assert store.get(path)
    assert store.refresh_trust() == frozenset()
    cared.run(capsys, "distrust", SIGNER.key_id)
    assert store.refresh_trust() == {SIGNER.key_id}
    for refused in (path, "models/toy/serving.json"):
        with pytest.raises(Untrusted, match="which is distrusted"):
            store.get(refused)
    assert store.refresh_trust() == frozenset()


def test_every_other_command_takes_it_over_too(cared, capsys):
    assert cared.run(capsys, "ls").status == 0
    cared.run(capsys, "distrust", SIGNER.key_id)
    outcome = cared.run(capsys, "ls", "--json")
    assert outcome.status == 1
    assert all("distrusted" in problem for problem in outcome.json()["problems"].values())


def test_nothing_more_is_signed_by_it(cared, capsys):
    cared.run(capsys, "distrust", SIGNER.key_id)
    settings = StoreSettings(store=str(cared.bottom.root), signing_key=str(cared.keys / "signer"))
    store = open_store(settings)
    with pytest.raises(Untrusted, match="which would sign it, is distrusted"):
        store.put("models/toy/serving.json", b"{}\n")


def test_undone_it_is_trusted_by_who_starts_then(cared, capsys):
    cared.run(capsys, "distrust", SIGNER.key_id)
    outcome = cared.run(capsys, "distrust", SIGNER.key_id, "--undo", "--reason", "it was found")
    told = f"{SIGNER.key_id} is trusted again by who starts with its public half\n"
    assert (outcome.status, outcome.out) == (0, told)
    assert NAMED not in cared.paths()
    assert cared.run(capsys, "ls").status == 0
    assert cared.run(capsys, "distrust", SIGNER.key_id, "--undo").status == 0  # nothing happens


def test_a_program_is_told_what_holds_now(cared, capsys):
    for flags, distrusted in (((), True), ((), True), (("--undo",), False)):
        outcome = cared.run(capsys, "distrust", "--json", COLLEAGUE.key_id, *flags)
        assert outcome.json() == {"key_id": COLLEAGUE.key_id, "distrusted": distrusted, "documents_signed": 0}


def test_of_a_key_that_signed_nothing_it_is_said_that_the_id_may_be_another(cared, capsys):
    """It is distrusted all the same: it may sign something yet."""
    outcome = cared.run(capsys, "distrust", STRANGER.key_id)
    told = f"{STRANGER.key_id} is distrusted, but it signed no document in this store: is that the right id?\n"
    assert (outcome.status, outcome.out) == (0, told)
    assert f"distrusted/{STRANGER.key_id}" in cared.paths()
    assert cared.run(capsys, "distrust", "--json", SIGNER.key_id).json()["documents_signed"] == 3


def test_the_audit_log_says_who_did_it_and_why(cared, capsys, tmp_path):
    log = ("--audit-log", str(tmp_path / "audit"))
    cared.run(capsys, "distrust", SIGNER.key_id, "--reason", "stolen", *log)
    cared.run(capsys, "distrust", SIGNER.key_id, "--reason", "found", "--undo", *log)
    said = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    assert [(one["event"], one["key_id"], one["reason"]) for one in said] == [
        ("distrust", SIGNER.key_id, "stolen"),
        ("distrust", SIGNER.key_id, "undone: found"),
    ]
    assert all("@" in one["who"] for one in said)


@pytest.mark.parametrize("key_id", ["", "abcd", SIGNER.key_id.upper(), f"{SIGNER.key_id}0", "../" + "a" * 61])
def test_what_is_no_key_id_is_refused_and_nothing_is_written(cared, capsys, key_id):
    before = cared.paths()
    outcome = cared.run(capsys, "distrust", key_id)
    assert (outcome.status, outcome.out) == (2, "")
    assert f"argument KEY: got {key_id!r}; allowed: 64 hex digits" in outcome.err
    assert cared.paths() == before


def test_a_store_that_takes_no_word_is_told_in_one_line(cared, capsys):
    cared.bottom.put("distrusted", b"a file where the folder would be")
    outcome = cared.run(capsys, "distrust", SIGNER.key_id)
    assert (outcome.status, outcome.out, len(outcome.err.splitlines())) == (1, "", 1)
    assert outcome.err.startswith("warmpool cache: distrust: 'distrusted/")


def test_a_key_may_be_named_by_the_file_of_its_public_half(cared, capsys, tmp_path):
    public = SIGNER.write(tmp_path / "key")
    assert cared.run(capsys, "distrust", str(public)).status == 0
    assert f"distrusted/{SIGNER.key_id}" in cared.paths()
