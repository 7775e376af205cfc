"""A signature counts for one thing, from one key, in one place; key files are what they should be, or are named."""

from __future__ import annotations

import base64
import hashlib
import os
import resource
import subprocess
import sys

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa, x25519
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from hypothesis import given
from hypothesis import strategies as st

from cache.errors import Untrusted
from cache.signing import ANYONE, KeyFileError, Signature, Signer, Trust, key_id_of, read_public_keys

DIGEST = hashlib.sha256(b"what is signed").digest()
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw()
SIGNER = Signer(KEY)
OTHER = Signer(Ed25519PrivateKey.from_private_bytes(b"2" * 32))
STRANGER = Signer(Ed25519PrivateKey.from_private_bytes(b"3" * 32))


def why(trust, signature, *, domain="artifact", digest=DIGEST):
    """Why something with this signature is refused; "" where it is not."""
    try:
        trust.check("it", domain, digest, signature)
    except Untrusted as error:
        return error.reason
    return ""


# Signatures


def test_a_signature_is_over_the_domain_and_the_digest():
    signature = SIGNER.sign("artifact", DIGEST)
    Ed25519PublicKey.from_public_bytes(PUBLIC).verify(
        bytes.fromhex(signature.signature), b"warmpool artifact\x00" + DIGEST
    )
    assert signature.signed_by == SIGNER.key_id


def test_a_key_is_known_by_the_digest_of_its_public_half():
    assert SIGNER.public == PUBLIC
    assert SIGNER.key_id == key_id_of(PUBLIC) == hashlib.sha256(PUBLIC).hexdigest()


def test_generated_keys_differ():
    assert Signer.generate().key_id != Signer.generate().key_id


@given(st.sampled_from("ab"), st.sampled_from("ab"), st.binary(min_size=32, max_size=32), st.integers(0, 255))
def test_a_signature_counts_for_its_domain_and_digest_alone(signed, asked, digest, flip):
    other = bytearray(digest)
    other[flip % 32] ^= flip
    signature = SIGNER.sign(signed, digest)
    reason = why(Trust.of([PUBLIC]), signature, domain=asked, digest=bytes(other))
    assert (reason == "") == (signed == asked and flip == 0)


@pytest.mark.parametrize(
    "signature", ["", "00", "00" * 63, "00" * 64, "00" * 65, "zz" * 64, "ä" * 128, SIGNER.sign("a", DIGEST).signature]
)
def test_what_is_no_signature_of_the_key_does_not_count(signature):
    reason = why(Trust.of([PUBLIC], unsigned=True), Signature(signed_by=SIGNER.key_id, signature=signature))
    assert reason == f"its signature is not that of the key {SIGNER.key_id[:16]}"


# Trust

SIGNED = {
    "nobody": None,
    "a trusted key": SIGNER.sign("artifact", DIGEST),
    "a trusted key, something else": SIGNER.sign("artifact", bytes(32)),
    "an unknown key": STRANGER.sign("artifact", DIGEST),
    "an unknown key, something else": STRANGER.sign("artifact", bytes(32)),
    "a distrusted key": OTHER.sign("artifact", DIGEST),
    "another trusted key, under this one's id": Signature(
        signed_by=SIGNER.key_id, signature=OTHER.sign("artifact", DIGEST).signature
    ),
    "no key": Signature(signed_by="", signature=""),
}
STRICT = {
    "nobody": "it is not signed",
    "a trusted key": "",
    "a trusted key, something else": f"its signature is not that of the key {SIGNER.key_id[:16]}",
    "an unknown key": f"it is signed by the key {STRANGER.key_id[:16]}, which is not trusted here",
    "an unknown key, something else": f"it is signed by the key {STRANGER.key_id[:16]}, which is not trusted here",
    "a distrusted key": f"it is signed by the key {OTHER.key_id[:16]}, which is distrusted",
    "another trusted key, under this one's id": f"its signature is not that of the key {SIGNER.key_id[:16]}",
    "no key": "it is signed by the key , which is not trusted here",
}
LENIENT = {**STRICT, "nobody": "", "an unknown key": "", "an unknown key, something else": "", "no key": ""}


