"""A sealed document counts under its own path, to the byte, and reads as the author wrote it."""

from __future__ import annotations

import hashlib

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from cache.document import seal, unseal
from cache.errors import Damaged, Untrusted
from cache.signing import ANYONE, Signature, Signer, Trust

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
SIGNER = Signer(KEY)
OTHER = Signer(Ed25519PrivateKey.from_private_bytes(b"2" * 32))
TRUST = Trust.of([SIGNER.public])
LENIENT = Trust.of([SIGNER.public], unsigned=True)
PATH = "models/toy/1/manifest.json"
BODY = b'{\n "model": "toy"\n}\n'
SEALED = seal(PATH, BODY, SIGNER)
SEAL = SEALED.removeprefix(BODY)
NOT_ITS = f"its signature is not that of the key {SIGNER.key_id[:16]}"
NOT_SIGNED = "it is not signed"

lines = st.binary(max_size=20).map(lambda line: line.replace(b"\n", b""))
bodies = st.lists(  # none is taken for a signature: Hypothesis also draws what it finds written in the code
    lines.filter(lambda line: not line.startswith(b'{"signed_by":')), max_size=5
).map(lambda lines: b"".join(line + b"\n" for line in lines))
paths = st.text("abc/.", max_size=12)


def reason(data, *, path=PATH, trust=TRUST):
    """Why it was refused; fails if it was not."""
    with pytest.raises((Untrusted, Damaged)) as caught:
        unseal(path, data, trust)
    assert str(caught.value).startswith(f"{path!r} is ")
    return str(caught.value).partition(": ")[2]


def test_the_seal_is_one_line_behind_the_document_over_its_path_and_every_byte():
    digest = hashlib.sha256(len(PATH).to_bytes(8, "little") + PATH.encode() + BODY).digest()
    signature = KEY.sign(b"warmpool document\x00" + digest).hex()
    line = f'{{"signed_by":"{SIGNER.key_id}","signature":"{signature}"}}\n'
    assert BODY + line.encode() == SEALED


@given(paths, bodies, st.sampled_from((SIGNER, None)))
def test_what_is_sealed_is_unsealed(path, body, signer):
    assert unseal(path, seal(path, body, signer), LENIENT) == body
    if signer:
        assert unseal(path, seal(path, body, signer), TRUST) == body


def test_an_empty_document_can_be_sealed():
    assert unseal(PATH, seal(PATH, b"", SIGNER), TRUST) == b""


def test_who_signs_nothing_stores_the_document_itself():
    assert seal(PATH, BODY, None) == BODY
    assert unseal(PATH, BODY, ANYONE) == BODY
    assert reason(BODY) == NOT_SIGNED


@given(paths, paths)
def test_a_seal_counts_under_its_own_path_alone(path, other):
    data = seal(path, BODY, SIGNER)
    if path == other:
        assert unseal(other, data, TRUST) == BODY
    else:
        assert reason(data, path=other) == NOT_ITS


def test_a_target_of_one_version_does_not_count_for_another():
    data = seal("models/toy/1/targets/0123.json", BODY, SIGNER)
    assert reason(data, path="models/toy/2/targets/0123.json") == NOT_ITS
    assert reason(data, path="models/toy/2/targets/0123.json", trust=LENIENT) == NOT_ITS


def test_path_and_document_do_not_run_together():
    """The length is signed too: what the path loses the body cannot gain."""
    assert reason(b"b\n" + seal("ab", b"\n", SIGNER)[1:], path="a") == NOT_ITS


@pytest.mark.parametrize("bit", range(8))
def test_no_bit_can_be_flipped(bit):
    """But the one that makes a hex digit of the signature upper case: it stands for the same bytes."""
    signature_starts = SEALED.rindex(b':"') + 2
    for index in range(len(SEALED) - 1):
        if bit == 5 and index >= signature_starts and SEALED[index] in b"abcdef":
            continue
        changed = bytearray(SEALED)
        changed[index] ^= 1 << bit
        reason(bytes(changed))


@given(st.data())
def test_no_part_can_be_cut_out_replaced_or_repeated(data):
    start = data.draw(st.integers(0, len(SEALED) - 2))
    end = data.draw(st.integers(start + 1, len(SEALED) - 1))
    replacement = data.draw(st.sampled_from((b"", SEALED[start:end] * 2, b"\n")) | st.binary(max_size=30))
    changed = SEALED[:start] + replacement + SEALED[end:]
    try:
        assert unseal(PATH, changed, TRUST) == BODY  # space within the seal's JSON says nothing else
    except (Untrusted, Damaged):
        return
    assert changed.startswith(BODY)


