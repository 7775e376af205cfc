"""`warmpool cache verify`: whatever is wrong is named and set aside, and nothing else is touched."""

from __future__ import annotations

import errno
import hashlib
import json
import subprocess
import sys

import msgspec
import pytest

from cache.artifact import Kind, pack, unpack
from cache.audit import LINE_BYTES_MAX
from cache.data_keys import FileKey, read_keys
from cache.encrypted_store import EncryptedStore
from cache.errors import not_read
from cache.local_store import LocalStore
from cache.quarantine import Kept, quarantined
from cache.signed_store import SignedStore
from cache.signing import ANYONE
from cache.wanted import wanted
from tests.warmpool.cared_store import COLLEAGUE, CPU, OLDER, SIGNER, STRANGER, TPU, CaredStore
from warmpool.manifest import executable_path

MANIFEST = "models/toy/1/manifest.json"
SERVING = "models/toy/serving.json"


@pytest.fixture
def cared(tmp_path):
    """Two versions for two kinds of machine, and another model; all of it sound."""
    cared = CaredStore(tmp_path)
    cared.publish(version="0", machines=(CPU,), weights="older")
    cared.publish(machines=(CPU, TPU))
    cared.publish("other", machines=(CPU,), program="q", weights="v")
    return cared


@pytest.fixture
def verify(cared, capsys):
    """Runs the command with --json; its exit status, and what it printed."""

    def run(*flags, trusting=None):
        outcome = cared.run(capsys, "verify", "--json", *flags, trusting=trusting)
        assert outcome.err == ""
        return outcome.status, outcome.json()

    return run


def key_of(path):
    return path.rpartition("/")[2]


def flip(data):
    return data[:-200] + bytes([data[-200] ^ 1]) + data[-199:]


def signed_by(cared, signer, path):
    """The same artifact under another signature."""
    kind: Kind = "program" if path.startswith("programs/") else "executable"
    header, payload = unpack(cared.bottom.get(path), key=key_of(path), kind=kind, trust=ANYONE)
    return pack(header, bytes(payload), signer)


def test_a_sound_store_is_said_to_be_so(cared, capsys, verify):
    before = cared.content()
    status, result = verify()
    size_bytes = sum(len(data) for data in before.values())
    assert (status, result) == (
        0,
        {
            "checked": len(before),
            "checked_bytes": size_bytes,
            "faults": {},
            "untrusted": {},
            "quarantined": [],
            "missing": {},
            "unreadable": {},
            "problems": {},
            "wanted": [],
        },
    )
    outcome = cared.run(capsys, "verify")
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out == f"checked {len(before)} objects, {size_bytes / 1024:.1f} KiB\neverything is sound\n"
    assert cared.content() == before