@pytest.mark.parametrize("by", SIGNED)
def test_what_counts_and_why_the_rest_does_not(by):
    keys, distrusted = [SIGNER.public, OTHER.public], [OTHER.key_id]
    assert why(Trust.of(keys, distrusted=distrusted), SIGNED[by]) == STRICT[by]
    assert why(Trust.of(keys, unsigned=True, distrusted=distrusted), SIGNED[by]) == LENIENT[by]


def test_nobody_is_trusted_where_nothing_is_said():
    assert why(Trust(), None) == "it is not signed"
    assert "not trusted here" in why(Trust(), SIGNED["a trusted key"])
    assert why(Trust.of([]), None) == "it is not signed"
    assert why(ANYONE, None) == ""


def test_the_message_names_what_was_refused():
    with pytest.raises(Untrusted, match=r"^it is not trusted: it is not signed$"):
        Trust().check("it", "artifact", DIGEST, None)


def test_a_key_that_is_distrusted_without_having_been_trusted_does_not_count_where_unsigned_things_do():
    trust = Trust(unsigned=True, distrusted=frozenset([STRANGER.key_id]))
    assert "which is distrusted" in why(trust, SIGNED["an unknown key"])


@given(
    st.lists(st.binary(min_size=32, max_size=32), max_size=3),
    st.booleans(),
    st.lists(st.text("0123456789abcdef", min_size=64, max_size=64), max_size=3),
)
def test_a_lane_is_told_all_of_it(keys, unsigned, distrusted):
    trust = Trust.of(keys, unsigned=unsigned, distrusted=distrusted)
    assert Trust.from_json(trust.to_json()) == trust
    assert set(trust.keys.values()) == set(keys)


