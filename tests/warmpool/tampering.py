"""Artifacts as they must never reach XLA: damaged, cut, swapped, stale, foreign or signed by the wrong key.

Those that say something else than the original, rather than being damaged, have a right digest and a right signature of
a trusted key, so that nothing but what they say can be their undoing.
"""

from __future__ import annotations

import hashlib
import platform
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import strategies as st

from cache.artifact import MAGIC, Header, TensorType, pack, peek
from cache.ingredients import digest_ingredients
from cache.signing import Signer, Trust

SIGNER, COLLEAGUE, STRANGER, REVOKED = (
    Signer(Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)) for number in range(1, 5)
)
TRUST = Trust.of([SIGNER.public, COLLEAGUE.public, REVOKED.public], distrusted=[REVOKED.key_id])

PREFIX_BYTES, DIGEST_BYTES, KEY_ID_BYTES, SIGNATURE_BYTES = 24, 32, 32, 64
SIGNED_BYTES = KEY_ID_BYTES + SIGNATURE_BYTES
EXECUTABLE = 4  # ELF's flag of a section that holds instructions
TRAILER_BYTES = DIGEST_BYTES + SIGNED_BYTES

# What other machines and other days have: name of the ingredient, what it is there.
ELSEWHERE = {
    "jax": "0.10.2",
    "jaxlib": "0.10.2",
    "jaxlib_binary": "sha256=of-another-build",
    "platform": "cuda",
    "platform_version": "cuda 13",
    "device_kind": "NVIDIA H200",
    "device_count": "8",
    "machine": "riscv64",
    "xla_flags": "--xla_cpu_max_isa=SSE4_2",
    "cpu_features": "avx512f sse2",
    "cpu_cores": "96",
}


@dataclass(frozen=True)
class Genuine:
    """An artifact taken apart; `others` are genuine ones too, made for something else by the same key."""

    data: bytes
    others: tuple[bytes, ...]

    @property
    def header(self) -> Header:
        return peek("it", self.data)

    @property
    def payload(self) -> bytes:
        return self.data[self.regions["payload"]]

    @property
    def regions(self) -> dict[str, slice]:
        return regions_of(self.data)

    def saying(self, signer: Signer | None = SIGNER, **changes: Any) -> bytes:
        """The same executable under another header, signed anew."""
        return pack(msgspec.structs.replace(self.header, **changes), self.payload, signer)

    def made_of(self, ingredients: dict[str, str], *, renamed: bool) -> bytes:
        """With other ingredients, under the key that they give or under the old one."""
        key = digest_ingredients(ingredients) if renamed else self.header.key
        return self.saying(ingredients=ingredients, key=key)

    def with_ingredient(self, name: str, value: str, renamed: bool) -> bytes:
        return self.made_of({**self.header.ingredients, name: value}, renamed=renamed)

    def without_ingredient(self, name: str, renamed: bool) -> bytes:
        kept = {other: value for other, value in self.header.ingredients.items() if other != name}
        return self.made_of(kept, renamed=renamed)

    def from_elsewhere(self, name: str, renamed: bool = False) -> bytes:
        """As it would have been made on a machine that differs in one ingredient of the fingerprint."""
        return self.with_ingredient(f"fingerprint.{name}", ELSEWHERE[name], renamed)

    def called(self, **changes: Any) -> bytes:
        """With another calling convention."""
        assert self.header.calling is not None
        return self.saying(calling=msgspec.structs.replace(self.header.calling, **changes))

    def with_payload(self, payload: bytes) -> bytes:
        """Another executable under the same header, signed anew: only who signed it is to blame."""
        return pack(self.header, payload, SIGNER)

    def spliced(self, region: str, content: bytes) -> bytes:
        """With other bytes in the place of a region."""
        return _spliced(self.data, self.regions[region], content)

    def under(self, key_id: str) -> bytes:
        """With its signature said to be that of another key."""
        start = self.regions["key id"].start
        return self.data[:start] + bytes.fromhex(key_id) + self.data[start + KEY_ID_BYTES :]

    def of_format(self, version: int) -> bytes:
        """In another format, with a right digest; in the present one's signature where it has room for it."""
        body = bytearray(self.data[:-TRAILER_BYTES])
        body[len(MAGIC) - 1] = version
        digest = hashlib.sha256(body).digest()
        if version == 1:
            return bytes(body) + digest
        signature = SIGNER.sign("artifact", digest)
        return bytes(body) + digest + bytes.fromhex(signature.signed_by + signature.signature)