# By what is damaged: its path, its damaged content, and what is said of that.
DAMAGES = {
    "an executable with a bit flipped": (
        lambda it: it.executables(CPU)[1],
        lambda it, path: flip(it.bottom.get(path)),
        "it is damaged: its digest does not match its content",
    ),
    "an executable cut short": (
        lambda it: it.executables(TPU)[0],
        lambda it, path: it.bottom.get(path)[:100],
        "it is damaged: it is 100 bytes long, its lengths say otherwise",
    ),
    "an empty executable": (
        lambda it: it.executables(CPU)[0],
        lambda it, path: b"",
        "it is damaged: 0 bytes are fewer than an artifact has",
    ),
    "an executable in the place of another": (
        lambda it: it.executables(CPU)[0],
        lambda it, path: it.bottom.get(it.executables(CPU)[1]),
        "it was made for something else (key: wanted ",
    ),
    "a program with a bit flipped": (
        lambda it: f"programs/{hashlib.sha256(b'p').hexdigest()}",
        lambda it, path: flip(it.bottom.get(path)),
        "it is damaged: its digest does not match its content",
    ),
    "weights with a byte flipped": (
        lambda it: f"weights/{hashlib.sha256(b'w' * 100).hexdigest()}",
        lambda it, path: b"w" * 50 + b"x" + b"w" * 49,
        "it is damaged: their digest is ",
    ),
    "a manifest that was edited": (
        lambda it: MANIFEST,
        lambda it, path: it.bottom.get(path).replace(b'"float32"', b'"float64"'),
        f"it is not trusted: its signature is not that of the key {SIGNER.key_id[:16]}",
    ),
    "a manifest in another version's place": (
        lambda it: "models/toy/0/manifest.json",
        lambda it, path: it.bottom.get(MANIFEST),
        "it is not trusted: its signature is not that of the key ",
    ),
    "a target that was edited": (
        lambda it: it.target(CPU),
        lambda it, path: it.bottom.get(path).replace(b'"cost_us": 1.0', b'"cost_us": 9.0'),
        "it is not trusted: its signature is not that of the key ",
    ),
    "a target in another machine's place": (
        lambda it: it.target(TPU),
        lambda it, path: it.bottom.get(it.target(CPU)),
        "it is not trusted: its signature is not that of the key ",
    ),
    "which version is served, edited": (
        lambda it: SERVING,
        lambda it, path: it.bottom.get(path).replace(b'"1"', b'"0"'),
        "it is not trusted: its signature is not that of the key ",
    ),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_what_is_wrong_is_set_aside_with_its_reason_and_the_rest_stays(cared, verify, what):
    path_of, damaged, reason = DAMAGES[what]
    path = path_of(cared)
    sound = cared.bottom.get(path)
    cared.bottom.put(path, damaged(cared, path))
    before = cared.content()
    status, result = verify()
    assert status == 1
    (kept,) = result["quarantined"]
    assert (kept["path"], kept["key"]) == (path, key_of(path))
    assert kept["reason"].startswith(reason)
    assert result["faults"] == {path: kept["reason"]}
    after = cared.content()
    assert after.pop(kept["kept_at"]) == before.pop(path)
    reason_at = kept["kept_at"].removesuffix(path) + "reason.json"
    assert msgspec.json.decode(after.pop(reason_at)) == {name: kept[name] for name in ("path", "reason", "when")}
    asked = path.startswith("executables/")
    assert result["wanted"] == ([key_of(path)] if asked else [])
    assert {name: data for name, data in after.items() if not name.startswith("wanted/")} == before
    assert wanted(cared.store) == result["wanted"]

    _, again = verify()
    assert (again["faults"], again["quarantined"], again["problems"]) == ({}, [], {})
    cared.bottom.put(path, sound)
    status, mended = verify()
    assert (status, mended["faults"], mended["missing"]) == (0, {}, {})


def test_everything_at_once(cared, verify):
    """And what is needed by something that was set aside with it is not called missing for that."""
    chosen: dict[str, bytes] = {}
    for path_of, damaged, _ in DAMAGES.values():
        path = path_of(cared)
        chosen.setdefault(path, damaged(cared, path))
    for path, data in chosen.items():
        cared.bottom.put(path, data)
    status, result = verify()
    assert status == 1
    assert {kept["path"] for kept in result["quarantined"]} == set(chosen)
    assert {kept["key"] for kept in result["quarantined"]} == set(map(key_of, chosen))
    assert {kept.path for kept in quarantined(cared.bottom)} == set(chosen)
    _, again = verify()
    assert (again["faults"], again["quarantined"]) == ({}, [])


def test_a_dry_run_says_the_same_and_moves_nothing(cared, capsys, verify):
    damaged = cared.executables(CPU)[1]
    cared.bottom.put(damaged, flip(cared.bottom.get(damaged)))
    cared.bottom.put(MANIFEST, cared.bottom.get(MANIFEST).replace(b'"float32"', b'"float64"'))
    cared.bottom.delete(cared.executables(TPU)[0])
    before = cared.content()
    status, dry = verify("--dry-run")
    assert status == 1
    assert (dry["quarantined"], dry["wanted"]) == ([], [])
    outcome = cared.run(capsys, "verify", "--dry-run")
    assert outcome.status == 1
    assert f"fault {MANIFEST}: it is not trusted: " in outcome.out
    assert "quarantined" not in outcome.out
    assert "asked for" not in outcome.out
    assert cared.content() == before
    _, wet = verify()
    assert wet["faults"] == dry["faults"]
    assert wet["missing"] == dry["missing"]


def test_a_person_reads_a_line_for_each_and_what_to_do(cared, capsys):
    damaged, missing = cared.executables(CPU)
    cared.bottom.put(damaged, flip(cared.bottom.get(damaged)))
    cared.bottom.delete(missing)
    outcome = cared.run(capsys, "verify")
    assert outcome.status == 1
    first, *lines = outcome.out.splitlines()
    assert first.startswith("checked ")
    assert lines == [
        f"quarantined {damaged}: it is damaged: its digest does not match its content",
        f"missing {missing}: toy/0 needs it on machines {CPU.digest}",
        "2 executables are asked for: `warmpool cache fill` compiles them",
    ]


# What is not there


def test_an_executable_that_a_target_names_and_is_not_there_is_reported_and_asked_for(cared, verify):
    gone = cared.executables(TPU)[1]
    cared.bottom.delete(gone)
    for _ in range(2):
        status, result = verify()
        assert status == 1
        assert result["missing"] == {gone: f"toy/1 needs it on machines {TPU.digest}"}
        assert result["wanted"] == wanted(cared.store) == [key_of(gone)]
        assert result["quarantined"] == []


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (f"weights/{hashlib.sha256(b'w' * 100).hexdigest()}", "toy/1 needs it"),
        (f"programs/{hashlib.sha256(b'q').hexdigest()}", "other/1 needs it"),
        (MANIFEST, "it is served"),
    ],
)
def test_whatever_else_a_version_needs_and_is_not_there_is_reported(cared, verify, path, reason):
    cared.bottom.delete(path)
    status, result = verify()
    assert (status, result["missing"], result["wanted"]) == (1, {path: reason}, [])
    assert wanted(cared.store) == []