def test_only_who_meets_a_signature_imports_cryptography():
    code = (
        "import sys, cache.signing, cache.artifact, cache.document\n"
        "cache.signing.ANYONE.check('it', 'artifact', bytes(32), None)\n"
        "assert not [name for name in sys.modules if name.startswith('cryptography')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# Key files


@pytest.fixture
def key_file(tmp_path):
    return tmp_path / "keys" / "publisher"


def test_a_written_key_is_read_again_and_others_can_read_it_too(key_file):
    beside = SIGNER.write(key_file)
    assert beside == key_file.with_name("publisher.pub")
    assert sorted(key_file.parent.iterdir()) == [key_file, beside]
    assert Signer.read(key_file).key_id == SIGNER.key_id
    assert read_public_keys([beside]) == [PUBLIC]
    private = load_pem_private_key(key_file.read_bytes(), password=None)
    assert isinstance(private, Ed25519PrivateKey)
    assert private.private_bytes_raw() == bytes(range(32))
    public = load_pem_public_key(beside.read_bytes())
    assert isinstance(public, Ed25519PublicKey)
    assert public.public_bytes_raw() == PUBLIC


def test_what_the_read_key_signs_counts_for_the_read_public_key(key_file):
    beside = SIGNER.write(key_file)
    assert why(Trust.of(read_public_keys([beside])), Signer.read(key_file).sign("artifact", DIGEST)) == ""


def test_only_its_owner_reads_a_private_key_whatever_the_mask(key_file):
    mask = os.umask(0)
    try:
        beside = SIGNER.write(key_file)
    finally:
        os.umask(mask)
    assert key_file.stat().st_mode & 0o777 == 0o600
    assert beside.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("existing", ["publisher", "publisher.pub"])
def test_no_key_is_overwritten_neither_half(key_file, existing):
    """A public half may be all that is left here of a key that was taken to a safe place."""
    key_file.parent.mkdir()
    there = key_file.with_name(existing)
    there.write_text("precious")
    with pytest.raises(KeyFileError) as caught:
        SIGNER.write(key_file)
    assert str(caught.value) == f"key file {there}: it cannot be written (File exists)"
    assert list(key_file.parent.iterdir()) == [there]
    assert there.read_text() == "precious"


def test_a_key_is_not_written_through_a_link(key_file, tmp_path):
    key_file.parent.mkdir()
    key_file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(KeyFileError, match="File exists"):
        SIGNER.write(key_file)
    assert not (tmp_path / "elsewhere").exists()


def test_where_no_key_can_be_written_it_is_said_and_nothing_is_left(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(KeyFileError, match=r"key file .*/file/key: it cannot be written \((File exists|Not a dir)"):
        SIGNER.write(tmp_path / "file" / "key")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_half_a_key_is_not_left_where_the_space_ends(key_file):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))
    try:
        with pytest.raises(KeyFileError, match="File too large"):
            SIGNER.write(key_file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(key_file.parent.iterdir()) == []


def private_pem(key):
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def public_pem(key):
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def pem(der, what):
    return b"-----BEGIN %b-----\n%b-----END %b-----\n" % (what, base64.encodebytes(der), what)


ED25519_OID, UNKNOWN_OID = bytes([0x2B, 0x65, 0x70]), bytes([0x2B, 0x65, 0x7F])
PRIVATE_DER = KEY.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
PUBLIC_DER = KEY.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
X25519 = x25519.X25519PrivateKey.from_private_bytes(bytes(range(32)))

NO_ED25519 = "it is no Ed25519 key; make one with `warmpool cache keygen`"
NO_PRIVATE = "it is no PEM file of a private key"
NO_PUBLIC = "it is no PEM file of a public key"
PRIVATE_FILES = {
    "empty": (b"", NO_PRIVATE),
    "text": (b"hello", NO_PRIVATE),
    "bytes": (bytes(range(256)), NO_PRIVATE),
    "raw": (bytes(range(32)), NO_PRIVATE),
    "DER": (PRIVATE_DER, NO_PRIVATE),
    "cut": (pem(PRIVATE_DER[:-1], b"PRIVATE KEY"), NO_PRIVATE),
    "the public half": (public_pem(KEY), NO_PRIVATE),
    "OpenSSH": (KEY.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), NO_PRIVATE),
    "a certificate": (pem(PRIVATE_DER, b"CERTIFICATE"), NO_PRIVATE),
    "RSA": (private_pem(RSA), NO_ED25519),
    "EC": (private_pem(EC), NO_ED25519),
    "X25519": (private_pem(X25519), NO_ED25519),
    "of a kind that nobody knows": (
        pem(PRIVATE_DER.replace(ED25519_OID, UNKNOWN_OID), b"PRIVATE KEY"),
        NO_ED25519,
    ),
    "encrypted": (
        KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")),
        "it is encrypted; give it as a PEM file without a password",
    ),
}
PUBLIC_FILES = {
    "empty": (b"", NO_PUBLIC),
    "text": (b"hello", NO_PUBLIC),
    "bytes": (bytes(range(256)), NO_PUBLIC),
    "raw": (PUBLIC, NO_PUBLIC),
    "DER": (PUBLIC_DER, NO_PUBLIC),
    "cut": (pem(PUBLIC_DER[:-1], b"PUBLIC KEY"), NO_PUBLIC),
    "the private half": (private_pem(KEY), NO_PUBLIC),
    "OpenSSH": (KEY.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH), NO_PUBLIC),
    "RSA": (public_pem(RSA), NO_ED25519),
    "EC": (public_pem(EC), NO_ED25519),
    "X25519": (public_pem(X25519), NO_ED25519),
    "of a kind that nobody knows": (pem(PUBLIC_DER.replace(ED25519_OID, UNKNOWN_OID), b"PUBLIC KEY"), NO_ED25519),
}


@pytest.mark.parametrize("what", PRIVATE_FILES)
def test_what_is_no_private_key_is_told_by_file_and_reason(tmp_path, what):
    content, reason = PRIVATE_FILES[what]
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(KeyFileError) as caught:
        Signer.read(tmp_path / "key")
    assert str(caught.value) == f"private key {tmp_path / 'key'}: {reason}"


@pytest.mark.parametrize("in_a_folder", [False, True])
@pytest.mark.parametrize("what", PUBLIC_FILES)
def test_what_is_no_public_key_is_told_by_file_and_reason(tmp_path, what, in_a_folder):
    content, reason = PUBLIC_FILES[what]
    (tmp_path / "key.pub").write_bytes(content)
    with pytest.raises(KeyFileError) as caught:
        read_public_keys([tmp_path if in_a_folder else tmp_path / "key.pub"])
    assert str(caught.value) == f"public key {tmp_path / 'key.pub'}: {reason}"


@pytest.mark.parametrize("name", ["missing", "file/below", "x" * 300])
def test_a_key_file_that_cannot_be_read_is_told_with_the_systems_reason(tmp_path, name):
    (tmp_path / "file").write_text("")
    for half, read in (("private", Signer.read), ("public", lambda path: read_public_keys([path]))):
        with pytest.raises(KeyFileError, match=rf"^{half} key .*{name}: it cannot be read \(\w+"):
            read(tmp_path / name)


