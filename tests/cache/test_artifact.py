"""Nothing in an artifact can be changed without notice, and what is whole says for whom it was made, and by whom."""

from __future__ import annotations

import hashlib
import itertools
import json
import struct

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from cache.artifact import HEADER_BYTES_MAX, MAGIC, Calling, Header, TensorType, pack, peek, sign, unpack, verify
from cache.errors import Damaged, Foreign, Untrusted
from cache.signing import ANYONE, Signer, Trust

KEY = "0123456789abcdef" * 4
INGREDIENTS = {"program": "p", "fingerprint.jaxlib": "0.12.0", "bucket.batch": "8"}
CALLING = Calling(
    arguments=(TensorType("float32", (8, 3)), TensorType("bfloat16", ())),
    results=(TensorType("bool", (8,)),),
    kept=(1,),
)
HEADER = Header(key=KEY, ingredients=INGREDIENTS, calling=CALLING)
PAYLOAD = bytes(range(48))
SEED, OTHER_SEED, STRANGE_SEED = (bytes([number]) * 32 for number in (1, 2, 3))
SIGNER, OTHER, STRANGER = (
    Signer(Ed25519PrivateKey.from_private_bytes(one)) for one in (SEED, OTHER_SEED, STRANGE_SEED)
)
TRUST = Trust.of([SIGNER.public, OTHER.public])
WHOLE = pack(HEADER, PAYLOAD, SIGNER)
UNSIGNED = pack(HEADER, PAYLOAD)
OLD_MAGIC = MAGIC[:-1] + b"\x01"
PREFIX_BYTES = 24
SIGNATURE_BYTES = 32 + 64
TRAILER_BYTES = 32 + SIGNATURE_BYTES
HEADER_BYTES = len(WHOLE) - PREFIX_BYTES - len(PAYLOAD) - TRAILER_BYTES


def accepted(data, *, key=KEY, trust=TRUST, **wanted):
    """Header and payload."""
    header, payload = unpack(data, key=key, trust=trust, **wanted)
    return header, bytes(payload)


def refused(data, *, key=KEY, trust=TRUST, **wanted):
    """How it was refused; fails if it was accepted."""
    with pytest.raises((Damaged, Foreign, Untrusted)) as caught:
        unpack(data, key=key, trust=trust, **wanted)
    return caught.value


def body_of(magic, header, payload, *, header_bytes=None, payload_bytes=None):
    lengths = (
        len(header) if header_bytes is None else header_bytes,
        len(payload) if payload_bytes is None else payload_bytes,
    )
    return struct.pack("<8sQQ", magic, *lengths) + header + payload


def by_hand(header, payload=PAYLOAD, *, magic=MAGIC, seed=SEED, **lengths):
    """A signed artifact as somebody would write it who has the key and not this library."""
    body = body_of(magic, header, payload, **lengths)
    digest = hashlib.sha256(body).digest()
    key = Ed25519PrivateKey.from_private_bytes(seed)
    key_id = hashlib.sha256(key.public_key().public_bytes_raw()).digest()
    return body + digest + key_id + key.sign(b"warmpool artifact\x00" + digest)


def old(header=None, payload=PAYLOAD):
    """The same in format 1: a digest, and nothing behind it."""
    encoded = json.dumps({"key": KEY, "ingredients": INGREDIENTS}).encode() if header is None else header
    body = body_of(OLD_MAGIC, encoded, payload)
    return body + hashlib.sha256(body).digest()


# The layout

tensors = st.builds(
    TensorType, st.sampled_from(("float32", "bool", "bfloat16")), st.lists(st.integers(0, 9), max_size=3).map(tuple)
)
indices = st.lists(st.integers(0, 5), max_size=3).map(tuple)
callings = st.none() | st.builds(
    Calling,
    arguments=st.lists(tensors, max_size=3).map(tuple),
    results=st.lists(tensors, max_size=3).map(tuple),
    kept=indices,
    donated=indices,
    devices=st.integers(1, 8),
)