def regions_of(data: bytes) -> dict[str, slice]:
    """The parts of an artifact, by what they hold."""
    _, header_bytes, payload_bytes = struct.unpack_from("<8sQQ", data)
    lengths = {
        "magic": 8,
        "header's length": 8,
        "payload's length": 8,
        "header": header_bytes,
        "payload": payload_bytes,
        "digest": DIGEST_BYTES,
        "key id": KEY_ID_BYTES,
        "signature": SIGNATURE_BYTES,
    }
    regions, start = {}, 0
    for name, length in lengths.items():
        regions[name] = slice(start, start + length)
        start += length
    assert start == len(data)
    return regions


def deadly(payload: bytes) -> bytes:
    """An executable that loads and dies of an illegal instruction when it is run: the machine code within is ELF."""
    elf = payload.index(b"\x7fELF")
    (sections,) = struct.unpack_from("<Q", payload, elf + 0x28)
    size, count = struct.unpack_from("<HH", payload, elf + 0x3A)
    illegal = {"x86_64": b"\x0f\x0b", "aarch64": bytes(2)}[platform.machine()]
    changed = bytearray(payload)
    for index in range(count):
        _, _, flags, _, offset, length = struct.unpack_from("<IIQQQQ", payload, elf + sections + index * size)
        if flags & EXECUTABLE:
            changed[elf + offset : elf + offset + length] = (illegal * length)[:length]
    assert changed != payload
    return bytes(changed)


def attacks(genuine: Genuine) -> dict[str, st.SearchStrategy[bytes]]:
    """Ways to make bytes that are not the artifact which is looked for, by what is done."""
    return {**_damages(genuine), **_lies(genuine), **_signatures(genuine)}


def _damages(genuine: Genuine) -> dict[str, st.SearchStrategy[bytes]]:
    """What a disk, a network or a clumsy hand does: the digest is no longer right, or not that of the content."""
    data = genuine.data
    found: dict[str, st.SearchStrategy[bytes]] = {}
    for name, region in genuine.regions.items():
        found[f"a bit flipped in the {name}"] = st.builds(
            _flipped, st.just(data), st.integers(region.start, region.stop - 1), st.integers(0, 7)
        )
        found[f"the {name} overwritten"] = st.builds(
            _overwritten, st.just(data), st.just(region), st.binary(min_size=1, max_size=64), st.integers(0, 1 << 20)
        )
        if name != "magic":  # they all have the same
            found[f"the {name} of another artifact"] = st.sampled_from(
                [_spliced(data, region, other[regions_of(other)[name]]) for other in genuine.others]
            )
        found[f"the {name} cut out"] = st.just(_spliced(data, region, b""))
        found[f"the {name} twice"] = st.just(_spliced(data, region, data[region] * 2))
    return found | {
        "truncated": st.integers(0, len(data) - 1).map(lambda length: data[:length]),
        "grown": st.builds(_grown, st.just(data), st.binary(min_size=1, max_size=64), st.booleans()),
        "zeroed": st.integers(0, len(data) - 1).map(lambda start: data[:start] + bytes(len(data) - start)),
        "something else": st.binary(max_size=300),
        "another whole artifact": st.sampled_from(genuine.others),
    }


