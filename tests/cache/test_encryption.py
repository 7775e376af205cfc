"""The envelope gives back exactly what was put into it, at its own path, or nothing."""

from __future__ import annotations

import hashlib
import io
import os
import struct

import msgspec
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st

from cache import encryption
from cache.encryption import CHUNK_BYTES, MAGIC, DataKey, decrypt, encrypted_bytes, is_envelope, prefix_bytes_max
from cache.errors import Damaged, Foreign, StoreUnavailable

PATH = "weights/abc"
KEY = DataKey("file:0123456789abcdef", b"wrapped", bytes(range(32)))
SEALED = CHUNK_BYTES + 16


def secret_of(name, wrapped):
    assert (name, wrapped) == (KEY.name, KEY.wrapped)
    return KEY.secret


def opened(envelope, path=PATH, of=secret_of, **more):
    return b"".join(decrypt(path, io.BytesIO(envelope), of, **more))


def split(envelope):
    """The part before the chunks, and the chunks."""
    start = 12 + struct.unpack("<I", envelope[8:12])[0]
    return envelope[:start], [envelope[at : at + SEALED] for at in range(start, len(envelope), SEALED)]


def content_of(size_bytes):
    """Different in every place."""
    return hashlib.shake_256(b"content").digest(size_bytes)


SIZES = [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES]