@pytest.mark.parametrize("length", range(len(SEALED) - 1))
def test_it_cannot_be_cut_short(length):
    reason(SEALED[:length])


def test_an_edited_document_is_refused_where_unsigned_ones_are_taken_too():
    edited = SEALED.replace(b"toy", b"tox")
    assert reason(edited) == reason(edited, trust=LENIENT) == NOT_ITS


def test_a_document_whose_seal_was_taken_off_is_refused():
    assert reason(SEALED.removesuffix(SEAL)) == NOT_SIGNED
    assert unseal(PATH, SEALED.removesuffix(SEAL), LENIENT) == BODY


def test_a_document_with_windows_line_ends_is_another_one():
    assert reason(SEALED.replace(b"\n", b"\r\n")) == NOT_ITS


def test_the_seals_own_line_end_may_be_lost_or_changed():
    for end in (b"", b"\n", b"\r\n"):
        assert unseal(PATH, SEALED[:-1] + end, TRUST) == BODY


@pytest.mark.parametrize("more", [b"\n", b"{}\n", b" \n", b"\n\n", b"\0"])
def test_nothing_may_follow_the_seal(more):
    assert reason(SEALED + more) == NOT_SIGNED


def test_of_two_seals_the_last_one_has_to_be_right_for_all_before_it():
    assert reason(SEALED + SEAL) == NOT_ITS
    assert reason(seal(PATH, BODY, OTHER) + SEAL) == NOT_ITS
    strangers = OTHER.sign("document", hashlib.sha256(SEALED).digest())
    assert "not trusted here" in reason(SEALED + msgspec.json.encode(strangers) + b"\n")


def test_a_seal_in_front_is_part_of_the_document():
    assert reason(SEAL + BODY) == NOT_SIGNED
    assert reason(SEAL + SEALED) == NOT_ITS


def test_a_seal_within_the_document_is_no_seal():
    body = BODY + SEAL + BODY
    assert unseal(PATH, seal(PATH, body, SIGNER), TRUST) == body
    assert reason(body) == NOT_SIGNED


@pytest.mark.parametrize("signer", [None, SIGNER])
@pytest.mark.parametrize("body", [SEALED, SEAL, SEALED[:-1], b'{}\n{"signed_by":\n', b'{"signed_by":"me"}'])
def test_a_document_that_ends_like_a_sealed_one_is_not_stored(signer, body):
    """Unsigned it would lose its last line when it is read."""
    with pytest.raises(ValueError, match=r"^document 'models/toy/1/manifest.json': it"):
        seal(PATH, body, signer)


@pytest.mark.parametrize("signer", [None, SIGNER])
def test_a_document_that_does_not_end_its_last_line_is_not_stored(signer):
    """The seal would stand on that line, and be none."""
    with pytest.raises(ValueError, match="it has to end with a newline"):
        seal(PATH, b"{}", signer)


@pytest.mark.parametrize(
    "line",
    [
        b'{"signed_by":',
        b'{"signed_by":"me"}',
        b'{"signed_by":"me","signature":1}',
        b'{"signed_by":"me","signature":"it","more":1}',
        b'{"signed_by":"me","signature":"it"} {}',
        b'{"signed_by":"\xff","signature":"it"}',
    ],
)
def test_a_seal_that_cannot_be_read_is_damage_where_unsigned_documents_are_taken_too(line):
    for trust in (TRUST, ANYONE):
        assert reason(BODY + line + b"\n", trust=trust).startswith("its signature cannot be read: ")


def test_a_seal_spelled_in_another_way_is_none():
    spelled = SEAL.replace(b'"signed_by":', b'"signed_by" :')
    assert reason(BODY + spelled) == NOT_SIGNED


def test_a_signature_of_an_artifact_with_the_same_digest_does_not_count():
    digest = hashlib.sha256(len(PATH).to_bytes(8, "little") + PATH.encode() + BODY).digest()
    assert reason(BODY + msgspec.json.encode(SIGNER.sign("artifact", digest)) + b"\n") == NOT_ITS


def test_a_key_in_other_letters_is_another_key():
    signature = msgspec.json.decode(SEAL, type=Signature)
    shouted = msgspec.structs.replace(signature, signed_by=signature.signed_by.upper())
    assert "not trusted here" in reason(BODY + msgspec.json.encode(shouted) + b"\n")


def test_keys_that_do_not_count_are_named():
    assert OTHER.key_id[:16] in reason(seal(PATH, BODY, OTHER))
    distrusting = Trust.of([SIGNER.public], unsigned=True, distrusted=[SIGNER.key_id])
    assert reason(SEALED, trust=distrusting) == f"it is signed by the key {SIGNER.key_id[:16]}, which is distrusted"