@given(
    st.text("0123456789abcdef", max_size=64),
    st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=5),
    st.sampled_from(("executable", "program", "jax-cache")),
    callings,
    st.binary(max_size=200),
    st.sampled_from((None, SIGNER, OTHER)),
)
def test_what_is_packed_is_unpacked(key, ingredients, kind, calling, payload, signer):
    header = Header(key=key, ingredients=ingredients, kind=kind, calling=calling)
    data = pack(header, payload, signer)
    trust = TRUST if signer else ANYONE
    assert accepted(data, key=key, trust=trust, ingredients=ingredients) == (header, payload)
    assert peek("it", data) == header
    assert verify("it", data, trust) == (signer.key_id if signer else None)


def test_the_layout_is_the_documented_one():
    header = (
        b'{"key":"%b","ingredients":{"bucket.batch":"8","fingerprint.jaxlib":"0.12.0","program":"p"},'
        b'"kind":"executable","calling":{"arguments":[["float32",[8,3]],["bfloat16",[]]],"results":[["bool",[8]]],'
        b'"kept":[1],"donated":[],"devices":1}}' % KEY.encode()
    )
    assert by_hand(header) == WHOLE
    body = b"WPXLA\x00\x00\x02" + struct.pack("<QQ", len(header), 48) + header + PAYLOAD
    assert body + hashlib.sha256(body).digest() + bytes(SIGNATURE_BYTES) == UNSIGNED


def test_what_need_not_be_said_has_its_default():
    plain = Header(key=KEY, ingredients={})
    said = by_hand(b'{"key": "%b", "ingredients": {}}' % KEY.encode())
    assert accepted(said) == (plain, PAYLOAD)
    assert (plain.kind, plain.calling) == ("executable", None)


def test_the_same_header_is_the_same_bytes_whatever_the_order_of_its_ingredients():
    header = Header(key=KEY, ingredients=dict(reversed(INGREDIENTS.items())), calling=CALLING)
    assert pack(header, PAYLOAD, SIGNER) == WHOLE


def test_the_payload_is_a_view_of_the_file():
    _, payload = unpack(WHOLE, key=KEY, trust=TRUST)
    assert payload.obj is WHOLE


# Damage


@pytest.mark.parametrize("bit", range(8))
def test_no_bit_can_be_flipped(bit):
    for index in range(len(WHOLE)):
        changed = bytearray(WHOLE)
        changed[index] ^= 1 << bit
        refused(bytes(changed))
        with pytest.raises((Damaged, Foreign, Untrusted)):
            verify("it", bytes(changed), TRUST)


def test_no_byte_can_be_flipped_where_signatures_are_not_required_either_but_in_the_signature():
    """A signature that nobody can check is as good as none; who may be unsigned may leave it out."""
    for index in range(len(UNSIGNED) - SIGNATURE_BYTES):
        changed = bytearray(UNSIGNED)
        changed[index] ^= 0xFF
        assert not isinstance(refused(bytes(changed), trust=ANYONE), Untrusted)


def test_it_cannot_be_cut_anywhere():
    for length in range(len(WHOLE)):
        assert isinstance(refused(WHOLE[:length]), Damaged)
        assert isinstance(refused(UNSIGNED[:length], trust=ANYONE), Damaged)
        with pytest.raises(Damaged):
            sign("it", WHOLE[:length], SIGNER)


@given(st.binary(min_size=1, max_size=200), st.booleans())
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


def parts_of(data):
    """Lengths and header, payload, digest, key id, signature."""
    _, header_bytes, payload_bytes = struct.unpack_from("<8sQQ", data)
    ends = list(itertools.accumulate((PREFIX_BYTES + header_bytes, payload_bytes, 32, 32, 64)))
    assert ends[-1] == len(data)
    return [data[start:end] for start, end in itertools.pairwise([0, *ends])]


@pytest.mark.parametrize("signer", [SIGNER, OTHER], ids=["one key", "two trusted keys"])
def test_no_parts_of_two_artifacts_make_a_third(signer):
    other = pack(Header(key=KEY, ingredients={**INGREDIENTS, "bucket.batch": "4"}), PAYLOAD[::-1], signer)
    whole = {WHOLE, other}
    mixed = {b"".join(parts) for parts in itertools.product(*zip(parts_of(WHOLE), parts_of(other), strict=True))}
    assert whole < mixed
    assert len(mixed) >= 2**4
    for data in mixed - whole:
        refused(data)


@given(st.binary(max_size=300))
def test_other_bytes_are_damaged(data):
    assert isinstance(refused(data, trust=ANYONE), Damaged)


