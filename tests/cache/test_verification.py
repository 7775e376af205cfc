"""What is wrong with a stored object is said of that object, and only that object is set aside."""

from __future__ import annotations

import hashlib
import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cache.artifact import Header, pack
from cache.audit import Audit
from cache.data_keys import FileKey, read_keys
from cache.document import seal
from cache.encrypted_store import EncryptedStore
from cache.errors import NotStored, StoreUnavailable
from cache.ingredients import digest_ingredients
from cache.local_store import LocalStore
from cache.quarantine import quarantined
from cache.signed_store import SignedStore
from cache.signing import ANYONE, Signer, Trust
from cache.verification import Checked, check, set_aside
from tests.cache.files_in_memory import files_in_memory
from tests.cache.meddling import MeddledStore

SIGNER, REVOKED, STRANGER = (Signer(Ed25519PrivateKey.from_private_bytes(bytes([one]) * 32)) for one in (1, 2, 3))
TRUST = Trust.of([SIGNER.public, REVOKED.public], distrusted=[REVOKED.key_id])

INGREDIENTS = {"program": "p", "bucket.batch": "4", "fingerprint.platform": "cpu"}
KEY = digest_ingredients(INGREDIENTS)
EXECUTABLE = f"executables/{KEY}"
PROGRAM = f"programs/{'cd' * 32}"
JAX = f"jax-cache/0123456789abcdef/{KEY}"
DOCUMENT = "models/toy/1/manifest.json"
CONTENT = b"raw tensors" * 1000
WEIGHTS = f"weights/{hashlib.sha256(CONTENT).hexdigest()}"
BODY = b'{"model": "toy"}\n'


def artifact(signer=SIGNER, **changes):
    fields = {"key": KEY, "ingredients": INGREDIENTS} | changes
    return pack(Header(**fields), b"payload", signer)


def program(signer=SIGNER, **changes):
    return artifact(signer, **({"key": PROGRAM.removeprefix("programs/"), "kind": "program"} | changes))


SOUND = {
    EXECUTABLE: artifact(),
    PROGRAM: program(),
    JAX: artifact(kind="jax-cache"),
    WEIGHTS: CONTENT,
    DOCUMENT: seal(DOCUMENT, BODY, SIGNER),
    f"leases/{KEY}": b"\0",
    "quarantine/now/reason.json": b"",
    "readme.txt": b"anything",
}


def flipped(data):
    return data[:-200] + bytes([data[-200] ^ 1]) + data[-199:]


DIGEST = "it is damaged: its digest does not match its content"
UNTRUSTED = "it is not trusted: "
FAULTY = {
    "an executable with a bit flipped": (EXECUTABLE, flipped(artifact()), DIGEST),
    "an executable cut short": (EXECUTABLE, artifact()[:-1], "it is damaged: it is "),
    "an empty executable": (EXECUTABLE, b"", "it is damaged: 0 bytes are fewer than an artifact has"),
    "something else": (EXECUTABLE, bytes(500), "it is damaged: it does not begin with the magic of an artifact"),
    "a format to come": (
        EXECUTABLE,
        artifact()[:7] + b"\x09" + artifact()[8:],
        "it was made for something else (format: wanted '2', found '9')",
    ),
    "an executable in another's place": (
        f"executables/{'ab' * 32}",
        artifact(),
        f"it was made for something else (key: wanted '{'ab' * 32}', found '{KEY}')",
    ),
    "an executable that its ingredients do not make": (
        EXECUTABLE,
        artifact(ingredients={**INGREDIENTS, "fingerprint.platform": "cuda"}),
        f"it was made for something else (key: wanted '{KEY}', found '",
    ),
    "a program as an executable": (
        EXECUTABLE,
        artifact(kind="program"),
        "it was made for something else (kind: wanted 'executable', found 'program')",
    ),
    "an executable as a program": (
        PROGRAM,
        program(kind="executable"),
        "it was made for something else (kind: wanted 'program', found 'executable')",
    ),
    "an executable as an entry of JAX's": (
        JAX,
        artifact(),
        "it was made for something else (kind: wanted 'jax-cache', found 'executable')",
    ),
    "a program in another's place": (f"programs/{'ab' * 32}", program(), "it was made for something else (key: "),
    "a program with a bit flipped": (PROGRAM, flipped(program()), DIGEST),
    "weights with a bit flipped": (WEIGHTS, flipped(CONTENT), "it is damaged: their digest is "),
    "weights cut short": (WEIGHTS, CONTENT[:-1], "it is damaged: their digest is "),
    "a document that says something else": (
        DOCUMENT,
        seal(DOCUMENT, BODY, SIGNER).replace(b"toy", b"top"),
        f"{UNTRUSTED}its signature is not that of the key {SIGNER.key_id[:16]}",
    ),
    "a document of another place": (
        DOCUMENT,
        seal("models/toy/2/manifest.json", BODY, SIGNER),
        f"{UNTRUSTED}its signature is not that of the key {SIGNER.key_id[:16]}",
    ),
    "a document whose signature is torn": (
        DOCUMENT,
        seal(DOCUMENT, BODY, SIGNER)[:-20],
        "it is damaged: its signature cannot be read: ",
    ),
    "a document that is no JSON": (DOCUMENT, seal(DOCUMENT, b"{\n", SIGNER), "it is damaged: it is no JSON: "),
    "a document that is nested without end": (
        DOCUMENT,
        seal(DOCUMENT, b"[" * 100_000 + b"]" * 100_000 + b"\n", SIGNER),
        "it is damaged: it is no JSON: ",
    ),
    "an unsigned executable": (EXECUTABLE, artifact(None), f"{UNTRUSTED}it is not signed"),
    "an unsigned program": (PROGRAM, program(None), f"{UNTRUSTED}it is not signed"),
    "an unsigned document": (DOCUMENT, BODY, f"{UNTRUSTED}it is not signed"),
    "an executable of a stranger": (
        EXECUTABLE,
        artifact(STRANGER),
        f"{UNTRUSTED}it is signed by the key {STRANGER.key_id[:16]}, which is not trusted here",
    ),
    "an executable of a revoked key": (
        EXECUTABLE,
        artifact(REVOKED),
        f"{UNTRUSTED}it is signed by the key {REVOKED.key_id[:16]}, which is distrusted",
    ),
}


