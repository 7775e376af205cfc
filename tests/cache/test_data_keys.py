"""Data keys are wrapped by a file's key or by Cloud KMS; what these refuse is told by what to do about it."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import threading

import grpc
import pytest
from cryptography.hazmat.primitives.keywrap import aes_key_wrap

from cache.data_keys import _REMEMBERED_MAX, DataKeys, FileKey, KmsKey, read_keys
from cache.encrypted_store import EncryptedStore
from cache.errors import Damaged, StoreUnavailable
from cache.local_store import LocalStore
from cache.signing import KeyFileError
from tests.cache.kms_server import kms_server

SECRET = bytes(range(32))
KMS_KEY = "projects/p/locations/europe-west1/keyRings/r/cryptoKeys/k"


class Counting:
    """A wrapping key that counts what it is asked."""

    name = "counting"

    def __init__(self):
        self.asked = []

    def wrap(self, secret):
        self.asked.append("wrap")
        return secret[::-1]

    def unwrap(self, wrapped):
        self.asked.append("unwrap")
        return wrapped[::-1]


# In a file


@pytest.mark.parametrize(
    "content",
    [SECRET, base64.b64encode(SECRET), base64.b64encode(SECRET) + b"\n", b" " + base64.b64encode(SECRET) + b"\r\n"],
)
def test_a_key_file_holds_32_bytes_raw_or_in_base64(tmp_path, content):
    (tmp_path / "key").write_bytes(content)
    key = FileKey.read(tmp_path / "key")
    assert key.name == FileKey(SECRET).name
    assert FileKey(SECRET).unwrap(key.wrap(b"d" * 32)) == b"d" * 32


@pytest.mark.parametrize(
    "content", [b"", SECRET[:31], SECRET + b"x", base64.b64encode(SECRET[:31]), b"not a key", b"=" * 44, b"-----BEGIN"]
)
def test_a_file_of_another_length_or_form_is_no_key(tmp_path, content):
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(KeyFileError, match=r"encryption_key .*/key: it does not hold 32 bytes, raw or in base64; make"):
        FileKey.read(tmp_path / "key")


def test_a_key_that_cannot_be_read_says_why(tmp_path):
    with pytest.raises(KeyFileError, match=r"encryption_key .*/none: it cannot be read \(No such file"):
        FileKey.read(tmp_path / "none")


def test_a_new_key_is_its_owners_alone_and_never_takes_the_place_of_another(tmp_path):
    key = FileKey.write(tmp_path / "keys" / "key")
    file = tmp_path / "keys" / "key"
    assert file.stat().st_mode & 0o777 == 0o600
    assert FileKey.read(file).name == key.name
    assert FileKey.write(tmp_path / "other").name != key.name
    before = file.read_bytes()
    with pytest.raises(KeyFileError, match="it cannot be written"):
        FileKey.write(file)
    assert file.read_bytes() == before


def test_a_name_tells_nothing_of_the_key_and_no_two_keys_have_one():
    names = {FileKey(bytes([number]) * 32).name for number in range(100)}
    assert len(names) == 100
    assert FileKey(SECRET).name.startswith("file:")
    assert SECRET.hex()[:8] not in FileKey(SECRET).name
    assert str(SECRET) not in repr(FileKey(SECRET))


def test_a_file_key_wraps_as_rfc_3394_says():
    """Its test vector 4.6: 256 bits of data under 256 bits of key."""
    key = bytes.fromhex("000102030405060708090A0B0C0D0E0F101112131415161718191A1B1C1D1E1F")
    data = bytes.fromhex("00112233445566778899AABBCCDDEEFF000102030405060708090A0B0C0D0E0F")
    wrapped = "28C9F404C4B810F4CBCCB35CFB87F8263F5786E2D80ED326CBC7F0E71A99F43BFB988B9B7A02DD21"
    assert FileKey(key).wrap(data) == bytes.fromhex(wrapped)


@pytest.mark.parametrize("wrapped", [b"", b"x", b"x" * 40, aes_key_wrap(b"o" * 32, SECRET)])
def test_what_another_key_wrapped_is_damaged(wrapped):
    with pytest.raises(Damaged, match=f"its data key was not wrapped by the key {FileKey(SECRET).name}"):
        FileKey(SECRET).unwrap(wrapped)


# Data keys


def test_one_data_key_is_made_and_no_key_that_it_wrapped_itself_is_asked_for():
    wrapping = Counting()
    keys = DataKeys([wrapping])
    first = keys.current()
    assert keys.current() is first
    assert keys.secret(first.name, first.wrapped) == first.secret
    assert wrapping.asked == ["wrap"]
    assert DataKeys([wrapping]).current().secret != first.secret


def test_a_data_key_is_unwrapped_once_for_all_that_it_encrypted(tmp_path):
    wrapping = Counting()
    publisher = EncryptedStore(LocalStore(tmp_path), DataKeys([wrapping]))
    for number in range(20):
        publisher.put(f"executables/e{number}", b"content")
    wrapping.asked.clear()
    instance = EncryptedStore(LocalStore(tmp_path), DataKeys([wrapping]))
    assert {instance.get(f"executables/e{number}") for number in range(20)} == {b"content"}
    assert wrapping.asked == ["unwrap"]


def test_threads_that_need_the_same_data_key_ask_once():
    class Slow(Counting):
        def unwrap(self, wrapped):
            begun.set()
            assert go.wait(30)
            return super().unwrap(wrapped)

    begun, go = threading.Event(), threading.Event()
    wrapping = Slow()
    keys = DataKeys([wrapping])
    found = []
    threads = [threading.Thread(target=lambda: found.append(keys.secret("counting", SECRET))) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert begun.wait(30)
    go.set()
    for thread in threads:
        thread.join(30)
    assert found == [SECRET[::-1]] * 4
    assert wrapping.asked == ["unwrap"]


def test_no_more_than_so_many_data_keys_are_remembered():
    wrapping = Counting()
    keys = DataKeys([wrapping])
    for number in range(_REMEMBERED_MAX + 1):
        keys.secret("counting", number.to_bytes(32))
    assert len(keys._secrets) == _REMEMBERED_MAX
    keys.secret("counting", (0).to_bytes(32))  # the oldest was forgotten
    assert wrapping.asked == ["unwrap"] * (_REMEMBERED_MAX + 2)


def test_a_data_key_of_another_length_is_damaged_and_not_remembered():
    keys = DataKeys([Counting()])
    for _ in range(2):
        with pytest.raises(Damaged, match="its data key has 31 bytes instead of 32"):
            keys.secret("counting", bytes(31))


def test_a_failure_is_not_remembered():
    class Once(Counting):
        def unwrap(self, wrapped):
            if not self.asked:
                self.asked.append("refused")
                raise StoreUnavailable("now")
            return super().unwrap(wrapped)

    keys = DataKeys([Once()])
    with pytest.raises(StoreUnavailable):
        keys.secret("counting", SECRET)
    assert keys.secret("counting", SECRET) == SECRET[::-1]


# The setting


def test_the_first_key_encrypts_and_all_of_them_decrypt(tmp_path):
    first, second = FileKey.write(tmp_path / "1"), FileKey.write(tmp_path / "2")
    keys = read_keys(f"{tmp_path}/1, {tmp_path}/2")
    assert keys
    assert keys.current().name == first.name
    assert keys.secret(second.name, second.wrap(SECRET)) == SECRET
    with pytest.raises(StoreUnavailable, match="is wrapped by 'file:0', encryption_key gives file:"):
        keys.secret("file:0", b"")


@pytest.mark.parametrize("setting", ["", " ", ","])
def test_no_key_is_no_encryption(setting):
    assert read_keys(setting) is None


@pytest.mark.parametrize("key", ["", "k", "projects/p/locations/l/keyRings/r", f"{KMS_KEY}/cryptoKeyVersions/1"])
def test_a_kms_key_that_is_none_is_refused_with_what_is_allowed(key):
    with pytest.raises(ValueError, match="allowed is a file with 32 bytes, or gcp-kms://projects/P/locations/L/key"):
        read_keys(f"gcp-kms://{key}")


def test_the_kms_client_is_not_imported_before_it_is_needed(tmp_path):
    code = """
