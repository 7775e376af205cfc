"""Two sets of ingredients have the same key if and only if they are the same set."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cache.fingerprint import Fingerprint
from cache.ingredients import digest_ingredients, encoded_ingredients
from cache.key import executable_ingredients, made_for

# Few letters, so that names and values run into each other where lengths are not hashed.
words = st.text("ab\0:é", max_size=4)
sets = st.dictionaries(words, words, max_size=4)
PARTS: dict[str, Any] = {
    "program": "p" * 64,
    "bucket": {"batch": 8, "seq": 128},
    "fingerprint": Fingerprint({"jaxlib": "1", "machine": "x"}),
    "options": {"level": "2"},
}


def decoded(data):
    """The ingredients that these bytes were made of, read by lengths alone."""
    texts = []
    while data:
        length = int.from_bytes(data[:8], "little")
        texts.append(data[8 : 8 + length].decode())
        data = data[8 + length :]
    return dict(zip(texts[::2], texts[1::2], strict=True))


@given(sets)
def test_what_is_digested_can_be_read_back_so_no_two_sets_run_into_the_same_bytes(ingredients):
    assert decoded(encoded_ingredients(ingredients)) == ingredients


@given(sets, sets)
def test_different_ingredients_have_different_digests(one, other):
    assert (digest_ingredients(one) == digest_ingredients(other)) == (one == other)


@given(words, words, words)
def test_a_name_and_its_value_do_not_run_together(name, middle, value):
    assume(middle)
    assert digest_ingredients({name + middle: value}) != digest_ingredients({name: middle + value})


@given(sets, st.randoms(use_true_random=False))
def test_order_does_not_matter(ingredients, random):
    shuffled = list(ingredients.items())
    random.shuffle(shuffled)
    assert digest_ingredients(dict(shuffled)) == digest_ingredients(ingredients)


def test_the_digest_is_that_of_the_documented_bytes():
    length = (2).to_bytes(8, "little")
    expected = hashlib.sha256(length + "é".encode() + (1).to_bytes(8, "little") + b"x").hexdigest()
    assert digest_ingredients({"é": "x"}) == expected


def test_the_digest_of_nothing_is_that_of_no_bytes():
    assert digest_ingredients({}) == hashlib.sha256(b"").hexdigest()


@pytest.mark.parametrize(
    "change",
    [
        {"program": "q" * 64},
        {"bucket": {"batch": 4, "seq": 128}},
        {"bucket": {"batch": 128, "seq": 8}},
        {"bucket": {"batch": 8}},
        {"bucket": {}},
        {"options": {"level": "1"}},
        {"options": {}},
        {"options": {"level": "2", "more": ""}},
        {"fingerprint": Fingerprint({"jaxlib": "2", "machine": "x"})},
        {"fingerprint": Fingerprint({"jaxlib": "1"})},
        {"donated": (0,)},
    ],
)
def test_every_part_of_an_executable_counts(change):
    assert executable_ingredients(**PARTS | change) != executable_ingredients(**PARTS)


def test_a_dimension_an_option_and_a_fingerprint_ingredient_of_one_name_are_told_apart():
    nothing: dict[str, Any] = {"program": "p", "bucket": {}, "options": {}, "fingerprint": Fingerprint({})}
    changes: list[dict[str, Any]] = [
        {"bucket": {"x": 1}},
        {"options": {"x": "1"}},
        {"fingerprint": Fingerprint({"x": "1"})},
    ]
    keys = {digest_ingredients(executable_ingredients(**nothing | change)) for change in changes}
    assert len(keys) == 3


def test_an_executable_has_these_ingredients_and_a_key_of_64_hex_digits():
    ingredients = executable_ingredients(**PARTS)
    assert ingredients == {
        "program": "p" * 64,
        "bucket.batch": "8",
        "bucket.seq": "128",
        "option.level": "2",
        "fingerprint.jaxlib": "1",
        "fingerprint.machine": "x",
    }
    key = digest_ingredients(ingredients)
    assert (len(key), int(key, 16) > 0) == (64, True)


def test_which_arguments_are_donated_counts_and_their_order_does_not():
    def key(*donated):
        return digest_ingredients(executable_ingredients(**PARTS, donated=donated))

    assert executable_ingredients(**PARTS, donated=(2, 10))["donated"] == "2 10"
    assert key(10, 2) == key(2, 10)
    assert len({key(), key(0), key(1), key(0, 1), key(10), key(1, 0, 2)}) == 6


def test_a_key_of_before_stays_what_it_was():
    """Pinned: were it another one, everything that is stored would be compiled anew."""
    fingerprint = Fingerprint(
        {
            "format": "1",
            "jax": "0.12.0.1",
            "jaxlib": "0.12.0.1",
            "jaxlib_binary": "sha256=aQ_x sha256=b-9",
            "platform": "cpu",
            "platform_version": "cpu",
            "device_kind": "cpu",
            "device_count": "1",
            "machine": "x86_64",
            "xla_flags": "",
            "cpu_features": "avx avx2 fma sse4_2",
            "cpu_cores": "2",
        }
    )
    options = {"JAX_DEFAULT_MATMUL_PRECISION": "highest"}
    ingredients = executable_ingredients(
        program="5e" * 32, bucket={"batch": 8, "seq": 128}, fingerprint=fingerprint, options=options
    )
    assert fingerprint.digest == "e6d3b43ad9b3f110"
    assert digest_ingredients(ingredients) == "194bdb60a59e118e0e3005b3f287f439a21fc73ec55be0faa96423fccc7586bd"


def test_every_process_makes_the_same_key_whatever_its_hash_seed():
    code = f"from cache.ingredients import digest_ingredients as d; print(d({executable_ingredients(**PARTS)}))"
    keys = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout.strip()
        for seed in "12"
    }
    assert keys == {digest_ingredients(executable_ingredients(**PARTS))}


@given(sets)
def test_the_machine_that_a_key_was_made_for_is_among_its_ingredients(machine):
    ingredients = executable_ingredients(**PARTS | {"fingerprint": Fingerprint(machine)})
    assert made_for(ingredients) == machine