@pytest.fixture
def inner(tmp_path):
    return LocalStore(tmp_path / "store")


@pytest.fixture
def store(inner, tmp_path):
    return SignedStore(inner, TRUST, audit=Audit(str(tmp_path / "audit"), "me"))


def audited(tmp_path):
    """What the log says was set aside."""
    log = tmp_path / "audit"
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return [(line["path"], line["key"], line["reason"]) for line in lines if line["event"] == "quarantine"]


@pytest.mark.parametrize("path", SOUND)
def test_what_is_sound_has_no_fault_and_is_not_set_aside(store, inner, path):
    inner.put(path, SOUND[path])
    assert check(store, path).fault == ""
    assert set_aside(store, path) is None
    assert inner.get(path) == SOUND[path]
    assert quarantined(inner) == []


def test_a_sound_executable_says_what_it_was_made_of(store, inner):
    inner.put(EXECUTABLE, SOUND[EXECUTABLE])
    assert check(store, EXECUTABLE) == Checked(ingredients=INGREDIENTS)


@pytest.mark.parametrize("what", FAULTY)
def test_what_is_wrong_is_said_and_set_aside(store, inner, tmp_path, what):
    path, data, fault = FAULTY[what]
    inner.put(path, data)
    found = check(store, path)
    unknown = fault.endswith(("it is not signed", "which is not trusted here", "found '9')"))
    assert found.fault.startswith(fault)
    assert found.unknown == unknown
    assert found.ingredients == {}
    if unknown:  # whoever knows fewer keys than others must not take from them what they trust
        assert set_aside(store, path) is None
        assert (inner.get(path), audited(tmp_path)) == (data, [])
    kept = set_aside(store, path, unknown=unknown)
    assert kept is not None
    assert (kept.path, kept.reason) == (path, found.fault)
    assert inner.get(kept.kept_at) == data
    assert quarantined(inner) == [kept]
    assert audited(tmp_path) == [(path, kept.key, found.fault)]
    with pytest.raises(NotStored):
        check(store, path)


@pytest.mark.parametrize("path", [EXECUTABLE, PROGRAM, WEIGHTS, DOCUMENT])
def test_what_is_gone_has_no_fault_and_cannot_be_set_aside(store, tmp_path, path):
    with pytest.raises(NotStored):
        check(store, path)
    assert set_aside(store, path) is None
    assert set_aside(store, path, "it is not wanted") is None
    assert audited(tmp_path) == []


@pytest.mark.parametrize("path", [EXECUTABLE, WEIGHTS, DOCUMENT])
def test_a_store_that_cannot_be_read_says_nothing_of_its_objects(store, inner, path, monkeypatch):
    inner.put(path, SOUND[path])
    folder = inner.root / path.partition("/")[0]
    (folder.parent / "moved").symlink_to(folder.parent / "moved")
    folder.rename(folder.parent / "away")
    folder.symlink_to(folder.parent / "moved")  # a loop of links
    for ask in (check, set_aside):
        with pytest.raises(StoreUnavailable):
            ask(store, path)