@given(st.binary(max_size=300))
def test_other_bytes_behind_the_magic_are_damaged(data):
    assert isinstance(refused(MAGIC + data, trust=ANYONE), Damaged)


@pytest.mark.parametrize("index", range(7))
def test_a_damaged_magic_is_damage_not_another_format(index):
    changed = bytearray(WHOLE)
    changed[index] ^= 0x10
    assert isinstance(refused(bytes(changed)), Damaged)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"null",
        b"\xff\xfe",
        msgspec.json.encode({"key": KEY}),
        msgspec.json.encode({"ingredients": {}}),
        msgspec.json.encode({"key": KEY, "ingredients": {"a": 1}}),
        msgspec.json.encode({"key": KEY, "ingredients": {}, "more": 1}),
        msgspec.json.encode({"key": KEY, "ingredients": {}, "kind": "weights"}),
        msgspec.json.encode({"key": KEY, "ingredients": {}, "calling": {"arguments": []}}),
        msgspec.json.encode({"key": KEY, "ingredients": {}, "calling": {**msgspec.to_builtins(CALLING), "more": 1}}),
    ],
)
def test_a_header_that_cannot_be_read_is_damaged_even_under_a_right_signature(header):
    data = by_hand(header)
    error = refused(data)
    assert isinstance(error, Damaged)
    assert "its header cannot be read" in str(error)
    with pytest.raises(Damaged, match=r"^it is damaged: its header cannot be read"):
        peek("it", data)


@pytest.mark.parametrize(
    ("header_bytes", "payload_bytes"),
    [(0, 0), (1, None), (None, 1), (None, 2**64 - 1), (0, None), (HEADER_BYTES + 1, None)],
)
def test_lengths_that_lie_are_damaged_even_under_a_right_signature(header_bytes, payload_bytes):
    data = by_hand(msgspec.json.encode(HEADER), header_bytes=header_bytes, payload_bytes=payload_bytes)
    error = refused(data)
    assert isinstance(error, Damaged)
    assert f"it is {len(data)} bytes long" in str(error)


def test_a_byte_that_changes_sides_between_header_and_payload_is_noticed():
    """Both lengths fit the file then: only the digest, which covers them, can tell."""
    moved = bytearray(WHOLE)
    struct.pack_into("<QQ", moved, 8, HEADER_BYTES - 1, len(PAYLOAD) + 1)
    assert "its digest does not match its content" in str(refused(bytes(moved)))


@pytest.mark.parametrize("header_bytes", [HEADER_BYTES_MAX + 1, 2**63, 2**64 - 1])
def test_a_header_of_more_than_a_mebibyte_is_not_looked_for(header_bytes):
    data = by_hand(msgspec.json.encode(HEADER), header_bytes=header_bytes)
    for read in (refused, lambda data: caught(peek, "it", data), lambda data: caught(verify, "it", data, TRUST)):
        error = read(data)
        assert isinstance(error, Damaged)
        assert f"its header has {header_bytes} bytes, at most 1048576 are allowed" in str(error)


def caught(call, *arguments):
    with pytest.raises((Damaged, Foreign, Untrusted)) as info:
        call(*arguments)
    return info.value


def test_a_header_of_exactly_a_mebibyte_is_read_and_one_byte_more_is_not_written():
    empty_bytes = len(msgspec.json.encode(Header(key=KEY, ingredients={"a": ""})))
    longest = Header(key=KEY, ingredients={"a": "x" * (HEADER_BYTES_MAX - empty_bytes)})
    data = pack(longest, PAYLOAD, SIGNER)
    assert accepted(data) == (longest, PAYLOAD)
    assert peek("it", data[: HEADER_BYTES_MAX + PREFIX_BYTES]) == longest
    with pytest.raises(ValueError, match="the header has 1048577 bytes, at most 1048576 are allowed"):
        pack(Header(key=KEY, ingredients={"a": longest.ingredients["a"] + "x"}), PAYLOAD, SIGNER)


# Formats