def test_a_reference_that_is_not_there_is_not_missed(cared, verify):
    """It serves nothing: whoever wants to compare with it makes it again."""
    cared.publish(version="2", references=(7,))
    before = cared.paths()
    (reference,) = (
        before
        - {path for path in before if path.startswith(("models/", "programs/", "weights/"))}
        - {
            *cared.executables(CPU),
            *cared.executables(TPU),
            *cared.executables(CPU, "other"),
        }
    )
    cared.bottom.delete(reference)
    status, result = verify()
    assert (status, result["missing"]) == (0, {})


# Executables of other machines


def test_an_executable_that_only_a_target_for_other_machines_names_is_set_aside(cared, verify):
    spec = cared.executable(hashlib.sha256(b"p").hexdigest(), 4, OLDER)
    own = json.loads(cared.store.get(cared.target(CPU)))["executables"]
    cared.edit_target(CPU, executables=[*own, msgspec.to_builtins(spec)])
    status, result = verify()
    assert status == 1
    (kept,) = result["quarantined"]
    assert (kept["path"], kept["key"]) == (executable_path(spec.key), spec.key)
    assert kept["reason"] == f"{cared.target(CPU)} names it, but it is for other machines (jaxlib)"
    assert result["wanted"] == [spec.key]


def test_where_its_own_target_names_it_too_the_other_target_is_to_blame(cared, verify):
    """To move it would take from the right machines what they need."""
    foreign = json.loads(cared.store.get(cared.target(TPU)))["executables"][0]
    own = json.loads(cared.store.get(cared.target(CPU)))["executables"]
    cared.edit_target(CPU, executables=[*own, foreign])
    before = cared.content()
    status, result = verify()
    assert (status, result["faults"], result["quarantined"]) == (1, {}, [])
    assert list(result["problems"]) == [cared.target(CPU)]
    assert (
        f"it names executables/{foreign['key']}, which is for other machines (" in result["problems"][cared.target(CPU)]
    )
    assert cared.content() == before


def test_a_key_that_is_none_is_a_problem_of_its_target(cared, verify):
    own = json.loads(cared.store.get(cared.target(CPU)))["executables"]
    cared.edit_target(CPU, executables=[*own, own[0] | {"key": "../../secret"}])
    before = cared.content()
    status, result = verify()
    assert (status, result["faults"], result["missing"]) == (1, {}, {})
    assert result["problems"] == {cared.target(CPU): "it names '../../secret', which is no key"}
    assert cared.content() == before


def test_a_document_of_a_release_to_come_is_a_problem_and_stays_where_it_is(cared, verify, capsys):
    cared.edit_target(CPU, surprise=1)
    before = cared.content()
    status, result = verify()
    assert (status, result["faults"], result["quarantined"]) == (1, {}, [])
    assert "unknown field `surprise`" in result["problems"][cared.target(CPU)]
    assert f"problem {cared.target(CPU)}: " in cared.run(capsys, "verify").out
    assert cared.content() == before


# Whose signature counts