def test_weights_whose_disk_fails_are_not_called_damaged(store, inner, monkeypatch):
    """Memory of this process from its start on: opening it works, reading it does not."""
    inner.put(WEIGHTS, CONTENT)
    monkeypatch.setattr(inner, "local_path", lambda path: inner.root.__class__("/proc/self/mem"))
    with pytest.raises(StoreUnavailable, match="weights/"):
        check(store, WEIGHTS)


def test_where_unsigned_content_is_taken_signatures_are_no_fault_and_damages_are(inner):
    store = SignedStore(inner, Trust(unsigned=True, distrusted=TRUST.distrusted))
    for what, (path, data, fault) in FAULTY.items():
        inner.put(path, data)
        forgiven = fault.startswith(UNTRUSTED) and "revoked" not in what
        assert (check(store, path).fault == "") == forgiven, what


def test_the_first_format_is_sound_where_unsigned_content_is_taken(inner):
    body = bytearray(artifact()[: -32 - 32 - 64])
    body[7] = 1
    inner.put(EXECUTABLE, bytes(body) + hashlib.sha256(body).digest())
    assert check(SignedStore(inner, Trust(unsigned=True)), EXECUTABLE) == Checked(ingredients=INGREDIENTS)
    found = check(SignedStore(inner, TRUST), EXECUTABLE)
    assert (found.unknown, found.fault) == (
        True,
        f"{UNTRUSTED}its format is 1, which has no room for a signature: publish it again",
    )


def test_a_sound_object_that_took_the_place_of_a_faulty_one_stays(tmp_path):
    inner = MeddledStore(tmp_path / "store")
    store = SignedStore(inner, TRUST)
    for moment in ("before get_versioned", "after get_versioned", "after get", "before put", "before delete_if"):
        inner.put(EXECUTABLE, flipped(artifact()))

        def replace(operation, path, moment=moment):
            if moment.endswith(f" {operation}"):
                inner.put(EXECUTABLE, artifact())

        setattr(inner, moment.partition(" ")[0], replace)
        assert set_aside(store, EXECUTABLE) is None, moment
        inner.before = inner.after = lambda operation, path: None
        assert check(store, EXECUTABLE).fault == "", moment
        assert quarantined(inner) == [], moment


def test_what_is_sound_is_set_aside_for_another_reason_if_it_is_the_one_that_is_meant(store, inner, tmp_path):
    inner.put(EXECUTABLE, artifact())
    seen = inner.get_versioned(EXECUTABLE)[1]
    inner.put(EXECUTABLE, pack(Header(key=KEY, ingredients=INGREDIENTS), b"another", SIGNER))
    assert set_aside(store, EXECUTABLE, "lanes died of it", seen) is None
    kept = set_aside(store, EXECUTABLE, "lanes died of it", inner.get_versioned(EXECUTABLE)[1])
    assert kept is not None
    assert audited(tmp_path) == [(EXECUTABLE, KEY, "lanes died of it")]


# Under encryption


@pytest.fixture
def encrypted(inner, tmp_path):
    FileKey.write(tmp_path / "key")
    return SignedStore(EncryptedStore(inner, read_keys(str(tmp_path / "key"))), TRUST, SIGNER, inner)


def test_an_encrypted_object_is_checked_decrypted_and_moved_as_it_lies_there(encrypted, inner):
    encrypted.put(EXECUTABLE, artifact())
    encrypted.put(WEIGHTS, CONTENT)
    assert [check(encrypted, path).fault for path in (EXECUTABLE, WEIGHTS)] == ["", ""]
    for path in (EXECUTABLE, WEIGHTS):
        stored = flipped(inner.get(path))
        inner.put(path, stored)
        assert check(encrypted, path).fault.startswith("it is damaged: ")
        kept = set_aside(encrypted, path)
        assert kept is not None
        assert inner.get(kept.kept_at) == stored


def test_checking_many_weights_keeps_none_of_them_in_memory(encrypted):
    contents = [bytes([number]) * 5000 for number in range(20)]
    paths = [f"weights/{hashlib.sha256(content).hexdigest()}" for content in contents]
    for path, content in zip(paths, contents, strict=True):
        encrypted.put(path, content)
    before = files_in_memory()
    assert {check(encrypted, path).fault for path in paths} == {""}
    assert not files_in_memory() - before


def test_what_is_of_a_newer_format_is_for_another_release_to_judge(tmp_path):
    store = SignedStore(LocalStore(tmp_path), ANYONE)
    newer = bytearray(pack(Header(key="ab", ingredients={}, kind="program"), b"payload"))
    newer[7] = 9
    store.bottom.put("programs/ab", bytes(newer))
    found = check(store, "programs/ab")
    assert (found.unknown, "wanted '2', found '9'" in found.fault) == (True, True)