@pytest.mark.parametrize("version", [0, 3, 255])
def test_another_format_is_foreign_and_both_are_named_whatever_is_done_with_it(version):
    other = by_hand(b"whatever it has", magic=MAGIC[:-1] + bytes([version]))
    for error in (
        refused(other),
        refused(other, trust=ANYONE),
        caught(verify, "it", other, TRUST),
        caught(peek, "it", other),
        caught(sign, "it", other, SIGNER),
    ):
        assert isinstance(error, Foreign)
        assert error.differences == {"format": ("2", str(version))}
        assert f"format: wanted '2', found '{version}'" in str(error)


def test_the_first_format_is_read_where_unsigned_artifacts_are():
    expected = (Header(key=KEY, ingredients=INGREDIENTS), PAYLOAD)
    assert accepted(old(), trust=ANYONE, ingredients=INGREDIENTS) == expected
    assert accepted(old(), trust=Trust.of([SIGNER.public], unsigned=True)) == expected
    assert verify("it", old(), ANYONE) is None
    assert peek("it", old()) == expected[0]


def test_the_first_format_is_refused_where_signatures_are_required_and_it_says_what_to_do():
    error = refused(old())
    assert isinstance(error, Untrusted)
    assert error.reason == "its format is 1, which has no room for a signature: publish it again"
    assert isinstance(caught(verify, "it", old(), TRUST), Untrusted)


def test_the_first_format_cannot_be_signed_and_it_says_what_to_do():
    error = caught(sign, "it", old(), SIGNER)
    assert isinstance(error, Damaged)
    assert error.reason == "its format is 1, which has no room for a signature: publish it again"


def test_no_byte_of_the_first_format_can_be_flipped_or_cut():
    whole = old()
    for index in range(len(whole)):
        changed = bytearray(whole)
        changed[index] ^= 0xFF
        assert isinstance(refused(bytes(changed), trust=ANYONE), Damaged | Foreign)
        assert isinstance(refused(whole[:index], trust=ANYONE), Damaged)


def test_one_format_does_not_pass_for_the_other():
    """Neither is the other with the last byte of the magic changed, even where nothing has to be signed."""
    for data, version in ((WHOLE, 1), (UNSIGNED, 1), (old(), 2)):
        changed = bytearray(data)
        changed[7] = version
        assert isinstance(refused(bytes(changed), trust=ANYONE), Damaged)


def test_a_signature_behind_the_first_format_does_not_count():
    body = body_of(OLD_MAGIC, msgspec.json.encode(HEADER), PAYLOAD)
    digest = hashlib.sha256(body).digest()
    signature = SIGNER.sign("artifact", digest)
    data = body + digest + bytes.fromhex(signature.signed_by + signature.signature)
    assert isinstance(refused(data), Damaged)
    assert isinstance(refused(data, trust=ANYONE), Damaged)


# Keys


def assert_untrusted(data, trust, *words):
    for error in (refused(data, trust=trust), caught(verify, f"artifact {KEY[:16]}", data, trust)):
        assert isinstance(error, Untrusted)
        assert str(error).startswith(f"artifact {KEY[:16]} is not trusted: ")
        for word in words:
            assert word in error.reason


def with_signature(data, key_id, signature):
    return data[:-SIGNATURE_BYTES] + bytes.fromhex(key_id) + signature


def test_who_signed_is_told_and_trusted_keys_count_alike():
    for signer in (SIGNER, OTHER):
        assert verify("it", pack(HEADER, PAYLOAD, signer), TRUST) == signer.key_id


def test_what_nobody_signed_is_refused_where_signatures_are_required():
    assert_untrusted(UNSIGNED, TRUST, "it is not signed")
    assert_untrusted(UNSIGNED, Trust(), "it is not signed")
    assert accepted(UNSIGNED, trust=ANYONE) == (HEADER, PAYLOAD)


def test_a_key_that_is_not_trusted_here_is_named():
    data = pack(HEADER, PAYLOAD, STRANGER)
    assert_untrusted(data, TRUST, STRANGER.key_id[:16], "not trusted here")
    assert verify("it", data, ANYONE) == STRANGER.key_id


def test_a_key_that_is_trusted_no_more_does_not_count_for_what_it_signed_before():
    assert accepted(WHOLE) == (HEADER, PAYLOAD)
    assert_untrusted(WHOLE, Trust.of([OTHER.public]), SIGNER.key_id[:16], "not trusted here")