import sys
from cache.data_keys import read_keys
read_keys(sys.argv[1]).current()
read_keys(sys.argv[2])
print(*sys.modules)
"""
    FileKey.write(tmp_path / "key")
    arguments = [str(tmp_path / "key"), f"gcp-kms://{KMS_KEY}"]
    printed = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, check=True, timeout=60)
    assert {"grpc", "google.api_core", "google.auth", "google.cloud.kms_v1"} & set(
        printed.stdout.decode().split()
    ) == set()


# Cloud KMS


@pytest.fixture(scope="module")
def service():
    with kms_server() as server:
        yield server


@pytest.fixture
def kms(service):
    service.failures.clear()
    service.asked.clear()
    service.changes = None
    return service


@pytest.fixture
def key(kms):
    return KmsKey(KMS_KEY, kms.client(), wait_s_max=5.0)


def test_kms_wraps_and_unwraps_what_it_never_keeps(key, kms):
    wrapped = key.wrap(SECRET)
    assert SECRET not in wrapped
    assert key.unwrap(wrapped) == SECRET
    assert kms.asked == ["encrypt", "decrypt"]
    assert key.name == f"gcp-kms://{KMS_KEY}"


def test_a_store_is_encrypted_under_a_key_of_kms_which_is_asked_once_a_publish_and_once_a_start(key, kms, tmp_path):
    publisher = EncryptedStore(LocalStore(tmp_path), DataKeys([key]))
    for number in range(5):
        publisher.put(f"executables/e{number}", os.urandom(100))
    assert kms.asked == ["encrypt"]
    instance = EncryptedStore(LocalStore(tmp_path), DataKeys([KmsKey(KMS_KEY, kms.client())]))
    for number in range(5):
        assert instance.get(f"executables/e{number}") == publisher.get(f"executables/e{number}")
    assert kms.asked == ["encrypt", "decrypt"]


def test_another_kms_key_did_not_wrap_it(key, kms):
    wrapped = key.wrap(SECRET)
    other = KmsKey(KMS_KEY.replace("keyRings/r", "keyRings/other"), kms.client())
    with pytest.raises(Damaged, match=r"its data key was not wrapped by the key of Cloud KMS that is given$"):
        other.unwrap(wrapped)


def test_a_key_that_was_changed_is_damaged(key):
    wrapped = bytearray(key.wrap(SECRET))
    wrapped[-1] ^= 1
    with pytest.raises(Damaged):
        key.unwrap(bytes(wrapped))


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (grpc.StatusCode.PERMISSION_DENIED, "Permission 'cloudkms.cryptoKeyVersions.useToDecrypt' denied"),
        (grpc.StatusCode.UNAUTHENTICATED, "Request had invalid authentication credentials."),
        (grpc.StatusCode.NOT_FOUND, "CryptoKey not found."),
        (grpc.StatusCode.FAILED_PRECONDITION, "CryptoKeyVersion is not enabled, current state is: DESTROYED."),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "Quota exceeded"),
        (grpc.StatusCode.INTERNAL, "Internal error"),
    ],
)
def test_what_kms_refuses_is_not_damage_and_names_the_key_and_the_reason(key, kms, status, text):
    wrapped = key.wrap(SECRET)
    for ask in (lambda: key.wrap(SECRET), lambda: key.unwrap(wrapped)):
        kms.failures.append((status, text))
        with pytest.raises(StoreUnavailable) as caught:
            ask()
        assert str(caught.value).startswith(f"encryption_key {key.name}: ")
        assert text in str(caught.value)
    assert key.unwrap(wrapped) == SECRET


def test_kms_that_is_not_there_for_a_moment_is_asked_again(key, kms):
    kms.failures += [(grpc.StatusCode.UNAVAILABLE, "try again")] * 2
    assert key.unwrap(key.wrap(SECRET)) == SECRET
    assert kms.asked == ["encrypt"] * 3 + ["decrypt"]


def test_kms_that_stays_away_is_unavailable_within_the_time_that_one_question_may_take(kms):
    kms.failures += [(grpc.StatusCode.UNAVAILABLE, "try again")] * 1000
    with pytest.raises(StoreUnavailable, match="encryption_key gcp-kms://"):
        KmsKey(KMS_KEY, kms.client(), wait_s_max=2.0).wrap(SECRET)
    assert 1 <= len(kms.asked) < 100


@pytest.mark.parametrize(
    "change",
    [
        lambda response: setattr(response, "ciphertext", response.ciphertext + b"x"),
        lambda response: setattr(response, "verified_plaintext_crc32c", False),
        lambda response: setattr(response, "verified_additional_authenticated_data_crc32c", False),
    ],
)
def test_a_wrapped_key_that_was_changed_on_the_way_is_not_used(key, kms, change):
    """What is stored under a key that nobody can unwrap would be lost."""
    kms.changes = change
    with pytest.raises(StoreUnavailable, match="changed on the way"):
        key.wrap(SECRET)


def test_an_unwrapped_key_that_was_changed_on_the_way_is_not_used(key, kms):
    wrapped = key.wrap(SECRET)
    kms.changes = lambda response: setattr(response, "plaintext", bytes(32))
    with pytest.raises(StoreUnavailable, match="the data key was changed on the way"):
        key.unwrap(wrapped)


def test_the_checksums_that_are_sent_are_those_of_what_is_sent(key, kms, monkeypatch):
    """The service refuses others, so a change on the way there would be noticed too."""
    monkeypatch.setattr("cache.data_keys._crc32c", lambda data: 1)
    with pytest.raises(StoreUnavailable, match="checksum in field plaintext_crc32c did not match"):
        key.wrap(SECRET)


def test_without_credentials_the_store_is_unavailable(monkeypatch, tmp_path):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(StoreUnavailable, match=f"encryption_key gcp-kms://{KMS_KEY}: .*none.json"):
        KmsKey(KMS_KEY).wrap(SECRET)