# By who signed it: its path, its content, and what is said of that.
UNKNOWN = {
    "an executable that nobody signed": (
        lambda it: it.executables(CPU)[0],
        lambda it, path: signed_by(it, None, path),
        "it is not trusted: it is not signed",
    ),
    "an executable that a stranger signed": (
        lambda it: it.executables(CPU)[0],
        lambda it, path: signed_by(it, STRANGER, path),
        f"it is not trusted: it is signed by the key {STRANGER.key_id[:16]}, which is not trusted here",
    ),
    "a program that a stranger signed": (
        lambda it: f"programs/{hashlib.sha256(b'p').hexdigest()}",
        lambda it, path: signed_by(it, STRANGER, path),
        "it is not trusted: it is signed by the key ",
    ),
    "a manifest whose signature was taken off": (
        lambda it: MANIFEST,
        lambda it, path: it.store.get(path),
        "it is not trusted: it is not signed",
    ),
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_what_nobody_who_is_known_here_signed_stays_and_is_moved_only_if_that_is_asked_for(cared, verify, what):
    """Others may know who did; and nothing is compiled anew for who lacks a key."""
    path_of, content, reason = UNKNOWN[what]
    path = path_of(cared)
    cared.bottom.put(path, content(cared, path))
    before = cared.content()
    status, result = verify()
    assert (status, result["faults"], result["quarantined"], result["wanted"]) == (1, {}, [], [])
    assert list(result["untrusted"]) == [path]
    assert result["untrusted"][path].startswith(reason)
    assert path not in result["problems"]
    assert cared.content() == before
    status, moved = verify("--quarantine-untrusted")
    assert (status, moved["untrusted"], moved["faults"]) == (1, {}, result["untrusted"])
    assert [kept["path"] for kept in moved["quarantined"]] == [path]
    assert moved["wanted"] == ([key_of(path)] if path.startswith("executables/") else [])


def test_with_the_wrong_keys_nothing_is_moved_and_a_person_is_told_what_to_do(cared, capsys):
    before = cared.content()
    wrong = ("--trusted-keys", str(cared.keys / "stranger.pub"))
    signed = [path for path in before if not path.startswith("weights/")]
    outcome = cared.run(capsys, "verify", trusting=wrong)
    assert (outcome.status, outcome.err) == (1, "")
    lines = outcome.out.splitlines()
    assert f"{len(signed)} objects are signed by nobody who is known here: give the keys of" in lines[-1]
    assert len([line for line in lines if line.startswith("left ")]) == len(signed)
    assert cared.content() == before


def test_with_the_wrong_keys_everything_is_moved_only_if_that_is_asked_for(cared, verify):
    signed = {path for path in cared.paths() if not path.startswith("weights/")}
    status, result = verify("--quarantine-untrusted", trusting=("--trusted-keys", str(cared.keys / "stranger.pub")))
    assert status == 1
    assert {kept["path"] for kept in result["quarantined"]} == signed


def test_of_two_who_publish_only_what_the_distrusted_one_signed_is_set_aside(cared, verify, capsys):
    theirs = cared.executables(TPU)
    for path in theirs:
        cared.bottom.put(path, signed_by(cared, COLLEAGUE, path))
    assert verify()[0] == 0
    assert cared.run(capsys, "distrust", COLLEAGUE.key_id).status == 0
    status, result = verify()
    assert status == 1
    reason = f"it is not trusted: it is signed by the key {COLLEAGUE.key_id[:16]}, which is distrusted"
    assert {kept["path"]: kept["reason"] for kept in result["quarantined"]} == dict.fromkeys(theirs, reason)
    assert sorted(result["wanted"]) == sorted(map(key_of, theirs))


def test_artifacts_that_were_all_signed_by_a_distrusted_key_are_set_aside_where_manifests_show_the_keys_are_right(
    cared, verify
):
    artifacts = [path for path in cared.paths() if path.startswith(("executables/", "programs/"))]
    for path in artifacts:
        cared.bottom.put(path, signed_by(cared, COLLEAGUE, path))
    _, result = verify("--distrusted-keys", COLLEAGUE.key_id)
    assert {kept["path"] for kept in result["quarantined"]} == set(artifacts)


def test_the_first_format_is_sound_where_nothing_has_to_be_signed(cared, capsys):
    for path in (path for path in cared.paths() if path.startswith(("executables/", "programs/"))):
        body = bytearray(cared.bottom.get(path)[: -32 - 32 - 64])
        body[7] = 1
        cared.bottom.put(path, bytes(body) + hashlib.sha256(body).digest())
    outcome = cared.run(capsys, "verify", trusting=("--allow-unsigned",))
    assert (outcome.status, outcome.out.splitlines()[1]) == (0, "everything is sound")


def test_what_is_set_aside_is_told_to_the_audit_log(cared, verify, tmp_path):
    path = cared.executables(CPU)[0]
    cared.bottom.put(path, b"")
    verify("--audit-log", str(tmp_path / "audit"))
    (line,) = (tmp_path / "audit").read_text().splitlines()
    said = json.loads(line)
    assert len(line) < LINE_BYTES_MAX
    assert (said["event"], said["path"], said["key"]) == ("quarantine", path, key_of(path))
    assert said["reason"] == "it is damaged: 0 bytes are fewer than an artifact has"
    assert "@" in said["who"]


def test_an_encrypted_store_is_verified_with_its_key_and_left_alone_without(tmp_path, capsys):
    cared = CaredStore(tmp_path)
    FileKey.write(tmp_path / "secret")
    plain = cared.bottom
    inner = EncryptedStore(plain, read_keys(str(tmp_path / "secret")))
    cared.store = SignedStore(inner, cared.store.trust, SIGNER)
    cared.publish()
    for path in cared.paths():  # weights are published below signatures
        inner.put(path, inner.get(path))
    path = cared.executables(CPU)[0]
    encrypted = cared.content()
    without = cared.run(capsys, "verify", "--json")
    unreadable = without.json()["unreadable"]
    assert without.status == 1
    assert unreadable.keys() == {one for one in encrypted if not one.startswith("models/")}
    assert unreadable[path] == f"{path!r} is encrypted: give the key as encryption_key"
    assert f"unreadable {path}: {path!r} is encrypted" in cared.run(capsys, "verify").out
    assert cared.content() == encrypted
    key = ("--encryption-key", str(tmp_path / "secret"))
    assert cared.run(capsys, "verify", *key).status == 0
    plain.put(path, flip(plain.get(path)))
    (kept,) = cared.run(capsys, "verify", "--json", *key).json()["quarantined"]
    assert kept["path"] == path
    assert plain.get(kept["kept_at"]) == flip(encrypted[path])


def test_one_object_under_a_key_that_is_not_given_stops_nothing_else(tmp_path, capsys):
    cared = CaredStore(tmp_path)
    for name in ("first", "second", "lost"):
        FileKey.write(tmp_path / name)
    cared.publish()
    first, second = cared.executables(CPU)
    stores = {name: EncryptedStore(cared.bottom, read_keys(str(tmp_path / name))) for name in ("second", "lost")}
    stores["lost"].put(first, cared.bottom.get(first))
    stores["second"].put(second, flip(cared.bottom.get(second)))
    keys = ("--encryption-key", f"{tmp_path / 'first'},{tmp_path / 'second'}")
    outcome = cared.run(capsys, "verify", "--json", *keys)
    result = outcome.json()
    assert outcome.status == 1
    assert list(result["unreadable"]) == [first]
    assert "is wrapped by" in result["unreadable"][first]
    assert list(result["faults"]) == [second], "what comes after it was not verified"
    assert (result["missing"], result["wanted"]) == ({}, [key_of(second)])
    assert (result["unencrypted"], result["other_keys"]) == (2, 2)  # weights and a program
    assert first in cared.paths()


@pytest.mark.parametrize("place", ["executable", "manifest"])
def test_what_nobody_permits_us_to_read_stops_nothing_else(cared, verify, monkeypatch, place):
    forbidden = {"executable": cared.executables(CPU)[0], "manifest": "models/other/1/manifest.json"}[place]
    really = LocalStore.get

    def get(store, path, **limit):
        if path == forbidden:
            raise not_read(path, PermissionError(errno.EACCES, "Permission denied"))
        return really(store, path, **limit)

    monkeypatch.setattr(LocalStore, "get", get)
    status, result = verify()
    assert (status, result["unreadable"]) == (1, {forbidden: f"{forbidden!r}: Permission denied"})
    assert result["checked"] == len(cared.paths()) - 1
    assert [result[name] for name in ("faults", "missing", "problems", "wanted")] == [{}, {}, {}, []]


# The command


def test_a_store_that_cannot_be_written_is_told_in_one_line(cared, capsys):
    path = cared.executables(CPU)[0]
    cared.bottom.put(path, b"")
    cared.bottom.put("quarantine", b"a file where the folder would be")
    outcome = cared.run(capsys, "verify")
    assert (outcome.status, outcome.out) == (1, "")
    (line,) = outcome.err.splitlines()
    assert line.startswith("warmpool cache: verify: 'quarantine/")
    assert cared.bottom.get(path) == b""


def test_without_keys_it_says_which_setting_is_missing(cared, capsys):
    outcome = cared.run(capsys, "verify", trusting=())
    assert (outcome.status, outcome.out) == (1, "")
    assert "trusted_keys is not set" in outcome.err


def test_as_a_process_it_prints_one_document_and_its_exit_status_says_whether_all_is_well(cared):
    path = cared.executables(CPU)[0]
    command = [sys.executable, "-m", "warmpool.cli", "cache", "verify", "--json", "--store", str(cared.bottom.root)]
    for status in (0, 1):
        done = subprocess.run([*command, *cared.trusting], capture_output=True, check=False, timeout=60)
        assert (done.returncode, done.stderr) == (status, b"")
        kept = [msgspec.convert(one, Kept) for one in json.loads(done.stdout)["quarantined"]]
        assert [one.path for one in kept] == [path] * status
        cared.bottom.put(path, b"damaged")