def _lies(genuine: Genuine) -> dict[str, st.SearchStrategy[bytes]]:
    """Whole and signed by a trusted key, but not what is looked for: every field of the header, each in turn."""
    header = genuine.header
    assert header.calling is not None
    found: dict[str, st.SearchStrategy[bytes]] = {
        "key": st.text("0123456789abcdef", max_size=64).map(lambda key: genuine.saying(key=key)),
        "key in capitals": st.just(genuine.saying(key=header.key.upper())),
        "kind": st.sampled_from(("program", "jax-cache")).map(lambda kind: genuine.saying(kind=kind)),
        "an ingredient more": st.builds(
            genuine.with_ingredient,
            st.sampled_from(("fingerprint.", "bucket.", "option.", "")).flatmap(
                lambda prefix: st.text(min_size=1, max_size=8).map(lambda name: prefix + name)
            ),
            st.text(max_size=8),
            st.booleans(),
        ),
        "an ingredient of nearly a mebibyte": st.booleans().map(
            lambda renamed: genuine.with_ingredient("fingerprint.jaxlib", "\N{GRINNING FACE}" * 200_000, renamed)
        ),
        "no ingredients": st.booleans().map(lambda renamed: genuine.made_of({}, renamed=renamed)),
        "number of devices": st.integers(2, 64).map(lambda devices: genuine.called(devices=devices)),
        "donated": st.sets(st.integers(0, 3), min_size=1).map(lambda some: genuine.called(donated=tuple(some))),
        "kept": st.sets(st.integers(0, 3), max_size=3).map(lambda some: genuine.called(kept=tuple(some))),
        "arguments": _other_tensors(header.calling.arguments).map(lambda some: genuine.called(arguments=some)),
        "results": _other_tensors(header.calling.results).map(lambda some: genuine.called(results=some)),
    }
    renamed = st.booleans()
    for name in header.ingredients:
        found[f"another {name}"] = st.builds(genuine.with_ingredient, st.just(name), st.text(max_size=12), renamed)
        found[f"no {name}"] = st.builds(genuine.without_ingredient, st.just(name), renamed)
    for name in ELSEWHERE:
        found[f"from elsewhere: {name}"] = st.builds(genuine.from_elsewhere, st.just(name), renamed)
    return found


def _signatures(genuine: Genuine) -> dict[str, st.SearchStrategy[bytes]]:
    """The very same executable, with everything that it says of itself, but nobody's whose word counts."""
    return {
        "unsigned": st.just(genuine.saying(None)),
        "signed by a stranger": st.just(genuine.saying(STRANGER)),
        "signed by a revoked key": st.just(genuine.saying(REVOKED)),
        "signed by anybody": st.binary(min_size=32, max_size=32).map(
            lambda seed: genuine.saying(Signer(Ed25519PrivateKey.from_private_bytes(seed)))
        ),
        "under the id of another trusted key": st.just(genuine.under(COLLEAGUE.key_id)),
        "under a stranger's id": st.just(genuine.under(STRANGER.key_id)),
        "of the first format": st.just(genuine.of_format(1)),
        "of a format to come": st.integers(3, 255).map(genuine.of_format),
    }


def _other_tensors(types: Sequence[TensorType]) -> st.SearchStrategy[tuple[TensorType, ...]]:
    """One tensor more, one fewer, or one of another type."""
    indices = st.integers(0, len(types) - 1)
    changed = st.builds(
        lambda index, dtype, shape: (*types[:index], TensorType(dtype, shape), *types[index + 1 :]),
        indices,
        st.sampled_from(("float32", "int32", "bool", "float16")),
        st.lists(st.integers(0, 8), max_size=3).map(tuple),
    )
    fewer = indices.map(lambda index: (*types[:index], *types[index + 1 :]))
    more = indices.map(lambda index: (*types[:index], types[index], *types[index:]))
    return st.one_of(changed, fewer, more).filter(lambda some: some != tuple(types))


def _flipped(data: bytes, index: int, bit: int) -> bytes:
    return data[:index] + bytes([data[index] ^ 1 << bit]) + data[index + 1 :]


def _overwritten(data: bytes, region: slice, content: bytes, offset: int) -> bytes:
    start = region.start + offset % (region.stop - region.start)
    content = content[: region.stop - start]
    return data[:start] + content + data[start + len(content) :]


def _spliced(data: bytes, region: slice, content: bytes) -> bytes:
    return data[: region.start] + content + data[region.stop :]


def _grown(data: bytes, more: bytes, in_front: bool) -> bytes:
    return more + data if in_front else data + more
