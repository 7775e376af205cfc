"""Whatever lies in a folder that nobody signs, it is a record or it is none: no reader of it ends with a traceback."""

from __future__ import annotations

import json
import struct

import msgspec
import pytest

from cache.artifact import MAGIC, peek
from cache.document import signer_of, unseal
from cache.errors import Damaged
from cache.failures import recorded
from cache.fingerprint import Fingerprint
from cache.lease import Contender
from cache.local_store import LocalStore
from cache.quarantine import quarantine, quarantined
from cache.records import RECORD_BYTES_MAX, coordinated, decoded
from cache.sightings import mark, sightings
from cache.signing import ANYONE

DEEP = b'{"x":' + b"[" * 200_000
DEEP_AND_SMALL = b'{"x":' + b"[" * 60_000
CPU = Fingerprint({"platform": "cpu"})


class Record(msgspec.Struct):
    x: str = ""


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path / "store")


@pytest.mark.parametrize("kind", [Record, object, dict[str, str]])
def test_what_is_nested_too_deeply_is_no_record(kind):
    with pytest.raises(msgspec.MsgspecError):
        decoded(DEEP.replace(b"x", b"y"), kind)


def test_what_coordinates_is_small():
    full = json.dumps({"x": ""}).encode()
    full = full[:-2] + b"a" * (RECORD_BYTES_MAX - len(full)) + full[-2:]
    assert len(coordinated(full, Record).x) > RECORD_BYTES_MAX - 20
    with pytest.raises(msgspec.MsgspecError, match="at most 65536 bytes"):
        coordinated(full + b" ", Record)


@pytest.mark.parametrize("garbage", [DEEP, DEEP_AND_SMALL], ids=["large", "small"])
def test_garbage_where_a_fleet_coordinates_is_ignored(store, garbage):
    store.put(f"fingerprints/{CPU.digest}", garbage)
    assert sightings(store) == {}
    mark(store, CPU)
    assert set(sightings(store)) == {CPU.digest}
    store.put("failures/ab", garbage)
    assert recorded(store, "ab") is None
    store.put("leases/ab", garbage)
    contender = Contender(store, "leases/ab")
    assert contender.acquire() is None
    assert contender.holder == "somebody unknown"
    store.put("executables/ab", b"damaged")
    kept = quarantine(store, "executables/ab", "it is damaged")
    store.put("quarantine/20260101T000000-00000000/reason.json", garbage)
    assert quarantined(store) == [kept]


def test_an_object_with_a_header_or_seal_of_that_kind_is_damaged():
    signed = b'{}\n{"signed_by":' + b"[" * 200_000
    with pytest.raises(Damaged, match="signature cannot be read"):
        unseal("models/m/serving.json", signed, ANYONE)
    assert signer_of(signed) is None
    header = DEEP_AND_SMALL
    with pytest.raises(Damaged, match="header cannot be read"):
        peek("it", struct.pack("<8sQQ", MAGIC, len(header), 0) + header)