def test_a_folder_is_no_private_key(tmp_path):
    with pytest.raises(KeyFileError, match=r"cannot be read \(Is a directory\)"):
        Signer.read(tmp_path)


def test_a_folder_gives_every_public_key_in_it_and_nothing_else(tmp_path):
    keys = tmp_path / "keys"
    for name, signer in (("b", OTHER), ("a", SIGNER)):
        signer.write(keys / name)
    (keys / "notes.txt").write_text("not a key")
    single = STRANGER.write(tmp_path / "single")
    assert read_public_keys([keys, single]) == [SIGNER.public, OTHER.public, STRANGER.public]
    assert read_public_keys([]) == []


def test_a_folder_without_public_keys_is_a_mistake_that_is_told(tmp_path):
    (tmp_path / "key").write_bytes(private_pem(KEY))
    with pytest.raises(KeyFileError) as caught:
        read_public_keys([tmp_path])
    assert str(caught.value) == f"public keys: the folder {tmp_path} holds no *.pub file"


def test_no_message_and_no_repr_shows_a_private_key(key_file):
    SIGNER.write(key_file)
    secret = key_file.read_text().splitlines()[1]
    shown = [repr(SIGNER), str(SIGNER), repr(vars(SIGNER))]
    with pytest.raises(KeyFileError) as caught:
        read_public_keys([key_file])
    assert not [text for text in [*shown, str(caught.value)] if secret in text or bytes(range(32)).hex() in text]


def test_every_public_key_of_a_file_counts(tmp_path):
    for name, signer in (("a", SIGNER), ("b", OTHER)):
        signer.write(tmp_path / name)
    both = tmp_path / "both.pem"
    both.write_bytes(b"those of the team\n" + b"\n".join((tmp_path / name).read_bytes() for name in ("a.pub", "b.pub")))
    assert read_public_keys([both]) == [SIGNER.public, OTHER.public]
    both.write_bytes((tmp_path / "a.pub").read_bytes() + (tmp_path / "b").read_bytes())
    with pytest.raises(KeyFileError, match="it is no PEM file of a public key"):
        read_public_keys([both])


@given(raw=st.binary(min_size=32, max_size=32), form=st.sampled_from(["as written", "lines of Windows", "wrapped"]))
def test_a_public_key_is_read_as_the_library_reads_it_in_every_form(tmp_path_factory, raw, form):
    forms = (Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    pem = Ed25519PublicKey.from_public_bytes(raw).public_bytes(*forms)
    if form == "lines of Windows":
        pem = pem.replace(b"\n", b"\r\n")
    if form == "wrapped":
        first, body, *rest = pem.split(b"\n")
        pem = b"\n".join([first, body[:20], body[20:], *rest])
    file = tmp_path_factory.getbasetemp() / "drawn.pub"
    file.write_bytes(b"whose it is\n" + pem)
    assert read_public_keys([file]) == [raw]


def test_a_key_as_it_is_written_here_is_read_without_the_librarys_parser(key_file):
    beside = SIGNER.write(key_file)
    code = "import sys, pathlib; from cache.signing import read_public_keys as read; read([pathlib.Path(sys.argv[1])])"
    parser = "cryptography.hazmat.primitives.serialization"
    command = [sys.executable, "-c", f"{code}; print({parser!r} in sys.modules)", str(beside)]
    done = subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == (b"False\n", b"")


def test_nobody_waits_for_a_pipe_that_is_to_hold_a_public_key(tmp_path):
    os.mkfifo(tmp_path / "key.pub")
    for place in (tmp_path / "key.pub", tmp_path):
        with pytest.raises(KeyFileError, match=r"key\.pub: it cannot be read \(it is a pipe\)"):
            read_public_keys([place])


@pytest.mark.parametrize(("mode", "told"), [(0o600, 0), (0o440, 0), (0o644, 1), (0o602, 1)])
def test_a_private_key_that_every_user_may_use_is_warned_of(tmp_path, caplog, mode, told):
    SIGNER.write(tmp_path / "key")
    (tmp_path / "key").chmod(mode)
    assert Signer.read(tmp_path / "key").key_id == SIGNER.key_id
    assert caplog.text.count(f"private key {tmp_path / 'key'}: every user may use it (its mode is {mode:o})") == told
