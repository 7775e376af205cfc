"""What is put is signed, what is got is checked, and what a store says can only take trust away."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cache.artifact import Header, Kind, pack, unpack, verify
from cache.document import seal
from cache.errors import Damaged, Foreign, NotStored, Strange, Untrusted
from cache.local_store import LocalStore
from cache.signed_store import SignedStore
from cache.signing import ANYONE, Signer, Trust

SIGNER, OTHER, STRANGER = (Signer(Ed25519PrivateKey.from_private_bytes(bytes([one]) * 32)) for one in (1, 2, 3))
TRUST = Trust.of([SIGNER.public, OTHER.public])
KEY = "ab" * 32
ARTIFACT = pack(Header(key=KEY, ingredients={"program": "p"}), b"payload")
KINDS: dict[str, Kind] = {"executables": "executable", "programs": "program", "jax-cache": "jax-cache"}
BODY = b'{"stable": "1"}\n'
DOCUMENTS = ("models/toy/serving.json", "models/toy/1/manifest.json", "models/toy/1/targets/0123456789abcdef.json")
ARTIFACTS = (f"executables/{KEY}", f"programs/{KEY}", f"jax-cache/{KEY}")
OTHERS = (f"weights/{KEY}", f"leases/{KEY}", f"failures/{KEY}", f"wanted/{KEY}", f"quarantine/{KEY}")


@pytest.fixture
def inner(tmp_path):
    return LocalStore(tmp_path / "store")


@pytest.fixture
def store(inner):
    return SignedStore(inner, TRUST, SIGNER)


def header_for(path, **changes):
    folder = path.partition("/")[0]
    return Header(**{"key": KEY, "ingredients": {"program": "p"}, "kind": KINDS[folder]} | changes)


def files_of(inner):
    return sorted(entry.path for entry in inner.entries(""))


# In


@pytest.mark.parametrize("path", DOCUMENTS)
def test_a_document_is_sealed_on_the_way_in_and_comes_out_as_it_was(store, inner, path):
    store.put(path, BODY)
    assert store.get(path) == BODY
    assert inner.get(path) == seal(path, BODY, SIGNER)


@pytest.mark.parametrize("path", ARTIFACTS)
@pytest.mark.parametrize("given", [None, OTHER, STRANGER], ids=["unsigned", "a colleague's", "a stranger's"])
def test_an_artifact_is_signed_on_the_way_in_whoever_signed_it_before(store, inner, path, given):
    header = header_for(path)
    store.put(path, pack(header, b"payload", given))
    assert store.get(path) == inner.get(path) == pack(header, b"payload", SIGNER)
    assert verify("it", store.get(path), TRUST) == SIGNER.key_id


@pytest.mark.parametrize("path", OTHERS)
def test_everything_else_is_stored_as_it_is(store, inner, path):
    store.put(path, b"\0anything")
    assert store.get(path) == inner.get(path) == b"\0anything"


def test_a_file_is_signed_as_its_content_would_be(store, inner, tmp_path):
    source = tmp_path / "source"
    for path, content in ((DOCUMENTS[0], BODY), (ARTIFACTS[0], ARTIFACT), (OTHERS[0], b"weights")):
        source.write_bytes(content)
        store.put_file(path, source)
        by_file = inner.get(path)
        store.put(path, content)
        assert inner.get(path) == by_file
        assert (by_file == content) == (path == OTHERS[0])


@pytest.mark.parametrize("path", ARTIFACTS)
def test_a_damaged_artifact_is_not_stored(store, inner, path):
    whole = pack(header_for(path), b"payload")
    for data in (b"", whole[:-1], whole.replace(b"payload", b"pAyload"), b"no artifact at all"):
        with pytest.raises(Damaged, match=f"^'{path}' is damaged: "):
            store.put(path, data)
    with pytest.raises(Foreign, match="format: wanted '2', found '9'"):
        store.put(path, whole[:7] + b"\x09" + whole[8:])
    assert files_of(inner) == []


@pytest.mark.parametrize("signer", [SIGNER, None], ids=["signed", "unsigned"])
@pytest.mark.parametrize("path", ARTIFACTS)
def test_an_artifact_is_only_signed_for_the_place_that_its_header_names(inner, tmp_path, path, signer):
    """Whoever can change the file of a compile could have anything signed, and put it where it likes."""
    store = SignedStore(inner, ANYONE if signer is None else TRUST, signer)
    others = [kind for kind in KINDS.values() if kind != header_for(path).kind]
    wrong = [("key", "cd" * 32), *(("kind", kind) for kind in others)]
    for differing, value in wrong:
        (tmp_path / "source").write_bytes(pack(header_for(path, **{differing: value}), b"payload"))
        for put in (
            lambda: store.put(path, (tmp_path / "source").read_bytes()),
            lambda: store.put_file(path, tmp_path / "source"),
            lambda: store.put_if(path, (tmp_path / "source").read_bytes(), None),
        ):
            with pytest.raises(Foreign, match=rf"^'{path}' was made for something else \({differing}: wanted "):
                put()
    assert files_of(inner) == []


@pytest.mark.parametrize("body", [b"{}", BODY + b'{"signed_by":"me"}\n'])
def test_a_document_that_would_not_come_out_as_it_was_is_not_stored(store, inner, body):
    for one in (store, SignedStore(inner, ANYONE)):
        with pytest.raises(ValueError, match=r"^document 'models/toy/serving\.json': it"):
            one.put(DOCUMENTS[0], body)
    assert files_of(inner) == []


@pytest.mark.parametrize("path", [*DOCUMENTS, *ARTIFACTS])
def test_who_has_no_key_stores_nothing_that_has_to_be_signed(inner, tmp_path, path):
    store = SignedStore(inner, TRUST)
    content = BODY if path in DOCUMENTS else pack(header_for(path), b"", SIGNER)
    (tmp_path / "source").write_bytes(content)
    for put in (lambda: store.put(path, content), lambda: store.put_file(path, tmp_path / "source")):
        with pytest.raises(Untrusted) as caught:
            put()
        assert str(caught.value) == f"'{path}' is not trusted: it cannot be stored unsigned: give a signing key"
    assert files_of(inner) == []


def test_who_could_store_nothing_hears_it_before_the_work(inner):
    said = "what is to be made is not trusted: it cannot be stored"
    with pytest.raises(Untrusted, match=f"^{said} unsigned: give a signing key$"):
        SignedStore(inner, TRUST).require_signer()
    distrusting = Trust.of([SIGNER.public], unsigned=True, distrusted=[SIGNER.key_id])
    with pytest.raises(Untrusted, match=f"^{said}: the key {SIGNER.key_id[:16]}, which would sign it, is distrusted$"):
        SignedStore(inner, distrusting, SIGNER).require_signer()
    SignedStore(inner, TRUST, SIGNER).require_signer()
    SignedStore(inner, ANYONE).require_signer()


def test_who_has_no_key_can_still_coordinate_and_fetch(inner):
    store = SignedStore(inner, TRUST)
    for path in OTHERS:
        store.put(path, b"x")
        assert store.get(path) == b"x"


def test_where_unsigned_things_are_taken_they_may_be_stored(inner):
    store = SignedStore(inner, ANYONE)
    store.put(DOCUMENTS[0], BODY)
    store.put(ARTIFACTS[0], ARTIFACT)
    assert (inner.get(DOCUMENTS[0]), inner.get(ARTIFACTS[0])) == (BODY, ARTIFACT)
    assert (store.get(DOCUMENTS[0]), store.get(ARTIFACTS[0])) == (BODY, ARTIFACT)


def test_who_has_a_key_signs_where_unsigned_things_are_taken_too(inner):
    store = SignedStore(inner, ANYONE, SIGNER)
    store.put(DOCUMENTS[0], BODY)
    assert SignedStore(inner, TRUST).get(DOCUMENTS[0]) == BODY


def test_nothing_is_signed_by_a_key_that_is_distrusted(inner):
    """Nobody who knows that would take it; who does not must not be given it."""
    trust = Trust.of([SIGNER.public], unsigned=True, distrusted=[SIGNER.key_id])
    store = SignedStore(inner, trust, SIGNER)
    for path, content in ((DOCUMENTS[0], BODY), (ARTIFACTS[0], ARTIFACT)):
        with pytest.raises(Untrusted, match=f"the key {SIGNER.key_id[:16]}, which would sign it, is distrusted"):
            store.put(path, content)
    store.put(OTHERS[0], b"x")
    assert files_of(inner) == [OTHERS[0]]


# Out


def test_who_trusts_the_key_reads_what_another_process_stored(store, inner):
    store.put(DOCUMENTS[0], BODY)
    store.put(ARTIFACTS[0], ARTIFACT)
    reader = SignedStore(inner, Trust.of([SIGNER.public]))
    assert reader.get(DOCUMENTS[0]) == BODY
    _, payload = unpack(reader.get(ARTIFACTS[0]), key=KEY, trust=reader.trust)
    assert bytes(payload) == b"payload"


@pytest.mark.parametrize("path", [DOCUMENTS[0], ARTIFACTS[0], ARTIFACTS[1]])
def test_what_nobody_trusted_signed_is_refused(store, inner, path):
    put = SignedStore(inner, ANYONE, STRANGER)
    content = BODY if path in DOCUMENTS else pack(header_for(path), b"payload")
    put.put(path, content)
    with pytest.raises(Untrusted, match=f"^'{path}' is not trusted: it is signed by the key {STRANGER.key_id[:16]}"):
        store.get(path)
    inner.put(path, content)
    with pytest.raises(Untrusted, match="it is not signed"):
        store.get(path)


def test_what_was_changed_after_it_was_stored_is_refused(store, inner):
    for path, content in ((DOCUMENTS[1], BODY), (ARTIFACTS[0], ARTIFACT)):
        store.put(path, content)
        whole = inner.get(path)
        for index in range(0, len(whole) - 1, 5):
            changed = bytearray(whole)
            changed[index] ^= 1
            inner.put(path, bytes(changed))
            with pytest.raises((Untrusted, Damaged, Foreign)):
                store.get(path)
        inner.put(path, whole)
        store.get(path)


def test_a_document_that_was_moved_is_refused(store, inner):
    store.put(DOCUMENTS[1], BODY)
    inner.put("models/toy/2/manifest.json", inner.get(DOCUMENTS[1]))
    with pytest.raises(Untrusted, match=r"^'models/toy/2/manifest\.json' is not trusted: its signature is not that"):
        store.get("models/toy/2/manifest.json")


def test_a_document_does_not_pass_for_an_artifact_nor_an_artifact_for_a_document(store, inner):
    inner.put(ARTIFACTS[0], seal(ARTIFACTS[0], BODY, SIGNER))
    with pytest.raises(Damaged, match="magic"):
        store.get(ARTIFACTS[0])
    inner.put(DOCUMENTS[0], pack(Header(key=KEY, ingredients={}), b"", SIGNER))
    with pytest.raises(Untrusted, match="it is not signed"):
        store.get(DOCUMENTS[0])


def test_a_look_at_the_start_is_neither_checked_nor_unsealed(store, inner):
    inner.put(ARTIFACTS[0], b"whatever")
    assert store.get(ARTIFACTS[0], bytes_max=4) == b"what"
    store.put(DOCUMENTS[0], BODY)
    assert store.get(DOCUMENTS[0], bytes_max=1 << 20) == inner.get(DOCUMENTS[0])


def test_what_is_not_there_is_not_stored(store):
    for path in (*DOCUMENTS, *ARTIFACTS, *OTHERS):
        with pytest.raises(NotStored):
            store.get(path)


def test_the_rest_is_the_inner_stores(store, inner):
    store.put(ARTIFACTS[0], ARTIFACT)
    assert store.names("executables") == [KEY]
    assert [entry.path for entry in store.entries("")] == files_of(inner) == [ARTIFACTS[0]]
    assert store.local_path(ARTIFACTS[0]).read_bytes() == inner.get(ARTIFACTS[0])
    store.discard(ARTIFACTS[0])
    store.delete(ARTIFACTS[0])
    assert files_of(inner) == []
    first = store.put_if("leases/a", b"mine", None)
    assert first is not None
    assert store.put_if("leases/a", b"yours", None) is None
    assert store.get_versioned("leases/a") == (b"mine", first)
    assert store.delete_if("leases/a", "another generation") is False
    assert store.delete_if("leases/a", first) is True
    assert repr(store) == f"SignedStore({inner!r})"


def test_a_document_that_is_stored_on_a_condition_is_sealed_and_read_with_its_generation(store, inner):
    first = store.put_if(DOCUMENTS[0], BODY, None)
    assert inner.get_versioned(DOCUMENTS[0]) == (seal(DOCUMENTS[0], BODY, SIGNER), first)
    assert store.get_versioned(DOCUMENTS[0]) == (BODY, first)
    assert store.put_if(DOCUMENTS[0], BODY, None) is None
    second = store.put_if(DOCUMENTS[0], b"[]\n", first)
    assert store.get_versioned(DOCUMENTS[0]) == (b"[]\n", second)
    assert store.delete_if(DOCUMENTS[0], str(second))


@pytest.mark.parametrize("path", [DOCUMENTS[0], ARTIFACTS[0]])
def test_what_nobody_trusted_signed_is_refused_with_its_generation_too(store, inner, path):
    content = BODY if path in DOCUMENTS else ARTIFACT
    SignedStore(inner, ANYONE, STRANGER).put(path, content)
    with pytest.raises(Untrusted, match=f"^'{path}' is not trusted: it is signed by the key {STRANGER.key_id[:16]}"):
        store.get_versioned(path)


# Trust that is taken away


def test_a_key_that_the_store_says_is_distrusted_counts_no_more(store, inner):
    store.put(DOCUMENTS[0], BODY)
    reader = SignedStore(inner, TRUST)
    assert reader.get(DOCUMENTS[0]) == BODY
    inner.put(f"distrusted/{SIGNER.key_id}", b"stolen")
    assert reader.get(DOCUMENTS[0]) == BODY  # not looked up at every read
    assert reader.refresh_trust() == {SIGNER.key_id}
    with pytest.raises(Untrusted, match=f"the key {SIGNER.key_id[:16]}, which is distrusted"):
        reader.get(DOCUMENTS[0])
    assert reader.refresh_trust() == frozenset()
    SignedStore(inner, TRUST, OTHER).put(DOCUMENTS[0], BODY)
    assert reader.get(DOCUMENTS[0]) == BODY


def test_who_signs_with_a_key_that_becomes_distrusted_makes_nothing_visible_any_more(store, inner):
    """It is looked up before a document is signed: a publish takes minutes."""
    inner.put(f"distrusted/{SIGNER.key_id}", b"")
    for put in (lambda: store.put(DOCUMENTS[0], BODY), lambda: store.put_if(DOCUMENTS[0], BODY, None)):
        with pytest.raises(Untrusted, match="which would sign it, is distrusted"):
            put()
    with pytest.raises(Untrusted, match="which would sign it, is distrusted"):
        store.put(ARTIFACTS[0], ARTIFACT)
    assert files_of(inner) == [f"distrusted/{SIGNER.key_id}"]


def test_a_store_can_only_take_trust_away(inner):
    trust = Trust.of([SIGNER.public], distrusted=[OTHER.key_id])
    store = SignedStore(inner, trust)
    inner.put(f"distrusted/{STRANGER.key_id}", b"")
    inner.put("distrusted/readme.txt", b"no id")
    inner.put(f"trusted/{STRANGER.key_id}", STRANGER.public)
    inner.put(f"keys/{STRANGER.key_id}.pub", STRANGER.public)
    assert store.refresh_trust() == {STRANGER.key_id}
    assert store.trust == Trust.of([SIGNER.public], distrusted=[OTHER.key_id, STRANGER.key_id])
    inner.delete(f"distrusted/{STRANGER.key_id}")
    assert store.refresh_trust() == frozenset()
    assert store.trust.distrusted == {OTHER.key_id, STRANGER.key_id}  # until the next start, and its own always


def test_without_such_a_folder_nothing_changes(store):
    assert store.refresh_trust() == frozenset()
    assert store.trust == TRUST


@pytest.mark.parametrize("conditional", [False, True])
@pytest.mark.parametrize("path", ["models/m/serving.json", f"executables/{'ab' * 32}"])
def test_what_a_key_signed_that_is_not_known_here_is_not_replaced(tmp_path, path, conditional):
    def content(word):
        if path.endswith(".json"):
            return b'{"word": "%s"}\n' % word
        return pack(Header(key=path.rpartition("/")[2], ingredients={}, calling=None), word)

    def store(signer, *others):
        return SignedStore(LocalStore(tmp_path), Trust.of([signer.public, *(one.public for one in others)]), signer)

    ours, theirs = Signer.generate(), Signer.generate()
    store(theirs).put(path, content(b"theirs"))
    before = LocalStore(tmp_path).get_versioned(path)
    replace = store(ours).put if not conditional else lambda *what: store(ours).put_if(*what, before[1])
    with pytest.raises(Strange, match=rf"{theirs.key_id[:16]}, which is not trusted here, and is not replaced: trust"):
        replace(path, content(b"ours"))
    assert LocalStore(tmp_path).get_versioned(path) == before
    store(ours, theirs).put(path, content(b"ours"))
    assert store(ours).get(path).startswith(content(b"ours")[:20])


def test_what_nobody_signed_or_is_damaged_is_replaced(tmp_path):
    signer = Signer.generate()
    store = SignedStore(LocalStore(tmp_path), Trust.of([signer.public]), signer)
    for there in (b'{"word": "unsigned"}\n', b"\xff" * 300, b""):
        LocalStore(tmp_path).put("models/m/serving.json", there)
        store.put("models/m/serving.json", b'{"word": "ours"}\n')
        assert store.get("models/m/serving.json") == b'{"word": "ours"}\n'