@pytest.mark.parametrize("unsigned", [False, True])
def test_a_distrusted_key_never_counts(unsigned):
    trust = Trust.of([SIGNER.public, OTHER.public], unsigned=unsigned, distrusted=[SIGNER.key_id])
    assert_untrusted(WHOLE, trust, SIGNER.key_id[:16], "distrusted")
    assert verify("it", pack(HEADER, PAYLOAD, OTHER), trust) == OTHER.key_id


@pytest.mark.parametrize("unsigned", [False, True])
def test_a_signature_under_the_id_of_another_trusted_key_does_not_count(unsigned):
    trust = Trust.of([SIGNER.public, OTHER.public], unsigned=unsigned)
    assert_untrusted(
        with_signature(WHOLE, OTHER.key_id, WHOLE[-64:]), trust, f"not that of the key {OTHER.key_id[:16]}"
    )


@pytest.mark.parametrize("unsigned", [False, True])
def test_a_signature_of_another_artifact_does_not_count(unsigned):
    trust = Trust.of([SIGNER.public], unsigned=unsigned)
    other = pack(HEADER, PAYLOAD + b"more", SIGNER)
    assert_untrusted(WHOLE[:-SIGNATURE_BYTES] + other[-SIGNATURE_BYTES:], trust, SIGNER.key_id[:16])


def test_a_signature_of_a_document_with_the_same_digest_does_not_count():
    signature = SIGNER.sign("document", WHOLE[-TRAILER_BYTES:-SIGNATURE_BYTES])
    data = with_signature(WHOLE, signature.signed_by, bytes.fromhex(signature.signature))
    assert_untrusted(data, TRUST, f"not that of the key {SIGNER.key_id[:16]}")


def test_half_a_signature_is_none_that_counts():
    assert_untrusted(
        with_signature(WHOLE, SIGNER.key_id, bytes(64)), TRUST, f"not that of the key {SIGNER.key_id[:16]}"
    )
    assert_untrusted(with_signature(WHOLE, "00" * 32, WHOLE[-64:]), TRUST, "signed by the key 0000000000000000, ")


def test_signing_again_changes_the_signature_alone():
    for data in (WHOLE, UNSIGNED, pack(HEADER, PAYLOAD, STRANGER)):
        assert sign("it", data, OTHER) == pack(HEADER, PAYLOAD, OTHER)


def test_what_is_damaged_is_not_signed():
    for index in range(len(UNSIGNED) - SIGNATURE_BYTES):
        changed = bytearray(UNSIGNED)
        changed[index] ^= 1
        with pytest.raises((Damaged, Foreign)):
            sign("it", bytes(changed), SIGNER)


# For what it was made


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
        unpack(WHOLE, key=KEY, trust=TRUST, ingredients=wanted)
    else:
        assert isinstance(refused(WHOLE, ingredients=wanted), Foreign)


def test_the_message_names_the_artifact_by_the_beginning_of_its_key():
    assert str(refused(WHOLE[:10])).startswith(f"artifact {KEY[:16]} is damaged: ")


# A look at the start


def test_the_header_can_be_read_from_any_start_that_holds_it():
    for length in range(len(WHOLE) + 1):
        start = WHOLE[:length]
        if length < PREFIX_BYTES + HEADER_BYTES:
            words = (
                "are fewer than an artifact has"
                if length < PREFIX_BYTES
                else f"do not hold its header of {HEADER_BYTES}"
            )
            with pytest.raises(Damaged, match=f"^it is damaged: {length} bytes {words}$"):
                peek("it", start)
        else:
            assert peek("it", start) == HEADER


def test_a_look_at_the_header_verifies_nothing():
    assert peek("it", WHOLE[:-TRAILER_BYTES] + bytes(TRAILER_BYTES)) == HEADER
    assert peek("it", WHOLE[: PREFIX_BYTES + HEADER_BYTES] + b"anything") == HEADER


def test_a_kind_is_asked_for_and_format_1_does_not_say_which_it_is():
    assert accepted(WHOLE, kind="executable") == (HEADER, PAYLOAD)
    assert refused(WHOLE, kind="program").differences == {"kind": ("program", "executable")}
    encoded = msgspec.json.encode({"key": KEY, "ingredients": INGREDIENTS})
    body = body_of(OLD_MAGIC, encoded, PAYLOAD)
    assert accepted(body + hashlib.sha256(body).digest(), trust=ANYONE, kind="program")[1] == PAYLOAD