@pytest.mark.parametrize("size_bytes", SIZES)
def test_what_was_encrypted_comes_back(size_bytes):
    content = content_of(size_bytes)
    envelope = encrypted_bytes(PATH, content, KEY)
    assert is_envelope(envelope)
    assert opened(envelope) == content
    assert len(split(envelope)[1]) == max(1, -(-size_bytes // CHUNK_BYTES))


def test_the_layout_is_what_the_docstring_says():
    """Decrypted here with the library alone, from the description."""
    content = content_of(CHUNK_BYTES + 5)
    envelope = encrypted_bytes(PATH, content, KEY)
    assert envelope[:8] == b"WPENC\x00\x00\x01"
    start, chunks = split(envelope)
    header = msgspec.json.decode(start[12:])
    assert header.keys() == {"key", "wrapped", "salt"}
    assert (header["key"], header["wrapped"]) == (KEY.name, KEY.wrapped.hex())
    salt = bytes.fromhex(header["salt"])
    assert len(salt) == 32
    derived = HKDF(SHA256(), 39, salt=salt, info=b"warmpool object").derive(KEY.secret)
    cipher, prefix = AESGCM(derived[:32]), derived[32:]
    found = [
        cipher.decrypt(prefix + number.to_bytes(4, "big") + last, chunk, start + PATH.encode())
        for number, (chunk, last) in enumerate(zip(chunks, (b"\0", b"\1"), strict=True))
    ]
    assert found == [content[:CHUNK_BYTES], content[CHUNK_BYTES:]]


def test_nothing_of_the_content_or_the_secret_is_in_the_envelope():
    content = b"a secret of sixteen words " * 1000
    envelope = encrypted_bytes(PATH, content, KEY)
    assert content[:26] not in envelope
    assert KEY.secret not in envelope
    assert KEY.secret.hex().encode() not in envelope
    assert KEY.secret.hex() not in repr(KEY)
    assert str(KEY.secret) not in repr(KEY)


def test_the_same_content_twice_is_encrypted_under_two_keys():
    (first, (one,)), (second, (two,)) = (split(encrypted_bytes(PATH, b"same content", KEY)) for _ in range(2))
    assert first != second
    # Under one key and nonce the two would differ nowhere.
    assert sum(a == b for a, b in zip(one, two, strict=True)) < 8


@given(st.binary(max_size=300), st.data())
def test_no_changed_byte_goes_unnoticed(content, data):
    envelope = encrypted_bytes(PATH, content, KEY)
    at = data.draw(st.integers(0, len(envelope) - 1))
    changed = bytearray(envelope)
    changed[at] ^= data.draw(st.integers(1, 255))

    def any_secret(name, wrapped):
        return KEY.secret

    with pytest.raises((Damaged, Foreign)):
        opened(bytes(changed), of=any_secret)


@given(st.binary(max_size=300), st.data())
def test_no_envelope_that_was_cut_or_grew_is_taken(content, data):
    envelope = encrypted_bytes(PATH, content, KEY)
    with pytest.raises(Damaged):
        opened(envelope[: data.draw(st.integers(0, len(envelope) - 1))])
    with pytest.raises(Damaged):
        opened(envelope + data.draw(st.binary(min_size=1, max_size=20)))


@pytest.mark.parametrize(
    ("what", "arranged"),
    [
        ("swapped", lambda a, b, c: [b, a, c]),
        ("repeated", lambda a, b, c: [a, a, b, c]),
        ("left out", lambda a, b, c: [a, c]),
        ("left out at the start", lambda a, b, c: [b, c]),
        ("cut off at a chunk's end", lambda a, b, c: [a, b]),
        ("cut off behind the first", lambda a, b, c: [a]),
        ("all gone", lambda a, b, c: []),
        ("the last one twice", lambda a, b, c: [a, b, c, c]),
    ],
)
def test_chunks_can_be_neither_moved_nor_left_out(what, arranged):
    start, chunks = split(encrypted_bytes(PATH, content_of(3 * CHUNK_BYTES), KEY))
    with pytest.raises(Damaged, match=r"its encrypted chunk . is not what was stored there"):
        opened(start + b"".join(arranged(*chunks)))


def test_a_chunk_of_another_object_is_not_taken():
    start, (first, _) = split(encrypted_bytes(PATH, content_of(CHUNK_BYTES + 1), KEY))
    _, (_, other) = split(encrypted_bytes(PATH, content_of(CHUNK_BYTES + 1), KEY))
    with pytest.raises(Damaged, match="chunk 1"):
        opened(start + first + other)


def test_an_object_that_was_moved_is_not_taken():
    envelope = encrypted_bytes(PATH, b"content", KEY)
    with pytest.raises(Damaged, match=r"'weights/abd' is damaged"):
        opened(envelope, path="weights/abd")


def test_what_comes_before_a_bad_chunk_was_verified_and_nothing_of_the_bad_one_is_given():
    content = content_of(3 * CHUNK_BYTES)
    start, chunks = split(encrypted_bytes(PATH, content, KEY))
    chunks[1] = chunks[1][:-1] + bytes([chunks[1][-1] ^ 1])
    pieces = decrypt(PATH, io.BytesIO(start + b"".join(chunks)), secret_of)
    assert next(pieces) == content[:CHUNK_BYTES]
    with pytest.raises(Damaged, match="chunk 1"):
        next(pieces)


@pytest.mark.parametrize("wanted", [1, 20, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES])
@pytest.mark.parametrize("size_bytes", [20, CHUNK_BYTES, 2 * CHUNK_BYTES, 3 * CHUNK_BYTES + 7])
def test_a_prefix_of_the_envelope_is_enough_for_a_prefix_of_the_content(wanted, size_bytes):
    content = content_of(size_bytes)
    prefix = encrypted_bytes(PATH, content, KEY)[: prefix_bytes_max(wanted)]
    assert opened(prefix, chunks_max=-(-wanted // CHUNK_BYTES))[:wanted] == content[:wanted]


def test_no_more_than_two_chunks_are_in_memory_at_a_time(tmp_path):
    """The pieces come before the rest was read."""

    class Counted(io.BytesIO):
        taken = 0

        def read(self, size=-1, /):
            found = super().read(size)
            self.taken += len(found)
            return found

    source = Counted(content_of(4 * CHUNK_BYTES))
    pieces = encryption.encrypt(PATH, source, KEY)
    taken = []
    whole = b""
    for piece in pieces:
        whole += piece
        taken.append(source.taken // CHUNK_BYTES)
    assert taken == [0, 2, 3, 4, 4]
    envelope = Counted(whole)
    taken = [envelope.taken // SEALED for _ in decrypt(PATH, envelope, secret_of)]
    assert taken == [2, 3, 4, 4]


def test_a_key_that_is_not_the_right_one_opens_nothing():
    with pytest.raises(Damaged, match="chunk 0"):
        opened(encrypted_bytes(PATH, b"content", KEY), of=lambda name, wrapped: os.urandom(32))


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (Damaged("a data key", "why"), "'weights/abc' is damaged: why"),
        (StoreUnavailable("why"), "'weights/abc' cannot be decrypted: why"),
    ],
)
def test_a_data_key_that_cannot_be_had_names_the_object(error, told):
    def refuse(name, wrapped):
        raise error

    with pytest.raises(type(error)) as caught:
        opened(encrypted_bytes(PATH, b"content", KEY), of=refuse)
    assert str(caught.value) == told


def headed(header, chunks=b"x" * 16):
    return MAGIC + struct.pack("<I", len(header)) + header + chunks


@pytest.mark.parametrize(
    ("envelope", "reason"),
    [
        (b"", "does not begin as an encrypted object does"),
        (MAGIC[:7], "does not begin"),
        (MAGIC, "does not begin"),
        (b"WPXLA\x00\x00\x02" + bytes(40), "does not begin"),
        (headed(b"{}"), "header cannot be read"),
        (headed(b'{"key":"a","wrapped":"a","salt":"a"}'), "header cannot be read"),
        (headed(b'{"key":"a","wrapped":"aa","salt":"zz"}'), "header cannot be read"),
        (headed(b'{"key":"a","wrapped":"","salt":"","more":1}'), "header cannot be read"),
        (MAGIC + struct.pack("<I", 4097) + bytes(5000), "4097 bytes, at most 4096"),
        (MAGIC + struct.pack("<I", 100), "header cannot be read"),
    ],
)
def test_a_header_that_is_none_is_damage(envelope, reason):
    with pytest.raises(Damaged, match=reason):
        opened(envelope)


def test_an_envelope_of_a_later_format_says_so():
    envelope = encrypted_bytes(PATH, b"content", KEY)
    later = envelope[:7] + b"\x02" + envelope[8:]
    assert is_envelope(later)
    with pytest.raises(Foreign, match="encryption format: wanted '1', found '2'"):
        opened(later)


@pytest.mark.parametrize("start", [b"", b"WPXLA\x00\x00\x02", b"{", b"WPENC"])
def test_what_is_not_encrypted_is_no_envelope(start):
    assert not is_envelope(start)
