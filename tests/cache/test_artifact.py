"""Nothing in an artifact can be changed without notice, and what is whole says for whom it was made."""

from __future__ import annotations

import hashlib
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.artifact import HEADER_BYTES_MAX, MAGIC, Header, pack, unpack
from cache.errors import Damaged, Foreign
from cache.signing import ANYONE

KEY = "0123456789abcdef" * 4
INGREDIENTS = {"program": "p", "fingerprint.jaxlib": "0.12.0", "bucket.batch": "8"}
HEADER = Header(key=KEY, ingredients=INGREDIENTS)
PAYLOAD = bytes(range(48))
WHOLE = pack(HEADER, PAYLOAD)
PREFIX_BYTES = 24


def refused(data, **wanted):
    """How it was refused; fails if it was accepted."""
    with pytest.raises((Damaged, Foreign)) as caught:
        unpack(data, **{"key": KEY, "trust": ANYONE} | wanted)
    return caught.value


def sealed(magic, header, payload, *, header_bytes=None, payload_bytes=None):
    """An artifact as someone would write it who computes the digest too."""
    lengths = (
        len(header) if header_bytes is None else header_bytes,
        len(payload) if payload_bytes is None else payload_bytes,
    )
    body = struct.pack("<8sQQ", magic, *lengths) + header + payload
    return body + hashlib.sha256(body).digest()


@given(
    st.text("0123456789abcdef", max_size=64),
    st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=5),
    st.binary(max_size=200),
)
def test_what_is_packed_is_unpacked(key, ingredients, payload):
    header = Header(key=key, ingredients=ingredients)
    assert unpack(pack(header, payload), key=key, trust=ANYONE, ingredients=ingredients) == (header, payload)


def test_the_layout_is_the_documented_one():
    encoded = msgspec.json.encode({"key": KEY, "ingredients": dict(sorted(INGREDIENTS.items()))})
    assert sealed(MAGIC, encoded, PAYLOAD) == WHOLE
    assert MAGIC[-1] == 1


def test_the_same_header_is_the_same_bytes_whatever_the_order_of_its_ingredients():
    assert pack(Header(key=KEY, ingredients=dict(reversed(INGREDIENTS.items()))), PAYLOAD) == WHOLE


def test_the_payload_is_a_view_of_the_file():
    _, payload = unpack(WHOLE, key=KEY, trust=ANYONE)
    assert payload.obj is WHOLE


@pytest.mark.parametrize("bit", range(8))
def test_no_bit_can_be_flipped(bit):
    for index in range(len(WHOLE)):
        changed = bytearray(WHOLE)
        changed[index] ^= 1 << bit
        refused(bytes(changed))


def test_it_cannot_be_cut_anywhere():
    for length in range(len(WHOLE)):
        assert isinstance(refused(WHOLE[:length]), Damaged)


@given(st.binary(min_size=1, max_size=100), st.booleans())
def test_it_cannot_be_extended(more, in_front):
    refused(more + WHOLE if in_front else WHOLE + more)


@given(st.data())
def test_no_region_can_be_overwritten_removed_or_repeated(data):
    start = data.draw(st.integers(0, len(WHOLE) - 1))
    end = data.draw(st.integers(start + 1, len(WHOLE)))
    region = WHOLE[start:end]
    replacement = data.draw(st.sampled_from((b"", bytes(len(region)), region * 2, region[::-1])) | st.binary())
    changed = WHOLE[:start] + replacement + WHOLE[end:]
    if changed != WHOLE:
        refused(changed)


@given(st.binary(max_size=300))
def test_other_bytes_are_damaged(data):
    assert isinstance(refused(data), Damaged)


@given(st.binary(max_size=300))
def test_other_bytes_behind_the_magic_are_damaged(data):
    assert isinstance(refused(MAGIC + data), Damaged)


@pytest.mark.parametrize("index", range(7))
def test_a_damaged_magic_is_damage_not_another_format(index):
    changed = bytearray(WHOLE)
    changed[index] ^= 0x10
    assert isinstance(refused(bytes(changed)), Damaged)


def test_another_format_is_foreign_and_named():
    other = sealed(MAGIC[:-1] + b"\x02", b"whatever it has", PAYLOAD)
    error = refused(other)
    assert isinstance(error, Foreign)
    assert error.differences == {"format": ("1", "2")}
    assert "format: wanted '1', found '2'" in str(error)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"null",
        b"\xff\xfe",
        msgspec.json.encode({"key": KEY}),
        msgspec.json.encode({"key": KEY, "ingredients": {"a": 1}}),
        msgspec.json.encode({"key": KEY, "ingredients": {}, "more": 1}),
    ],
)
def test_a_header_that_cannot_be_read_is_damaged_even_under_a_right_digest(header):
    error = refused(sealed(MAGIC, header, PAYLOAD))
    assert isinstance(error, Damaged)
    assert "its header cannot be read" in str(error)


@pytest.mark.parametrize(
    ("header_bytes", "payload_bytes"),
    [(HEADER_BYTES_MAX + 1, 0), (2**64 - 1, 2**64 - 1), (0, 0), (1, None), (None, 1), (2**63, None)],
)
def test_lengths_that_lie_are_damaged_even_under_a_right_digest(header_bytes, payload_bytes):
    encoded = msgspec.json.encode(HEADER)
    data = sealed(MAGIC, encoded, PAYLOAD, header_bytes=header_bytes, payload_bytes=payload_bytes)
    error = refused(data)
    assert isinstance(error, Damaged)
    assert f"it is {len(data)} bytes long" in str(error)


def test_a_header_has_a_largest_size():
    long = Header(key=KEY, ingredients={"a": "x" * HEADER_BYTES_MAX})
    assert isinstance(refused(pack(long, PAYLOAD)), Damaged)


def test_an_artifact_of_another_key_is_foreign_and_both_keys_are_named():
    error = refused(WHOLE, key="f" * 64)
    assert isinstance(error, Foreign)
    assert error.differences == {"key": ("f" * 64, KEY)}
    assert "f" * 64 in str(error)
    assert KEY in str(error)


@pytest.mark.parametrize("name", sorted(INGREDIENTS))
def test_an_ingredient_that_differs_is_named_with_what_was_wanted_and_found(name):
    error = refused(WHOLE, ingredients=INGREDIENTS | {name: "other"})
    assert isinstance(error, Foreign)
    assert error.differences == {name: ("other", INGREDIENTS[name])}
    assert f"{name}: wanted 'other', found {INGREDIENTS[name]!r}" in str(error)


def test_ingredients_that_one_side_lacks_are_named():
    wanted = {"program": "p", "bucket.batch": "8", "bucket.seq": "16"}
    error = refused(WHOLE, ingredients=wanted)
    assert isinstance(error, Foreign)
    assert error.differences == {"bucket.seq": ("16", ""), "fingerprint.jaxlib": ("", "0.12.0")}


@given(st.dictionaries(st.sampled_from([*INGREDIENTS, "more"]), st.sampled_from(["p", "8", "0.12.0", ""])))
def test_only_exactly_its_ingredients_are_accepted(wanted):
    if wanted == INGREDIENTS:
        unpack(WHOLE, key=KEY, trust=ANYONE, ingredients=wanted)
    else:
        assert isinstance(refused(WHOLE, ingredients=wanted), Foreign)


def test_the_message_names_the_artifact_by_the_beginning_of_its_key():
    assert str(refused(WHOLE[:10])).startswith(f"artifact {KEY[:16]} is damaged: ")
