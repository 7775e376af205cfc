"""Settings open a store, or it is said which of them does not let that happen."""

from __future__ import annotations

import logging

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cache.errors import Untrusted
from cache.opening import open_store, raw_store
from cache.settings import StoreSettings
from cache.signing import Signer

SIGNER, OTHER, STRANGER = (Signer(Ed25519PrivateKey.from_private_bytes(bytes([one]) * 32)) for one in (1, 2, 3))
PATH = "models/toy/serving.json"
BODY = b"{}\n"


@pytest.fixture
def keys(tmp_path):
    """Key files by name."""
    folder = tmp_path / "keys"
    for name, signer in (("signer", SIGNER), ("other", OTHER)):
        signer.write(folder / name)
    return folder


@pytest.fixture
def opened(tmp_path):
    """Opens the store of a folder with these settings."""

    def call(**settings):
        return open_store(StoreSettings(store=str(tmp_path / "store"), **settings))

    return call


def trusted(store):
    return set(store.trust.keys)


# Who is trusted


def test_nobody_is_trusted_who_was_not_named_and_it_is_said_how_to_name_them(opened):
    with pytest.raises(
        ValueError, match=r"^trusted_keys is not set: give .*--trusted-keys.* signing key.*--allow-unsig"
    ):
        opened()
    for nothing in ("", " ", ",", " , "):
        with pytest.raises(ValueError, match="trusted_keys is not set"):
            opened(trusted_keys=nothing)


def test_files_and_folders_of_public_keys_are_trusted(opened, keys):
    assert trusted(opened(trusted_keys=str(keys / "other.pub"))) == {OTHER.key_id}
    assert trusted(opened(trusted_keys=f" {keys / 'other.pub'} , {keys / 'signer.pub'},")) == {
        OTHER.key_id,
        SIGNER.key_id,
    }
    assert trusted(opened(trusted_keys=str(keys))) == {OTHER.key_id, SIGNER.key_id}


def test_who_only_trusts_cannot_sign(opened, keys):
    store = opened(trusted_keys=str(keys / "other.pub"))
    assert store.signer is None
    assert store.trust.unsigned is False
    with pytest.raises(Untrusted, match="give a signing key"):
        store.put(PATH, BODY)


def test_who_signs_trusts_its_own_key(opened, keys):
    store = opened(signing_key=str(keys / "signer"))
    assert trusted(store) == {SIGNER.key_id}
    store.put(PATH, BODY)
    assert store.get(PATH) == BODY
    assert opened(trusted_keys=str(keys / "signer.pub")).get(PATH) == BODY
    with pytest.raises(Untrusted, match=f"{SIGNER.key_id[:16]}, which is not trusted here"):
        opened(trusted_keys=str(keys / "other.pub")).get(PATH)


def test_who_signs_trusts_others_beside(opened, keys):
    assert trusted(opened(signing_key=str(keys / "signer"), trusted_keys=str(keys / "other.pub"))) == {
        SIGNER.key_id,
        OTHER.key_id,
    }


def test_distrusted_keys_are_distrusted_though_their_files_are_there(opened, keys):
    opened(signing_key=str(keys / "signer")).put(PATH, BODY)
    store = opened(trusted_keys=str(keys), distrusted_keys=f"{SIGNER.key_id}, {STRANGER.key_id},")
    assert store.trust.distrusted == {SIGNER.key_id, STRANGER.key_id}
    with pytest.raises(Untrusted, match="which is distrusted"):
        store.get(PATH)


def test_who_opens_a_store_trusts_no_key_that_it_says_is_distrusted(opened, keys):
    first = opened(signing_key=str(keys / "signer"))
    first.put(PATH, BODY)
    first.put(f"distrusted/{SIGNER.key_id}", b"{}")
    store = opened(trusted_keys=str(keys))
    assert store.trust.distrusted == {SIGNER.key_id}
    with pytest.raises(Untrusted, match="which is distrusted"):
        store.get(PATH)


@pytest.mark.parametrize("wrong", ["x", SIGNER.key_id[:16], SIGNER.key_id + "0", "g" * 64, "keys/signer.pub"])
def test_what_is_no_id_of_a_key_is_refused(opened, keys, wrong):
    with pytest.raises(ValueError, match=f"^distrusted_keys has '{wrong}': the id of a key is 64 hex digits"):
        opened(trusted_keys=str(keys), distrusted_keys=f"{STRANGER.key_id},{wrong}")


@pytest.mark.parametrize("name", ["trusted_keys", "signing_key"])
def test_a_key_file_that_is_not_there_is_named(opened, tmp_path, name):
    with pytest.raises(ValueError, match=f"{tmp_path}/none: it cannot be read"):
        opened(**{name: f"{tmp_path}/none"})


def test_the_halves_of_a_key_are_not_taken_for_each_other(opened, keys):
    with pytest.raises(ValueError, match=r"signer: it is no PEM file of a public key"):
        opened(trusted_keys=str(keys / "signer"))
    with pytest.raises(ValueError, match=r"signer\.pub: it is no PEM file of a private key"):
        opened(signing_key=str(keys / "signer.pub"))


# Unsigned


def test_that_unsigned_things_are_taken_is_said_loudly_and_otherwise_nothing_is(opened, keys, caplog):
    with caplog.at_level(logging.INFO):
        opened(trusted_keys=str(keys))
        assert caplog.records == []
        store = opened(allow_unsigned=True)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("UNSIGNED content of the store is accepted: whoever can write to it can run")
    store.put(PATH, BODY)
    assert store.inner.get(PATH) == BODY
    assert store.get(PATH) == BODY


def test_keys_that_are_given_beside_count_as_they_do_elsewhere(opened, keys):
    store = opened(allow_unsigned=True, trusted_keys=str(keys), distrusted_keys=STRANGER.key_id)
    assert trusted(store) == {SIGNER.key_id, OTHER.key_id}
    opened(signing_key=str(keys / "signer")).put(PATH, BODY)
    assert store.get(PATH) == BODY
    store.inner.put(PATH, store.inner.get(PATH).replace(b"{}", b"[]"))
    with pytest.raises(Untrusted, match="its signature is not that"):
        store.get(PATH)


@pytest.mark.parametrize("uri", ["file:///x#y", "file:///x?y", "file:///x?", "file:///x#"])
def test_a_file_uri_of_which_a_part_would_be_left_out_is_refused(uri):
    with pytest.raises(ValueError, match=r"^store 'file:.*no query or fragment; write \? as %3F and # as %23$"):
        raw_store(uri)
    assert repr(raw_store("file:///x%23y%3Fz")) == "LocalStore('/x#y?z')"
    assert repr(raw_store("/x#y?z")) == "LocalStore('/x#y?z')"


def test_what_is_no_uri_is_told_of_the_store():
    with pytest.raises(ValueError, match=r"^store '//\[x': it cannot be read as a URI \(.*\); use a folder's path"):
        raw_store("//[x")
